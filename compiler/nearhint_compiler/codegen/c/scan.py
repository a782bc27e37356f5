"""Running reductions: primitives, and the state that a walk keeps for a `scan`.

What rounds of f32 is made in f64 and rounded to f32 at each element, as eager does on a CPU;
extrema, f64 and integers in their own dtype. The order of the operations: with lanes along a
pointwise loop, one after another. With lanes along the row, the elements of a register (of sums and
products of f32 one of f64: 8, 4 or 2) are first combined with each other, in a tree: element i with
the 1, then 2, then 4 before it, logarithms of f32 in f32; the total of all registers before is
combined with each of them last.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial

from nearhint_compiler.codegen.c.body import Body, Part
from nearhint_compiler.codegen.c.primitive import AVX2, AVX512, ELEMENTS, Row, Shape
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.nodes import FLOATS
from nearhint_rules.program import DTYPES

_STEP = {"sum": "+", "prod": "*"}
_EXTREMA = ("max", "min")


def _neutral(kind: str, dtype: str) -> str:
    """What changes nothing, as a number."""
    if kind in _STEP:
        return {"sum": "0", "prod": "1"}[kind]
    if dtype in FLOATS:
        return "__builtin_inf()" if kind == "min" else "-__builtin_inf()"
    if dtype == "u8":
        return "0" if kind == "max" else "UINT8_MAX"
    return f"INT{8 * DTYPES[dtype]}_{'MIN' if kind == 'max' else 'MAX'}"


def _carried(kind: str, dtype: str) -> str:
    """The dtype of what is before an element."""
    return "f64" if dtype == "f32" and kind not in _EXTREMA else dtype


def _combined(kind: str, left: str, right: str, dtype: str = "$T") -> str:
    if kind in _STEP:
        return f"{left} {_STEP[kind]} {right}"
    return f"{kind}_{dtype}({left}, {right})"


def _running(kind: str, dtype: str, shape: Shape) -> str:
    """A prefix in the register: log2(lanes) steps, then the carry from before."""
    lanes = shape.lanes
    steps = "".join(
        f"    v = {_combined(kind, 'v', f'SHUFFLE2($I, none, v, {_moved(lanes, bit)})')};\n"
        for bit in (1, 2, 4, 8)
        if bit < lanes
    )
    head = (
        "/* Each element with all before it in v and in the carry. */\n"
        f"static inline $V running_{kind}_$T($V v, {ELEMENTS[_carried(kind, dtype)]} *carry)\n{{\n"
        f"    const $V none = splat_$T({_neutral(kind, dtype)});\n{steps}"
    )
    if _carried(kind, dtype) != dtype:
        wide = "__builtin_convertvector(v, vf64)"
        return (
            f"{head}    const vf64 x = {_combined(kind, wide, 'splat_f64(*carry)', 'f64')};\n"
            f"    *carry = x[{lanes - 1}];\n    return __builtin_convertvector(x, $V);\n}}\n"
        )
    return (
        f"{head}    v = {_combined(kind, 'v', 'splat_$T(*carry)')};\n"
        f"    *carry = v[{lanes - 1}];\n    return v;\n}}\n"
    )


def _moved(lanes: int, by: int) -> str:
    """Lanes of `v` moved up; of its neighbour in the shuffle below."""
    return ", ".join(str(lane if lane < by else lanes + lane - by) for lane in range(lanes))


def _one_by_one(kind: str) -> str:
    return (
        "/* Each element with all before it in v and in the carry. */\n"
        f"static inline vf32 running_{kind}_f32(vf32 v, double *carry)\n{{\n"
        "    for (int l = 0; l < $W; l++) {\n"
        f"        *carry = *carry {_STEP[kind]} v[l];\n        v[l] = (float)*carry;\n    }}\n"
        "    return v;\n}\n"
    )


def _prefix(kind: str, level: int) -> str:
    """The prefix within one register of f64."""
    sign, neutral = ("add", "0.0") if kind == "sum" else ("mul", "1.0")
    if level == AVX512:
        steps = "".join(
            f"    moved = (__m512d)_mm512_alignr_epi64((__m512i)x, none, {8 - by});\n"
            f"    x = _mm512_{sign}_pd(x, moved);\n"
            for by in (1, 2, 4)
        )
        return (
            f"static inline __m512d prefix_{kind}(__m512d x)\n{{\n"
            f"    const __m512i none = (__m512i)_mm512_set1_pd({neutral});\n"
            f"    __m512d moved;\n{steps}"
            "    return x;\n}\n\n"
        )
    return (
        f"static inline __m256d prefix_{kind}(__m256d x)\n{{\n"
        f"    const __m256d none = _mm256_set1_pd({neutral});\n"
        "    __m256d moved = _mm256_blend_pd(_mm256_permute4x64_pd(x, 0x90), none, 1);\n"
        f"    x = _mm256_{sign}_pd(x, moved);\n"
        "    moved = _mm256_blend_pd(_mm256_permute2f128_pd(x, x, 0x08), none, 3);\n"
        f"    return _mm256_{sign}_pd(x, moved);\n}}\n\n"
    )


def _in_halves(kind: str, level: int, shape: Shape) -> str:
    """f32 through registers of f64, of half as many lanes as there are."""
    wide, width = ("_mm512", 512) if level == AVX512 else ("_mm256", 256)
    half, at = ("__m256", 8) if level == AVX512 else ("__m128", 4)
    double, sign = f"__m{width}d", _STEP[kind]
    head = (
        _prefix(kind, level) + "/* Each element with all before it in v and in the carry. */\n"
        f"static inline vf32 running_{kind}_f32(vf32 v, double *carry)\n{{\n"
    )
    if shape.lanes == at:
        return (
            head + f"    const {double} x = prefix_{kind}({wide}_cvtps_pd(v));\n"
            f"    const double before = *carry;\n    *carry = before {sign} x[{at - 1}];\n"
            f"    return {wide}_cvtpd_ps(x {sign} {wide}_set1_pd(before));\n}}\n"
        )
    low, high, join = (
        ("_mm512_castps512_ps256(v)", "_mm512_extractf32x8_ps(v, 1)",
         "_mm512_insertf32x8(_mm512_castps256_ps512({}), {}, 1)")
        if level == AVX512
        else ("_mm256_castps256_ps128(v)", "_mm256_extractf128_ps(v, 1)",
              "_mm256_insertf128_ps(_mm256_castps128_ps256({}), {}, 1)")
    )  # fmt: skip
    return (
        head + f"    {double} x = prefix_{kind}({wide}_cvtps_pd({low}));\n"
        f"    {double} y = prefix_{kind}({wide}_cvtps_pd({high}));\n"
        f"    const double before = *carry, middle = before {sign} x[{at - 1}];\n"
        f"    *carry = middle {sign} y[{at - 1}];\n"
        f"    x = x {sign} {wide}_set1_pd(before);\n    y = y {sign} {wide}_set1_pd(middle);\n"
        f"    const {half} first = {wide}_cvtpd_ps(x), second = {wide}_cvtpd_ps(y);\n"
        f"    return {join.format('first', 'second')};\n}}\n"
    )


def _step(kind: str, dtype: str) -> str:
    """One element a lane."""
    if _carried(kind, dtype) == dtype:
        return (
            f"static inline $V step_{kind}_$T($V v, $V *carry)\n"
            f"{{\n    return *carry = {_combined(kind, '*carry', 'v')};\n}}\n"
        )
    wide = "__builtin_convertvector(v, vf64)"
    return (
        f"static inline vf32 step_{kind}_f32(vf32 v, vf64 *carry)\n{{\n"
        f"    *carry = {_combined(kind, '*carry', wide, 'f64')};\n"
        "    return __builtin_convertvector(*carry, vf32);\n}\n"
    )


def _step_in_halves(kind: str) -> str:
    sign = _STEP[kind]
    return (
        f"static inline vf32 step_{kind}_f32(vf32 v, vf64 *carry)\n{{\n"
        "    __m512d *const c = (__m512d *)carry;\n"
        f"    c[0] = c[0] {sign} _mm512_cvtps_pd(_mm512_castps512_ps256(v));\n"
        f"    c[1] = c[1] {sign} _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));\n"
        "    const __m256 first = _mm512_cvtpd_ps(c[0]), second = _mm512_cvtpd_ps(c[1]);\n"
        "    return _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);\n}\n"
    )


def _rows_in_halves(kind: str) -> tuple[Row, ...]:
    """Of what is added and multiplied in f64."""
    f32 = ("f32",)
    return (
        Row(f"running_{kind}", lambda s: _in_halves(kind, AVX512, s), f32, AVX512, bits=(256, 512)),
        Row(f"running_{kind}", lambda s: _in_halves(kind, AVX2, s), f32, AVX2, bits=(128, 256)),
        Row(f"running_{kind}", _one_by_one(kind), f32),
        Row(f"step_{kind}", _step_in_halves(kind), f32, AVX512, bits=(512,)),
    )


def _rows(kind: str, dtype: str) -> tuple[Row, Row]:
    carried = _carried(kind, dtype)
    needs = () if kind in _STEP else (f"{kind} $T", f"{kind} {carried}")
    splats = ("splat $T", f"splat {carried}")
    return (
        Row(f"running_{kind}", partial(_running, kind, dtype), (dtype,), needs=(*needs, *splats)),
        Row(f"step_{kind}", _step(kind, dtype), (dtype,), needs=needs),
    )


_LOGADDEXP = Row(
    "logaddexp",
    "static inline $V logaddexp_$T($V a, $V b)\n{\n"
    "    const $I same = a == b;\n    const $V less = exp_$T(-abs_$T(a - b));\n"
    "    const $V more = ($V)((same & ($I)splat_$T(1)) | (~same & ($I)less));\n"
    "    return max_$T(a, b) + log1p_$T(more);\n}\n",
    FLOATS,
    needs=tuple(f"{name} $T" for name in ("splat", "exp", "abs", "max", "log1p")),
)
SCAN_ROWS: tuple[Row, ...] = (
    _LOGADDEXP,
    *(row for kind in _STEP for row in _rows_in_halves(kind)),
    *(row for kind, dtypes in ir.SCANS.items() for dtype in dtypes for row in _rows(kind, dtype)),
)


def is_scanning(kernel: ir.Kernel) -> bool:
    """Whether a row has to be walked in order, by one thread."""
    return any(isinstance(node, ir.Scan) for node in kernel.body)


def declare_carries(writer: Writer, body: Body, positions: Sequence[int], part: Part) -> None:
    """What the scans at `positions` start a walk with."""
    for position in positions:
        node = body.kernel.body[position]
        if not isinstance(node, ir.Scan):
            continue
        wide, neutral = _carried(node.kind, node.dtype), _neutral(node.kind, node.dtype)
        if body.lane.startswith("r"):
            writer.line(f"{ELEMENTS[wide]} carry{position} = {neutral};")
            continue
        start = f"{body.prelude.use('splat', wide)}({neutral})"
        for copy in range(body.copies(position, part)):
            writer.line(f"v{wide} carry{position}_{copy} = {start};")


@contextmanager
def walked_in_order(
    writer: Writer, body: Body, positions: Sequence[int], part: Part
) -> Generator[None]:
    """A scope for one walk over the scans at `positions`, if there are any."""
    if not any(isinstance(body.kernel.body[position], ir.Scan) for position in positions):
        yield
        return
    with writer.block():
        declare_carries(writer, body, positions, part)
        yield
