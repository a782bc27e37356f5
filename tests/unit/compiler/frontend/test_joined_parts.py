"""What is computed where it is joined, or read again there: each element once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import assert_lowering_is_right, check
from torch import Tensor
from torch.nn import functional

from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.plan import Launch


def angles(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    both = x[:, None] * y
    return both.cos(), both.sin(), both.tan()


@pytest.mark.parametrize(
    ("function", "kernels"),
    [
        (lambda x, y: torch.cat(angles(x, y), -1), 1),
        (lambda x, y: torch.stack(angles(x, y)), 1),
        (lambda x, y: torch.cat(angles(x, y)[:2], -1) * y.repeat(2), 1),
        (lambda x, y: torch.cat((angles(x, y)[0],) * 2, -1), 1),  # and a copy by the node itself
        (lambda x, y: torch.cat(angles(x, y), -1).sum(-1), 2),  # no row is walked in parts
        (lambda x, y: torch.stack(angles(x, y), -1).flatten(-2) * y.repeat(3), 1),
        (
            lambda x, y: torch.cat((torch.stack(angles(x, y), -1).flatten(-2), x[:, None]), -1) * 2,
            2,
        ),
        (lambda x, y: torch.cat((angles(x, y)[0], y.sin().expand(9, -1)), -1), 2),
    ],
    ids=[
        "cat",
        "stack",
        "scaled",
        "twice",
        "summed",
        "between each other",
        "in a part",
        "expanded",
    ],
)
def test_a_cpu_joins_heavy_parts_where_each_element_is_computed_once(
    function: Callable[..., Tensor], kernels: int
) -> None:
    lowered = check(function, drawn(9), drawn(80), target_kind="cpu")
    assert len(lowered.kernels) == kernels


def scaled_by_sizes(x: Tensor, weight: Tensor) -> Tensor:
    """Columns by how large each is beside the others of its image."""
    values = x.float()
    sizes = values.square().sum(1, keepdim=True).sqrt()
    return values * (sizes / sizes.mean(-1, keepdim=True)) * weight


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_elements_are_read_again_as_narrow_as_they_are_where_totals_go_elsewhere_first(
    target_kind: str,
) -> None:
    """Only the last of three Kernels takes elements; a quotient of a column is one for all rows."""
    x = drawn(3, 9, 5).to(torch.float16)
    lowered = check(scaled_by_sizes, x, drawn(5), target_kind=target_kind)
    first, _, last = (each.kernel for each in lowered.kernels)
    assert [param.role for param in first.params] == ["in", "out"]
    assert [param.dtype for param in last.params][:2].count("f16") == 1
    divisions = sum(isinstance(node, ir.Op) and node.name == "div" for node in last.body)
    assert divisions == (target_kind == "cuda")


def joined_behind_a_norm(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """A part of each row is normed, and what is behind it is not."""
    size = weight.shape[0]
    part = x[:, :size].float()
    normed = part * torch.rsqrt(part.square().mean(-1, keepdim=True) + 1e-5) * weight
    return torch.cat((normed, scale * x[:, size:]), -1)


def test_a_normed_part_is_computed_where_it_is_joined_on_a_cpu() -> None:
    """A norm of a part leaves one number a row."""
    x = drawn(9, 20).to(torch.bfloat16)
    lowered = check(joined_behind_a_norm, x, drawn(13), drawn(7))
    assert len(lowered.kernels) == 2
    assert [param.dtype for param in lowered.kernels[0].kernel.params] == ["bf16", "f32"]


def steps_of_rows(x: Tensor) -> Tensor:
    """Rows in four bits, two in a byte."""
    steps = (x / (x.abs().amax(-1, keepdim=True) / 15)).round()
    return steps[:, ::2] + 16 * steps[:, 1::2]


@pytest.mark.parametrize(
    ("function", "is_stored"),
    [
        (steps_of_rows, True),
        (lambda x: steps_of_rows(x).to(torch.int32), True),
        (lambda x: (y := x / x.abs().amax(-1, keepdim=True))[:, ::2] + 16 * y[:, 1::2], False),
    ],
    ids=["rounded", "integers", "smooth"],
)
def test_what_is_rounded_to_steps_is_so_where_its_row_is_known_on_a_cpu(
    function: Callable[[Tensor], Tensor], is_stored: bool
) -> None:
    """Half a digit of a row's number is a whole step of some elements."""
    lowered = check(function, drawn(9, 20), dynamic=False)
    stores_rows = [
        any(
            isinstance(node, ir.Store)
            and any(map(ir.is_reduction_variable, ex.symbols_of(node.index)))
            for node in each.kernel.body
        )
        for each in lowered.kernels
        if each.kernel.reduction
    ]
    assert stores_rows == [is_stored]


