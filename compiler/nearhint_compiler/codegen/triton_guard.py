"""Guards of CUDA kernels: when 32 bits are enough for indices, and what was promised to Triton."""

from __future__ import annotations

from nearhint_compiler.codegen.triton_text import variable_ranges
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.guard import Aligned, AtMost, Divisible, Fact

POINTER_BYTES = 16
SIZE_MULTIPLE = 16
INDEX_LIMIT = 2**31 - 1


def promised_facts(
    kernel: ir.Kernel, *, aligned: bool, divisible: int
) -> tuple[tuple[Fact, ...], tuple[int, ...]]:
    """The Guards behind `aligned` and `divisible`, and the positions of the arguments they cover.

    `divisible` has a bit for each symbol. Raises `InvalidSchedule` for a symbol that is not there.
    """
    if not 0 <= divisible < 1 << len(kernel.symbols):
        raise InvalidSchedule(f"divisible={divisible} of {len(kernel.symbols)} symbols")
    facts: list[Fact] = []
    positions: list[int] = []
    for place, param in enumerate(kernel.params):
        if aligned and param.role != "scalar":
            facts.append(Aligned(place, POINTER_BYTES))
            positions.append(place)
    for number, name in enumerate(kernel.symbols):
        if divisible >> number & 1:
            facts.append(Divisible(ex.symbol(name), SIZE_MULTIPLE))
            positions.append(len(kernel.params) + number)
    return tuple(facts), tuple(positions)


def index_facts(kernel: ir.Kernel) -> tuple[Fact, ...]:
    """When 32-bit arithmetic is exact: every index and every padded space stays below 2^31.

    Twice the space and twice each index leave room for the last block's padding. Raises
    `InvalidSchedule` if a bound without symbols is already too large.
    """
    last = {
        **{f"p{i}": ex.sub(extent, 1) for i, extent in enumerate(kernel.pointwise)},
        **{f"r{i}": ex.sub(extent, 1) for i, extent in enumerate(kernel.reduction)},
    }
    extents = [_largest(extent, {}) for extent in (*kernel.pointwise, *kernel.reduction)]
    bounds = [
        ex.mul(2, ex.product(extents)),
        *map(ex.symbol, kernel.symbols),
        *(
            ex.mul(2, _largest(node.index, last))
            for node in kernel.body
            if isinstance(node, ir.Load | ir.Store | ir.Iota)
        ),
    ]
    kept: list[ex.Expr] = []
    for bound in dict.fromkeys(bounds):
        if not any(_at_most(bound, other) for other in kept):
            kept = [other for other in kept if not _at_most(other, bound)]
            kept.append(bound)
    for bound in kept:
        if isinstance(bound, ex.Int) and bound.value > INDEX_LIMIT:
            raise InvalidSchedule("a static index needs 64 bits")
    return tuple(AtMost(bound, INDEX_LIMIT) for bound in kept if not isinstance(bound, ex.Int))


def _at_most(left: ex.Expr, right: ex.Expr) -> bool:
    """Whether `left <= right` is certain for all sizes."""
    difference = ex.sub(left, right)
    high = ex.bounds(difference, variable_ranges(difference))[1]
    return high is not None and high <= 0


def _largest(index: ex.Expr, last: dict[str, ex.Expr]) -> ex.Expr:
    """An upper bound of every partial result of `index`: all terms at their largest, added up."""
    match index:
        case ex.Int(value):
            return ex.Int(abs(value))
        case ex.Sym(name):
            return last.get(name, index)
        case ex.Add(terms):
            return ex.add(*(_largest(term, last) for term in terms))
        case ex.Mul(factors):
            return ex.mul(*(_largest(factor, last) for factor in factors))
        case ex.Pow(base, exponent):
            return ex.power(_largest(base, last), exponent)
        case ex.FloorDiv(numerator, denominator) | ex.Mod(numerator, denominator):
            return ex.add(_largest(numerator, last), _largest(denominator, last))
        case ex.Min(args) | ex.Max(args):
            return ex.add(*(_largest(arg, last) for arg in args))
