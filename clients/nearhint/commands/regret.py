"""`nearhint regret`: what selection loses at sizes that were never measured, rule by rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import click

from nearhint._tuning import first_error
from nearhint.cli_output import counted, print_json, progress, table, talk
from nearhint.commands.options import address_option, connected, examples, exits, json_option
from nearhint.commands.sizes import read_dims, sizes_text
from nearhint.connection import Connection
from nearhint.errors import DeadlineMissed, InvalidAnswer, InvalidSetting, Rejected
from nearhint.exit_codes import ExitCode
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2 as pb
from nearhint_proto.v1 import operation_service_pb2
from nearhint_rules.regret import DEFAULT, ORIGINAL, Summary, summarise

PAGE = 1000
WORST = 10
CLIENT = "nearhint regret"
NOTHING_TO_CHOOSE = "NO_VARIANT"

Record = pb.RegretRecord


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure of each Kernel, and which rules to show (none: all)."""

    sizes: int
    at: tuple[Mapping[str, int], ...]
    seed: int
    selectors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """One Table: the points planned, and what the rules lose at those that were measured."""

    kernel: str
    symbols: tuple[str, ...]
    plan: pb.RegretPlan
    records: tuple[Record, ...]

    @property
    def missing(self) -> int:
        """Points that no rule was judged at."""
        return len(self.plan.points) - len({tuple(record.dims) for record in self.records})


@click.command(
    epilog=examples(
        "nearhint regret",
        "nearhint regret 3fa9 --sizes 200 --seed 7 --json",
        "nearhint regret 3fa9 --at k0=4095,k1=384 --selector nearest",
    )
)
@click.argument("kernels", metavar="[KERNEL]...", nargs=-1)
@click.option(
    "--sizes",
    type=click.IntRange(min=1, max=1024),
    help="How many sizes between the hints to draw for each Kernel; 32 where not given.",
)
@click.option(
    "--at", multiple=True, help="Sizes instead, by the Kernel's symbols: k0=100,k1=384; repeatable."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**63 - 1),
    default=0,
    show_default=True,
    help="Of the draw: the same Tables and seed give the same sizes.",
)
@click.option(
    "--selector", "selectors", multiple=True, help="Show this rule alone; repeatable. Else all."
)
@address_option
@json_option
@exits
def regret(
    kernels: tuple[str, ...],
    sizes: int | None,
    at: tuple[str, ...],
    seed: int,
    selectors: tuple[str, ...],
    address: str | None,
    as_json: bool,
) -> ExitCode:
    """Measure what selection loses at sizes that are no hints of KERNEL (none given: of all).

    At each size the daemon times every Variant that may run there and the original ops, together,
    behind all tuning and as the device's policy allows; each rule is held against the fastest.
    What is known for a Table is not measured again. Exit code 7 if some sizes failed.
    """
    if at and (sizes is not None or len(kernels) != 1):
        raise InvalidSetting(
            name="--at", expected="with one KERNEL and without --sizes", value=", ".join(at)
        )
    points = (read_dims(text, option="--at") for text in at)
    different = tuple({frozenset(point.items()): point for point in points}.values())
    options = Options(sizes or 0, different, seed, selectors)
    judged: list[Judged] = []
    with connected(address) as connection:
        for kernel in kernels:
            judged += _judge(connection, kernel, options)
        if not kernels:
            for kernel in _tuned(connection):
                judged += _judge_if_possible(connection, kernel, options)
    judged = list({(each.kernel, each.plan.target_id): each for each in judged}.values())
    if as_json:
        print_json(_as_json(judged, options))
    else:
        _print(judged, options)
    missing = sum(each.missing for each in judged)
    if not missing:
        return ExitCode.OK
    talk(f"nearhint: not measured: {counted(missing, 'size')}")
    return ExitCode.PARTIAL if any(each.records for each in judged) else ExitCode.FAILED


def _tuned(connection: Connection) -> list[str]:
    """The Kernels that have sizes between hints."""
    found: list[str] = []
    token = ""
    while True:
        page = connection.list_kernels(pb.ListKernelsRequest(page_size=PAGE, page_token=token))
        found += [each.id for each in page.kernels if each.hints and each.symbols]
        token = page.next_page_token
        if not token or not page.kernels:
            return found


