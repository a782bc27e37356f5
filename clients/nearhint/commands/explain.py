"""`nearhint explain`: why a Kernel runs what it runs, at sizes and in general."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from nearhint.cli_output import counted, print_json, table, talk, tell, when
from nearhint.commands.options import (
    address_option,
    connected,
    examples,
    exits,
    json_option,
)
from nearhint.commands.pins import pins_json, print_pins
from nearhint.commands.searches import print_searches, searches_json
from nearhint.commands.sizes import Sizes, dims_text, read_dims
from nearhint.commands.status import kernel_json
from nearhint.commands.traffic import (
    Traffic,
    bytes_at,
    copy_json,
    expr_json,
    print_traffic,
    rate_json,
    text_at,
)
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2, kernel_service_pb2
from nearhint_rules import expr as ex
from nearhint_rules.choice import REASONS
from nearhint_rules.guard import Aligned, AtMost, Divisible, Equals, Fact, Guard
from nearhint_rules.table import HintRow, Table, Timing

PROBE = "probe"
"""In place of a tier: sizes that calls have, at which nothing was searched."""


@click.command(
    epilog=examples("nearhint explain 3fa9", "nearhint explain 3fa9 --dims k0=4096,k1=384 --json")
)
@click.argument("kernel")
@click.option("--dims", help="Sizes to select at, by the Kernel's symbols: k0=128,k1=384.")
@address_option
@json_option
@exits
def explain(kernel: str, dims: str | None, address: str | None, as_json: bool) -> None:
    """Say why KERNEL (its identity, or the first digits of it) runs what it runs.

    Candidates with their times at each hint, and at each of the sizes that calls have often
    ("probe"), what is selected at --dims and from which hint, how far that is, the bytes read and
    written, the bandwidths reached at each hint beside that of a copy on the device, what was tried
    at each hint and what was left out, what was rejected and why, where the Kernel came from, its
    IR.

    The first rank is what serves at a hint. It may have been timed slower than others, by less than
    the noise: what led before, and the default, stay where they are not beaten beyond it.
    """
    sizes = read_dims(dims)
    request = admin_service_pb2.ExplainKernelRequest(kernel=kernel)
    if dims is not None:
        request.dims.CopyFrom(convert.size_hint_to_proto(sizes))
    with connected(address) as connection:
        answer = connection.explain_kernel(request)
    tables = [convert.table_from_proto(each) for each in answer.tables]
    if as_json:
        print_json(_as_json(answer, tables, sizes))
    else:
        _print(answer, tables, sizes)


# ------------------------------------------------------------------------------------ for people


def _print(
    answer: admin_service_pb2.ExplainKernelResponse,
    tables: Sequence[Table],
    sizes: Sizes,
) -> None:
    kernel = answer.kernel
    tell(f"kernel   {kernel.id}\ntitle    {kernel.title}")
    tell(f"symbols  {', '.join(kernel.symbols) or 'none'}")
    tell(f"used by  {counted(kernel.programs, 'program')}")
    if kernel.reason:
        tell(f"no variant: {kernel.reason}")
    traffic = Traffic.of(answer)
    tell(f"reads    {text_at(traffic.read, sizes)} bytes")
    tell(f"writes   {text_at(traffic.written, sizes)} bytes")
    for target, selection in answer.selections.items():
        where = dims_text(list(sizes), list(sizes.values()))
        tell(f"\nat {where} on target {target[:12]}:")
        for line in _selection_lines(selection, kernel.symbols):
            tell(f"  {line}")
    for each in tables:
        _print_table(each)
        print_traffic(each, traffic)
    if answer.measurements:
        table(
            [
                "measured",
                "what",
                "at",
                "median µs",
                "spread %",
                "samples #",
                "thrown away #",
                "conditions",
                "origin",
            ],
            [
                (
                    when(record.measured_at_s),
                    f"{record.kind} {record.subject[:12]}",
                    dims_text(kernel.symbols, record.dims),
                    _us(record.timing.median_ns),
                    f"{100 * record.timing.spread:.1f}",
                    str(record.timing.samples),
                    str(record.discarded),
                    record.conditions,
                    f"{record.origin} by {record.daemon_id[:12]}",
                )
                for record in answer.measurements
            ],
            title="measurements, the newest of each kind",
        )
    print_searches(answer.searches, kernel.symbols)
    for heading, lines in (("rejected", answer.rejected), ("came from", answer.provenance)):
        if lines:
            tell(f"\n{heading}:")
            for line in lines:
                tell(f"  {line}")
    if answer.ir:
        tell(f"\nIR:\n{answer.ir}")
    if not tables:
        talk("no Table yet: the original ops serve")


def _print_table(each: Table) -> None:
    rows = [
        *(line for row in each.hints for line in _candidates(each, row, tier=f"T{row.tier}")),
        *(line for row in each.probes for line in _candidates(each, row, tier=PROBE)),
    ]
    if each.pins:
        print_pins(each)
    table(
        [
            "hint",
            "tier",
            "rank #",
            "variant",
            "candidate",
            "guard",
            "median µs",
            "spread %",
            "over best %",
        ],
        rows,
        title=(
            f"target {each.target[:12]}, generation {each.generation}, "
            f"cut-off a factor of {each.cutoff}"
        ),
    )


def _candidates(each: Table, row: HintRow, *, tier: str) -> Iterator[tuple[object, ...]]:
    """A line for each that was timed at a hint, or at a probe."""
    best_ns = _best_ns(row)
    for rank, (position, timing) in enumerate(row.ranked):
        variant = each.variants[position]
        yield (
            _hint(each, row),
            tier,
            rank + 1,
            variant.id[:12],
            variant.schedule + (" (default)" if position == each.default else ""),
            guard_text(variant.guard),
            *_timing(timing, best_ns),
        )
    for fallback, timing in row.fallbacks:
        name = f"original ops {fallback[:12]}"
        yield _hint(each, row), tier, "", "", name, "", *_timing(timing, best_ns)


def _selection_lines(selection: kernel_service_pb2.Selection, symbols: Sequence[str]) -> list[str]:
    runs = (
        f"{selection.variant.schedule} (variant {selection.variant.id[:12]})"
        if selection.HasField("variant")
        else "the original ops"
    )
    lines = [f"runs {runs}, tier T{selection.tier}"]
    lines.append(f"because {REASONS.get(selection.reason, selection.reason)} [{selection.reason}]")
    if selection.hint:
        hint = dims_text(symbols, selection.hint)
        lines.append(f"hint {hint}, {selection.distance:.2f} away in log2")
    if selection.HasField("expected_regret"):
        lines.append(f"expected loss against the fastest {100 * selection.expected_regret:.1f} %")
    lines.append(f"table generation {selection.generation}")
    if selection.selector:
        lines.append(f"rule {selection.selector}")
    if selection.predictions:
        lines.append("predicted times:")
    for each in selection.predictions:
        name = f"variant {each.variant_id[:12]}" if each.variant_id else "original ops"
        error = f"error {100 * each.relative_error:.1f} %"
        lines.append(f"  {each.time_ns / 1000:.2f} µs  {name}, {error}")
    return lines


def guard_text(guard: Guard) -> str:
    """A Guard in words a reader knows: `k0 % 16 == 0 and k1 <= 1024`."""
    return " and ".join(map(_fact_text, guard.facts)) or "always"


def _fact_text(fact: Fact) -> str:
    match fact:
        case Divisible(expr, by):
            return f"{ex.to_formula(expr)} % {by} == 0"
        case AtMost(expr, bound):
            return f"{ex.to_formula(expr)} <= {bound}"
        case Equals(expr, value):
            return f"{ex.to_formula(expr)} == {value}"
        case Aligned(parameter, to_bytes):
            return f"argument {parameter} aligned to {to_bytes} bytes"


def _best_ns(row: HintRow) -> int:
    return min(timing.median_ns for _, timing in (*row.ranked, *row.fallbacks)) if row.ranked else 0


def _timing(timing: Timing, best_ns: int) -> tuple[str, str, str]:
    over = f"{100 * (timing.median_ns / best_ns - 1):.1f}" if best_ns else ""
    return _us(timing.median_ns), f"{100 * timing.spread:.1f}", over


def _hint(each: Table, row: HintRow) -> str:
    return dims_text(each.symbols, row.dims)


def _us(nanoseconds: int) -> str:
    return f"{nanoseconds / 1000:.2f}"


# ---------------------------------------------------------------------------------- for programs


def _as_json(
    answer: admin_service_pb2.ExplainKernelResponse,
    tables: Sequence[Table],
    sizes: Sizes,
) -> dict[str, object]:
    traffic = Traffic.of(answer)
    return {
        "kernel": kernel_json(answer.kernel),
        "dims": dict(sizes),
        "bytes_moved": expr_json(traffic.moved),
        "bytes_read": expr_json(traffic.read),
        "bytes_written": expr_json(traffic.written),
        "bytes_moved_at_dims": bytes_at(traffic.moved, sizes) if sizes else None,
        "bytes_read_at_dims": bytes_at(traffic.read, sizes) if sizes else None,
        "bytes_written_at_dims": bytes_at(traffic.written, sizes) if sizes else None,
        "selections": {
            target: {
                "variant": selection.variant.id or None,
                "schedule": selection.variant.schedule or None,
                "hint": list(selection.hint),
                "distance_log2": selection.distance,
                "expected_regret": (
                    selection.expected_regret if selection.HasField("expected_regret") else None
                ),
                "reason": selection.reason,
                "tier": selection.tier,
                "generation": selection.generation,
                "selector": selection.selector or None,
                "predictions": [
                    {
                        "variant": each.variant_id or None,
                        "time_ns": each.time_ns,
                        "relative_error": each.relative_error,
                    }
                    for each in selection.predictions
                ],
            }
            for target, selection in answer.selections.items()
        },
        "tables": [
            _table_json(each, traffic) | {"copy_bandwidth": copy_json(answer, traffic, each.target)}
            for each in tables
        ],
        "measurements": [
            {
                "kind": record.kind,
                "subject": record.subject,
                "dims": list(record.dims),
                **_timing_json(convert.timing_from_proto(record.timing)),
                "discarded": record.discarded,
                "conditions": record.conditions,
                "measured_at_s": record.measured_at_s,
                "daemon_id": record.daemon_id,
                "origin": record.origin,
            }
            for record in answer.measurements
        ],
        "searches": searches_json(answer.searches, answer.kernel.symbols),
        "rejected": list(answer.rejected),
        "provenance": list(answer.provenance),
        "ir": answer.ir,
    }


def _table_json(each: Table, traffic: Traffic) -> dict[str, object]:
    return {
        "target": each.target,
        "generation": each.generation,
        "cutoff": each.cutoff,
        "default": each.variants[each.default].id if each.default >= 0 else None,
        "reason": each.reason,
        "pins": pins_json(each),
        "hints": [_row_json(each, row, traffic) for row in each.hints],
        "probes": [_row_json(each, row, traffic) for row in each.probes],
    }


def _row_json(each: Table, row: HintRow, traffic: Traffic) -> dict[str, object]:
    sizes = dict(zip(each.symbols, row.dims, strict=True))
    return {
        "dims": sizes,
        "tier": row.tier,
        "bytes_read": bytes_at(traffic.read, sizes),
        "bytes_written": bytes_at(traffic.written, sizes),
        "ranked": [
            {
                "variant": each.variants[position].id,
                "schedule": each.variants[position].schedule,
                "guard": guard_text(each.variants[position].guard),
                "artifact": each.variants[position].artifact.sha256,
                **_timing_json(timing),
                **rate_json(traffic, each.target, sizes, timing),
            }
            for position, timing in row.ranked
        ],
        "fallbacks": [
            {
                "fallback": fallback,
                **_timing_json(timing),
                **rate_json(traffic, each.target, sizes, timing),
            }
            for fallback, timing in row.fallbacks
        ],
    }


def _timing_json(timing: Timing) -> dict[str, object]:
    return {
        "median_ns": timing.median_ns,
        "relative_spread": timing.spread,
        "samples": timing.samples,
    }
