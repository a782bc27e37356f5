"""What is computed where it is stored or read: rows in another order, and what slices share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.benchmarks.captures import on_cuda
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import check, launched_nodes, record
from torch import Tensor

from nearhint_compiler.frontend.choices import CHOICES
from nearhint_compiler.pipeline import Lowered, lower
from nearhint_rules import expr as ex
from nearhint_rules.plan import Launch


def heads_first(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Keys of (tokens, heads, size) over their largest, and that one, with their heads first."""
    largest = keys.abs().amax(-1, keepdim=True)
    return (keys / largest).transpose(0, 1).contiguous(), largest.squeeze(-1).t().contiguous()


def scales_by_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows over their scales, which are narrow and lie by columns."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    narrow = scale.squeeze(-1).t().to(torch.bfloat16).contiguous()
    return x / scale, narrow


def scales_by_columns_first(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    return x / scale, scale.squeeze(-1).t().contiguous().to(torch.bfloat16)


@pytest.mark.parametrize("function", [scales_by_columns, scales_by_columns_first])
@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_what_is_cast_on_the_way_is_laid_in_another_order_by_who_made_it(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], target_kind: str
) -> None:
    lowered = check(function, drawn(40, 30, 16), dynamic=False, target_kind=target_kind)
    assert len(launched_nodes(lowered)) == 1
    check(function, drawn(40, 30, 16), target_kind=target_kind)


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", [(5, 3, 16), (40, 1, 9), (1, 4, 90)])
def test_rows_are_laid_in_another_order_by_who_made_them(
    shape: tuple[int, ...], target_kind: str
) -> None:
    lowered = check(heads_first, drawn(*shape), dynamic=False, target_kind=target_kind)
    assert len(launched_nodes(lowered)) == 1
    check(heads_first, drawn(5, 3, 16), target_kind=target_kind)


def both_ways(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """A weight in eight bits, and its transpose."""
    narrow = (x * scale).to(torch.float8_e4m3fn)
    return narrow, narrow.mT.contiguous()


def bytes_read(lowered: Lowered, **sizes: int) -> int:
    """How many bytes the Kernels of a Plan read, at sizes of theirs."""
    return sum(ex.evaluate(each.traffic.read, sizes) for each in lowered.kernels)


@pytest.mark.parametrize("shape", [(40, 24), (3, 40, 24)])
def test_what_is_computed_point_by_point_is_laid_both_ways_by_who_made_it_on_a_gpu(
    shape: tuple[int, ...],
) -> None:
    """A CPU moves lanes one by one to what lies across, and turns what is in memory in tiles."""
    x, scale = drawn(*shape), drawn(shape[-1])
    on_gpu = check(both_ways, x, scale, dynamic=False, target_kind="cuda")
    assert len(launched_nodes(on_gpu)) == 1
    assert bytes_read(on_gpu) == 4 * (x.numel() + scale.numel())
    on_cpu = check(both_ways, x, scale, dynamic=False)
    assert bytes_read(on_cpu) == bytes_read(on_gpu) + x.numel()
    assert len(launched_nodes(check(both_ways, x, scale, target_kind="cuda"))) == 1


def test_a_transpose_that_is_read_again_is_copied_apart() -> None:
    def read_again(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        product = x * scale
        turned = product.t().contiguous()
        return product, turned @ product

    lowered = check(read_again, drawn(40, 24), drawn(24), target_kind="cuda")
    assert len(launched_nodes(lowered)) == 1  # a matrix product takes it from memory

    def summed(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        product = x * scale
        return product, product.t().contiguous().cumsum(-1)

    check(summed, drawn(40, 24), drawn(24), target_kind="cuda")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1).transpose(1, 2).contiguous(),  # rows would be strewn
        lambda x: (x.softmax(-1).transpose(0, 1).contiguous() + 1).sum(0),  # it is read again
    ],
)
def test_rows_that_are_strewn_or_read_again_are_copied_apart(
    function: Callable[[Tensor], Tensor],
) -> None:
    assert len(launched_nodes(check(function, drawn(5, 3, 16)))) == 2


