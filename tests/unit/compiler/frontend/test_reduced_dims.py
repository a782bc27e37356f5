"""Reductions over several dims, of inputs that lie in memory as they happen to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import check, launched_nodes
from torch import Tensor

from nearhint_compiler.ir import nodes as ir

Function = Callable[..., Any]
WITH_GAPS = drawn(16 * 32)[: 16 * 32].as_strided((16, 17), (32, 1))
ODD_GAPS = drawn(3 * 11094).as_strided((3, 43, 129), (11094, 258, 1))
TWO_GAPS = drawn(9 * 7 * 6).as_strided((5, 3, 2, 3), (54, 12, 5, 1))
INPUTS = {"gaps": WITH_GAPS, "odd gaps": ODD_GAPS, "gaps in two dims": TWO_GAPS}
KINDS: dict[str, Function] = {
    "sum": lambda x: x.sum(),
    "prod": lambda x: (x.abs() * 0.01 + 1).prod(),
    "argmax": lambda x: x.argmax(),
    "argmin of flattened": lambda x: x.flatten().argmin(),
    "any": lambda x: (x > 3).any(),
    "variance and mean": lambda x: torch.var_mean(x, tuple(range(x.dim()))),
    "of all but the first": lambda x: x.sum(tuple(range(1, x.dim()))),
    "first and last": lambda x: torch.std(x, (0, x.dim() - 1)),
    "beside a division": lambda x: (x / 3, (x / 3).sum()),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("lies", INPUTS)
def test_dims_with_gaps_between_them_are_reduced_together(lies: str, name: str) -> None:
    assert launched_nodes(check(KINDS[name], INPUTS[lies]))


def test_argmax_over_two_dims_counts_along_both() -> None:
    """The place is that in the flattened rows, whatever the strides are."""
    x = drawn(5, 7, 12).transpose(1, 2)
    lowered = check(lambda x: (x * 2).reshape(5, -1).argmax(1), x)
    args = [node for found in lowered.kernels for node in found.kernel.body if type(node) is ir.Arg]
    assert len(args) == 1


def test_a_quotient_without_a_reduction_of_its_own_takes_the_sizes_of_all() -> None:
    """Variance divides by a number of elements: a member that has no reduced dims itself."""
    lowered = check(lambda x: torch.var_mean(x, (1, 2)), drawn(5, 33, 70))
    (found,) = lowered.kernels
    assert len(found.kernel.reduction) == 1


def test_what_reads_a_whole_tensor_takes_no_part_in_the_space() -> None:
    """bucketize searches boundaries of which nobody knows how many: it stays the client's."""

    def function(x: Tensor, boundaries: Tensor) -> Tensor:
        return torch.bucketize(x * 2, boundaries).float().sum(-1)

    lowered = check(function, drawn(6, 33), torch.linspace(-2, 2, 9))
    assert len(launched_nodes(lowered)) == 2


def test_softmax_over_two_dims_is_one_kernel() -> None:
    lowered = check(lambda x: x.flatten(1).softmax(1).view(x.shape), drawn(5, 7, 12))
    assert len(lowered.kernels) == 1