def _judge_if_possible(connection: Connection, kernel: str, options: Options) -> list[Judged]:
    try:
        return _judge(connection, kernel, options)
    except Rejected as error:
        if error.fields.get("reason_code") != NOTHING_TO_CHOOSE:
            raise
        talk(f"{kernel[:12]}: {error.fields.get('problem')}")
        return []


def _judge(connection: Connection, kernel: str, options: Options) -> list[Judged]:
    request = pb.MeasureRegretRequest(
        kernel=kernel,
        sizes=options.sizes,
        at=map(convert.size_hint_to_proto, options.at),
        seed=options.seed,
        selectors=options.selectors,
        client_id=CLIENT,
    )
    answer = connection.measure_regret(request)
    _warn(connection, answer)
    operation = _watched(connection, answer.operation, answer.kernel)
    if operation.failed:
        why = first_error(operation)
        talk(
            f"{answer.kernel[:12]}: {counted(operation.failed, 'size')} failed"
            + (why and f": {why}")
        )
    return [_read(connection, answer.kernel, plan, options) for plan in answer.plans]


def _warn(connection: Connection, answer: pb.MeasureRegretResponse) -> None:
    """Says what would otherwise look like a daemon that hangs."""
    targets = {plan.target_id for plan in answer.plans if plan.points}
    if not targets:
        talk(f"{answer.kernel[:12]}: no sizes but its hints")
    for device in connection.get_status().devices if targets else ():
        if device.target_id in targets and device.policy == pb.DEVICE_POLICY_NEVER:
            talk(f"the policy of {device.name} is never: this waits until it may be measured on")


def _watched(
    connection: Connection, operation: operation_service_pb2.Operation, kernel: str
) -> operation_service_pb2.Operation:
    """Waits for an operation's end, and shows how far it is."""
    name, last = operation.id, operation
    with progress(kernel[:12]) as advance:
        while last.state == operation_service_pb2.OPERATION_STATE_RUNNING:
            try:
                for last in connection.watch_operation(name):
                    advance(last.done, last.total)
            except DeadlineMissed:
                continue
            except KeyboardInterrupt:
                connection.cancel_operation(name)
                raise
            break
    return last


def _read(connection: Connection, kernel: str, plan: pb.RegretPlan, options: Options) -> Judged:
    request = pb.GetRegretRequest(
        kernel=kernel,
        target_id=plan.target_id,
        selectors=options.selectors,
        page_size=PAGE,
    )
    planned = {tuple(point.dims) for point in plan.points}
    records: dict[tuple[object, ...], Record] = {}
    while True:
        page = connection.get_regret(request)
        for record in page.records:
            _check(record)
            # Of a Table that was left far behind before its turn came the newest is judged.
            if tuple(record.dims) in planned and record.generation >= plan.generation:
                records[(*record.dims, record.selector)] = record
        request.page_token = page.next_page_token
        if not request.page_token or not page.records:
            return Judged(kernel, tuple(page.symbols), plan, tuple(records.values()))


def _check(record: Record) -> None:
    """Raises `InvalidAnswer` for what no contest comes to: nothing is faster than the fastest."""
    for name in ("regret", "noise"):
        value = getattr(record, name)
        if not 0.0 <= value < math.inf:
            raise InvalidAnswer(what="GetRegret", problem=f"a {name} of {value}")


# ------------------------------------------------------------------------------------- the figures


def _by_rule(records: Sequence[Record]) -> Iterator[tuple[str, Summary, Sequence[Record]]]:
    rules: dict[str, list[Record]] = {}
    for record in records:
        rules.setdefault(record.selector, []).append(record)
    for name, some in rules.items():
        yield name, summarise([record.regret for record in some]), some


def _slower(records: Sequence[Record], than: str) -> int:
    return sum(than in record.slower_than for record in records)


