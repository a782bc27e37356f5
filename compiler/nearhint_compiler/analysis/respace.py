"""Cutting pointwise loops where indices divide them, so that the divisions go away.

A reshape leaves indices such as p // d and p % d, or (32*p + r) // k with r < 32: along p they are
contiguous nowhere. Cut p = d*a + b and they are affine in a and b. For this d must divide the
loop's extent, and 32 must divide k; where that is not so for all sizes, it is what a Guard must
hold (`Respaced.facts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.legality import SPACE_RANK_LIMIT, check_kernel
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Sym
from nearhint_rules.guard import Divisible, Equals, Guard, size_facts_hold

CUTS_LIMIT = 3
REMEMBERED = 64
"""Kernels whose cuts are remembered: each Schedule that wants them asks for them."""


@dataclass(frozen=True, slots=True)
class Respaced:
    """A Kernel that computes the same wherever `facts` hold, with fewer divisions."""

    kernel: ir.Kernel
    facts: tuple[Divisible | Equals, ...]

    def holds_at(self, sizes: Mapping[str, int]) -> bool:
        """Whether the facts hold at these sizes."""
        return size_facts_hold(Guard(self.facts), sizes)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Loop `name` in steps of `bottom / factor`, which is a whole number wherever `factor` is."""

    name: str
    bottom: Expr
    factor: int


@lru_cache(maxsize=REMEMBERED)
def respaced(kernel: ir.Kernel) -> Respaced | None:
    """`kernel` with its loops cut; None where no cut takes a division away."""
    found = Respaced(kernel, ())
    for _ in range(CUTS_LIMIT):
        better = next(
            (
                made
                for cut in _cuts(found.kernel)
                if (made := _cut(found, cut)) is not None
                and _divisions(made.kernel) < _divisions(found.kernel)
            ),
            None,
        )
        if better is None:
            break
        found = better
    return found if found.kernel != kernel else None


def _divisions(kernel: ir.Kernel) -> int:
    return sum(1 for index in _indices(kernel) for _ in _divided(index))


def _indices(kernel: ir.Kernel) -> Iterator[Expr]:
    for node in kernel.body:
        if isinstance(node, ir.Indexed):
            yield node.index


def _divided(index: Expr) -> Iterator[ex.FloorDiv | ex.Mod]:
    """The divisions in an index that loops take part in."""
    if isinstance(index, ex.FloorDiv | ex.Mod) and any(
        name[0] in "pr" for name in ex.symbols_of(index)
    ):
        yield index
    for child in ex.children(index):
        yield from _divided(child)


def _cuts(kernel: ir.Kernel) -> Iterator[_Cut]:
    """Cuts that a division asks for: of a loop that is its dividend but for what is too small."""
    ranges = _ranges(kernel)
    seen: set[_Cut] = set()
    for index in _indices(kernel):
        for division in _divided(index):
            top, bottom = division.numerator, division.denominator
            if any(name[0] in "pr" for name in ex.symbols_of(bottom)):
                continue
            for place in range(len(kernel.pointwise)):
                split = ix.coefficient_of(top, f"p{place}")
                if split is None or not isinstance(split[0], ex.Int) or split[0].value < 1:
                    continue
                cut = _Cut(f"p{place}", bottom, split[0].value)
                if cut not in seen and ix.is_within(split[1], split[0], ranges):
                    seen.add(cut)
                    yield cut


def _ranges(kernel: ir.Kernel, *extra: str) -> ix.Ranges:
    extents = {f"p{place}": extent for place, extent in enumerate(kernel.pointwise)}
    extents |= {f"r{place}": extent for place, extent in enumerate(kernel.reduction)}
    return ix.Ranges(dict.fromkeys((*kernel.symbols, *extra), (1, None)), extents)


def _cut(found: Respaced, cut: _Cut) -> Respaced | None:
    """The kernel with one loop cut; None where the sizes are in no form that this understands."""
    kernel = found.kernel
    place = int(cut.name[1:])
    if len(kernel.pointwise) == SPACE_RANK_LIMIT:
        return None
    facts = list(found.facts)
    known: dict[str, Expr] = {}
    back: dict[str, Expr] = {}
    step = _quotient(cut.bottom, ex.Int(cut.factor), "q_step", known, back, facts)
    if step is None:
        return None
    extent = ex.substitute(kernel.pointwise[place], known)
    outer = _quotient(extent, step, "q_outer", known, back, facts)
    if outer is None:
        return None
    return _rewritten(kernel, place, (outer, step), known, back, tuple(facts))


def _quotient(
    size: Expr,
    divisor: Expr,
    name: str,
    known: dict[str, Expr],
    back: dict[str, Expr],
    facts: list[Divisible | Equals],
) -> Expr | None:
    """`size / divisor` where it is whole for all sizes; else of a symbol, under a fact.

    The quotient of a symbol is a symbol of its own: `known` puts the old one in terms of it, `back`
    the new one in terms of the old.
    """
    quotient = ix.exact_quotient(size, divisor)
    if quotient is not None:
        return quotient
    if not isinstance(size, Sym):
        return None
    whole = ex.substitute(divisor, back)
    if isinstance(whole, ex.Int):
        facts.append(Divisible(size, whole.value))
    else:
        facts.append(Equals(ex.mod(size, whole), 0))
    known[size.name] = ex.mul(Sym(name), divisor)
    back[name] = ex.floordiv(size, whole)
    return Sym(name)


def _rewritten(
    kernel: ir.Kernel,
    place: int,
    parts: tuple[Expr, Expr],
    known: Mapping[str, Expr],
    back: Mapping[str, Expr],
    facts: tuple[Divisible | Equals, ...],
) -> Respaced:
    outer, inner = parts
    moved: dict[str, Expr] = {
        f"p{number}": Sym(f"p{number + 1}") for number in range(place + 1, len(kernel.pointwise))
    }
    moved[f"p{place}"] = ex.add(ex.mul(inner, Sym(f"p{place}")), Sym(f"p{place + 1}"))
    pointwise = [ex.substitute(extent, known) for extent in kernel.pointwise]
    pointwise[place : place + 1] = [outer, inner]
    reduction = [ex.substitute(extent, known) for extent in kernel.reduction]
    ranges = _ranges(replace(kernel, pointwise=tuple(pointwise), reduction=tuple(reduction)), *back)

    def rewritten(index: Expr) -> Expr:
        over_parts = ex.substitute(ex.substitute(index, known), moved)
        return ex.substitute(ix.simplify(over_parts, ranges), back)

    cut = replace(
        kernel,
        pointwise=tuple(ex.substitute(extent, back) for extent in pointwise),
        reduction=tuple(ex.substitute(extent, back) for extent in reduction),
        body=tuple(
            replace(node, index=rewritten(node.index)) if isinstance(node, ir.Indexed) else node
            for node in kernel.body
        ),
    )
    return Respaced(check_kernel(cut), facts)
