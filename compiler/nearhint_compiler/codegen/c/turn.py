"""Inputs that are contiguous along another loop than lanes, turned round through registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.codegen.c.body import Body
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.primitive import (
    AVX2,
    AVX512,
    ELEMENTS,
    LINE_BYTES,
    PORTABLE,
    Row,
    Shape,
)
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES

_PIECE_BYTES = 16
CROWDED_BYTES = 256
"""Rows at a multiple of this distance share sixteen sets of a first cache of 64, or fewer: what a
tile has side by side is more than their ways."""


def _turn(shape: Shape, size: int) -> str:
    """Within 16 bytes by interleaving, where elements are short; then stage by stage.

    Rounds of interleaving vector i with vector i + m / 2 transpose m x m. In a stage, lanes that
    differ in one bit change places with vectors that do; for words that is as fast. There are no
    loops and no arrays between the first and the last line, so that all stays in registers.
    """
    lanes = shape.lanes
    near = min(lanes, 16 // size) if size < 4 else 1
    names = [f"a{lane}" for lane in range(lanes)]
    lines = [f"    const $V {name} = v[{lane}];" for lane, name in enumerate(names)]
    for number in range(near.bit_length() - 1):
        names = _interleaved(lines, names, near, f"b{number}_", lanes=lanes)
    for bit in (bit for bit in (1, 2, 4, 8) if near <= bit < lanes):
        names = _exchanged(lines, names, bit)
    lines += [f"    v[{lane}] = {name};" for lane, name in enumerate(names)]
    body = "".join(f"{line}\n" for line in lines)
    return (
        f"/* Transposes $W vectors of $W lanes. */\n"
        f"static inline void turn_$T($V *v)\n{{\n{body}}}\n"
    )


def _interleaved(
    lines: list[str],
    names: Sequence[str],
    near: int,
    prefix: str,
    *,
    lanes: int,
    vector: str = "$V",
    integer: str = "$I",
) -> list[str]:
    """Interleaves, in groups of `near` vectors, those of the first half with those of the second.

    Half of the lanes of each `near` go to one vector and half to the next.
    """
    parts = [
        ", ".join(
            str(start + half + lane // 2 + (lanes if lane % 2 else 0))
            for start in range(0, lanes, near)
            for lane in range(near)
        )
        for half in (0, near // 2)
    ]
    made: list[str] = []
    for group in range(0, len(names), near):
        for place in range(group, group + near // 2):
            pair = f"{names[place]}, {names[place + near // 2]}"
            for part in parts:
                made.append(f"{prefix}{len(made)}")
                lines.append(
                    f"    const {vector} {made[-1]} = SHUFFLE2({integer}, {pair}, {part});"
                )
    return made


def _exchanged(lines: list[str], names: Sequence[str], bit: int) -> list[str]:
    """Lanes with `bit` of a vector without it change places with lanes without it of the other."""
    lanes = len(names)
    first = ", ".join(str((lane ^ bit) + lanes if lane & bit else lane) for lane in range(lanes))
    second = ", ".join(str(lane + lanes if lane & bit else lane ^ bit) for lane in range(lanes))
    made = [f"c{bit}_{place}" for place in range(lanes)]
    for place in (place for place in range(lanes) if not place & bit):
        pair = f"{names[place]}, {names[place | bit]}"
        lines.append(f"    const $V {made[place]} = SHUFFLE2($I, {pair}, {first});")
        lines.append(f"    const $V {made[place | bit]} = SHUFFLE2($I, {pair}, {second});")
    return made


def _pieces_of(shape: Shape, size: int) -> str:
    return _pieces(shape.lanes * size // _PIECE_BYTES, "pieces_$T", "$V")


def _load_turned(shape: Shape, size: int) -> str:
    """Pieces of 16 bytes, of rows that are as many apart as a piece has elements, make a vector.

    So each piece is where it belongs when it is loaded, and what is left is to interleave within 16
    bytes; loads are not what a square waits for.
    """
    lanes = shape.lanes
    body = _turned_pieces(lanes, size, "pieces_$T", lanes=lanes)
    return (
        "/* Loads $W vectors, each `pitch` elements after the one before, and transposes them. */\n"
        f"static inline void load_turned_$T(const $E *p, int64_t pitch, $V *v)\n{{\n{body}}}\n"
    )


def _pair(shape: Shape) -> str:
    """Registers with a row each of two squares beside each other, of elements of two bytes.

    So there is room for both, and what is along the lanes is read and written by longer pieces.
    """
    bits, half = 32 * shape.lanes, 16 * shape.lanes
    register = f"__m{bits}i"
    place = "p" if bits == 512 else f"({register} *)p"
    last = "_mm512_extracti64x4_epi64" if bits == 512 else "_mm256_extracti128_si256"
    return (
        f"typedef int16_t pair __attribute__((vector_size({bits // 8})));\n"
        f"typedef $E pair_$T __attribute__((vector_size({bits // 8})));\n\n"
        "static inline void store_pair_$T($E *p, pair_$T v)"
        f" {{ _mm{bits}_storeu_si{bits}({place}, ({register})v); }}\n"
        "static inline $V half0_$T(pair_$T v)"
        f" {{ return ($V)_mm{bits}_castsi{bits}_si{half}(({register})v); }}\n"
        "static inline $V half1_$T(pair_$T v)"
        f" {{ return ($V){last}(({register})v, 1); }}\n\n"
        f"{_pieces(bits // 128, 'pieces_of_pair_$T', 'pair_$T')}"
    )


def _load_pair(shape: Shape) -> str:
    """As `_load_turned`, of a pair."""
    body = _turned_pieces(
        shape.lanes, 2, "pieces_of_pair_$T", lanes=2 * shape.lanes, vector="pair_$T", integer="pair"
    )
    return (
        "/* Loads twice $W vectors, `pitch` apart, and transposes them: two in each of v. */\n"
        "static inline void load_pair_$T(const $E *p, int64_t pitch, pair_$T *v)\n"
        f"{{\n{body}}}\n"
    )


def _load_pair_strip(shape: Shape) -> str:
    """As `_load_pair`, of the columns of one piece."""
    near = strip_rows(2, shape.lanes)
    body = _turned_pieces(
        near, 2, "pieces_of_pair_$T", lanes=2 * shape.lanes, vector="pair_$T", integer="pair"
    )
    return (
        f"/* Loads {near} columns of twice $W rows, `pitch` apart: two vectors in each of v. */\n"
        "static inline void load_pair_strip_$T(const $E *p, int64_t pitch, pair_$T *v)\n"
        f"{{\n{body}}}\n"
    )


def _load_lines(shape: Shape) -> str:
    """As `_load_pair`, of as many columns as rows: whole lines are read, each once.

    Pieces of 16 bytes change places before they are interleaved, which costs shuffles; a line that
    leaves the first cache at once, because rows are crowded, costs more.
    """
    near, count = _PIECE_BYTES // 2, 2 * shape.lanes
    names = [""] * count
    lines = [f"    const int64_t apart = {near} * pitch;"]
    for row in range(near):
        a, b, c, d = rows = [f"a{row + place}" for place in range(0, count, near)]
        for place, name in enumerate(rows):
            lines.append(f"    __m512i {name} = _mm512_loadu_si512(p + {place} * apart);")
            lines.append(f'    __asm__("" : "+v"({name}));')
        for half, control in (("low", 0x44), ("high", 0xEE)):
            for place, (left, right) in enumerate(((a, b), (c, d))):
                shuffled = f"_mm512_shuffle_i32x4({left}, {right}, {control})"
                lines.append(f"    const __m512i {half}{row}_{place} = {shuffled};")
        for place in range(4):
            half, control = ("low", "high")[place // 2], (0x88, 0xDD)[place % 2]
            pair = f"{half}{row}_0, {half}{row}_1"
            names[row + near * place] = f"c{row + near * place}"
            shuffled = f"(pair_$T)_mm512_shuffle_i32x4({pair}, {control})"
            lines.append(f"    const pair_$T c{row + near * place} = {shuffled};")
        if row + 1 < near:
            lines += ["    p += pitch;", '    __asm__("" : "+r"(p));']
    body = _interleaved_pieces(lines, names, near, lanes=count, vector="pair_$T", integer="pair")
    return (
        "/* Loads twice $W lines, `pitch` apart, and transposes them. */\n"
        f"static inline void load_lines_$T(const $E *p, int64_t pitch, pair_$T *v)\n{{\n{body}}}\n"
    )


def strip_rows(size: int, lanes: int) -> int:
    """How many elements of `size` bytes a piece has: as many rows come out of it."""
    return min(lanes, _PIECE_BYTES // size)


def _load_strip(shape: Shape, size: int) -> str:
    """As `_load_turned`, of the columns of one piece: as few rows of what is written at a time."""
    near = strip_rows(size, shape.lanes)
    body = _turned_pieces(near, size, "pieces_$T", lanes=shape.lanes)
    return (
        f"/* Loads {near} columns of $W rows, each `pitch` elements after the one before. */\n"
        f"static inline void load_strip_$T(const $E *p, int64_t pitch, $V *v)\n{{\n{body}}}\n"
    )


def _load_strip_n(shape: Shape, *, size: int, copy: str) -> str:
    """What there is of a strip goes where all of it may be read; the rest are zeros."""
    near = strip_rows(size, shape.lanes)
    room = near * shape.lanes + _PIECE_BYTES // size
    return (
        "/* As load_strip, of the first `rows` rows and `columns` columns alone. */\n"
        "static inline void load_strip_n_$T(\n"
        "    const $E *p, int64_t pitch, $V *v, int rows, int columns)\n"
        f"{{\n    $E some[{room}] = {{0}};\n"
        "    for (int l = 0; l < rows; l++) {\n"
        f"        {copy.format(to=f'some + l * {near}', bits=8 * size)}\n"
        "        p += pitch;\n    }\n"
        f"    load_strip_$T(some, {near}, v);\n}}\n"
    )


_COPY_MASKED = (
    "_mm_storeu_si128((__m128i *)({to}), _mm_maskz_loadu_epi{bits}((1u << columns) - 1, p));"
)
_COPY = "memcpy({to}, p, (size_t)columns * sizeof *p);"


def _any_pieces(shape: Shape, size: int) -> str:
    near = strip_rows(size, shape.lanes)
    return (
        "static inline $V pieces_$T(const $E *p, int64_t apart)\n"
        f"{{\n    $V v;\n    for (int k = 0; k < {shape.lanes // near}; k++)\n"
        f"        memcpy(($E *)&v + k * {near}, p + k * apart, {near} * sizeof *p);\n"
        "    return v;\n}\n"
    )


def _turned_pieces(
    count: int, size: int, load: str, *, lanes: int, vector: str = "$V", integer: str = "$I"
) -> str:
    """Statements that leave in `v` the columns of what begins at p, `count` of `lanes` elements."""
    near = strip_rows(size, lanes)
    names = [f"a{place}" for place in range(count)]
    lines = [f"    const int64_t apart = {near} * pitch;"]
    for row in range(near):
        for first in range(0, count, near):
            place = f"p + {first}" if first else "p"
            lines.append(f"    const {vector} a{first + row} = {load}({place}, apart);")
        if row + 1 < near:
            lines += ["    p += pitch;", '    __asm__("" : "+r"(p));']
    return _interleaved_pieces(lines, names, near, lanes=lanes, vector=vector, integer=integer)


def _interleaved_pieces(
    lines: list[str], names: Sequence[str], near: int, *, lanes: int, vector: str, integer: str
) -> str:
    """`lines`, and statements that leave in `v` what pieces of `near` elements transpose to."""
    for number in range(near.bit_length() - 1):
        names = _interleaved(
            lines, names, near, f"b{number}_", lanes=lanes, vector=vector, integer=integer
        )
    lines += [f"    v[{place}] = {name};" for place, name in enumerate(names)]
    return "".join(f"{line}\n" for line in lines)


def _pieces(count: int, name: str, vector: str) -> str:
    bits = 128 * count
    prefix, insert = f"_mm{bits}", "inserti128_si256" if count == 2 else "inserti32x4"
    lines = ["    const __m128i first = _mm_loadu_si128((const __m128i *)p);"]
    lines.append(f"    __m{bits}i v = {prefix}_castsi128_si{bits}(first);")
    for place in range(1, count):
        piece = f"_mm_loadu_si128((const __m128i *)(p + {place} * apart))"
        lines.append(f"    v = {prefix}_{insert}(v, {piece}, {place});")
    body = "".join(f"{line}\n" for line in (*lines, f"    return ({vector})v;"))
    return f"static inline {vector} {name}(const $E *p, int64_t apart)\n{{\n{body}}}\n"


_LOADED_AND_TURNED = """/* Loads $W vectors of $W lanes, `pitch` apart, and transposes them. */
static inline void load_turned_$T(const $E *p, int64_t pitch, $V *v)
{
    for (int l = 0; l < $W; l++) {
        v[l] = load_$T(p);
        p += pitch;
        __asm__("" : "+r"(p));
    }
    turn_$T(v);
}
"""


def _of_size(size: int) -> tuple[str, ...]:
    return tuple(dtype for dtype in DTYPES if dtype != ir.BOOL and DTYPES[dtype] == size)


PAIR = 2
"""Vectors of two-byte elements that are turned in the registers of one of words."""
PAIR_LEVELS: Mapping[int, int] = {8: AVX2, 16: AVX512}
"""By the lanes of a vector, the level that has registers for a pair."""

_PAIRS = (
    *(
        row
        for lanes, level in PAIR_LEVELS.items()
        for row in (
            Row("pair", _pair, _of_size(2), level, bits=(16 * lanes,)),
            Row("load_pair", _load_pair, _of_size(2), level, ("pair $T",), (16 * lanes,)),
            Row(
                "load_pair_strip", _load_pair_strip, _of_size(2), level, ("pair $T",), (16 * lanes,)
            ),
        )
    ),
    Row("load_lines", _load_lines, _of_size(2), AVX512, ("pair $T",), (256,)),
)


def _turns(size: int) -> tuple[Row, ...]:
    dtypes = _of_size(size)
    return (
        Row("turn", lambda shape: _turn(shape, size), dtypes),
        *(
            row
            for level, bits in ((AVX512, 512), (AVX2, 256))
            for row in (
                Row("pieces", lambda shape: _pieces_of(shape, size), dtypes, level, bits=(bits,)),
                Row(
                    "load_turned",
                    lambda shape: _load_turned(shape, size),
                    dtypes,
                    level,
                    ("pieces $T",),
                    (bits,),
                ),
            )
        ),
        Row("pieces", lambda shape: _any_pieces(shape, size), dtypes),
        Row("load_strip", lambda shape: _load_strip(shape, size), dtypes, needs=("pieces $T",)),
        *(
            Row(
                "load_strip_n",
                partial(_load_strip_n, size=size, copy=copy),
                dtypes,
                level,
                ("load_strip $T",),
            )
            for level, copy in ((AVX512, _COPY_MASKED), (PORTABLE, _COPY))
        ),
        Row("load_turned", _LOADED_AND_TURNED, dtypes, needs=("load $T", "turn $T")),
        *(_PAIRS if size == 2 else ()),
    )


TURN_ROWS: tuple[Row, ...] = tuple(row for size in (8, 4, 2, 1) for row in _turns(size))


def has_pairs(body: Body, dtypes: Iterable[str], wide: int) -> bool:
    """Whether `wide` elements along the lanes are pairs, turned in registers of twice the width."""
    needed = PAIR_LEVELS.get(body.lanes)
    has_registers = needed is not None and body.prelude.shape.level >= needed
    is_narrow = {DTYPES[dtype] for dtype in dtypes} == {2}
    return has_registers and is_narrow and wide % (PAIR * body.lanes) == 0


def has_line_pairs(body: Body, dtypes: Iterable[str], wide: int) -> bool:
    """As `has_pairs`, of pairs that are a cache line each."""
    return PAIR * 2 * body.lanes == LINE_BYTES and has_pairs(body, dtypes, wide)


def dtypes_of(body: Body, positions: Iterable[int]) -> list[str]:
    """Of some nodes."""
    return [body.dtypes[position] for position in positions]


def turned_loads(body: Body, across: str) -> list[int]:
    """The loads that are contiguous along `across` and not along lanes."""
    return [
        position
        for position, node in enumerate(body.kernel.body)
        if isinstance(node, ir.Load)
        and access(node.index, across).is_contiguous
        and body.in_lanes(position)
        and not access(node.index, body.lane).is_contiguous
    ]


def write_nothing(writer: Writer) -> None:
    """Nothing else is to be done."""
    del writer


def write_turned(
    writer: Writer,
    body: Body,
    position: int,
    across: str,
    buffer: str,
    stride: str,
    *,
    ahead: Mapping[str, Expr],
    meanwhile: Callable[[Writer], None] = write_nothing,
    when: str = "",
) -> None:
    """Copies a rectangle of the load at `position` into `buffer`, `stride` elements a row.

    The rectangle that lies `ahead`, steps by loop variable, is asked for meanwhile, because no
    hardware follows so many rows at once; beyond the input, or where there are no steps, this does
    nothing. It goes to the second
    cache: the first has fewer lines under way, and rows that wait for it delay each other. `when`,
    if it is not "", is the C condition under which it is asked for.
    `meanwhile` writes what else is to be done for each vector of lanes, from lane `i0` of the
    rectangle on.

    The rectangle goes from `begin_{v}` to `end_{v}`, C variables, for v the lane variable and
    `across`; `buffer` has a row for each step along `across`, and rows and places for those that
    complete a vector.
    """
    node = body.kernel.body[position]
    assert isinstance(node, ir.Load)
    dtype = "u8" if body.dtypes[position] == "bool" else body.dtypes[position]
    lane, lanes = body.lane, body.lanes
    begins = {name: ex.symbol(f"begin_{name}") for name in (lane, across)}
    steps = {lane: ex.symbol("i"), across: ex.symbol("j")}
    index = ex.substitute(
        node.index, {name: ex.add(begin, steps[name]) for name, begin in begins.items()}
    )
    there = {name: ex.add(begin, ahead.get(name, 0)) for name, begin in begins.items()}
    moved = ex.substitute(index, {f"begin_{name}": to for name, to in there.items()})
    further = ex.sub(moved, index) if ahead else None
    with ExitStack() as scope:
        done = "0"
        if (
            meanwhile is write_nothing
            and further is not None
            and has_line_pairs(body, [dtype], LINE_BYTES // 2)
            and access(node.index, lane).stride is not None
        ):
            scope.enter_context(writer.block())  # its names are those of other inputs, too
            _write_pairs(
                writer, body, node, dtype, index, across, buffer, stride, ahead=further, when=when
            )
            done = "i0 < whole ? full : 0"
        turn, store = body.prelude.use("turn", dtype), body.prelude.use("store", dtype)
        with writer.block(f"for (int64_t i0 = 0; begin_{lane} + i0 < end_{lane}; i0 += {lanes})"):
            meanwhile(writer)
            head = f"int64_t j = {done}; begin_{across} + j < end_{across}; j += {lanes}"
            with writer.block(f"for ({head})"):
                writer.line(
                    f"const int n = (int)least({lanes}, end_{across} - begin_{across} - j);"
                )
                writer.line(f"v{dtype} square[{lanes}];")
                if access(node.index, lane).stride is None:
                    _load_anywhere(writer, body, node, dtype, index)
                else:
                    _load_rows(writer, body, node, dtype, index, ahead=further, when=when)
                writer.line(f"{turn}(square);")
                writer.line(f"for (int l = 0; l < {lanes}; l++)")
                writer.line(f"    {store}({buffer} + (j + l) * {stride} + i0, square[l]);")


def _write_pairs(
    writer: Writer,
    body: Body,
    node: ir.Load,
    dtype: str,
    index: Expr,
    across: str,
    buffer: str,
    stride: str,
    *,
    ahead: Expr,
    when: str,
) -> None:
    """Whole pairs of squares beside each other, as many as there are: `whole` lanes, `full` rows.

    Lines of the buffer are written at once, and what lies `ahead` is asked for. Of crowded rows
    there are none: the more are read together, the fewer lines stay until their second half is.
    """
    lane, lanes, line = body.lane, body.lanes, LINE_BYTES // DTYPES[dtype]
    load = body.prelude.use("load_pair", dtype)
    step = access(node.index, lane).stride
    assert step is not None
    writer.line(f"const int64_t pitch = {to_c(step)}, ahead = {to_c(ahead)};")
    is_crowded = f"pitch * {DTYPES[dtype]} % {CROWDED_BYTES} == 0"
    lines = f"(end_{lane} - begin_{lane}) / {line}"
    writer.line(f"const int64_t whole = {is_crowded} ? 0 : {lines} * {line};")
    writer.line(f"const int64_t full = (end_{across} - begin_{across}) / {lanes} * {lanes};")
    with (
        writer.block(f"for (int64_t i0 = 0; i0 < whole; i0 += {line})"),
        writer.block(f"for (int64_t j = 0; j < full; j += {lanes})"),
    ):
        first = to_c(ex.substitute(index, {"i": ex.symbol("i0")}))
        writer.line(f"const {ELEMENTS[dtype]} *p = in{node.param} + {first}, *next = p + ahead;")
        is_new = f"j == 0 || j % {line} == {line - lanes}"
        with writer.block(f"if ({when} && ({is_new}))" if when else f"if ({is_new})"):
            writer.line("#pragma GCC unroll 4")
            with writer.block(f"for (int l = 0; l < {line}; l++)"):
                writer.line(f"if (j == 0) {prefetch('next')}")
                writer.line(f"else {prefetch(f'next + {lanes - 1}')}")
                writer.line("next += pitch;")
                writer.line('__asm__("" : "+r"(next));')
        writer.line(f"pair_{dtype} square[{lanes}];")
        writer.line(f"{load}(p, pitch, square);")
        writer.line(f"#pragma GCC unroll {lanes}")
        writer.line(f"for (int l = 0; l < {lanes}; l++)")
        writer.line(f"    store_pair_{dtype}({buffer} + (j + l) * {stride} + i0, square[l]);")


def _load_rows(
    writer: Writer,
    body: Body,
    node: ir.Load,
    dtype: str,
    index: Expr,
    *,
    ahead: Expr | None,
    when: str,
) -> None:
    """Loads a vector of each of `lanes` rows, and asks for those that lie `ahead`, if any do.

    One pointer goes from row to row. The compiler would rather keep an address for each row, has no
    registers for them, and would work those of incomplete squares out for every complete one. Rows
    beyond the last are that one again.
    """
    lane, lanes, line = body.lane, body.lanes, LINE_BYTES // DTYPES[dtype]
    load, load_n = body.prelude.use("load", dtype), body.prelude.use("load_n", dtype)
    first, step = ex.substitute(index, {"i": ex.symbol("i0")}), access(node.index, lane).stride
    assert step is not None
    writer.line(f"const {ELEMENTS[dtype]} *p = in{node.param} + {to_c(first)};")
    further = "" if ahead is None else f", ahead = {to_c(ahead)}"
    writer.line(f"const int64_t pitch = {to_c(step)}{further};")
    keep = '__asm__("" : "+r"(p));'
    complete = f"if (begin_{lane} + i0 + {lanes} <= end_{lane} && n == {lanes})"
    with writer.block(complete), writer.block(f"for (int l = 0; l < {lanes}; l++)"):
        writer.line(f"square[l] = {load}(p);")
        is_last = f"j % {line} == {line - lanes}" if lanes < line else ""
        places = (("p + ahead", "j == 0"), (f"p + ahead + {lanes - 1}", is_last))
        for place, fact in places if ahead is not None else ():
            facts = " && ".join(filter(None, (when, fact)))
            writer.line(f"if ({facts}) {prefetch(place)}" if facts else prefetch(place))
        writer.line("p += pitch;")
        writer.line(keep)
    with writer.block("else"), writer.block(f"for (int l = 0; l < {lanes}; l++)"):
        writer.line(f"square[l] = {load_n}(p, n);")
        writer.line(f"p += begin_{lane} + i0 + l + 1 < end_{lane} ? pitch : 0;")
        writer.line(keep)


def _load_anywhere(writer: Writer, body: Body, node: ir.Load, dtype: str, index: Expr) -> None:
    """Loads a vector of each of `lanes` rows that lie at no fixed distance."""
    lane, lanes = body.lane, body.lanes
    load_n = body.prelude.use("load_n", dtype)
    with writer.block(f"for (int l = 0; l < {lanes}; l++)"):
        writer.line(f"const int64_t i = least(i0 + l, end_{lane} - begin_{lane} - 1);")
        writer.line(f"square[l] = {load_n}(in{node.param} + {to_c(index)}, n);")


def prefetch(place: str, *, for_write: bool = False) -> str:
    """Asks for a cache line, into the second cache."""
    return f"__builtin_prefetch({place}, {int(for_write)}, 2);"
