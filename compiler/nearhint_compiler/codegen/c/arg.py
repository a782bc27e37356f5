"""The place of an extremal element: primitives, and how an `arg` accumulates.

Within a run of at most `RUN_LIMIT` steps of the innermost reduction loop, each lane has the most
extreme value so far and, in 32 bits, its offset from the start of the run: a step is a comparison
and two selections, and the first of equals stays. At the end of a run the offset becomes the
`arg`'s index in 64 bits, and of equals the one with the least index counts; so neither the number
of lanes, copies, runs and threads nor their order shows. An index that does not grow along the
innermost loop is compared element by element.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.codegen.c.body import Body, Part, reduction_loops
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.primitive import AVX512, ELEMENTS, Row, Shape
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.nodes import FLOATS, INTEGERS
from nearhint_rules import expr as ex

RUN_LIMIT = 1 << 22
_WIDER = {"max": ">", "min": "<"}
_NOT_BEYOND = {"max": "<=", "min": ">="}
_COMPARE = {"max": "gt", "min": "lt"}
_UNORDERED = {"max": "_CMP_NLE_UQ", "min": "_CMP_NGE_UQ"}


def _mask(comparison: str, dtype: str) -> str:
    if dtype in ("f32", "i32", "bool"):
        return f"({comparison})"
    return f"__builtin_convertvector({comparison}, vbool)"


def _more(kind: str, dtype: str, a: str, b: str) -> str:
    """Whether b is more extreme than a; a NaN is, than any number."""
    if dtype == "bool":
        return f"{b} & ~{a}" if kind == "max" else f"{a} & ~{b}"
    if dtype in FLOATS:
        return f"~({b} {_NOT_BEYOND[kind]} {a}) & ({a} == {a})"
    return f"{b} {_WIDER[kind]} {a}"


def _same(dtype: str, a: str, b: str) -> str:
    if dtype == "bool":
        return f"~({a} ^ {b})"
    nan = f" | (({a} != {a}) & ({b} != {b}))" if dtype in FLOATS else ""
    return f"({a} == {b}){nan}"


def _seek(kind: str, dtype: str) -> str:
    return (
        "/* Where v is more extreme than s: v and its offset. */\n"
        f"static inline void seek_{kind}_$T($V *s, vi32 *o, $V v, vi32 here)\n{{\n"
        f"    const vbool more = {_mask(_more(kind, dtype, '*s', 'v'), dtype)};\n"
        "    *s = sel_$T(more, v, *s);\n    *o = sel_i32(more, here, *o);\n}\n"
    )


def _seek_masked(kind: str, dtype: str) -> str:
    if dtype in FLOATS:
        ordered = "${M}_cmp_${S}_mask(*s, *s, _CMP_ORD_Q)"
        more = f"${{M}}_mask_cmp_${{S}}_mask({ordered}, v, *s, {_UNORDERED[kind]})"
    else:
        more = f"${{M}}_cmp{_COMPARE[kind]}_${{S}}_mask(($X)v, ($X)*s)"
    return (
        "/* Where v is more extreme than s: v and its offset. */\n"
        f"static inline void seek_{kind}_$T($V *s, vi32 *o, $V v, vi32 here)\n{{\n"
        f"    const $K more = {more};\n"
        "    *s = ($V)${M}_mask_mov_$S(($X)*s, more, ($X)v);\n"
        "    *o = (vi32)${N}_mask_mov_epi32((__m${C}i)*o, more, (__m${C}i)here);\n}\n"
    )


def _decide(name: str, kind: str, dtype: str, index: str) -> str:
    less = "(j < *i)" if index == "i32" else "__builtin_convertvector(j < *i, vbool)"
    return (
        "/* The more extreme of two, or of equals the one with the lesser index. */\n"
        f"static inline void {name}_{kind}_$T($V *a, v{index} *i, $V b, v{index} j)\n{{\n"
        f"    const vbool more = {_mask(_more(kind, dtype, '*a', 'b'), dtype)};\n"
        f"    const vbool same = {_mask(_same(dtype, '*a', 'b'), dtype)};\n"
        f"    const vbool take = more | (same & {less});\n"
        f"    *a = sel_$T(take, b, *a);\n    *i = sel_{index}(take, j, *i);\n}}\n"
    )


def _decide_one(kind: str, dtype: str) -> str:
    """As `decide`, of scalars. A bool is 0 or -1."""
    element, wider = "$E", _WIDER[kind]
    if dtype == "bool":
        element, wider = "int32_t", "<" if kind == "max" else ">"
    more = f"b {wider} *a"
    same = "b == *a"
    if dtype in FLOATS:
        more += " || (b != b && *a == *a)"
        same += " || (b != b && *a != *a)"
    return (
        "/* The more extreme of two, or of equals the one with the lesser index. */\n"
        f"static inline void decide_one_{kind}_$T"
        f"({element} *a, int64_t *i, {element} b, int64_t j)\n{{\n"
        f"    const int take = {more} || (({same}) && j < *i);\n"
        "    *a = take ? b : *a;\n    *i = take ? j : *i;\n}\n"
    )


def _place_across(kind: str, shape: Shape) -> str:
    steps = "".join(
        f"    b = SHUFFLE($I, *a, $XOR{bit});\n    j = SHUFFLE(vi32, *i, $XOR{bit});\n"
        f"    settle_{kind}_$T(a, i, b, j);\n"
        for bit in (8, 4, 2, 1)
        if bit < shape.lanes
    )
    body = f"    $V b;\n    vi32 j;\n{steps}" if steps else ""
    return f"static inline void place_{kind}_$T($V *a, vi32 *i)\n{{\n{body}}}\n"


def _rows(kind: str, dtype: str) -> tuple[Row, ...]:
    choices = ("sel $T", "sel i32")
    return (
        Row(f"seek_{kind}", _seek(kind, dtype), (dtype,), needs=choices),
        Row(f"settle_{kind}", _decide("settle", kind, dtype, "i32"), (dtype,), needs=choices),
        Row(
            f"decide_{kind}",
            _decide("decide", kind, dtype, "i64"),
            (dtype,),
            needs=("sel $T", "sel i64"),
        ),
        Row(f"decide_one_{kind}", _decide_one(kind, dtype), (dtype,)),
        Row(
            f"place_{kind}",
            lambda shape: _place_across(kind, shape),
            (dtype,),
            needs=(f"settle_{kind} $T",),
        ),
    )


ARG_ROWS: tuple[Row, ...] = (
    *(
        Row(f"seek_{kind}", _seek_masked(kind, dtype), (dtype,), AVX512)
        for kind in ir.ARGS
        for dtype in ("f64", "f32", "i64", "i32")
    ),
    *(
        row
        for kind in ir.ARGS
        for dtype in (*FLOATS, *INTEGERS, ir.BOOL)
        for row in _rows(kind, dtype)
    ),
)


def in_runs(body: Body, arg: ir.Arg) -> bool:
    """Whether the index grows by the same number with each step of the innermost loop."""
    stride = access(arg.index, reduction_loops(body)[-1]).stride
    if stride is None:
        return False
    least = {name: int(name in body.kernel.symbols) for name in ex.symbols_of(stride)}
    low, _ = ex.bounds(stride, {name: (low, None) for name, low in least.items()})
    return low is not None and low > 0


def seek(writer: Writer, body: Body, position: int, arg: ir.Arg, values: Sequence[str]) -> None:
    """One step of a run: `here` is the offset of the lane variable, or of the loop's."""
    for copy, value in enumerate(values):
        function = body.prelude.use(f"seek_{arg.kind}", arg.dtype)
        name = f"s{position}_{copy}"
        writer.line(f"{function}(&{name}, &at_{name}, {value}, here);")


