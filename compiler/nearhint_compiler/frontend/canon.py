"""The canonical form of a loop nest: the same loops give the same Kernel, wherever they come from.

drop casts that undo a cast, and what no store needs
order the kept loops by the strides of the first store, the reduced ones likewise
merge adjacent loops that every index walks as one
name loops p*, r*, and each extent that is no constant k*; strides are put in terms of k*
number the body by depth-first walk from the stores, and parameters by first use
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from nearhint_compiler.analysis.branches import with_plain_places
from nearhint_compiler.errors import InvalidKernel
from nearhint_compiler.frontend.round_trips import without_round_trips
from nearhint_compiler.frontend.space import Space
from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Sym


@dataclass(frozen=True, slots=True)
class Nest:
    """A body over the loop variables f* of `space` and the Program's symbols."""

    body: tuple[ir.BodyNode, ...]
    params: tuple[ir.Param, ...]
    slots: tuple[int, ...]
    space: Space
    symbols: ix.Ranges


@dataclass(frozen=True, slots=True)
class CanonicalKernel:
    """A Kernel, its symbols over the Program's, and the slot behind each parameter."""

    kernel: ir.Kernel
    dims: tuple[Expr, ...]
    slots: tuple[int, ...]


def canonical_nest(nest: Nest) -> CanonicalKernel:
    """The Kernel of a nest. Raises `InvalidKernel` where an index needs a symbol below 1."""
    ranges = nest.space.ranges(nest.symbols)
    live = _live(without_round_trips(nest.body, nest.params))
    simple = _with_indices(live, lambda index: ix.simplify(index, ranges))
    body = _live(with_plain_places(simple))
    kept = _ordered(body, nest.space, nest.space.kept_dims, ranges)
    reduced = _ordered(body, nest.space, nest.space.reduced_dims, ranges)
    extents = {f"f{place}": extent for place, extent in enumerate(nest.space.extents)}
    loops: list[list[tuple[str, Expr]]] = []
    for names in (kept, reduced):
        body, merged = _merged(body, [(name, extents[name]) for name in names])
        loops.append(merged)
    return _named(nest, body, loops[0], loops[1])


def _live(body: Sequence[ir.BodyNode]) -> tuple[ir.BodyNode, ...]:
    """The body without what no store needs."""
    needed: set[int] = set()
    for position in reversed(range(len(body))):
        if isinstance(body[position], ir.Writing) or position in needed:
            needed.add(position)
            needed.update(ir.operands_of(body[position]))
    return _renumbered(body, sorted(needed))


def _renumbered(body: Sequence[ir.BodyNode], order: Sequence[int]) -> tuple[ir.BodyNode, ...]:
    places = {old: new for new, old in enumerate(order)}
    return tuple(ir.with_operands(body[old], places) for old in order)


def _with_indices(
    body: Sequence[ir.BodyNode], rewrite: Callable[[Expr], Expr]
) -> tuple[ir.BodyNode, ...]:
    return tuple(_with_index(node, rewrite) for node in body)


def _with_index(node: ir.BodyNode, rewrite: Callable[[Expr], Expr]) -> ir.BodyNode:
    if isinstance(node, ir.Placed):
        index, stride, size = map(rewrite, (node.index, node.stride, node.size))
        return replace(node, index=index, stride=stride, size=size)
    return replace(node, index=rewrite(node.index)) if isinstance(node, ir.Indexed) else node


def _indices(body: Sequence[ir.BodyNode]) -> list[Expr]:
    return [node.index for node in body if isinstance(node, ir.Indexed)]


def _ordered(
    body: Sequence[ir.BodyNode], space: Space, dims: Sequence[int], ranges: ix.Ranges
) -> list[str]:
    """The loops over `dims`, the largest stride of the leading access outermost."""
    names = [f"f{place}" for place in dims]
    written = [node.index for node in body if isinstance(node, ir.Writing)]
    loaded = [node.index for node in body if isinstance(node, ir.Load)]
    accesses = [
        index for index in (*written, *loaded) if all(ix.mentions(index, name) for name in names)
    ]
    if not accesses:
        return names
    strides: dict[str, Expr] = {}
    for name in names:
        split = ix.coefficient_of(accesses[0], name)
        if split is None:
            return names
        strides[name] = split[0]
    ordered: list[str] = []
    for name in names:
        place = len(ordered)
        while place and _is_less(strides[ordered[place - 1]], strides[name], ranges):
            place -= 1
        ordered.insert(place, name)
    return ordered


