"""Members of points that lie beside one another: corners of boxes, parts of complex numbers.

Where points are runs of a few numbers, what reads one number of each reads every n-th element:
alone, such loads ask memory n times for the same lines, of few useful bytes each time.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearhint_compiler.analysis.flat import FLAT, in_order
from nearhint_compiler.analysis.row_words import WORD_BYTES
from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES


@dataclass(frozen=True, slots=True)
class Members:
    """Loads of one parameter that are one: of `places`, by member, a load's position or none.

    At a point x of the flat index they are the elements from `stride` x + `base` on. `base` and
    `stride` are multiples of their number, which is a power of two.
    """

    param: int
    stride: int
    base: int
    places: tuple[int | None, ...]

    @property
    def first(self) -> int:
        """The position of the first load of them in the body."""
        return min(place for place in self.places if place is not None)

    def points(self, kernel: ir.Kernel) -> int:
        """The points whose members a thread loads at once."""
        itemsize = DTYPES[kernel.params[self.param].dtype]
        return WORD_BYTES // (itemsize * len(self.places)) if self.stride == len(self.places) else 1


def members(kernel: ir.Kernel) -> tuple[Members, ...]:
    """What a pointwise kernel loads beside one another; nothing of one that reduces.

    Two members at least are wanted, and the last among them, behind which nothing is read.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> members(parse_kernel('''(kernel (symbols k0) (pointwise k0) (reduction)
    ...   (params (in f32) (out f32))
    ...   (body (load 0 (* 2 p0)) (load 0 (+ (* 2 p0) 1)) (mul f32 0 1) (store 1 p0 2)))'''))
    (Members(param=0, stride=2, base=0, places=(0, 1)),)
    """
    found: dict[tuple[int, int, int, int], dict[int, int]] = {}
    for position, node in enumerate(() if kernel.reduction else kernel.body):
        if not isinstance(node, ir.Load) or (at := _at(kernel, node.index)) is None:
            continue
        stride, offset = at
        width = _width(stride, kernel.params[node.param].dtype)
        key = node.param, stride, offset // width * width, width
        found.setdefault(key, {})[offset % width] = position
    return tuple(
        Members(param, stride, base, tuple(places.get(each) for each in range(width)))
        for (param, stride, base, width), places in found.items()
        if len(places) > 1 and width - 1 in places
    )


def _at(kernel: ir.Kernel, index: ex.Expr) -> tuple[int, int] | None:
    """An index as so many times the flat index and a constant."""
    name = "p0" if len(kernel.pointwise) == 1 else FLAT
    flat = index if len(kernel.pointwise) == 1 else in_order(kernel, index)
    found = None if flat is None else ix.coefficient_of(flat, name)
    match found:
        case (ex.Int(stride), ex.Int(offset)) if stride > 1 and offset >= 0:
            return stride, offset
        case _:
            return None


def _width(stride: int, dtype: str) -> int:
    """How many neighbours are a word, at most, by which points are apart."""
    most = max(1, WORD_BYTES // DTYPES[dtype])
    return min(most, stride & -stride)
