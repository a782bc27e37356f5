"""Guards of CUDA kernels: when 32 bits are enough for indices, and what was promised to Triton."""

from __future__ import annotations

from collections.abc import Mapping

from nearhint_compiler.analysis.index_width import INDEX_LIMIT, index_bounds
from nearhint_compiler.analysis.multiples import size_multiple
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.guard import Aligned, AtMost, Divisible, Fact

POINTER_BYTES = 16


def promised_facts(
    kernel: ir.Kernel, *, aligned: bool, divisible: int, multiple: int = 0
) -> tuple[tuple[Fact, ...], Mapping[int, int]]:
    """The Guards behind `aligned` and `divisible`, and by the positions of the arguments that they
    cover, of what those are multiples.

    `divisible` has a bit for each symbol, which is a multiple of `multiple`. Raises
    `InvalidSchedule` for a symbol that is not there.
    """
    if not 0 <= divisible < 1 << len(kernel.symbols):
        raise InvalidSchedule(f"divisible={divisible} of {len(kernel.symbols)} symbols")
    facts: list[Fact] = []
    positions: dict[int, int] = {}
    multiple = multiple or size_multiple(kernel)
    for place, param in enumerate(kernel.params):
        if aligned and param.role != "scalar":
            facts.append(Aligned(place, POINTER_BYTES))
            positions[place] = POINTER_BYTES
    for number, name in enumerate(kernel.symbols):
        if divisible >> number & 1:
            facts.append(Divisible(ex.symbol(name), multiple))
            positions[len(kernel.params) + number] = multiple
    return tuple(facts), positions


def index_facts(kernel: ir.Kernel) -> tuple[Fact, ...]:
    """The Guards of 32-bit indices; raises `InvalidSchedule` if they can never hold."""
    bounds = index_bounds(kernel)
    if bounds is None:
        raise InvalidSchedule("a static index needs 64 bits")
    return tuple(AtMost(bound, INDEX_LIMIT) for bound in bounds)
