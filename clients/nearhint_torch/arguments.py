"""Arguments and values of captured nodes, in the grammar of `nearhint_rules.program`.

One row per Python type. What has no row makes its node opaque; it is never an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from nearhint_rules import expr as ex
from nearhint_rules.program import (
    OTHER_DTYPE,
    Arg,
    DType,
    FloatType,
    IntType,
    Keyword,
    OtherType,
    Ref,
    TensorType,
    ValueType,
)
from nearhint_torch.sizes import SizeTable

DTYPE_NAMES: Mapping[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3fn",
    torch.float8_e5m2: "f8e5m2",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
DTYPES_BY_NAME: Mapping[str, torch.dtype] = {name: dtype for dtype, name in DTYPE_NAMES.items()}
DEVICE_KINDS = frozenset({"cpu", "cuda"})


class Unfit(Exception):
    """An argument is outside the grammar."""


def _dtype(value: torch.dtype) -> Arg:
    name = DTYPE_NAMES.get(value)
    if name is None:
        raise Unfit
    return DType(name)


def _device(value: torch.device) -> Arg:
    if value.type not in DEVICE_KINDS:
        raise Unfit
    return Keyword("device", value.type)


def _layout(value: torch.layout) -> Arg:
    if value is not torch.strided:
        raise Unfit
    return Keyword("layout", "strided")


def _memory_format(value: torch.memory_format) -> Arg:
    return Keyword("memory_format", str(value).removeprefix("torch.").removesuffix("_format"))


def _same(value: Any) -> Arg:
    kept: Arg = value
    return kept


CONSTANTS: Mapping[type, Callable[[Any], Arg]] = {
    bool: _same,
    float: _same,
    str: _same,
    type(None): _same,
    int: ex.Int,
    torch.dtype: _dtype,
    torch.device: _device,
    torch.layout: _layout,
    torch.memory_format: _memory_format,
}


class ArgumentReader:
    """Reads the arguments of one graph's nodes; `values` maps its nodes to value numbers."""

    def __init__(self, values: Mapping[fx.Node, int], sizes: SizeTable) -> None:
        self._values = values
        self._sizes = sizes

    def read(self, argument: object) -> Arg:
        """The argument in the grammar; raises `Unfit`."""
        if isinstance(argument, fx.Node):
            return self._reference(argument)
        if isinstance(argument, (list, tuple)):
            return tuple(self.read(inner) for inner in argument)
        constant = CONSTANTS.get(type(argument))
        if constant is None:
            raise Unfit
        return constant(argument)

    def _reference(self, node: fx.Node) -> Arg:
        value = node.meta.get("val")
        if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            size = self._sizes.read(value)
            if size is not None:
                return size
        if node not in self._values:
            raise Unfit
        return Ref(self._values[node])


def value_type(value: object, sizes: SizeTable) -> ValueType:
    """The type of a value as capture knows it (a fake tensor, a symbolic size, a constant)."""
    if isinstance(value, torch.Tensor):
        return _tensor_type(value, sizes)
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return IntType(sizes.read(value))
    if isinstance(value, torch.SymFloat):
        return FloatType()
    return OtherType()


def _tensor_type(value: torch.Tensor, sizes: SizeTable) -> ValueType:
    if value.layout is not torch.strided or value.device.type not in DEVICE_KINDS:
        return OtherType()
    shape = [sizes.read(size) for size in value.shape]
    stride = [sizes.read(step) for step in value.stride()]
    known_shape = tuple(size for size in shape if size is not None)
    known_stride = tuple(step for step in stride if step is not None)
    if len(known_shape) != len(shape) or len(known_stride) != len(stride):
        return OtherType()
    if value.is_conj() or value.is_neg():
        return OtherType()
    return TensorType(
        DTYPE_NAMES.get(value.dtype, OTHER_DTYPE), known_shape, known_stride, value.device.type
    )
