"""A few elements of each row, where it is read for something else as well: a loss's, by its label.

What is computed of a row's elements is computed once more, of each that is chosen: it is looked
up in memory, so that the walk over the row does nothing for it. Where the row is not what lies in
memory, or lies there as no one place could name, the walk finds the element on its way, if it is
one; not on a CPU, where a lookup tells of a place that there is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend.call import Call, per_row
from nearhint_compiler.frontend.dtypes import FLOATS, compute_dtype
from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.loops import Loops, Point
from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

CHOICES = 16
"""So many elements of a row are chosen one after another, at most."""


def choice(call: Call) -> Loops:
    """The rule of a gather of some elements of each row, in whose group the row is walked."""
    call.bind(("self", "dim", "index", "sparse_grad"), {"sparse_grad": False})
    rows, dtype, out = call.tensor("self").shape, call.out.dtype, call.out.shape
    dim = call.axis(call["dim"], len(rows))
    where = call.tensor("index")
    if where.shape != out or where.dtype != "i64":
        raise Unlowerable("places that are not those of the result")
    if out != (*rows[:dim], out[dim], *rows[dim + 1 :]):
        raise Unlowerable("not some elements of each row")
    count = out[dim]
    if not isinstance(count, ex.Int) or not 1 <= count.value <= CHOICES:
        raise Unlowerable("more elements of a row than are written out, or none")
    if call.tensor("self").dtype != dtype or rows[dim] == ex.ONE:
        raise Unlowerable("rows of one element, or of another dtype than the result's")
    shape = (*rows[: dim + 1], count, *rows[dim + 1 :])
    x = call.read("self", tuple(each for each in range(len(shape)) if each != dim + 1))
    place = call.read("index", tuple(each for each in range(len(shape)) if each != dim))

    def build(point: Point) -> tuple[Value]:
        at = point.emit.cast(point.read(place), "i64")
        row = _Row(point.emit, point.index[dim], rows[dim], at)
        found = row.chosen(point.emit.cast(point.read(x), dtype))
        if row.is_walked and count != ex.ONE:
            raise Unlowerable("a walk that looks for several elements at each of its own")
        if call.device == "cpu" and not row.is_looked_up:
            raise Unlowerable("a place that eager refuses where there is none, and no walk misses")
        return (found,)

    loops = per_row(call.loops(shape, frozenset({dim}), build), 0)
    return replace(loops, written_out=frozenset({dim + 1}))


@dataclass(slots=True)
class _Row:
    """A row of `size` elements, of which `at` is the current one's place and `place` the chosen."""

    emit: Emitter
    at: Expr
    size: Expr
    place: Value
    is_looked_up: bool = False
    is_walked: bool = False
    _found: dict[int, Value] = field(default_factory=dict[int, Value])

    def chosen(self, value: Value) -> Value:
        """What `value` is at the chosen place.

        A float that the walk finds is the largest, where the others are least, and an integer a
        sum, to which the others add nothing, so that it is just as it was. (A sum of -0.0 is 0.0.)
        """
        if value.node not in self._found:
            self._found[value.node] = self._chosen(value)
        return self._found[value.node]

    def _chosen(self, value: Value) -> Value:
        emit = self.emit
        match emit.body[value.node]:
            case ir.Const() | ir.Scalar() | ir.Reduce() | ir.Arg():
                return value
            case ir.Load(_, index) | ir.Iota(index) if not self._varies(index):
                return value
            case ir.Load(param, index) if (split := self._split(index)) is not None:
                self.is_looked_up = True
                node = ir.Gather(param, split[1], split[0], self.size, self.place.node)
                return emit.emit(node, value.dtype)
            case ir.Op(name, dtype, operands) if not self._widens_what_is_walked(operands):
                found = [self.chosen(emit.value_of(each)) for each in operands]
                made = ir.Op(name, dtype, tuple(each.node for each in found))
                return Value(emit.emit(made, dtype).node, value.dtype)
            case _:
                self.is_walked = True
                is_chosen = emit.op("eq", emit.iota(self.at), self.place)
                kind, other = ("max", -math.inf) if value.dtype in FLOATS else ("sum", 0)
                beside = emit.const(value.dtype, other)
                return emit.reduce(kind, emit.op("where", is_chosen, value, beside))

    def _varies(self, index: Expr) -> bool:
        """Whether an index is another one at another place of the row."""
        return not {*ex.symbols_of(self.at)}.isdisjoint(ex.symbols_of(index))

    def _split(self, index: Expr) -> tuple[Expr, Expr] | None:
        """`index` as steps of a stride from the place 0 of the row, and what it is there."""
        if not isinstance(self.at, ex.Sym):
            return None
        found = ix.coefficient_of(index, self.at.name)
        if found is None or any(ix.factors_of(term)[0] < 0 for term in ix.terms_of(found[0])):
            return None
        return found

    def _widens_what_is_walked(self, operands: tuple[int, ...]) -> bool:
        """Whether an op only widens an element that is not looked up: it is summed as it is."""
        node = self.emit.body[operands[0]]
        return (
            isinstance(node, ir.Load)
            and compute_dtype(self.emit.params[node.param].dtype)
            != self.emit.params[node.param].dtype
            and self._varies(node.index)
            and self._split(node.index) is None
        )