@pytest.mark.parametrize(
    "function",
    [
        lambda g, x: torch.ops.aten.slice_backward(g[:, :8] * 2, x.shape, 1, 5, 13, 1) * x,
        lambda g, x: torch.ops.aten.select_backward(g[:, 0] * 2, x.shape, 1, 5) * x,
        lambda g, x: torch.ops.aten.diagonal_backward(g[:, 0] * 2, x.shape, 0, 0, 1) * x,
    ],
    ids=["columns", "a column", "a diagonal"],
)
def test_the_gradient_of_a_part_is_made_where_that_of_the_whole_is_used(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    lowered = check(function, drawn(9, 20), drawn(9, 20, seed=1), dynamic=False)
    assert len(lowered.kernels) == 1
    assert all(isinstance(step, Launch) for step in lowered.plan.steps)


def test_what_a_node_takes_of_rows_is_not_left_to_other_readers() -> None:
    """`ones_like` reads no element, but runs as it is, and is handed the tensor."""

    def products(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        first, second, third = functional.normalize(x, dim=-1).unbind(-1)
        return first * second, second * third, torch.ones_like(first) @ weight

    check(products, drawn(9, 40, 3), drawn(40, 7), target_kind="cpu")


def gated(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a gate and what it lets through get, and what came of both."""
    gate, up = x.chunk(2, -1)
    share = torch.sigmoid(gate)
    activated = gate * share
    return gradient * up * (share + activated * (1.0 - share)), gradient * activated, activated * up


def with_product(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    of_gate, of_up, product = gated(gradient, x)
    return torch.cat((of_gate, of_up), -1), product


def scaled_with_product(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """What is made of each element of the join is so in its pieces, of what lies in memory, too."""
    of_gate, of_up, product = gated(gradient, x)
    return torch.cat((of_gate, of_up), -1) * 2.0 + x, product


def stacked_with_product(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    *gradients, product = gated(gradient, x)
    return torch.stack(gradients, 1), product


def rows_and_totals(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows that are normed: both signs, and each row's total."""
    shares = torch.softmax(gradient, -1) + x[:, : gradient.shape[1]].sum(-1, keepdim=True)
    return torch.cat((shares, -shares.exp()), -1), (gradient * shares).sum(-1)


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "function", [with_product, scaled_with_product, stacked_with_product, rows_and_totals]
)
def test_a_join_beside_what_its_parts_are_made_of_is_stored_in_pieces(
    function: Callable[..., tuple[Tensor, ...]], target_kind: str
) -> None:
    lowered = check(function, drawn(3, 5), drawn(3, 10), target_kind=target_kind)
    if target_kind == "cpu":
        assert_lowering_is_right(lowered)
    (kernel,) = (each.kernel for each in lowered.kernels)
    stores = [node.param for node in kernel.body if isinstance(node, ir.Store)]
    assert sorted(stores.count(param) for param in {*stores}) == [1, 2]
    assert not any(isinstance(node, ir.Op) and node.name == "where" for node in kernel.body)


def of_other_lengths(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    of_gate, _, product = gated(gradient, x)
    return torch.cat((of_gate, x.exp()), -1), product


def turned_round(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A part is read at other places than it is made at."""
    of_gate, of_up, product = gated(gradient, x)
    return torch.cat((of_gate.flip(-1), of_up), -1), product


@pytest.mark.parametrize("function", [of_other_lengths, turned_round])
def test_a_join_whose_parts_are_not_made_point_by_point_reads_them(
    function: Callable[..., tuple[Tensor, ...]],
) -> None:
    lowered = check(function, drawn(3, 5), drawn(3, 10), target_kind="cuda")
    assert len(lowered.kernels) == 2