def _worst(judged: Sequence[Judged], options: Options) -> list[tuple[Judged, Record]]:
    """The sizes that lose most, under the rules that were asked for, or that serve."""
    losing = [
        (each, record)
        for each in judged
        for record in each.records
        if record.regret > 0 and record.selector in (options.selectors or (each.plan.selector,))
    ]
    return sorted(losing, key=lambda pair: -pair[1].regret)[:WORST]


def _print(judged: Sequence[Judged], options: Options) -> None:
    serving = {each.plan.selector for each in judged}
    records = [record for each in judged for record in each.records]
    table(
        [
            "rule",
            "sizes #",
            "of the fastest %",
            "mean regret %",
            "p95 %",
            "worst %",
            "beyond noise #",
            "slower than default #",
            "than original ops #",
        ],
        [
            (
                name + (" (serves)" if name in serving else ""),
                summary.sizes,
                _percent(summary.efficiency),
                _percent(summary.mean),
                _percent(summary.p95),
                _percent(summary.worst),
                _losing(some),
                _slower(some, DEFAULT),
                _slower(some, ORIGINAL),
            )
            for name, summary, some in _by_rule(records)
        ],
        title=counted(len(judged), "table"),
    )
    table(
        ["kernel", "at", "rule", "served", "best", "served µs", "best µs", "regret %", "noise %"],
        [
            (
                each.kernel[:12],
                sizes_text(_sizes(each, record)),
                record.selector,
                _name(record.served, record.served_schedule),
                _name(record.best, record.best_schedule),
                f"{record.served_ns / 1000:.2f}",
                f"{record.best_ns / 1000:.2f}",
                _percent(record.regret),
                _percent(record.noise),
            )
            for each, record in _worst(judged, options)
        ],
        title="the sizes that lose most",
    )


def _losing(records: Sequence[Record]) -> int:
    """Sizes where the fastest gains more than noise on what was served."""
    return sum(
        record.served_ns - record.best_ns > record.noise * record.served_ns for record in records
    )


def _sizes(judged: Judged, record: Record) -> dict[str, int]:
    return dict(zip(judged.symbols, record.dims, strict=False))


def _name(variant: str, schedule: str) -> str:
    return (schedule or variant[:12]) if variant else "original ops"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


# ---------------------------------------------------------------------------------- for programs


def _as_json(judged: Sequence[Judged], options: Options) -> dict[str, object]:
    return {
        "seed": options.seed,
        "rules": _rules_json([record for each in judged for record in each.records]),
        "worst": [
            {"kernel": each.kernel, **_record_json(each, record)}
            for each, record in _worst(judged, options)
        ],
        "tables": [
            {
                "kernel": each.kernel,
                "target": each.plan.target_id,
                "generation": each.plan.generation,
                "selector": each.plan.selector,
                "sizes": len(each.plan.points),
                "not_measured": each.missing,
                "rules": _rules_json(each.records),
                "records": [_record_json(each, record) for record in each.records],
            }
            for each in judged
        ],
    }


def _rules_json(records: Sequence[Record]) -> list[dict[str, object]]:
    return [
        {
            "selector": name,
            "sizes": summary.sizes,
            "efficiency_geometric_mean": summary.efficiency,
            "regret_mean": summary.mean,
            "regret_p95": summary.p95,
            "regret_worst": summary.worst,
            "beyond_noise": _losing(some),
            "slower_than_default": _slower(some, DEFAULT),
            "slower_than_original": _slower(some, ORIGINAL),
        }
        for name, summary, some in _by_rule(records)
    ]


def _record_json(judged: Judged, record: Record) -> dict[str, object]:
    return {
        "dims": _sizes(judged, record),
        "selector": record.selector,
        "served": record.served or None,
        "served_schedule": record.served_schedule or None,
        "served_ns": record.served_ns,
        "best": record.best or None,
        "best_schedule": record.best_schedule or None,
        "best_ns": record.best_ns,
        "regret": record.regret,
        "noise": record.noise,
        "slower_than": list(record.slower_than),
        "generation": record.generation,
        "measured_at_s": record.measured_at_s,
        "daemon_id": record.daemon_id,
    }