def compare_each(writer: Writer, body: Body, position: int, arg: ir.Arg, part: Part) -> None:
    """Compares elements by their indices, at once; for an index that follows no run."""
    for copy in range(part.copies):
        value = body.name(arg.operand, copy)
        if body.lane.startswith("p"):
            index = f"{body.prelude.use('splat', 'i64')}({to_c(arg.index)})"
            writer.line(decision(body, position, copy, value, index))
            continue
        lane = ex.add(ex.symbol(body.lane), copy * body.lanes, ex.symbol("l"))
        index = to_c(ex.substitute(arg.index, {body.lane: lane}))
        writer.line(f"for (int l = 0; l < {part.counts[copy] or body.lanes}; l++)")
        writer.line(f"    {decision(body, position, 0, f'{value}[l]', index)}")


def decision(body: Body, position: int, copy: int, value: str, index: str) -> str:
    """The statement that combines a value and its index into a total.

    With lanes along a row, all four are scalars.
    """
    arg = body.kernel.body[position]
    assert isinstance(arg, ir.Arg)
    name = "decide_one" if body.lane.startswith("r") else "decide"
    function, total = body.prelude.use(f"{name}_{arg.kind}", arg.dtype), f"t{position}_{copy}"
    return f"{function}(&{total}, &at_{total}, {value}, {index});"


