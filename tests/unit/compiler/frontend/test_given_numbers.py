"""Numbers that each call gives and no size determines: Kernels take them by value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.building import S0, S1, Builder, tensor
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import (
    Recorded,
    assert_lowering_is_right,
    close,
    record,
    record_each,
    run_captured,
)
from torch import Tensor

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import Lowered, lower
from nearhint_rules import expr as ex
from nearhint_rules.plan import Free, Launch, RunNodes
from nearhint_rules.program import DType, FloatType, IntType, Ref

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
I64, I32, I8, U8, BOOL = torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool
FLOATS = (F64, F32, F16, BF16)
INTEGERS = (I64, I32, I8, U8)
ALL = (*FLOATS, *INTEGERS, BOOL)
WIDE = (F64, F32, BF16, I64)

Function = Callable[[Tensor, int], Any]
FUNCTIONS: dict[str, tuple[Function, tuple[torch.dtype, ...]]] = {
    "add": (lambda x, n: x + n, ALL),
    "sub": (lambda x, n: x - n, (*FLOATS, *INTEGERS)),
    "number first": (lambda x, n: n - x, (*FLOATS, *INTEGERS)),
    "mul": (lambda x, n: x * n, ALL),
    "div": (lambda x, n: x / n, ALL),
    "floor_divide": (lambda x, n: x // n, FLOATS),
    "remainder": (lambda x, n: x % n, (F64, F32)),
    "fmod": (torch.fmod, (F64, F32)),
    "scaled": (lambda x, n: torch.add(x, x, alpha=n), WIDE),
    "scaled first": (lambda x, n: torch.rsub(x, x * 2, alpha=n), WIDE),
    "pow": (lambda x, n: x.abs() ** n, (F64, F32)),
    "power of it": (lambda x, n: n**x, (F64, F32)),
    **{
        name: (getattr(torch, name), ALL)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    "and": (lambda x, n: x & n, (*INTEGERS, BOOL)),
    "xor": (lambda x, n: x ^ n, (*INTEGERS, BOOL)),
    "shift": (lambda x, n: x << n, (I64, I32)),
    "where": (lambda x, n: torch.where(x > 0, x, n), (F64, F32, F16, BF16, I64)),
    "clamp": (lambda x, n: x.clamp(-n, n), WIDE),
    "clamp_min": (lambda x, n: x.clamp(min=n), WIDE),
    "masked_fill": (lambda x, n: x.masked_fill(x > 0, n), (*WIDE, BOOL)),
    "full": (lambda x, n: x + torch.full((x.shape[1],), n), ALL),
    "full_like": (lambda x, n: x + torch.full_like(x, n), (*WIDE, BOOL)),
    "tensor of it": (lambda x, n: x + torch.tensor(n), ALL),
    "positions": (lambda x, n: x + (torch.arange(x.shape[1]) + n), ALL),
    "arange from it": (lambda x, n: x + torch.arange(n, n + x.shape[1]), ALL),
    "every second from it": (
        lambda x, n: x + torch.arange(n, n + 2 * x.shape[1], 2),
        (*FLOATS, *INTEGERS),
    ),
    "down to it": (lambda x, n: x + torch.arange(n + x.shape[1], n, -1), (*FLOATS, *INTEGERS)),
    "mask": (lambda x, n: x * (torch.arange(x.shape[1]) < n), ALL),
    "triangle": (lambda x, n: torch.tril(x, n) + torch.triu(x, -n), (*FLOATS, *INTEGERS)),
    "sum": (lambda x, n: (x * n).sum(-1) + n, ALL),
    "rows": (lambda x, n: torch.softmax(x / n, -1) * n, (F64, F32)),
    "cat": (lambda x, n: torch.cat([x * n, x + n], -1), (*FLOATS, *INTEGERS)),
    "lerp": (lambda x, n: torch.lerp(x, x * 2, n), (F64, F32)),
    "of it": (lambda x, n: x * (n + 1) + n // 2 + 2 * n * x.shape[0], (*FLOATS, *INTEGERS)),
    "remainder of it": (lambda x, n: x + n % 4, ALL),
    "least": (lambda x, n: x + min(n, x.shape[0]), ALL),
}  # fmt: skip
FRACTIONS: dict[str, tuple[Function, tuple[torch.dtype, ...]]] = {
    "add": (lambda x, n: x + n / 4, ALL),
    "mul": (lambda x, n: x * (1 / n), ALL),
    "div": (lambda x, n: x / (n / 4), ALL),
    "gt": (lambda x, n: x > n / 8, ALL),
    "eq": (lambda x, n: x == n / 8, (*FLOATS, *INTEGERS)),
    "of sizes": (lambda x, n: (x * n).sum(-1) * (1 / x.shape[1]), ALL),
    "where": (lambda x, n: torch.where(x > 0, x, n / 4), FLOATS),
    "clamp": (lambda x, n: x.clamp(-n / 4, n / 4), (F64, F32, BF16)),
    "full_like": (lambda x, n: x + torch.full_like(x, n / 4), (F64, F32, BF16)),
    "tensor of it": (lambda x, n: x + torch.tensor(n / 4), ALL),
    "scaled": (lambda x, n: torch.add(x, x, alpha=n / 4), (F64, F32)),
    "pow": (lambda x, n: x.abs() ** (n / 4), (F64, F32)),
}
CASES = [(name, dtype) for name, (_, known) in FUNCTIONS.items() for dtype in known]


def served(function: Callable[..., Any], *args: Any) -> tuple[Lowered, list[str]]:
    """Captures, lowers, runs, compares with eager; also which ops of tensors stay as they are."""
    return served_as(record(lambda *given: (function(*given),), *args), function(*args))


def served_as(recorded: Recorded, expected: Any) -> tuple[Lowered, list[str]]:
    """The same, of what was captured."""
    program = recorded.captured.program
    lowered = lower(program, target_kind="cpu")
    ran = run_captured(lowered, recorded)
    close(ran.results[0], expected)
    run = [node for step in lowered.plan.steps if isinstance(step, RunNodes) for node in step.nodes]
    return lowered, [op for node in run if (op := program.nodes[node].op)]


def numbers_read(lowered: Lowered, dtype: str = "i64") -> int:
    """How many parameters of Kernels are numbers by value."""
    params = [param for found in lowered.kernels for param in found.kernel.params]
    return params.count(ir.Param("scalar", dtype))


@cache
def captured(dtype: torch.dtype) -> Mapping[str, Recorded]:
    """Each of `FUNCTIONS` that takes a dtype; one is of squares."""
    known = {name: made for name, (made, dtypes) in FUNCTIONS.items() if dtype in dtypes}
    others = {name: made for name, made in known.items() if name != "triangle"}
    found = dict(record_each(others, drawn(6, 9, dtype=dtype), 3))
    if "triangle" in known:
        found["triangle"] = record(known["triangle"], drawn(6, 6, dtype=dtype), 3)
    return found


@cache
def captured_fractions(dtype: torch.dtype) -> Mapping[str, Recorded]:
    """Each of `FRACTIONS` that takes a dtype."""
    known = {name: made for name, (made, dtypes) in FRACTIONS.items() if dtype in dtypes}
    return record_each(known, drawn(6, 9, dtype=dtype), 3)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_number_is_served_within_kernels_in_each_dtype(name: str, dtype: torch.dtype) -> None:
    function, _ = FUNCTIONS[name]
    x = drawn(*((6, 6) if name == "triangle" else (6, 9)), dtype=dtype)
    lowered, others = served_as(captured(dtype)[name], function(x, 3))
    assert others == []
    assert numbers_read(lowered)
    assert_lowering_is_right(lowered)


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, (_, known) in FRACTIONS.items() for dtype in known]
)
def test_what_has_a_fraction_is_served_within_kernels_too(name: str, dtype: torch.dtype) -> None:
    function, _ = FRACTIONS[name]
    expected = function(drawn(6, 9, dtype=dtype), 3)
    lowered, others = served_as(captured_fractions(dtype)[name], expected)
    assert others == []
    assert numbers_read(lowered, "f64")
    assert_lowering_is_right(lowered)


@pytest.mark.parametrize("dtype", ["f16", "i64"])
@pytest.mark.parametrize("op", ["full_like.default", "clamp_min.default"])
def test_a_fraction_that_may_be_out_of_range_stays_eager_s(op: str, dtype: str) -> None:
    build = Builder()
    x, n = build.input(S0, S1, dtype=dtype), build.typed(FloatType())
    made = build.call(f"aten.{op}", x, n, out=tensor(S0, S1, dtype=dtype))
    lowered = lower(build.program(made), target_kind="cpu")
    assert lowered.plan.steps == (RunNodes((0,)),)


def test_a_number_with_a_fraction_that_nothing_reads_is_not_computed() -> None:
    build = Builder()
    x, n = build.input(S0, S1), build.typed(IntType(None))
    build.opaque(n, out=FloatType())
    made = build.call("aten.exp.default", x, out=tensor(S0, S1))
    lowered = lower(build.program(made), target_kind="cpu")
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)


@pytest.mark.parametrize("number", [-3, 2, 300, 2**31 + 7, -(2**40)])
@pytest.mark.parametrize("dtype", [F64, F32, I64, I32, I8, U8])
def test_a_number_of_any_size_is_what_eager_makes_it_in_the_tensor_s_dtype(
    number: int, dtype: torch.dtype
) -> None:
    """Eager wraps it round, and so compares with what is left of it."""
    x = drawn(6, 9, dtype=dtype)
    for function in (lambda x, n: x * n, lambda x, n: x + n, torch.gt, torch.eq):
        _, others = served(function, x, number)
        assert others == []


def test_a_kernel_takes_a_number_as_a_parameter_and_knows_no_size_of_it() -> None:
    build = Builder()
    x, n = build.input(S0, S1), build.typed(IntType(None))
    made = build.call("aten.mul.Tensor", x, n, out=tensor(S0, S1))
    lowered = lower(build.program(made), target_kind="cpu")
    (launch,) = (step for step in lowered.plan.steps if isinstance(step, Launch))
    (found,) = lowered.kernels
    assert launch.inputs == (x.value, n.value)
    assert launch.dims == (ex.mul(S0, S1),)
    assert found.kernel.params == (
        ir.Param("in", "f32"), ir.Param("scalar", "i64"), ir.Param("out", "f32"),
    )  # fmt: skip
    (fallback,) = lowered.fallbacks
    assert fallback.program.inputs[1] == IntType(None)


def test_a_kernel_of_a_gpu_takes_it_by_value_too() -> None:
    build = Builder()
    x, n = build.input(S0, S1, dtype="f16", device="cuda"), build.typed(IntType(None))
    made = build.call("aten.mul.Tensor", x, n, out=tensor(S0, S1, dtype="f16", device="cuda"))
    lowered = lower(build.program(made), target_kind="cuda")
    assert numbers_read(lowered) == 1


def test_a_number_that_a_node_computes_is_read_where_it_is_made() -> None:
    build = Builder()
    x, n = build.input(S0, S1), build.typed(IntType(None))
    more = build.opaque(n, out=IntType(None))
    made = build.call("aten.mul.Tensor", x, more, out=tensor(S0, S1))
    lowered = lower(build.program(made), target_kind="cpu")
    first, launch = lowered.plan.steps
    assert first == RunNodes((0,))
    assert isinstance(launch, Launch)
    assert launch.inputs == (x.value, more.value)


@pytest.mark.parametrize("dtype", ["f16", "i32", "i16", "i8", "u8"])
@pytest.mark.parametrize("op", ["full_like.default", "fill.Scalar", "clamp_min.default"])
def test_what_eager_refuses_where_a_number_is_out_of_range_stays_its_own(
    op: str, dtype: str
) -> None:
    build = Builder()
    x, n = build.input(S0, S1, dtype=dtype), build.typed(IntType(None))
    made = build.call(f"aten.{op}", x, n, out=tensor(S0, S1, dtype=dtype))
    doubled = build.call("aten.add.Tensor", made, made, out=tensor(S0, S1, dtype=dtype))
    lowered = lower(build.program(doubled), target_kind="cpu")
    assert lowered.plan.steps[0] == RunNodes((0,))


@pytest.mark.parametrize("function", [torch.floor_divide, torch.remainder])
def test_integers_are_divided_by_numbers_in_eager_which_says_so_if_one_is_zero(
    function: Function,
) -> None:
    _, others = served(lambda x, n: function(x + n, n) * 2, drawn(6, 9, dtype=I64), 3)
    assert len(others) == 1


def test_a_number_beside_tensors_without_dims_is_still_a_number() -> None:
    """A 0-d tensor of 64 bits would make i64 of i8 there."""
    x = torch.tensor(3, dtype=I8)
    _, others = served(lambda x, y, n: y + x * n, x, drawn(6, dtype=I8), 3)
    assert others == []


def test_a_size_that_is_a_value_in_half_precision_is_rounded_to_it() -> None:
    lowered, others = served(
        lambda x: x + torch.full((1,), x.shape[0], dtype=F16), drawn(2051, 3, dtype=F32)
    )
    assert others == []
    assert_lowering_is_right(lowered)


NUMBER = tensor()
ON_DEVICE = tensor(S0, S1, device="cuda")


def scaled_by_square(build: Builder) -> tuple[Ref, Ref, Ref, Ref]:
    """A tensor on a device and a number of f64 beside it; the square in f32, and the product."""
    x, given = build.input(S0, S1, device="cuda"), build.input(dtype="f64")
    converted = build.call("prims.convert_element_type.default", given, DType("f32"), out=NUMBER)
    square = build.call("aten.mul.Tensor", converted, converted, out=NUMBER)
    return x, given, square, build.call("aten.mul.Tensor", x, square, out=ON_DEVICE)


def test_numbers_on_the_host_are_converted_in_the_kernels_that_take_them() -> None:
    """As a float that is a global of Python's comes: beside a device each op would be a call."""
    build = Builder()
    x, given, _, scaled = scaled_by_square(build)
    lowered = lower(build.program(scaled), target_kind="cuda")
    (launch,) = lowered.plan.steps
    assert isinstance(launch, Launch)
    assert launch.inputs == (x.value, given.value)
    (kernel,) = lowered.kernels
    assert ir.Param("scalar", "f64") in kernel.kernel.params
    assert_lowering_is_right(lowered)


def test_numbers_on_the_host_that_are_results_are_made_there() -> None:
    build = Builder()
    x, _, square, scaled = scaled_by_square(build)
    lowered = lower(build.program(scaled, square), target_kind="cuda")
    first, launch = (step for step in lowered.plan.steps if not isinstance(step, Free))
    assert first == RunNodes((0, 1))
    assert isinstance(launch, Launch)
    assert launch.inputs == (x.value, square.value)


def test_numbers_of_a_device_are_brought_to_the_host_by_the_op_that_does_so() -> None:
    build = Builder()
    x = build.input(S0, S1, device="cuda")
    total = build.call("aten.sum.default", x, out=tensor(device="cuda"))
    brought = build.call("aten._to_copy.default", total, out=NUMBER, device="cpu")
    doubled = build.call("aten.add.Tensor", brought, brought, out=NUMBER)
    scaled = build.call("aten.mul.Tensor", x, doubled, out=ON_DEVICE)
    lowered = lower(build.program(scaled), target_kind="cuda")
    steps = [step for step in lowered.plan.steps if not isinstance(step, Free)]
    assert [type(step) for step in steps] == [Launch, RunNodes, Launch]
    assert steps[1] == RunNodes((1,))
