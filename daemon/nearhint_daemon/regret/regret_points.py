"""Points: sizes at which a Table's rules are judged, and which sizes of a Fallback give them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nearhint_daemon.errors import HintTooLarge, HintUnreachable, InvalidRequest, NoVariant
from nearhint_daemon.store.rows import KernelRow
from nearhint_daemon.traffic.sizes_text import print_sizes
from nearhint_daemon.tuning.tasks import needed_bytes
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.held_out import held_out
from nearhint_rules.metrics import Dims
from nearhint_rules.plan import Fallback
from nearhint_rules.program import SIZE_LIMIT
from nearhint_rules.table import HintRow, Table, is_complete

TRIED = 256
"""Sizes of one symbol, from its least, that are tried for a call of exactly given sizes."""
NOT_FOUND = "no call was found that has these sizes"


@dataclass(frozen=True, slots=True)
class Point:
    """A Kernel's sizes, and sizes of the Fallback's symbols that give them."""

    dims: Dims
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Ground:
    """Where points of one Table may lie: beside which Fallback, in how many bytes."""

    kernel: KernelRow
    table: Table
    fallback: Fallback
    limit_bytes: int

    def drawn(self, count: int, seed: int) -> tuple[Point, ...]:
        """At most `count` points that are no hints. Slow: milliseconds for each."""
        found: dict[Dims, Point] = {}

        def reached(wanted: Dims) -> Dims | None:
            try:
                point = self._near(wanted)
                self._check(point)
            except (HintUnreachable, HintTooLarge, InvalidRequest):
                return None
            found[point.dims] = point
            return point.dims

        hints = [row.dims for row in complete_hints(self.table, self.fallback.id)]
        cutoff = self.table.cutoff
        sizes = held_out(hints, cutoff=cutoff, count=count, seed=seed, reach=reached)
        return tuple(found[dims] for dims in sizes)

    def at(self, wanted: Mapping[str, int], *, field: str) -> Point:
        """The point of exactly these sizes; raises `InvalidRequest` or `HintTooLarge`.

        Slow where they are a product: milliseconds.
        """
        symbols = self.table.symbols
        for name in symbols:
            if wanted.get(name, 0) < 1:
                raise InvalidRequest(f"no size of 1 or more for {name}", field=field)
        for name in wanted:
            if name not in symbols:
                raise InvalidRequest(f"the Kernel has no symbol {name}", field=field)
        dims = tuple(wanted[name] for name in symbols)
        try:
            point = self._near(dims)
            if point.dims != dims:
                point = self._exact(dims) or point
        except HintUnreachable as error:
            raise InvalidRequest(f"{NOT_FOUND}: {error}", field=field) from None
        if point.dims != dims:
            shown = print_sizes(dict(zip(symbols, point.dims, strict=True)))
            raise InvalidRequest(f"{NOT_FOUND}; near them: {shown}", field=field)
        self._check(point, field=field)
        return point

    def _exact(self, dims: Dims) -> Point | None:
        """The point of exactly these sizes where one of the Fallback's symbols is small.

        An even share of a product is seldom a factor of it: 6 is none of 32.
        """
        for name, (low, high) in _ranges(self.fallback).items():
            for size in range(low, min(high, low + TRIED) + 1):
                with suppress(HintUnreachable):
                    point = self._near(dims, {name: size})
                    if point.dims == dims:
                        return point
        return None

    def _near(self, wanted: Dims, given: Mapping[str, int] | None = None) -> Point:
        try:
            sizes = _solved(self.fallback, wanted, given or {})
            dims = tuple(ex.evaluate(expr, sizes) for expr in self.fallback.dims)
        except InvalidExpression as error:
            raise HintUnreachable(str(error)) from None
        if min(dims, default=1) < 1:
            raise HintUnreachable("no sizes of the Fallback come near")
        return Point(dims, sizes)

    def _check(self, point: Point, *, field: str = "") -> None:
        named = dict(zip(self.table.symbols, point.dims, strict=True))
        if needed_bytes(self.kernel, named) > self.limit_bytes:
            problem = f"{print_sizes(named)} would take more memory than measuring may use"
            raise HintTooLarge(problem)
        if not any(size_facts_hold(variant.guard, named) for variant in self.table.variants):
            raise InvalidRequest("no Variant may run at these sizes", field=field)


def complete_hints(table: Table, fallback: str) -> list[HintRow]:
    """The hints that count for the steps with a Fallback."""
    return [row for row in table.hints if is_complete(row, table.default, fallback)]


def usual_fallback(table: Table) -> str:
    """The Fallback that is measured at most of a Table's hints; raises `NoVariant`."""
    counts = Counter(
        name
        for row in table.hints
        for name, _ in row.fallbacks
        if is_complete(row, table.default, name)
    )
    if not counts:
        raise NoVariant("the Kernel has no Variant that was measured: tune it first")
    return min(counts, key=lambda name: (-counts[name], name))


def _ranges(fallback: Fallback) -> dict[str, tuple[int, int]]:
    return {
        name: (max(1, low), SIZE_LIMIT - 1 if high is None else high)
        for name, (low, high) in fallback.program.ranges().items()
    }


def _solved(fallback: Fallback, wanted: Sequence[int], given: Mapping[str, int]) -> dict[str, int]:
    """Sizes of a Fallback's symbols, within their ranges, that give a Kernel's sizes, or nearly.

    Those that are given stay.

    The Kernel's sizes are met one after the other, those with the fewest free symbols first: all
    free ones but the last get an even share, and the last is solved for. Raises
    `InvalidExpression`.
    """
    ranges = _ranges(fallback)
    sizes = dict(given)
    unmet = list(zip(fallback.dims, wanted, strict=True))
    while unmet:
        expr, size = min(unmet, key=lambda pair: len(set(ex.symbols_of(pair[0])) - sizes.keys()))
        unmet.remove((expr, size))
        free = [name for name in ex.symbols_of(expr) if name not in sizes]
        for name in free[:-1]:
            low, high = ranges[name]
            sizes[name] = max(low, min(round(size ** (1 / len(free))), high))
        for name in free[-1:]:
            sizes[name] = _least(expr, size, name, sizes, ranges[name])
    return {name: low for name, (low, _) in ranges.items()} | sizes


def _least(
    expr: Expr, wanted: int, name: str, sizes: Mapping[str, int], within: tuple[int, int]
) -> int:
    """The least size of a symbol at which an expression that rises with it is not below."""
    least, greatest = within
    while least < greatest:
        middle = (least + greatest) // 2
        if ex.evaluate(expr, {**sizes, name: middle}) < wanted:
            least = middle + 1
        else:
            greatest = middle
    return least
