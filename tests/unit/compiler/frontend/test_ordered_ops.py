"""Ops for which order counts: places of extrema, running sums, and what moves along one dim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.building import S0, S1, Builder, tensor
from tests.unit.compiler.frontend.drawing import awkward, drawn
from tests.unit.compiler.frontend.running import (
    assert_lowering_is_right,
    check,
    launched_nodes,
)
from torch import Tensor
from torch.nn import functional

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import Lowered, lower
from nearhint_rules import expr as ex
from nearhint_rules.program import Program, TensorType

Function = Callable[..., Any]
PLACES: dict[str, Function] = {
    "argmax": lambda x: x.argmax(-1),
    "argmax first": lambda x: x.argmax(0, keepdim=True),
    "argmax all": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(1),
    "argmin all": lambda x: x.argmin(),
    "max": lambda x: x.max(1),
    "max keepdim": lambda x: x.max(-1, keepdim=True),
    "min": lambda x: x.min(0),
    "index alone": lambda x: x.min(1)[1],
    "of a product": lambda x: (x * x).argmax(1),
    "used again": lambda x: x - x.max(1, keepdim=True)[0],
    "compared": lambda x: x.argmax(-1, keepdim=True) == torch.arange(x.shape[-1]),
    "turned": lambda x: x.permute(2, 0, 1).argmax(),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("kind", ["plain", "ties", "awkward", "transposed", "half"])
def test_places_of_extrema(name: str, kind: str) -> None:
    x = {
        "plain": drawn(5, 7, 12),
        "ties": drawn(5, 7, 12).round(),
        "awkward": awkward(5, 7, 12),
        "half": drawn(5, 7, 12, dtype=torch.float16),
        "transposed": drawn(12, 7, 5).round().transpose(0, 2),
    }[kind]
    lowered = check(PLACES[name], x)
    assert any(isinstance(node, ir.Arg) for node in bodies(lowered)) == (name != "used again")


def test_places_of_integers() -> None:
    check(lambda x: (x.argmax(1), *x.min(0)), drawn(9, 8, dtype=torch.int32))


SCANS: dict[str, Function] = {
    "cumsum": lambda x: x.cumsum(-1),
    "cumsum middle": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(0),
    "of f64": lambda x: x.cumsum(1, dtype=torch.float64),
    "of bools": lambda x: (x > 0).cumsum(1),
    "product of integers": lambda x: (x > 0).int().cumprod(1),
    "of a product": lambda x: (x * 2).cumsum(1) + 1,
    "twice": lambda x: x.cumsum(1).cumsum(1),
    "normalised": lambda x: x.cumsum(1) / x.sum(1, keepdim=True),
    "maximum": lambda x: x.cummax(1),
    "minimum of the middle": lambda x: x.cummin(1),
    "place of the maximum": lambda x: x.cummax(0).indices,
    "below the maximum": lambda x: x / x.cummax(-1).values - 1,
    "logarithm of sums": lambda x: x.logcumsumexp(-1),
    "from behind": lambda x: x.flip(0).logcumsumexp(0).flip(0),
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("kind", ["plain", "transposed", "half", "bfloat"])
def test_running_reductions(name: str, kind: str) -> None:
    x = {
        "plain": drawn(5, 7, 12).abs() + 0.5,
        "half": drawn(5, 7, 12, dtype=torch.float16).abs() + 0.5,
        "bfloat": drawn(5, 7, 12, dtype=torch.bfloat16).abs() + 0.5,
        "transposed": drawn(12, 7, 5).transpose(0, 2).abs() + 0.5,
    }[kind]
    lowered = check(SCANS[name], x)
    assert any(isinstance(node, ir.Scan) for node in bodies(lowered))


@pytest.mark.parametrize("name", ["logcumsumexp", "cumsum", "cummax"])
def test_what_is_the_same_along_a_scan_is_found_right(name: str) -> None:
    lowered = check(lambda x: getattr(x[:1].expand_as(x), name)(0), drawn(70))
    assert any(isinstance(node, ir.Scan) for node in bodies(lowered))
    assert_lowering_is_right(lowered)


def test_a_scan_over_one_element_is_no_scan() -> None:
    lowered = check(lambda x: (x * 2).cumsum(1) + 1, drawn(5, 1, 12))
    assert len(launched_nodes(lowered)) == 1
    assert not any(isinstance(node, ir.Scan) for node in bodies(lowered))


def scan_and_reductions(reshaped: bool) -> Program:
    """A scan over s1, and a sum over the same elements as two dims of 4 and s1 or as one."""
    b = Builder()
    size = ex.mul(4, S1)
    x = b.input(S0, size)
    b_kind, folded = tensor(S0, size), tensor(S0, 4, S1)
    running = b.call("aten.cumsum.default", x, 1, out=b_kind)
    if reshaped:
        y = b.call("aten.view.default", x, [S0, 4, S1], out=folded, alias=x)
        total = b.call("aten.sum.dim_IntList", y, [1, 2], out=tensor(S0))
    else:
        total = b.call("aten.sum.dim_IntList", x, [1], out=tensor(S0))
    return b.program(running, total)


def test_a_scan_shares_a_kernel_with_one_reduced_dim_and_with_no_more() -> None:
    (together,) = lower(scan_and_reductions(False), target_kind="cpu").kernels
    assert len(together.kernel.reduction) == 1
    apart = lower(scan_and_reductions(True), target_kind="cpu").kernels
    assert len(apart) == 2
    for kernel in apart:
        if any(isinstance(node, ir.Scan) for node in kernel.kernel.body):
            assert len(kernel.kernel.reduction) == 1


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def put_in_place(x: Tensor) -> Tensor:
    x[:, 1:-1] = 3
    x[:, -1] = x[:, 0] * 2
    return x


def on_diagonal(made: Tensor, row: Tensor) -> Tensor:
    made.diagonal(0, 1, 2).copy_(row)
    return made + 1


def with_zeros(made: Tensor) -> Tensor:
    made[:, 1:3].zero_()
    return made * 2


def interleaved(x: Tensor) -> Tensor:
    made = x.new_empty((*x.shape[:2], 2 * x.shape[2]))
    made[..., ::2] = x.relu()
    made[..., 1::2] = -x
    return made + 1


JOINS: dict[str, Function] = {
    "cat": lambda x: torch.cat((x, x * 2), 1) + 1,
    "cat last": lambda x: torch.cat((x + 1, x[..., :3], x), -1) * 2,
    "cat of a sum": lambda x: torch.cat((x.sum(1, keepdim=True), x), 1) + 1,
    "cat of dtypes": lambda x: torch.cat((x.double(), x > 0, x), 0) + 1,
    "rotate half": lambda x: torch.cat((-halves(x)[1], halves(x)[0]), -1) * 0.5 + x,
    "stack": lambda x: torch.stack((x, x * 2, -x), 1) + 1,
    "stack last": lambda x: torch.stack((x.cos(), -x), -1).flatten(-2) + 1,
    "roll": lambda x: x.roll(2, 1) + x,
    "roll back": lambda x: x.roll(-1, -1) * x,
    "roll far": lambda x: x.roll(1, 0) - x,
    "flip": lambda x: x.flip(1) + x,
    "flip of two dims": lambda x: x.flip(0, 2) - x,
    "pad of two dims": lambda x: functional.pad(x + 1, (0, 3, 2, 1), value=-1.5) * 2,
    "pad alone": lambda x: functional.pad(x, (2, 0), value=3),
    "pad of flags": lambda x: functional.pad(x > 0, (2, 0)) | functional.pad(x < -1, (1, 1)),
    "pad less than nothing": lambda x: functional.pad(x * 2, (1, -1, -2, -3)) + 1,
    "pad to whole blocks": lambda x: functional.pad(x + 1, (0, (8 - x.shape[2] % 8) % 8)) * 2,
    "roll of two dims": lambda x: x.roll((2, -3), (1, 2)) + x,
    "roll of three dims": lambda x: x.roll((1, 2, 3), (2, 0, 1)) * x,
    "roll as far as may be": lambda x: (x + 1).roll(2, 1) * 2,
    "roll farther than may be": lambda x: (x + 1).roll((9, -30), (0, 2)) * 2,
    "roll of halves": lambda x: (x + 1).roll(-(x.shape[1] // 2), 1) * 2,
    "cat of an empty vector": lambda x: torch.cat((x.new_empty(0), x * 2), 1) + 1,
    "cat of nothing and all": lambda x: torch.cat((x[:, :0], x * 2, x[:, :0]), 1) + 1,
    "rows put": lambda x: torch.slice_scatter(x + 1, x[:, 2:5] * 2, 1, 2, 5),
    "rows put behind": lambda x: torch.slice_scatter(x, x[:, 2:] * 2, 1, 2) + 1,
    "all put": lambda x: torch.slice_scatter(x * 2, x + 1, 2),
    "no rows put": lambda x: torch.slice_scatter(x * 2, x[:, :0], 1, 3, 3) + 1,
    "every other row put": lambda x: torch.slice_scatter(x * 2, x[:, ::2] + 1, 1, 0, None, 2),
    "some rows put": lambda x: torch.slice_scatter(x * 2, x[..., 4:11:3] + 1, 2, 4, 11, 3) + 1,
    "columns put between columns": interleaved,
    "turned into a border": lambda x: functional.pad(x + 1, (2, 3), mode="circular") * 2,
    "a diagonal put": lambda x: on_diagonal(x * 2, x[:, 0, :7]),
    "a diagonal put above": lambda x: torch.diagonal_scatter(x * 2, x[:, :, 0] + 1, 2, 1, -1) + 1,
    "a diagonal put below": lambda x: torch.diagonal_scatter(x + 1, x[..., 0].t(), -5, -1, 0) * 2,
    "rows put to zero": lambda x: with_zeros(x + 1),
    "a row put": lambda x: torch.select_scatter(x * 2, x[:, 0] + 1, 1, -2),
    "rows put in place": lambda x: put_in_place(x + 1),
    "repeated": lambda x: (x + 1).repeat(2, 1, 3) * 2,
    "repeated along a new dim": lambda x: (x + 1).repeat(3, 2, 1, 1) * 2,
    "repeated as often as there are columns": lambda x: (x + 1).repeat(1, x.shape[2], 1) * 2,
    "elements repeated": lambda x: (x + 1).repeat_interleave(3, -2) * 2,
    "tiled": lambda x: torch.tile(x + 1, (2, 2)) * 2,
    "windows of an image": lambda x: functional.unfold(x[None] + 1, 3, 1, 1, 2) * 2,
    "windows beside one another": lambda x: functional.unfold(x + 1, (2, 3), 1, 0, (2, 3)) * 2,
    "windows with gaps": lambda x: functional.unfold(x[None] + 1, 2, 2) * 2,
    "gate of a join": lambda x: functional.glu(torch.cat((x * 2, x), 1), 1),
    "reduced pad": lambda x: functional.pad(x, (1, 1)).sum(-1),
    "reduced": lambda x: torch.cat((x, x), -1).sum(-1),
}


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("kind", ["plain", "transposed"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_moves_along_one_dim(name: str, kind: str, dynamic: bool) -> None:
    x = {"plain": drawn(5, 7, 12), "transposed": drawn(12, 7, 5).transpose(0, 2)}[kind]
    check(JOINS[name], x, dynamic=dynamic)


IN_KERNELS = (
    "cat", "rotate half", "stack", "roll", "flip", "flip of two dims", "reduced",
    "pad of two dims", "pad alone", "pad of flags", "gate of a join", "reduced pad",
    "pad less than nothing", "pad to whole blocks", "roll of two dims", "roll of three dims",
    "cat of an empty vector", "cat of nothing and all", "rows put", "rows put behind", "all put",
    "a row put", "a diagonal put", "a diagonal put above", "rows put to zero", "no rows put",
    "turned into a border", "repeated", "repeated along a new dim",
    "roll as far as may be", "roll farther than may be", "roll of halves",
    "elements repeated", "tiled", "windows of an image", "windows beside one another",
    "repeated as often as there are columns",
)  # fmt: skip


@pytest.mark.parametrize("name", IN_KERNELS)
def test_a_join_that_meets_arithmetic_is_part_of_its_kernel_and_never_divides(name: str) -> None:
    lowered = check(JOINS[name], drawn(5, 7, 12), dynamic=False)
    assert len(launched_nodes(lowered)) == 1
    assert not any(divisions(node.index) for node in bodies(lowered) if isinstance(node, ir.Load))


@pytest.mark.parametrize("name", [name for name in JOINS if name.startswith("roll")])
@pytest.mark.parametrize("shape", [(5, 7, 12), (3, 2, 4), (2, 3, 3)])
def test_a_roll_is_part_of_the_kernel_whatever_the_sizes_are(
    name: str, shape: tuple[int, ...]
) -> None:
    (nodes,) = launched_nodes(check(JOINS[name], drawn(*shape)))
    assert len(nodes) > 1


@pytest.mark.parametrize("name", ["every other row put", "columns put between columns"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_put_at_positions_apart_is_part_of_the_kernel(name: str, dynamic: bool) -> None:
    (nodes,) = launched_nodes(check(JOINS[name], drawn(5, 7, 12), dynamic=dynamic))
    assert len(nodes) > 3


def test_what_is_repeated_no_times_is_empty() -> None:
    check(lambda x, y: (x + 1).repeat(2, y.shape[0]) * 2, drawn(5, 7), drawn(0))


def divisions(index: ex.Expr) -> bool:
    is_one = isinstance(index, ex.FloorDiv | ex.Mod)
    return is_one or any(map(divisions, ex.children(index)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat((x, x), 1),
        lambda x: torch.stack((x, x), 1),
        lambda x: x.flip(0),
    ],
)
def test_a_join_that_stands_alone_stays_a_node_on_a_cpu(function: Function) -> None:
    assert not launched_nodes(check(function, drawn(5, 7)))


def test_a_join_that_stands_alone_is_a_kernel_on_a_gpu() -> None:
    b = Builder()
    x, y = (b.input(S0, length, dtype="bf16", device="cuda") for length in (97, S1))
    whole = tensor(S0, ex.add(S1, 97), dtype="bf16", device="cuda")
    joined = b.call("aten.cat.default", (x, y), 1, out=whole)
    (kernel,) = lower(b.program(joined), target_kind="cuda").kernels
    assert [param.role for param in kernel.kernel.params] == ["in", "in", "out"]


def test_too_many_parts_stay_a_node() -> None:
    lowered = check(lambda x: torch.cat([x] * 17, 1) + 1, drawn(5, 7))
    assert [len(nodes) for nodes in launched_nodes(lowered)] == [1]


def test_the_nine_elements_of_a_matrix_are_computed_where_they_are_joined() -> None:
    def rotations(angles: Tensor) -> Tensor:
        x, y, z = angles.unbind(-1)
        return torch.stack([first * second + 1 for first in (x, y, z) for second in (x, y, z)], -1)

    assert len(launched_nodes(check(rotations, drawn(5, 7, 3)))) == 1


def test_an_empty_part_stays_a_node() -> None:
    check(lambda x, y: torch.cat((x, y), 0) + 1, drawn(5, 7), drawn(0, 7))


SHIFTS: dict[str, Function] = {
    "left": lambda x, y: x << y,
    "right": lambda x, y: x >> y,
    "by a number": lambda x, y: (x << 3) + (y >> 1),
    "by too many": lambda x, y: (x << 70) | (y >> 70),
}


@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_shifts(name: str, dtype: torch.dtype) -> None:
    x, places = drawn(30, 5, dtype=dtype), drawn(5, dtype=dtype, seed=1)
    assert launched_nodes(check(SHIFTS[name], x, places))


def bodies(lowered: Lowered) -> list[ir.BodyNode]:
    return [node for kernel in lowered.kernels for node in kernel.kernel.body]


def test_an_index_of_another_dtype_stays_a_node() -> None:
    b = Builder()
    x = b.input(S0, S1)
    wrong = TensorType("i32", (S0,), (ex.ONE,), "cpu")
    place = b.call("aten.argmax.default", x, 1, out=wrong)
    assert not lower(b.program(place), target_kind="cpu").kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_a_copy_over_a_tensor_is_what_is_copied_in_its_dtype(dtype: torch.dtype) -> None:
    def copied(x: Tensor) -> Any:
        return torch.ops.aten.copy(x.to(dtype), x.transpose(0, 1) * 2.5)

    lowered = check(copied, drawn(9, 9, 12))
    assert len(launched_nodes(lowered)) == 1


def test_a_copy_that_casts_to_eight_bit_floats_is_left_to_torch() -> None:
    """An op of its own says whether what is too large is NaN."""

    def copied(x: Tensor, small: Tensor) -> Any:
        return torch.ops.aten.copy(small, x)

    small = drawn(9, 12).to(torch.float8_e4m3fn)
    assert not launched_nodes(check(copied, drawn(9, 12), small))
