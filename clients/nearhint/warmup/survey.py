"""Surveying: what the daemon makes of captured Programs, and what of it is tuned already.

A *goal* is one Kernel beside one Fallback in one bucket. It is met when the Kernel's Table has
that bucket, for that Fallback, at the tier that the effort asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nearhint._tuning import failure
from nearhint.connection import Connection
from nearhint.errors import LOST, NearhintError
from nearhint_proto import convert
from nearhint_proto.v1 import kernel_service_pb2, operation_service_pb2, table_service_pb2
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression, RulesError
from nearhint_rules.hints import bucket, bucket_tiers
from nearhint_rules.plan import Launch, Plan
from nearhint_rules.program import Program
from nearhint_rules.table import Table
from nearhint_rules.target import Device

TABLES_A_CALL = 64
POLL_S = 0.1
BUDGET_ENDED = "the budget ended"
"""How the reason begins where a Plan, or a goal, was not finished."""
TIERS: Mapping[str, int] = {"none": 1, "quick": 2, "full": 2, "max": 2}
"""The tier that an effort ends at."""

Sizes: TypeAlias = tuple[int, ...]
Wait: TypeAlias = Callable[[float], None]
"""Pauses for so many seconds."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A captured Program and its calls' sizes (in the order of its symbols), the most wanted first.

    `place` is the manifest's name of the device, `device` what it is. `threads` is how many
    threads its CPU kernels run with. Where `is_compiled_only`, nothing is to be measured.
    """

    model: str
    place: str
    program: Program
    device: Device
    threads: int
    sizes: tuple[Sizes, ...]
    effort: str
    is_compiled_only: bool = False

    @property
    def tier(self) -> int:
        """The tier that its Kernels are brought to; 0: compiled, and no more."""
        return 0 if self.is_compiled_only else TIERS[self.effort]


@dataclass(frozen=True, slots=True)
class Goal:
    """One bucket of one Kernel beside one Fallback, on one Target."""

    target: str
    kernel: str
    fallback: str
    bucket: Sizes


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A wish with the daemon's answer: its goals by sizes, or why there is no Plan."""

    wish: Wish
    program_id: str
    target: str
    goals: Mapping[Sizes, tuple[Goal, ...]]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Survey:
    """All wishes, and the Tables of their Kernels by (Target, Kernel)."""

    programs: tuple[Surveyed, ...]
    tables: Mapping[tuple[str, str], Table] = field(default_factory=dict[tuple[str, str], Table])

    def goals(self) -> dict[Goal, int]:
        """Every goal once, the most wanted first, with the tier that it is to reach."""
        found: dict[Goal, int] = {}
        depth = max((len(each.goals) for each in self.programs), default=0)
        for number in range(depth):
            for each in self.programs:
                for goal in list(each.goals.values())[number : number + 1]:
                    tier = each.wish.tier
                    found |= {one: max(tier, found.get(one, 0)) for one in goal}
        return found

    def met(self) -> frozenset[Goal]:
        """The goals that the Tables meet."""
        return frozenset(
            goal
            for goal, tier in self.goals().items()
            if is_met(self.tables.get((goal.target, goal.kernel)), goal, tier=tier)
        )


def is_met(table: Table | None, goal: Goal, *, tier: int) -> bool:
    """Whether a Table has the goal's bucket, beside its Fallback, at `tier` or above.

    Tier 0 is compiled and no more, of which a Table says nothing.
    """
    if table is None or not tier:
        return False
    return bucket_tiers(table).get((goal.fallback, goal.bucket), 0) >= tier


def survey(
    connection: Connection,
    wishes: Iterable[Wish],
    *,
    client_id: str,
    wait: Wait,
    is_late: Callable[[], bool] = lambda: False,
) -> Survey:
    """Registers each wish's Program, waits for its Plan, and reads the Tables that there are.

    No Plan is waited for once it `is_late`. Asks for no compilation and no measurement. Raises
    `DaemonUnreachable` or `DeadlineMissed`; any other refusal is the wish's `reason`.
    """
    programs = tuple(
        _look(connection, wish, client_id=client_id, wait=wait, is_late=is_late) for wish in wishes
    )
    goals = {goal for each in programs for some in each.goals.values() for goal in some}
    return Survey(programs, dict(tables_of(connection, goals)))


def tables_of(
    connection: Connection, goals: Iterable[Goal]
) -> Iterator[tuple[tuple[str, str], Table]]:
    """The Tables of the goals' Kernels, as far as there are any."""
    kernels: dict[str, set[str]] = {}
    for goal in goals:
        kernels.setdefault(goal.target, set()).add(goal.kernel)
    for target, wanted in sorted(kernels.items()):
        names = sorted(wanted)
        for start in range(0, len(names), TABLES_A_CALL):
            request = table_service_pb2.GetTablesRequest(
                target_id=target, kernels=names[start : start + TABLES_A_CALL]
            )
            for message in connection.get_tables(request).tables:
                table = convert.table_from_proto(message)
                yield (target, table.kernel), table


def _look(
    connection: Connection,
    wish: Wish,
    *,
    client_id: str,
    wait: Wait,
    is_late: Callable[[], bool],
) -> Surveyed:
    request = kernel_service_pb2.RegisterProgramRequest(
        program=convert.program_to_proto(wish.program),
        device=convert.device_to_proto(wish.device),
        client_id=client_id,
    )
    program_id = target = ""
    try:
        answer = connection.register_program(request)
        program_id, target = answer.program_id, answer.target_id
        if not answer.HasField("plan") and answer.HasField("operation"):
            operation = answer.operation
            while operation.state == operation_service_pb2.OPERATION_STATE_RUNNING:
                if is_late():
                    return Surveyed(wish, program_id, target, {}, f"{BUDGET_ENDED}: no Plan yet")
                wait(POLL_S)
                operation = connection.get_operation(operation.id)
            if operation.state != operation_service_pb2.OPERATION_STATE_DONE:
                return Surveyed(wish, program_id, target, {}, failure(operation))
            answer = connection.register_program(request)
        if not answer.HasField("plan"):
            return Surveyed(wish, program_id, target, {}, answer.reason or "no Plan")
        plan = convert.plan_from_proto(answer.plan)
    except LOST:
        raise
    except (NearhintError, RulesError) as error:
        return Surveyed(wish, program_id, target, {}, str(error))
    goals = {sizes: _goals(plan, wish.program, target, sizes) for sizes in wish.sizes}
    return Surveyed(wish, program_id, target, goals, answer.reason)


def _goals(plan: Plan, program: Program, target: str, sizes: Sequence[int]) -> tuple[Goal, ...]:
    named = dict(zip((symbol.name for symbol in program.symbols), sizes, strict=True))
    goals: dict[Goal, None] = {}
    for step in plan.steps:
        if not isinstance(step, Launch):
            continue
        try:
            dims = tuple(ex.evaluate(expr, named) for expr in step.dims)
        except InvalidExpression:
            continue  # outside the Kernel's grammar at these sizes: such a call runs its Fallback
        if all(dim >= 1 for dim in dims):
            goals[Goal(target, step.kernel, step.fallback, bucket(dims))] = None
    return tuple(goals)
