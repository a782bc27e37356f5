"""An error in lowering is found by comparing IR and original ops, not verified by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.unit.workers.building import (
    S0,
    SYMBOLS,
    activation,
    attention_weights,
    column_sums,
    lowered,
    node,
    norm,
    tensor,
)

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers import aten
from nearhint_daemon.workers import lowering_check as checks
from nearhint_daemon.workers.lowering_check import check_lowering
from nearhint_daemon.workers.small_tables import with_small_tables
from nearhint_rules import expr as ex
from nearhint_rules import program as pr
from nearhint_rules.plan import Fallback

P0 = ex.symbol("p0")
PROGRAMS = {
    "norm": norm(),
    "activation": activation(),
    "attention": attention_weights(),
    "columns": column_sums(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_lowering_passes(name: str) -> None:
    kernel, fallback = lowered(PROGRAMS[name])
    found = check_lowering(kernel, fallback, seed=1)
    assert found.problem == ""
    assert found.cases >= 4


def test_the_least_sizes_may_take_as_much_as_is_measured_where_no_others_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "CASE_BYTES", 64)
    kernel, fallback = lowered(PROGRAMS["norm"])
    assert (
        "more than 64 bytes in f64"
        in check_lowering(kernel, fallback, seed=1, limit_bytes=64).problem
    )
    found = check_lowering(kernel, fallback, seed=1, limit_bytes=1 << 20)
    assert (found.problem, found.cases) == ("", 2)
    wrong = edited(kernel, without_epsilon)
    assert check_lowering(wrong, fallback, seed=1, limit_bytes=1 << 20).problem


def edited(kernel: ir.Kernel, edit: Callable[[ir.BodyNode], ir.BodyNode]) -> ir.Kernel:
    body = tuple(map(edit, kernel.body))
    assert body != kernel.body, "the edit changed nothing"
    return replace(kernel, body=body)


def scaled_constants(body_node: ir.BodyNode) -> ir.BodyNode:
    match body_node:
        case ir.Const("f32", bits) if bits:
            return ir.Const("f32", bits + 64)
        case _:
            return body_node


def without_epsilon(body_node: ir.BodyNode) -> ir.BodyNode:
    match body_node:
        case ir.Const("f32", 0x3727C5AC):  # 1e-5
            return ir.Const("f32", 0)
        case _:
            return body_node


def minimum_for_maximum(body_node: ir.BodyNode) -> ir.BodyNode:
    match body_node:
        case ir.Reduce("max", dtype, operand):
            return ir.Reduce("min", dtype, operand)
        case ir.Reduce("sum", dtype, operand):
            return ir.Reduce("max", dtype, operand)
        case _:
            return body_node


def another_index(body_node: ir.BodyNode) -> ir.BodyNode:
    match body_node:
        case ir.Load(1, _):
            return ir.Load(1, ex.ZERO)
        case _:
            return body_node


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("norm", scaled_constants),
        ("norm", without_epsilon),
        ("norm", another_index),
        ("activation", scaled_constants),
        ("activation", another_index),
        ("attention", minimum_for_maximum),
        ("attention", another_index),
        ("columns", minimum_for_maximum),
    ],
)
def test_a_wrong_lowering_is_found(name: str, edit: Callable[[ir.BodyNode], ir.BodyNode]) -> None:
    kernel, fallback = lowered(PROGRAMS[name])
    found = check_lowering(edited(kernel, edit), fallback, seed=1)
    if name == "attention" and edit is minimum_for_maximum:
        # Softmax is the same whatever is subtracted, but the sum became a maximum as well.
        assert "ATen says" in found.problem
    assert found.problem
    assert found.worst_error > 1


WIDE = 640_007
"""Two such rows are more than is interpreted at once."""


def divided(op: str, dtype: str, by: float, rounding_mode: str = "") -> pr.Program:
    """An op of x, in half floats so often a whole number of times `by`."""
    x = tensor(S0, 7, dtype=dtype)
    options = (("rounding_mode", rounding_mode),) if rounding_mode else ()
    made = pr.Node(f"aten.{op}", (pr.Ref(0), by), options, (0,), (x,))
    return pr.Program((pr.Symbol("s0", 1, 4096),), (x,), (made,), (1,))


DIVISIONS = [
    ("floor_divide.default", "bf16", 0.3, ""),
    ("floor_divide.default", "f16", 0.1, ""),
    ("div.Tensor_mode", "bf16", 0.1, "trunc"),
    ("remainder.Scalar", "f32", 0.1, ""),
    ("fmod.Scalar", "f32", 1.7, ""),
]


@pytest.mark.parametrize(("op", "dtype", "by", "mode"), DIVISIONS)
def test_divisors_that_are_rounded_may_move_what_hangs_on_their_last_digit(
    op: str, dtype: str, by: float, mode: str
) -> None:
    kernel, fallback = lowered(divided(op, dtype, by, mode))
    for seed in range(8):
        assert check_lowering(kernel, fallback, seed=seed).problem == ""


@pytest.mark.parametrize(
    ("op", "by", "right", "wrong"),
    [
        ("floor_divide.default", 0.3, "floordiv", "truncdiv"),
        ("remainder.Scalar", 0.1, "mod", "fmod"),
    ],
)
def test_another_division_is_found_though_its_divisor_is_rounded(
    op: str, by: float, right: str, wrong: str
) -> None:
    kernel, fallback = lowered(divided(op, "f32", by))

    def exchange(body_node: ir.BodyNode) -> ir.BodyNode:
        if isinstance(body_node, ir.Op) and body_node.name == right:
            return replace(body_node, name=wrong)
        return body_node

    assert "ATen says" in check_lowering(edited(kernel, exchange), fallback, seed=1).problem


@pytest.mark.parametrize("by", [0.25, 0.5])
def test_divisors_that_are_not_rounded_move_nothing(by: float) -> None:
    # Half floats are often a whole number of times such a one, and there its floor is told exactly.
    kernel, fallback = lowered(divided("floor_divide.default", "bf16", by))

    def just_above(body_node: ir.BodyNode) -> ir.BodyNode:
        if isinstance(body_node, ir.Const) and body_node.dtype == "f32":
            return replace(body_node, bits=body_node.bits + 256)
        return body_node

    assert "ATen says" in check_lowering(edited(kernel, just_above), fallback, seed=1).problem


def test_static_sizes_that_make_any_space_large_are_checked_in_slabs() -> None:
    kernel, fallback = lowered(activation(WIDE))
    found = check_lowering(kernel, fallback, seed=1)
    assert found.problem == ""
    assert found.cases >= 2


def after_the_last_slab_begins(body_node: ir.BodyNode) -> ir.BodyNode:
    """Wrong at the end of the rows alone."""
    match body_node:
        case ir.Load(1, index):
            return ir.Load(1, ex.minimum(index, WIDE - 9))
        case _:
            return body_node


@pytest.mark.parametrize("edit", [scaled_constants, another_index, after_the_last_slab_begins])
def test_a_wrong_lowering_is_found_in_slabs(
    edit: Callable[[ir.BodyNode], ir.BodyNode],
) -> None:
    kernel, fallback = lowered(activation(WIDE))
    assert "ATen says" in check_lowering(edited(kernel, edit), fallback, seed=1).problem


def test_exchanged_dimensions_are_found() -> None:
    kernel, fallback = lowered(attention_weights())
    assert len(kernel.symbols) >= 2
    swapped = replace(fallback, dims=(*fallback.dims[1::-1], *fallback.dims[2:]))
    assert check_lowering(kernel, swapped, seed=1).problem


def test_a_load_that_leaves_its_storage_is_found() -> None:
    kernel, fallback = lowered(activation())

    def beyond(body_node: ir.BodyNode) -> ir.BodyNode:
        match body_node:
            case ir.Load(param, index):
                return ir.Load(param, ex.add(index, 1))
            case _:
                return body_node

    found = check_lowering(edited(kernel, beyond), fallback, seed=1)
    assert "outside" in found.problem


def place_of_the_largest(factor: float) -> pr.Program:
    """argmax(x * factor + 1000) over rows."""
    x = tensor(S0, 40)
    return pr.Program(
        (pr.Symbol("s0", 1, 4096),),
        (x,),
        (
            node("mul.Scalar", pr.Ref(0), factor, makes=(x,)),
            node("add.Scalar", pr.Ref(1), 1000.0, makes=(x,)),
            node("argmax.default", pr.Ref(2), ex.Int(1), makes=(tensor(S0, dtype="i64"),)),
        ),
        (3,),
    )


def smallest_instead(body_node: ir.BodyNode) -> ir.BodyNode:
    match body_node:
        case ir.Arg("max", dtype, operand, index):
            return ir.Arg("min", dtype, operand, index)
        case _:
            return body_node


def test_another_element_that_is_as_extreme_is_no_mistake() -> None:
    """1000 + x / 10^6: all elements lie within the tolerance of one another."""
    kernel, fallback = lowered(place_of_the_largest(1e-6))
    assert check_lowering(kernel, fallback, seed=1).problem == ""
    assert check_lowering(edited(kernel, smallest_instead), fallback, seed=1).problem == ""


def test_an_element_that_is_less_extreme_is_found() -> None:
    kernel, fallback = lowered(place_of_the_largest(10.0))
    assert check_lowering(kernel, fallback, seed=1).problem == ""
    found = check_lowering(edited(kernel, smallest_instead), fallback, seed=1)
    assert "ATen says" in found.problem


def test_a_fallback_that_never_runs_is_a_problem() -> None:
    program = pr.Program(
        (),
        (tensor(2),),
        (node("view.default", pr.Ref(0), (ex.Int(3),), makes=(tensor(3),)),),
        (1,),
    )
    kernel, _ = lowered(activation())
    fallback = Fallback(program, "k" * 64, (ex.ONE,), (0, 0), (1,))
    found = check_lowering(kernel, fallback, seed=1)
    assert "could not be run" in found.problem
    assert found.cases == 0


def test_what_ops_make_of_integers_is_in_f64_as_well() -> None:
    """What is left of a large exponential hangs on digits that f32 has not."""
    x, y = tensor(S0, dtype="i64"), tensor(S0)
    program = pr.Program(
        (pr.Symbol("s0", 1, 64),),
        (x,),
        (
            node("abs.default", pr.Ref(0), makes=(x,)),
            node("add.Tensor", pr.Ref(1), ex.Int(9), makes=(x,)),
            node("exp.default", pr.Ref(2), makes=(y,)),
            node("fmod.Scalar", pr.Ref(3), ex.Int(3), makes=(y,)),
        ),
        (4,),
    )
    kernel, fallback = lowered(program)
    assert check_lowering(kernel, fallback, seed=1).problem == ""
    assert torch.get_default_dtype() == torch.float32


def test_integers_of_what_is_no_number_may_be_anything() -> None:
    """0 / 0 has no integer: numpy makes 0 of it, and ATen the least there is."""
    x = tensor(S0)
    program = pr.Program(
        (pr.Symbol("s0", 1, 64),),
        (x,),
        (
            node("sub.Tensor", pr.Ref(0), pr.Ref(0), makes=(x,)),
            node("div.Tensor", pr.Ref(1), pr.Ref(1), makes=(x,)),
            node("_to_copy.default", pr.Ref(2), makes=(tensor(S0, dtype="i64"),)),
        ),
        (3,),
    )
    kernel, fallback = lowered(program)
    assert check_lowering(kernel, fallback, seed=1).problem == ""


def whole_shares(op: str, *arguments: pr.Arg) -> pr.Program:
    """Whole numbers of what of a row's shares lies before each, each among them."""
    x, counts = tensor(S0, 8), tensor(S0, 8, dtype="i64")
    return pr.Program(
        (pr.Symbol("s0", 1, 64),),
        (x,),
        (
            node("_softmax.default", pr.Ref(0), ex.Int(1), False, makes=(x,)),
            node("cumsum.default", pr.Ref(1), ex.Int(1), makes=(x,)),
            node(op, pr.Ref(2), *arguments, makes=(x,)),
            node("_to_copy.default", pr.Ref(3), makes=(counts,)),
        ),
        (4,),
    )


