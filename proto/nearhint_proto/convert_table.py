"""Tables, their parts, and Selections between domain and wire."""

from __future__ import annotations

import math
from collections.abc import Mapping

from nearhint_proto.convert_artifact import (
    KEY_ID_LIMIT,
    SIGNATURE_LIMIT,
    artifact_from_proto,
    artifact_to_proto,
    guard_from_proto,
    guard_to_proto,
)
from nearhint_proto.convert_expr import (
    ExprReader,
    check_count,
    check_identifier,
    check_range,
    check_sha256,
    check_size,
    check_text,
    printable,
)
from nearhint_proto.convert_program import SYMBOL_LIMIT
from nearhint_proto.v1 import kernel_service_pb2
from nearhint_proto.v1 import types_pb2 as pb
from nearhint_rules.choice import FALLBACK, Selection
from nearhint_rules.errors import InvalidMessage, InvalidTable
from nearhint_rules.selectors import rule_name
from nearhint_rules.table import (
    PIN_LIMIT,
    PROBE_LIMIT,
    ROW_LIMIT,
    HintRow,
    Pin,
    Table,
    Timing,
    Variant,
    check,
)

VARIANT_LIMIT = 256
FALLBACK_LIMIT = 4096
SCHEDULE_LIMIT = 4096
REASON_LIMIT = 1024
NAMESPACE_LIMIT = 256
SELECTOR_LIMIT = 64
GENERATION_LIMIT = 2**63 - 1
TIER_LIMIT = 3


def size_hint_to_proto(sizes: Mapping[str, int]) -> pb.SizeHint:
    """The message of sizes by symbol."""
    return pb.SizeHint(dims=[pb.Dim(symbol=symbol, value=value) for symbol, value in sizes.items()])


def size_hint_from_proto(message: pb.SizeHint, *, field: str = "sizes") -> dict[str, int]:
    """Sizes by symbol, each named once; raises `InvalidMessage`."""
    check_count(message.dims, SYMBOL_LIMIT, f"{field}.dims")
    sizes: dict[str, int] = {}
    for position, dim in enumerate(message.dims):
        place = f"{field}.dims[{position}]"
        symbol = check_identifier(dim.symbol, f"{place}.symbol")
        if symbol in sizes:
            raise InvalidMessage(f"{place}.symbol", "given twice")
        sizes[symbol] = check_size(dim.value, f"{place}.value")
    return sizes


def timing_to_proto(timing: Timing) -> pb.Timing:
    """The message of a timing."""
    return pb.Timing(
        median_ns=timing.median_ns,
        spread=timing.spread,
        samples=timing.samples,
        disturbed=timing.disturbed,
    )


def timing_from_proto(message: pb.Timing, *, field: str = "timing") -> Timing:
    """The timing; raises `InvalidMessage`."""
    if not math.isfinite(message.spread) or message.spread < 0:
        raise InvalidMessage(f"{field}.spread", f"{message.spread} is no relative spread")
    return Timing(
        median_ns=check_range(message.median_ns, 1, GENERATION_LIMIT, f"{field}.median_ns"),
        spread=message.spread,
        samples=message.samples,
        disturbed=message.disturbed,
    )


def variant_to_proto(variant: Variant) -> pb.Variant:
    """The message of a Variant."""
    return pb.Variant(
        id=variant.id,
        schedule=variant.schedule,
        guard=guard_to_proto(variant.guard),
        artifact=artifact_to_proto(variant.artifact),
    )


def variant_from_proto(
    message: pb.Variant, *, reader: ExprReader | None = None, field: str = "variant"
) -> Variant:
    """The Variant; raises `InvalidMessage`."""
    reader = reader or ExprReader()
    return Variant(
        id=check_sha256(message.id, f"{field}.id"),
        schedule=check_text(message.schedule, SCHEDULE_LIMIT, f"{field}.schedule"),
        guard=guard_from_proto(message.guard, reader=reader, field=f"{field}.guard"),
        artifact=artifact_from_proto(message.artifact, reader=reader, field=f"{field}.artifact"),
    )


def hint_row_to_proto(row: HintRow) -> pb.HintRow:
    """The message of one hint."""
    return pb.HintRow(
        dims=row.dims,
        ranked=[
            pb.Ranked(variant=position, timing=timing_to_proto(timing))
            for position, timing in row.ranked
        ],
        fallbacks=[
            pb.FallbackTiming(fallback=fallback, timing=timing_to_proto(timing))
            for fallback, timing in row.fallbacks
        ],
        tier=row.tier,
    )


def hint_row_from_proto(message: pb.HintRow, *, field: str = "hint") -> HintRow:
    """The hint; raises `InvalidMessage`."""
    check_count(message.dims, SYMBOL_LIMIT, f"{field}.dims")
    check_count(message.ranked, VARIANT_LIMIT, f"{field}.ranked")
    check_count(message.fallbacks, FALLBACK_LIMIT, f"{field}.fallbacks")
    return HintRow(
        dims=tuple(
            check_size(dim, f"{field}.dims[{position}]")
            for position, dim in enumerate(message.dims)
        ),
        ranked=tuple(
            (
                ranked.variant,
                timing_from_proto(ranked.timing, field=f"{field}.ranked[{position}].timing"),
            )
            for position, ranked in enumerate(message.ranked)
        ),
        fallbacks=tuple(
            (
                check_sha256(timed.fallback, f"{field}.fallbacks[{position}].fallback"),
                timing_from_proto(timed.timing, field=f"{field}.fallbacks[{position}].timing"),
            )
            for position, timed in enumerate(message.fallbacks)
        ),
        tier=check_range(message.tier, 1, TIER_LIMIT, f"{field}.tier"),
    )