def _is_less(left: Expr, right: Expr, ranges: ix.Ranges) -> bool:
    return left != right and ix.is_nonnegative(ex.sub(right, left), ranges)


def _merged(
    body: tuple[ir.BodyNode, ...], loops: list[tuple[str, Expr]]
) -> tuple[tuple[ir.BodyNode, ...], list[tuple[str, Expr]]]:
    """Merges each loop into its outer neighbour wherever all indices walk both as one."""
    done: list[tuple[str, Expr]] = []
    for name, extent in loops:
        while done:
            outer, outer_extent = done[-1]
            if not all(_walks_as_one(index, outer, name, extent) for index in _indices(body)):
                break
            body = _with_indices(body, partial(ex.substitute, replacements={outer: ex.ZERO}))
            extent = ex.mul(outer_extent, extent)
            done.pop()
        done.append((name, extent))
    return body, done


def _walks_as_one(index: Expr, outer: str, inner: str, extent: Expr) -> bool:
    """Whether `index` depends on the two loops only through `outer * extent + inner`."""
    outer_sum: list[Expr] = []
    inner_sum: list[Expr] = []
    for term in ix.terms_of(index):
        number, powers = ix.factors_of(term)
        for name, sums in ((outer, outer_sum), (inner, inner_sum)):
            count = powers.pop(Sym(name), 0)
            if count > 1:
                return False
            if count:
                if any(ix.mentions(atom, other) for atom in powers for other in (outer, inner)):
                    return False
                sums.append(ix.monomial(number, powers))
                break
        else:
            for atom in powers:
                if isinstance(atom, Sym):
                    continue
                if not all(
                    _walks_as_one(child, outer, inner, extent) for child in ex.children(atom)
                ):
                    return False
    return ex.add(*outer_sum, 0) == ex.mul(extent, ex.add(*inner_sum, 0))


@dataclass(slots=True)
class _Symbols:
    """The Kernel's symbols as they are found, and expressions put in terms of them.

    A Kernel's symbols are at least 1, and so are its extents wherever it is launched. Other sizes
    that it knows need not be: of padding there may be no rows. Such a size is one less than its
    symbol. (Where none of the sizes looked at is 0, but one elsewhere is, the original ops run.)
    """

    loops: Mapping[str, str]
    extents: Sequence[Expr]
    ranges: ix.Ranges
    found: list[Expr] = field(default_factory=list)

    def extent(self, extent: Expr) -> Expr:
        """An extent: a constant, or a symbol of its own."""
        return extent if isinstance(extent, ex.Int) else self._symbol(extent)

    def _symbol(self, expr: Expr) -> Expr:
        if expr not in self.found:
            self.found.append(expr)
        return Sym(f"k{self.found.index(expr)}")

    def index(self, index: Expr) -> Expr:
        """An index over f* and the Program's symbols, over p*, r* and k*."""
        by_loops: dict[Expr, list[Expr]] = {}
        for term in ix.terms_of(index):
            number, powers = ix.factors_of(term)
            walked: list[Expr] = []
            size: Expr = ex.Int(number)
            for atom, count in powers.items():
                inner = self._atom(atom)
                if inner is None:
                    size = ex.mul(size, ex.power(atom, count))
                else:
                    walked.append(ex.power(inner, count))
            by_loops.setdefault(ex.mul(*walked, 1), []).append(size)
        return ex.add(
            *(ex.mul(walked, self.size(ex.add(*sizes))) for walked, sizes in by_loops.items()), 0
        )

    def _atom(self, atom: Expr) -> Expr | None:
        """An atom that mentions a loop variable, rewritten; None for one of sizes alone."""
        if not any(name in self.loops for name in ex.symbols_of(atom)):
            return None
        match atom:
            case Sym(name):
                return Sym(self.loops[name])
            case ex.FloorDiv(top, bottom):
                return ex.floordiv(self.index(top), self.index(bottom))
            case ex.Mod(top, bottom):
                return ex.mod(self.index(top), self.index(bottom))
            case ex.Min(args):
                return ex.minimum(*map(self.index, args))
            case ex.Max(args):
                return ex.maximum(*map(self.index, args))
            case _:
                raise InvalidKernel("an index outside the grammar")

    def size(self, size: Expr) -> Expr:
        """A size over the Program's symbols in terms of k*; new symbols where it must be."""
        if isinstance(size, ex.Int):
            return size
        for place, known in enumerate(self.found):
            quotient = ix.exact_quotient(size, known)
            if quotient is not None:
                return ex.mul(Sym(f"k{place}"), self.size(quotient))
        terms = ix.terms_of(size)
        if len(terms) > 1:
            return ex.add(*map(self.size, terms))
        number, powers = ix.factors_of(size)
        sizes = [
            ex.power(ex.sub(self._symbol(ex.add(atom, 1)), 1), powers.pop(atom))
            for atom in list(powers)
            if self._may_be_zero(atom)
        ]
        if sizes:
            return ex.mul(self.size(ix.monomial(number, powers)), *sizes)
        return ex.mul(number, self._symbol(ix.monomial(1, powers)))

    def _may_be_zero(self, atom: Expr) -> bool:
        return all(
            ix.exact_quotient(extent, atom) is None for extent in self.extents
        ) and ix.is_zero_somewhere(atom, self.ranges)