def test_integers_of_a_sum_may_hang_on_its_last_digit() -> None:
    """All shares together are 1, or a digit less."""
    kernel, fallback = lowered(whole_shares("floor.default"))
    for seed in range(8):
        assert check_lowering(kernel, fallback, seed=seed).problem == ""


def test_other_integers_of_a_sum_are_found() -> None:
    kernel, fallback = lowered(whole_shares("mul.Scalar", 3.0))

    def more(body_node: ir.BodyNode) -> ir.BodyNode:
        match body_node:
            case ir.Const("f32", 0x40400000):
                return ir.Const("f32", 0x40480000)
            case _:
                return body_node

    assert "ATen says" in check_lowering(edited(kernel, more), fallback, seed=1).problem


@pytest.mark.parametrize(
    ("said", "is_broken"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), False),
        (torch.AcceleratorError("CUDA error: an illegal memory access"), True),
    ],
)
def test_a_device_that_is_full_or_broken_proves_no_lowering_wrong(
    said: RuntimeError, is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise said

    monkeypatch.setattr(aten, "_callable", lambda op: fail)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: fail() if is_broken else None)
    kernel, fallback = lowered(activation())
    with pytest.raises(type(said), match=str(said)[:20]):
        check_lowering(kernel, fallback, seed=1)