def total_types(body: Body, arg: ir.Arg) -> tuple[str, str]:
    """The C types of a total and of its index."""
    if body.lane.startswith("p"):
        return f"v{arg.dtype}", "vi64"
    return "int32_t" if arg.dtype == "bool" else ELEMENTS[arg.dtype], "int64_t"


def declare_total(writer: Writer, body: Body, position: int, arg: ir.Arg, copies: int) -> None:
    """Totals that any element replaces."""
    value, index = total_types(body, arg)
    start, last = body.identity(arg), f"{body.prelude.use('splat', 'i64')}(INT64_MAX)"
    if body.lane.startswith("r"):
        start, last = f"({start})[0]", "INT64_MAX"
    for copy in range(copies):
        writer.line(f"{value} t{position}_{copy} = {start};")
        writer.line(f"{index} at_t{position}_{copy} = {last};")


def end_run(writer: Writer, body: Body, position: int, arg: ir.Arg, copies: int) -> None:
    """From offsets since `begin` to indices, and into the totals."""
    inner = reduction_loops(body)[-1]
    if inner == body.lane:
        _end_row(writer, body, position, arg, copies)
        return
    stride = to_c(access(arg.index, inner).stride or ex.ONE)
    start = to_c(ex.substitute(arg.index, {inner: ex.symbol("begin")}))
    for copy in range(copies):
        wide = f"__builtin_convertvector(at_s{position}_{copy}, vi64)"
        index = f"({start}) + ({stride}) * {wide}"
        writer.line(decision(body, position, copy, f"s{position}_{copy}", index))


def _end_row(writer: Writer, body: Body, position: int, arg: ir.Arg, copies: int) -> None:
    settle = body.prelude.use(f"settle_{arg.kind}", arg.dtype)
    place = body.prelude.use(f"place_{arg.kind}", arg.dtype)
    names = [f"s{position}_{copy}" for copy in range(copies)]
    lanes = ", ".join(map(str, range(body.lanes)))
    for copy, name in enumerate(names):
        writer.line(f"at_{name} = at_{name} + (vi32){{{lanes}}} + {copy * body.lanes};")
    while len(names) > 1:
        for left, right in zip(names[::2], names[1::2], strict=False):
            writer.line(f"{settle}(&{left}, &at_{left}, {right}, at_{right});")
        names = names[::2]
    writer.line(f"{place}(&{names[0]}, &at_{names[0]});")
    where = ex.add(ex.symbol("begin"), ex.symbol(f"offset{position}"))
    writer.line(f"const int64_t offset{position} = at_{names[0]}[0];")
    index = to_c(ex.substitute(arg.index, {body.lane: where}))
    writer.line(decision(body, position, 0, f"{names[0]}[0]", index))
