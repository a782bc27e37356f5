"""The report of a warm-up: data, made of what the daemon says about each Kernel.

Everything is plain frozen data with `as_json`; `page` draws it, the command line prints it.
Times are nanoseconds, bandwidths bytes a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from nearhint.commands.traffic import Traffic, bytes_at
from nearhint.warmup.asking import Outcome
from nearhint.warmup.survey import BUDGET_ENDED, Goal
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2
from nearhint_rules.choice import FALLBACK, REASONS
from nearhint_rules.selectors import select
from nearhint_rules.table import HintRow, Table

ORIGINAL = "original ops"


@dataclass(frozen=True, slots=True)
class Gain:
    """What one point gained: ms of the original and of what serves now, launches by tier.

    Times of 0 ms: it was not timed. `problem` says why, or why launches are at T0.
    """

    model: str
    device: str
    sizes: Mapping[str, int]
    original_ms: float = 0.0
    nearhint_ms: float = 0.0
    tiers: tuple[int, int, int] = (0, 0, 0)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class HintReport:
    """One Kernel at one hint: the times of the original ops (eager), of T1 and of T2.

    None: not measured. `share` is of the device's copy bandwidth, for what was selected; more than
    1 means that a cache served.
    """

    sizes: Mapping[str, int]
    tier: int
    bytes_moved: int | None
    eager_ns: int | None
    t1_ns: int | None
    t2_ns: int | None
    eager_share: float | None
    share: float | None
    selected: str
    reason: str
    why: str


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One Kernel on one Target, beside one Fallback; `problems` say which buckets failed and why.

    `rejected` are candidates that failed to compile or to verify, each with its reason.
    """

    id: str
    title: str
    target: str
    fallback: str
    copy_bytes_per_s: float | None
    hints: tuple[HintReport, ...]
    problems: tuple[str, ...]
    rejected: tuple[str, ...]
    provenance: tuple[str, ...]

    @property
    def tier(self) -> int:
        """The least tier of its hints; 0 without any."""
        return min((hint.tier for hint in self.hints), default=0)


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model on one device: how many points, Programs and Kernels it has, or why it failed.

    `failed` are the points that it could not be called at, each with its reason.
    """

    name: str
    source: str
    device: str
    effort: str
    labels: Mapping[str, str]
    points: int = 0
    programs: int = 0
    kernels: int = 0
    problem: str = ""
    failed: tuple[str, ...] = ()

    @property
    def labels_text(self) -> str:
        """The labels for people, `team=search, rank=1`."""
        return ", ".join(f"{key}={value}" for key, value in self.labels.items())

    def problems(self) -> Iterator[str]:
        """Lines for people: what is wrong with it, and at which of its points."""
        lines = ((f": {self.problem}",) if self.problem else ()) + tuple(
            f" at {each}" for each in self.failed
        )
        for line in lines:
            yield f"model {self.name} on {self.device}{line}"


@dataclass(frozen=True, slots=True)
class Report:
    """All of a warm-up. `settled`: the budget left nothing to be measured."""

    source: str
    created_at: str
    versions: Mapping[str, str]
    devices: tuple[Mapping[str, str], ...]
    models: tuple[ModelReport, ...]
    kernels: tuple[KernelReport, ...]
    points: tuple[Gain, ...]
    settled: bool
    at_t2: tuple[str, ...] = ()
    at_t0: Mapping[str, str] = field(default_factory=dict[str, str])
    pending: tuple[str, ...] = ()

    @property
    def in_part(self) -> frozenset[str]:
        """Of the Kernels in `at_t0` those that were measured at some hint: it serves near by."""
        return frozenset(each.id for each in self.kernels if each.hints and each.id in self.at_t0)

    @property
    def is_whole(self) -> bool:
        """Whether nothing failed and nothing is left."""
        return (
            self.settled
            and not self.at_t0
            and not any(model.problem for model in self.models)
            and not any(gain.problem or gain.tiers[0] for gain in self.points)
            and not any(kernel.problems for kernel in self.kernels)
        )

    def as_json(self) -> dict[str, object]:
        """The report as JSON data."""
        content = asdict(self)
        for gain in content["points"]:
            gain["tiers"] = dict(zip(("T0", "T1", "T2"), gain["tiers"], strict=True))
        return content


def standing(outcome: Outcome) -> tuple[tuple[str, ...], dict[str, str], tuple[str, ...]]:
    """Kernels at their tier, those that stay at T0 and why, and those the budget left; by id."""
    pending = {
        goal.kernel for goal, why in outcome.problems.items() if why.startswith(BUDGET_ENDED)
    }
    at_t0 = {
        goal.kernel: why for goal, why in outcome.problems.items() if goal.kernel not in pending
    }
    done = {goal.kernel for goal in outcome.met}
    return (
        tuple(sorted(done - pending - at_t0.keys())),
        dict(sorted(at_t0.items())),
        tuple(sorted(pending)),
    )


def kernel_reports(
    outcome: Outcome,
    explained: Mapping[str, admin_service_pb2.ExplainKernelResponse],
) -> tuple[KernelReport, ...]:
    """One report a (Target, Kernel, Fallback) of the outcome, in the order of its goals."""
    by_site: dict[tuple[str, str, str], list[Goal]] = {}
    for goal in outcome.survey.goals():
        by_site.setdefault((goal.target, goal.kernel, goal.fallback), []).append(goal)
    return tuple(
        _kernel_report(site, goals, outcome, explained.get(site[1]))
        for site, goals in by_site.items()
    )


def _kernel_report(
    site: tuple[str, str, str],
    goals: Sequence[Goal],
    outcome: Outcome,
    answer: admin_service_pb2.ExplainKernelResponse | None,
) -> KernelReport:
    target, kernel, fallback = site
    table = outcome.survey.tables.get((target, kernel))
    traffic = None if answer is None else Traffic.of(answer)
    rows = [] if table is None else _rows(table, fallback)
    return KernelReport(
        id=kernel,
        title="" if answer is None else answer.kernel.title,
        target=target,
        fallback=fallback,
        copy_bytes_per_s=None if traffic is None else traffic.copy_bytes_per_s.get(target),
        hints=tuple(
            _hint_report(table, row, fallback, traffic) for row in rows if table is not None
        ),
        problems=_problems(goals, outcome),
        rejected=() if answer is None else tuple(answer.rejected),
        provenance=() if answer is None else tuple(answer.provenance),
    )


def _problems(goals: Sequence[Goal], outcome: Outcome) -> tuple[str, ...]:
    """Why buckets were not reached, each reason once, behind its buckets."""
    buckets: dict[str, list[str]] = {}
    for goal in goals:
        if goal in outcome.problems:
            text = "x".join(map(str, goal.bucket)) or "no sizes"
            buckets.setdefault(outcome.problems[goal], []).append(text)
    return tuple(f"{', '.join(some)}: {why}" for why, some in buckets.items())


def _rows(table: Table, fallback: str) -> list[HintRow]:
    """The hints where this Fallback was measured, small to large."""
    rows = [row for row in table.hints if any(name == fallback for name, _ in row.fallbacks)]
    return sorted(rows, key=lambda row: row.dims)


def _hint_report(table: Table, row: HintRow, fallback: str, traffic: Traffic | None) -> HintReport:
    sizes = dict(zip(table.symbols, row.dims, strict=True))
    selection = select(table, row.dims, fallback=fallback)
    eager = dict(row.fallbacks)[fallback]
    default = dict(row.ranked).get(table.default)
    first = row.ranked[0][1] if row.ranked and row.tier > 1 else None
    served = eager if selection.variant == FALLBACK else dict(row.ranked).get(selection.variant)

    def share(timing_ns: int | None) -> float | None:
        moved = None if traffic is None else bytes_at(traffic.moved, sizes)
        copied = None if traffic is None else traffic.copy_bytes_per_s.get(table.target)
        if not moved or not copied or not timing_ns:
            return None
        return moved * 1e9 / timing_ns / copied

    return HintReport(
        sizes=sizes,
        tier=row.tier,
        bytes_moved=None if traffic is None else bytes_at(traffic.moved, sizes),
        eager_ns=eager.median_ns,
        t1_ns=None if default is None else default.median_ns,
        t2_ns=None if first is None else first.median_ns,
        eager_share=share(eager.median_ns),
        share=None if served is None else share(served.median_ns),
        selected=(
            ORIGINAL
            if selection.variant == FALLBACK
            else table.variants[selection.variant].schedule
        ),
        reason=selection.reason,
        why=REASONS.get(selection.reason, selection.reason),
    )


def device_facts(
    devices: Iterable[admin_service_pb2.DeviceStatus],
) -> tuple[Mapping[str, str], ...]:
    """The daemon's devices by name, each with every fact of its Target's device half."""
    found: list[Mapping[str, str]] = []
    for status in devices:
        facts = {"name": status.name, "target": status.target_id, "problem": status.problem}
        if status.device.WhichOneof("kind"):
            half = convert.device_from_proto(status.device)
            facts |= {name: _text(value) for name, value in asdict(half).items()}
        found.append(facts)
    return tuple(found)


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