def test_an_op_that_a_device_refuses_leaves_it_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise torch.AcceleratorError("CUDA error: invalid configuration argument")

    monkeypatch.setattr(aten, "_callable", lambda op: refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    kernel, fallback = lowered(activation())
    found = check_lowering(kernel, fallback, seed=1)
    assert "invalid configuration argument" in found.problem


def looked_up(
    words: int, width: int = 48, *, op: str = "embedding.default", args: tuple[pr.Arg, ...] = ()
) -> pr.Program:
    """A scaled row of a table for each place."""
    x = tensor(S0, width)
    return pr.Program(
        SYMBOLS[:1],
        (tensor(words, width), tensor(S0, dtype="i64"), tensor(width)),
        (
            node(op, *(args or (pr.Ref(0), pr.Ref(1))), makes=(x,)),
            node("mul.Tensor", pr.Ref(3), pr.Ref(2), makes=(x,)),
        ),
        (4,),
    )


BY_INDEX = (pr.Ref(0), (pr.Ref(1),))
SELECTED = (pr.Ref(0), ex.Int(0), pr.Ref(1))
HUGE = 4_000_037


@pytest.mark.parametrize(
    "program",
    [looked_up(HUGE), looked_up(HUGE, op="index_select.default", args=SELECTED)],
    ids=["embedding", "index_select"],
)
def test_a_table_of_a_gigabyte_is_checked_with_fewer_places(program: pr.Program) -> None:
    kernel, fallback = lowered(program)
    found = check_lowering(kernel, fallback, seed=1)
    assert found.problem == ""
    assert found.cases >= 4
    wrong = check_lowering(edited(kernel, another_row), fallback, seed=1)
    assert "ATen says" in wrong.problem


def another_row(body_node: ir.BodyNode) -> ir.BodyNode:
    match body_node:
        case ir.Gather(size=ex.Int()):
            return replace(body_node, stride=ex.Int(47))
        case _:
            return body_node


def test_a_table_whose_number_of_places_the_kernel_has_wrong_keeps_its_own() -> None:
    def fewer(body_node: ir.BodyNode) -> ir.BodyNode:
        match body_node:
            case ir.Gather(size=ex.Int(size)):
                return replace(body_node, size=ex.Int(size - 1))
            case _:
                return body_node

    kernel, fallback = lowered(looked_up(HUGE))
    assert with_small_tables(edited(kernel, fewer), fallback)[1] == fallback


@pytest.mark.parametrize(
    "program",
    [
        looked_up(HUGE, op="index.Tensor", args=BY_INDEX),
        looked_up(HUGE, op="add.Tensor"),
    ],
    ids=["negative_places_count_from_the_end", "not_looked_up"],
)
def test_other_large_inputs_are_told_as_such(program: pr.Program) -> None:
    kernel, fallback = lowered(looked_up(HUGE))
    other = replace(fallback, program=program)
    assert with_small_tables(kernel, other) == (kernel, other)
    assert "bytes in f64 at any sizes" in check_lowering(kernel, other, seed=1).problem


def in_eight_bits(*, divided_first: bool, most: float = 127.0) -> pr.Program:
    """Rows of x over their largest, times the most; as often as not a half is left to round."""
    x, wide, row = tensor(S0, 7, dtype="bf16"), tensor(S0, 7), tensor(S0, 1)
    cast = pr.Node(
        "aten._to_copy.default", (pr.Ref(0),), (("dtype", pr.DType("f32")),), (0,), (wide,)
    )
    largest = (
        node("abs.default", pr.Ref(1), makes=(wide,)),
        node("amax.default", pr.Ref(2), (ex.Int(-1),), True, makes=(row,)),
    )
    steps = (
        node("div.Tensor", pr.Ref(3), most, makes=(row,)),
        node("div.Tensor", pr.Ref(1), pr.Ref(4), makes=(wide,)),
    )
    if not divided_first:
        steps = (
            node("mul.Tensor", pr.Ref(1), most, makes=(wide,)),
            node("div.Tensor", pr.Ref(4), pr.Ref(3), makes=(wide,)),
        )
    rounded = node("round.default", pr.Ref(5), makes=(wide,))
    return pr.Program((pr.Symbol("s0", 1, 4096),), (x,), (cast, *largest, *steps, rounded), (6,))


def test_steps_in_another_order_may_move_what_jumps() -> None:
    _, fallback = lowered(in_eight_bits(divided_first=True))
    kernel, _ = lowered(in_eight_bits(divided_first=False))
    for seed in range(32):
        assert check_lowering(kernel, fallback, seed=seed).problem == ""


def test_more_than_a_last_digit_is_no_other_order() -> None:
    _, fallback = lowered(in_eight_bits(divided_first=True))
    kernel, _ = lowered(in_eight_bits(divided_first=False, most=127.25))
    assert "ATen says" in check_lowering(kernel, fallback, seed=1).problem