@pytest.mark.parametrize(("target_kind", "kernels"), [("cuda", 1), ("cpu", 2)])
def test_what_two_slices_share_is_computed_where_it_is_read_on_a_gpu(
    target_kind: str, kernels: int
) -> None:
    def packed(x: Tensor) -> Tensor:
        steps = (x / 3.0 + 1.0).round().clamp(-8, 7).abs().sqrt().to(torch.int32)
        return (steps[:, ::2] & 15) | ((steps[:, 1::2] & 15) << 4)

    lowered = check(packed, drawn(9, 16), dynamic=False, target_kind=target_kind)
    assert len(launched_nodes(lowered)) == kernels
    both = check(lambda x: torch.cat((x.exp(), x.exp() * 2)), drawn(9, 16), target_kind="cuda")
    assert len(launched_nodes(both)) == 1


def by_columns(values: Tensor) -> Tensor:
    """Columns by how large each is beside the others, of (rows, columns)."""
    sizes = values.square().sum(0).sqrt()
    return values * (sizes / (sizes.mean() + 1e-6))


def by_rows_and_columns(values: Tensor) -> tuple[Tensor, Tensor]:
    """Over the roots of means by row and by column, and of all of that."""
    squares = values.square() + 1e-6
    rows, columns = squares.mean(1), squares.mean(0)
    scaled = values * torch.rsqrt(rows / rows.mean())[:, None] * torch.rsqrt(columns)
    return scaled / scaled.square().mean().sqrt().clamp(min=1.0), columns


def written(lowered: Lowered) -> int:
    """How many elements of memory the Kernels of a Plan write."""
    launches = (step for step in lowered.plan.steps if isinstance(step, Launch))
    outputs = (output for step in launches for output in step.outputs)
    return sum(ex.evaluate(ex.product(output.shape), {}) for output in outputs)


@pytest.mark.parametrize(
    ("function", "target_kind", "totals"),
    [
        (by_columns, "cuda", 72 + 1),
        (by_columns, "cpu", 2 * 72),  # shares, too: each would be computed for each row
        (by_rows_and_columns, "cuda", 80 + 1 + 2 * 72),
        (by_rows_and_columns, "cpu", 2 * 80 + 2 * 72),
    ],
)
def test_elements_are_computed_again_after_the_totals_of_their_rows_and_columns(
    function: Callable[[Tensor], Any], target_kind: str, totals: int
) -> None:
    def of_halves(x: Tensor) -> Any:
        return function(x.float())

    x = drawn(80, 72, dtype=torch.bfloat16)
    lowered = check(of_halves, x, dynamic=False, target_kind=target_kind)
    assert written(lowered) == 80 * 72 + totals
    check(of_halves, x, target_kind=target_kind)


@pytest.mark.parametrize(
    ("made", "is_stored"),
    [
        (lambda x, y: x**3 + y[0], False),
        (lambda x, y: x.exp(), True),  # it is heavy
        (lambda x, y: x.abs() ** 2.5, True),
        (lambda x, y: x * y, True),  # it would be read from twice as much
    ],
)
def test_what_is_heavy_or_wider_before_it_is_computed_is_stored(
    made: Callable[[Tensor, Tensor], Tensor], is_stored: bool
) -> None:
    arguments = drawn(80, 72), drawn(80, 72, seed=1)
    lowered = check(
        lambda x, y: by_columns(made(x, y)), *arguments, dynamic=False, target_kind="cuda"
    )
    assert written(lowered) == (1 + is_stored) * 80 * 72 + 72 + 1


