"""torch's type promotion, over the dtypes that kernels may touch.

Three kinds of operands, strongest first: tensors with dims, 0-d tensors, Python numbers. A weaker
kind takes part only if its category (bool < integer < float) is higher, as in
https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.ir.nodes import LOW_PRECISION

FLOATS = ("f64", "f32", "f16", "bf16")
STORED_FLOATS = ("f8e4m3fn", "f8e5m2")
"""Floats that torch casts to and from, and has no arithmetic or promotion for."""
INTEGERS = ("i64", "i32", "i16", "i8", "u8")
DEFAULT_FLOAT = "f32"
CATEGORY: Mapping[str, int] = {
    "bool": 0,
    **dict.fromkeys(INTEGERS, 1),
    **dict.fromkeys((*FLOATS, *STORED_FLOATS), 2),
}
LARGEST: Mapping[str, float] = {
    "f64": (2 - 2.0**-52) * 2.0**1023,
    "f32": (2 - 2.0**-23) * 2.0**127,
    "f16": 65504.0,
    "bf16": (2 - 2.0**-7) * 2.0**127,
}
"""The largest finite number of each dtype."""
INFINITE_FROM: Mapping[str, float] = {
    "f64": float("inf"),
    "f32": float("inf"),
    "f16": 65520.0,
    "bf16": (2 - 2.0**-8) * 2.0**127,
}
"""What is rounded to infinity in each dtype, of what is computed in its compute dtype, at least."""
_WIDTH: Mapping[str, int] = {"i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1}


def promote(left: str, right: str) -> str:
    """The dtype of two tensors of the same kind: `torch.promote_types`."""
    if left == right:
        return left
    if left in STORED_FLOATS or right in STORED_FLOATS:
        raise Unlowerable("a promotion of 8-bit floats")
    if CATEGORY[left] != CATEGORY[right]:
        return left if CATEGORY[left] > CATEGORY[right] else right
    if CATEGORY[left] == 2:
        if {left, right} == {"f16", "bf16"}:
            return "f32"
        return min(left, right, key=FLOATS.index)
    if {left, right} == {"u8", "i8"}:
        return "i16"
    return max(left, right, key=lambda dtype: (_WIDTH[dtype], dtype != "u8"))


def result_type(
    *, tensors: Iterable[str] = (), zero_dim: Iterable[str] = (), numbers: Iterable[str] = ()
) -> str | None:
    """`torch.result_type` of operands given by kind; None without operands."""
    result: str | None = None
    for kind in (tensors, zero_dim, numbers):
        combined: str | None = None
        for dtype in kind:
            combined = dtype if combined is None else promote(combined, dtype)
        if combined is None:
            continue
        if result is None:
            result = combined
        elif CATEGORY[combined] > CATEGORY[result]:
            result = promote(result, combined)
    return result


def number_dtype(value: bool | int | float) -> str:
    """The dtype that a Python number takes part in promotion with."""
    if isinstance(value, bool):
        return "bool"
    return "i64" if isinstance(value, int) else DEFAULT_FLOAT


def compute_dtype(dtype: str) -> str:
    """What values of `dtype` are computed in: f32 for low precision, else `dtype` itself."""
    return "f32" if dtype in LOW_PRECISION else dtype