def pin_to_proto(pin: Pin) -> pb.Pin:
    """The message of a pin."""
    return pb.Pin(dims=pin.dims, variant=pin.variant)


def pin_from_proto(message: pb.Pin, *, field: str = "pin") -> Pin:
    """The pin; raises `InvalidMessage`."""
    check_count(message.dims, SYMBOL_LIMIT, f"{field}.dims")
    return Pin(
        dims=tuple(
            check_size(dim, f"{field}.dims[{position}]")
            for position, dim in enumerate(message.dims)
        ),
        variant=check_sha256(message.variant, f"{field}.variant") if message.variant else "",
    )


def table_to_proto(table: Table) -> pb.Table:
    """The message of a Table."""
    return pb.Table(
        kernel=table.kernel,
        target=table.target,
        symbols=table.symbols,
        variants=map(variant_to_proto, table.variants),
        default_variant=None if table.default < 0 else table.default,
        hints=map(hint_row_to_proto, table.hints),
        generation=table.generation,
        cutoff=table.cutoff,
        reason=printable(table.reason, REASON_LIMIT),
        namespace=table.namespace,
        signature=table.signature,
        key_id=table.key_id,
        pins=map(pin_to_proto, table.pins),
        selector=table.selector,
        probes=map(hint_row_to_proto, table.probes),
    )


def table_from_proto(message: pb.Table) -> Table:
    """The Table, checked; raises `InvalidTable`."""
    try:
        check_count(message.symbols, SYMBOL_LIMIT, "symbols")
        check_count(message.variants, VARIANT_LIMIT, "variants")
        check_count(message.hints, ROW_LIMIT, "hints")
        check_count(message.pins, PIN_LIMIT, "pins")
        check_count(message.probes, PROBE_LIMIT, "probes")
        check_count(message.signature, SIGNATURE_LIMIT, "signature")
        reader = ExprReader()
        table = Table(
            kernel=check_sha256(message.kernel, "kernel"),
            target=check_sha256(message.target, "target"),
            symbols=tuple(
                check_identifier(name, f"symbols[{position}]")
                for position, name in enumerate(message.symbols)
            ),
            variants=tuple(
                variant_from_proto(variant, reader=reader, field=f"variants[{position}]")
                for position, variant in enumerate(message.variants)
            ),
            default=message.default_variant if message.HasField("default_variant") else -1,
            hints=tuple(
                hint_row_from_proto(row, field=f"hints[{position}]")
                for position, row in enumerate(message.hints)
            ),
            generation=check_range(message.generation, 0, GENERATION_LIMIT, "generation"),
            cutoff=message.cutoff,
            reason=check_text(message.reason, REASON_LIMIT, "reason"),
            namespace=check_text(message.namespace, NAMESPACE_LIMIT, "namespace"),
            signature=message.signature,
            key_id=check_text(message.key_id, KEY_ID_LIMIT, "key_id"),
            pins=tuple(
                pin_from_proto(pin, field=f"pins[{position}]")
                for position, pin in enumerate(message.pins)
            ),
            selector=check_text(message.selector, SELECTOR_LIMIT, "selector"),
            probes=tuple(
                hint_row_from_proto(row, field=f"probes[{position}]")
                for position, row in enumerate(message.probes)
            ),
        )
        check(table)
    except InvalidMessage as problem:
        raise InvalidTable(problem.field, problem.problem) from None
    return table


def selection_to_proto(selection: Selection, table: Table | None) -> kernel_service_pb2.Selection:
    """The message of a Selection, which carries the Variant itself; `table` is its Table."""
    served = None
    if table is not None and selection.variant != FALLBACK:
        served = variant_to_proto(table.variants[selection.variant])
    return kernel_service_pb2.Selection(
        variant=served,
        hint=selection.hint,
        distance=selection.distance,
        expected_regret=selection.expected_regret,
        reason=selection.reason,
        generation=selection.generation,
        tier=selection.tier,
        selector="" if table is None else rule_name(table),
    )


def selection_from_proto(
    message: kernel_service_pb2.Selection, *, field: str = "selection"
) -> tuple[Selection, Variant | None]:
    """The Selection and its Variant; raises `InvalidMessage`.

    The message names no position, so `variant` is 0 for a Variant and -1 for the Fallback.
    """
    variant = None
    if message.HasField("variant"):
        variant = variant_from_proto(message.variant, field=f"{field}.variant")
    check_count(message.hint, SYMBOL_LIMIT, f"{field}.hint")
    return (
        Selection(
            variant=FALLBACK if variant is None else 0,
            hint=tuple(
                check_size(dim, f"{field}.hint[{position}]")
                for position, dim in enumerate(message.hint)
            ),
            distance=message.distance,
            expected_regret=(
                message.expected_regret if message.HasField("expected_regret") else None
            ),
            reason=check_text(message.reason, REASON_LIMIT, f"{field}.reason"),
            generation=check_range(message.generation, 0, GENERATION_LIMIT, f"{field}.generation"),
            tier=check_range(message.tier, 0, TIER_LIMIT, f"{field}.tier"),
        ),
        variant,
    )