@pytest.mark.parametrize(("exponent", "is_stored"), [(2, False), (2.5, True)])
def test_an_exponent_may_be_given_by_its_name(exponent: float, is_stored: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return by_columns(torch.ops.aten.pow.Tensor_Scalar(x.abs(), exponent))

    program = record(function, drawn(80, 72), dynamic=False).captured.program
    nodes = tuple(
        replace(node, args=node.args[:1], kwargs=(("exponent", node.args[1]),))
        if node.op == "aten.pow.Tensor_Scalar"
        else node
        for node in program.nodes
    )
    lowered = lower(on_cuda(replace(program, nodes=nodes)), target_kind="cuda")
    assert written(lowered) == (1 + is_stored) * 80 * 72 + 72 + 1


def shares_and_loads(logits: Tensor, is_there: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of (tokens, experts): shares, how large they are by expert, and how often each is first."""
    shares = torch.softmax(logits, -1)
    places = torch.arange(logits.shape[1], device=logits.device)
    is_first = (shares.argmax(-1)[:, None] == places).to(shares.dtype)
    kept = is_there.to(shares.dtype)[:, None]
    return shares, (shares * kept).sum(0), (is_first * kept).sum(0)


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_what_is_stored_anyhow_is_read_for_sums_by_column(target_kind: str) -> None:
    logits, is_there = drawn(80, 72), drawn(80, seed=1) > 0
    lowered = check(shares_and_loads, logits, is_there, dynamic=False, target_kind=target_kind)
    assert len(launched_nodes(lowered)) == 2
    assert written(lowered) == 80 * 72 + 2 * 80 + 2 * 72
    check(shares_and_loads, logits, is_there, target_kind=target_kind)


def group_norm_gradients(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of (images, groups, channels): what images, weight and bias get."""
    values, step = x.float(), gradient.float()
    root = torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-6)
    normed = values * root
    own = root * (step - normed * (step * normed).mean(-1, keepdim=True))
    return own.to(x.dtype), (step * normed).sum(0), step.sum(0)


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_sums_by_column_of_what_rows_are_made_of_are_one_kernel(target_kind: str) -> None:
    arguments = [drawn(40, 4, 18, dtype=torch.bfloat16, seed=seed) for seed in range(2)]
    lowered = check(group_norm_gradients, *arguments, dynamic=False, target_kind=target_kind)
    assert len(launched_nodes(lowered)) == 2
    check(group_norm_gradients, *arguments, target_kind=target_kind)


def packed_codes(x: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks of a row over their largest, in steps, two of which are a byte; and the largest."""
    blocks = torch.unflatten(x.float(), -1, (-1, 16))
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    values = torch.exp2(blocks / largest)
    codes = torch.zeros_like(values, dtype=torch.int32)
    for step in steps.unbind():
        codes = codes + (values > step).to(torch.int32)
    packed = codes[..., ::2] | (codes[..., 1::2] << 4)
    return packed.to(torch.uint8), largest


def test_what_one_kernel_reads_once_is_computed_there_however_much_that_is() -> None:
    """Codes of 32 bits were stored for bytes of two: they are heavy, but no longer made twice."""
    arguments = drawn(20, 96, dtype=torch.bfloat16), torch.linspace(0.6, 1.9, 15)
    lowered = check(packed_codes, *arguments, dynamic=False, target_kind="cuda")
    assert written(lowered) == 20 * 96 // 2 + 20 * 6
    check(packed_codes, *arguments, target_kind="cuda")


def test_what_is_heavy_is_not_computed_in_each_walk_of_columns() -> None:
    def shares_of_columns(x: Tensor) -> Tensor:
        return torch.exp2(x / x.abs().amax(-1, keepdim=True)).softmax(0)

    lowered = check(shares_of_columns, drawn(20, 96), dynamic=False, target_kind="cuda")
    assert written(lowered) == 2 * 20 * 96


@pytest.mark.parametrize(("count", "totals"), [(4, 0), (CHOICES + 1, 20)])
@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_of_rows_over_their_totals_what_is_looked_up_is_computed_there(
    target_kind: str, count: int, totals: int
) -> None:
    """A few elements beside the walk over their row, more in a Kernel that takes the totals."""

    def chosen(x: Tensor, places: Tensor) -> Tensor:
        return (x - x.logsumexp(-1, keepdim=True)).gather(1, places)

    arguments = drawn(20, 96), torch.arange(20 * count).reshape(20, count) % 96
    lowered = check(chosen, *arguments, dynamic=False, target_kind=target_kind)
    assert written(lowered) == totals + 20 * count
    check(chosen, *arguments, target_kind=target_kind)
