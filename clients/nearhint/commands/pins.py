"""A Table's pins, for people and for programs."""

from __future__ import annotations

from nearhint.cli_output import table
from nearhint.commands.sizes import Sizes, sizes_text
from nearhint_rules.table import Pin, Table


def print_pins(each: Table) -> None:
    """A Table's pins."""
    schedules = {variant.id: variant.schedule for variant in each.variants}
    table(
        ["pinned at", "runs", "variant"],
        [
            (
                sizes_text(_dims(each, pin)) or "all sizes",
                schedules.get(pin.variant, "the original ops"),
                pin.variant[:12],
            )
            for pin in each.pins
        ],
        title=f"target {each.target[:12]}, generation {each.generation}, pins",
    )


def pins_json(each: Table) -> list[dict[str, object]]:
    """A Table's pins as JSON; `dims` is null where one holds everywhere."""
    schedules = {variant.id: variant.schedule for variant in each.variants}
    return [
        {
            "dims": _dims(each, pin) or None,
            "variant": pin.variant or None,
            "schedule": schedules.get(pin.variant),
        }
        for pin in each.pins
    ]


def _dims(each: Table, pin: Pin) -> Sizes:
    """Where a pin holds, by symbol; empty where it holds everywhere."""
    return dict(zip(each.symbols, pin.dims, strict=True)) if pin.dims else {}
