"""Elements a few apart in memory, read and written as vectors of neighbours that are shuffled.

Lane by lane, a vector takes as many loads, or stores, as it has lanes. What is read lies between
the first of the lanes' elements and the last (`analysis.apart`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nearhint_compiler.analysis.apart import FEW, REVERSED
from nearhint_compiler.codegen.c.parts import PLAIN
from nearhint_compiler.codegen.c.primitive import AVX2, Row, Shape

_BITS = (128, 256, 512)


def reading(stride: int) -> str:
    """The primitive that reads a full vector of elements so far apart."""
    return "backwards" if stride == REVERSED else f"apart{stride}"


def _lanes(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _function(head: str, lines: Sequence[str]) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"static inline {head}\n{{\n{body}}}\n"


def _backwards(shape: Shape) -> str:
    order = _lanes(range(shape.lanes - 1, -1, -1))
    lines = (f"const $V v = load_$T(p - {shape.lanes - 1});", f"return SHUFFLE($I, v, {order});")
    return _function("$V backwards_$T(const $E *p)", lines)


def _apart(stride: int) -> Callable[[Shape], str]:
    """Lane l is element l * stride; the last vector that is read ends where the last lane is."""

    def text(shape: Shape) -> str:
        lanes = shape.lanes
        starts = [*range(0, (stride - 1) * lanes, lanes), stride * (lanes - 1) + 1 - lanes]
        homes = [min(lane * stride // lanes, stride - 1) for lane in range(lanes)]
        lines = ["$V v = load_$T(p);"]
        for number in range(1, stride):
            places = [
                lanes + lane * stride - starts[number]
                if home == number
                else (lane * stride if number == 1 and home == 0 else lane)
                for lane, home in enumerate(homes)
            ]
            load = f"load_$T(p + {starts[number]})"
            lines.append(f"v = SHUFFLE2($I, v, {load}, {_lanes(places)});")
        return _function(f"$V apart{stride}_$T(const $E *p)", (*lines, "return v;"))

    return text


def _together(stride: int) -> Callable[[Shape], str]:
    """Element l * stride + n is lane l of vector n."""

    def text(shape: Shape) -> str:
        lanes = shape.lanes
        lines: list[str] = []
        for number in range(stride):
            homes = [divmod(number * lanes + lane, stride) for lane in range(lanes)]
            made = "v0"
            for other in range(1, stride):
                places = [
                    lanes + lane if vector == other else (lane if other == 1 else place)
                    for place, (lane, vector) in enumerate(homes)
                ]
                made = f"SHUFFLE2($I, {made}, v{other}, {_lanes(places)})"
            lines.append(f"store_$T(p + {number * lanes}, {made});")
        return _function(_head(stride), lines)

    return text


def _head(stride: int) -> str:
    vectors = ", ".join(f"$V v{number}" for number in range(stride))
    return f"void together{stride}_$T($E *p, {vectors})"


def _alone(stride: int) -> str:
    lines = [f"scatter_n_$T(p + {number}, {stride}, v{number}, $W);" for number in range(stride)]
    return _function(_head(stride), lines)


def _reads(stride: int, text: Callable[[Shape], str]) -> tuple[Row, ...]:
    """The primitive, what it is without registers for it, and of bools through bytes."""
    name = reading(stride)
    lines = (f"return gather_n_$T(p, {stride}, $W);",)
    alone = _function(f"$V {name}_$T(const $E *p)", lines)
    bools = _function(
        f"vbool {name}_bool(const uint8_t *p)", (f"return to_i32_u8({name}_u8(p)) != 0;",)
    )
    return (
        Row(name, text, PLAIN, AVX2, ("load $T",), _BITS),
        Row(name, alone, PLAIN, needs=("gather_n $T",)),
        Row(name, bools, ("bool",), needs=(f"{name} u8", "to_i32 u8")),
    )


def _writes(stride: int) -> tuple[Row, ...]:
    name = f"together{stride}"
    bytes_of = ", ".join(f"from_i32_u8(v{number} & 1)" for number in range(stride))
    return (
        Row(name, _together(stride), PLAIN, AVX2, ("store $T",), _BITS),
        Row(name, _alone(stride), PLAIN, needs=("scatter_n $T",)),
        Row(
            name,
            _function(_head(stride), (f"{name}_u8(p, {bytes_of});",)),
            ("bool",),
            needs=(f"{name} u8", "from_i32 u8"),
        ),
    )


APART_ROWS: tuple[Row, ...] = (
    *_reads(REVERSED, _backwards),
    *(row for stride in FEW for row in (*_reads(stride, _apart(stride)), *_writes(stride))),
)