def _named(
    nest: Nest,
    body: tuple[ir.BodyNode, ...],
    kept: list[tuple[str, Expr]],
    reduced: list[tuple[str, Expr]],
) -> CanonicalKernel:
    names = {name: f"p{place}" for place, (name, _) in enumerate(kept)}
    names.update({name: f"r{place}" for place, (name, _) in enumerate(reduced)})
    symbols = _Symbols(names, nest.space.extents, nest.symbols)
    pointwise = tuple(symbols.extent(extent) for _, extent in kept)
    reduction = tuple(symbols.extent(extent) for _, extent in reduced)
    body = _walk_order(body, nest.params)
    body = _with_indices(body, symbols.index)
    used = dict.fromkeys(node.param for node in body if isinstance(node, ir.Reading))
    written = dict.fromkeys(node.param for node in body if isinstance(node, ir.Writing))
    order = [*used, *written]
    places = {old: new for new, old in enumerate(order)}
    kernel = ir.Kernel(
        symbols=tuple(f"k{place}" for place in range(len(symbols.found))),
        pointwise=pointwise,
        reduction=reduction,
        params=tuple(nest.params[old] for old in order),
        body=tuple(
            replace(node, param=places[node.param])
            if isinstance(node, ir.Reading | ir.Writing)
            else node
            for node in body
        ),
    )
    return CanonicalKernel(kernel, tuple(symbols.found), tuple(nest.slots[old] for old in order))


def _walk_order(
    body: tuple[ir.BodyNode, ...], params: Sequence[ir.Param]
) -> tuple[ir.BodyNode, ...]:
    """The body in depth-first order from its stores, the stores in an order of their own."""
    shapes = _shapes(body, params)
    stores = [place for place, node in enumerate(body) if isinstance(node, ir.Writing)]
    stores.sort(key=lambda place: shapes[place])
    order: dict[int, None] = {}
    for store in stores:
        stack = [(store, False)]
        while stack:
            place, is_done = stack.pop()
            if place in order:
                continue
            if is_done:
                order[place] = None
                continue
            stack.append((place, True))
            stack.extend((operand, False) for operand in reversed(ir.operands_of(body[place])))
    return _renumbered(body, list(order))


def _shapes(body: Sequence[ir.BodyNode], params: Sequence[ir.Param]) -> list[tuple[int, str]]:
    """For each node the size and a hash of its expression, whatever its parameters are numbered."""
    found: list[tuple[int, str]] = []
    for node in body:
        operands = [found[operand] for operand in ir.operands_of(node)]
        match node:
            case (
                ir.Load(param)
                | ir.Gather(param)
                | ir.Scalar(param)
                | ir.Former(param)
                | ir.Store(param)
            ):
                label = f"{type(node).__name__} {params[param].dtype}"
            case ir.Scatter(name, dtype, param):
                label = f"Scatter {name} {dtype} {params[param].dtype}"
            case ir.Op(name, dtype, _) | ir.Reduce(name, dtype, _) | ir.Scan(name, dtype, _):
                label = f"{type(node).__name__} {name} {dtype}"
            case ir.Arg(name, dtype, _, _):
                label = f"Arg {name} {dtype}"
            case ir.Const(dtype, bits):
                label = f"const {dtype} {bits}"
            case _:
                label = "iota"
        text = " ".join([label, *(digest for _, digest in operands)])
        size = 1 + sum(count for count, _ in operands)
        found.append((size, hashlib.sha256(text.encode()).hexdigest()))
    return found
