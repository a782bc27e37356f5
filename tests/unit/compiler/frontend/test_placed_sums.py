"""Ops that bring elements together where data says: one Kernel each, with their source's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.compiler.frontend.running import assert_lowering_is_right, check
from tests.unit.compiler.frontend.test_lookups import drawn, places
from tests.unit.workers.building import S0, node, tensor

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import Lowered, lower
from nearhint_daemon.workers.interpreter import interpret
from nearhint_rules import expr as ex
from nearhint_rules import program as pr
from nearhint_rules.plan import Launch, RunNodes

Tensor = torch.Tensor


def scatters(lowered: Lowered) -> list[ir.Scatter]:
    nodes = (node for kernel in lowered.kernels for node in kernel.kernel.body)
    return [node for node in nodes if isinstance(node, ir.Scatter)]


def formers(lowered: Lowered) -> list[ir.Former]:
    nodes = (node for kernel in lowered.kernels for node in kernel.kernel.body)
    return [node for node in nodes if isinstance(node, ir.Former)]


X, CODES = drawn(40, 24), drawn(13, 24)
ROWS, ELEMENTS = places(13, 40), places(13, 40, 24)
FROM_NOTHING: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "rows times weights": (
        lambda c, x, w, i: torch.zeros_like(c).index_add(0, i, x * w[:, None]),
        (CODES, X, drawn(40), ROWS),
    ),
    "of a new tensor of another size": (
        lambda x, i: x.new_zeros(13, x.shape[1]).index_add(0, i, x.relu()),
        (X, ROWS),
    ),
    "by a factor": (lambda c, x, i: (c * 0 + 1).index_add(0, i, x, alpha=3), (CODES, X, ROWS)),
    "counts": (
        lambda c, i: torch.zeros_like(c[:, 0]).index_add(0, i, torch.ones_like(i, dtype=c.dtype)),
        (CODES, ROWS),
    ),
    "whole counts": (
        lambda x, i: torch.zeros(13, dtype=torch.int64).scatter_add(0, i, (x[:, 0] > 0).long()),
        (X, ROWS),
    ),
    "columns": (
        lambda x, i: torch.zeros(x.shape[0], 9).index_add(1, i, x.sigmoid()),
        (X, places(9, 24)),
    ),
    "a dim in the middle": (
        lambda x, i: torch.zeros(x.shape[0], 7, x.shape[2]).index_add(1, i, x * 2),
        (drawn(3, 11, 5), places(7, 11).int()),
    ),
    "element by element": (
        lambda c, x, i: torch.zeros_like(c).scatter_add(0, i, x.exp()),
        (CODES, X, ELEMENTS),
    ),
    "along the last dim": (
        lambda x, i: torch.zeros(x.shape[0], 13).scatter_add(1, i, x * x),
        (X, places(13, 40, 24)),
    ),
    "places that are one for a row": (
        lambda x, i: x.new_zeros(13, x.shape[1]).scatter_add(0, i[:, None].expand_as(x), x * 2),
        (X, ROWS),
    ),
    "messages along edges": (
        lambda x, i, j: x.new_zeros(13, x.shape[1]).index_add(0, i[j[0]], x[j[1]] * 2),
        (X, ROWS, places(40, 2, 70)),
    ),
    "what a row chooses": (
        lambda x, i, j: x.new_zeros(13, 5).scatter_add(0, i[:, None].expand(-1, 5), x.gather(1, j)),
        (X, ROWS, places(24, 40, 5)),
    ),
    "a part of the source": (
        lambda c, x, i: torch.zeros_like(c).scatter_add(0, i, x + 1),
        (CODES, drawn(43, 24), ELEMENTS),
    ),
    "at places of two dims": (
        lambda x, i, j: torch.zeros(5, 6).index_put((i, j), x.abs(), accumulate=True),
        (drawn(40), places(5, 40, low=-5), places(6, 40, low=-6)),
    ),
    "rows, negative ones from the end": (
        lambda c, x, i: torch.zeros_like(c).index_put((i,), x * 2, accumulate=True),
        (CODES, X, places(13, 40, low=-13)),
    ),
    "places of several dims": (
        lambda c, x, i: torch.zeros_like(c).index_put((i,), x * 2, accumulate=True),
        (CODES, drawn(4, 10, 24), places(13, 4, 10)),
    ),
    "the second of three dims": (
        lambda x, i: torch.ops.aten.index_put(
            x.new_zeros(x.shape[0], 7, x.shape[2]), (None, i), x * 2, True
        ),
        (drawn(3, 11, 5), places(7, 11)),
    ),
    "one number at each place": (
        lambda i: torch.zeros(13).index_put((i,), torch.ones(()) * 2, accumulate=True),
        (ROWS,),
    ),
    "how many of each expert": (
        lambda i: torch.histc(i.float(), bins=13, min=0, max=12),
        (places(13, 40),),
    ),
    "a histogram, some outside of it": (
        lambda x: torch.histc(x * 2, bins=10, min=-1.5, max=2),
        (X,),
    ),
    "gradients of an embedding": (
        lambda x, i: torch.ops.aten.embedding_dense_backward(x * 2, i, 13, 3, False),
        (drawn(4, 10, 24), places(13, 4, 10)),
    ),
}
ONTO_WHAT_THERE_IS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "an argument": (lambda c, x, i: c.index_add(0, i, x * 2), (CODES, X, ROWS)),
    "what another Kernel made": (
        lambda c, x, i: (c.exp() + c).index_add(0, i, x * 2),
        (CODES, X, ROWS),
    ),
    "the largest": (
        lambda c, x, i: c.scatter_reduce(0, i, x * 2, "amax"),
        (CODES, X, ELEMENTS),
    ),
    "the least whole number": (
        lambda c, x, i: c.scatter_reduce(0, i, x * 2, "amin"),
        ((CODES * 9).long(), (X * 9).long(), ELEMENTS),
    ),
    "a transposed argument": (
        lambda c, x, i: c.t().contiguous().index_add(0, i, x * 2),
        (drawn(24, 13), X, ROWS),
    ),
}


def test_a_place_that_is_one_for_a_row_is_read_once_for_it() -> None:
    function, arguments = FROM_NOTHING["places that are one for a row"]
    lowered = check(function, *arguments)
    (kernel,) = (each.kernel for each in lowered.kernels)
    (scatter,) = scatters(lowered)
    assert kernel.body[scatter.place] == ir.Load(0, ex.symbol("r0"))


def test_a_softmax_by_node_is_a_kernel_for_each_of_its_steps() -> None:
    def function(scores: Tensor, i: Tensor) -> Tensor:
        most = scores.new_full((13,), -1e30).scatter_reduce(0, i, scores, "amax")
        terms = (scores - most[i]).exp()
        return terms / scores.new_zeros(13).index_add(0, i, terms)[i]

    lowered = check(function, drawn(40), ROWS)
    assert [each.kind for each in scatters(lowered)] == ["max", "sum"]
    assert len(lowered.kernels) == 4
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)
    assert_lowering_is_right(lowered)


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
@pytest.mark.parametrize("name", FROM_NOTHING)
def test_what_makes_a_source_is_computed_where_it_is_added(name: str, target_kind: str) -> None:
    function, arguments = FROM_NOTHING[name]
    lowered = check(function, *arguments, target_kind=target_kind)
    assert len(scatters(lowered)) == 1
    if "factor" not in name:
        assert [type(step) for step in lowered.plan.steps] == [Launch], lowered.plan.steps
        assert not formers(lowered)
    assert_lowering_is_right(lowered)


@pytest.mark.parametrize("name", ONTO_WHAT_THERE_IS)
def test_it_is_added_to_what_lies_in_memory(name: str) -> None:
    function, arguments = ONTO_WHAT_THERE_IS[name]
    lowered = check(function, *arguments)
    assert len(scatters(lowered)) == len(formers(lowered)) == 1
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)
    assert_lowering_is_right(lowered)


@pytest.mark.parametrize(
    "name", ["rows times weights", "counts", "at places of two dims", "how many of each expert"]
)
def test_where_torch_is_deterministic_they_are_the_model_s_own(name: str) -> None:
    function, arguments = FROM_NOTHING[name]
    torch.use_deterministic_algorithms(True)
    try:
        lowered = check(function, *arguments, target_kind="cuda")
    finally:
        torch.use_deterministic_algorithms(False)
    assert not scatters(lowered)


OWN: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "half floats on a CPU": (
        lambda c, x, i: c.index_add(0, i, x * 2),
        (CODES.bfloat16(), X.bfloat16(), ROWS),
        "cpu",
    ),
    "the largest float on a GPU": (*ONTO_WHAT_THERE_IS["the largest"], "cuda"),
    "bytes": (
        lambda c, x, i: c.index_add(0, i, x * 2),
        (CODES.to(torch.int8), X.to(torch.int8), ROWS),
        "cuda",
    ),
    "a mean": (
        lambda c, x, i: c.scatter_reduce(0, i, x * 2, "mean"),
        (CODES, X, ELEMENTS),
        "cpu",
    ),
    "without what there is": (
        lambda c, x, i: c.scatter_reduce(0, i, x * 2, "sum", include_self=False),
        (CODES, X, ELEMENTS),
        "cpu",
    ),
    "a histogram from the least to the largest": (
        lambda x: torch.histc(x * 2, bins=8),
        (X,),
        "cpu",
    ),
    "a part of the rows": (
        lambda c, x, i: c.scatter_add(0, i, x * 2),
        (CODES, X, places(13, 40, 20)),
        "cpu",
    ),
    "a base that is one row again and again": (
        lambda c, x, i: c.expand(13, c.shape[0]).index_add(0, i, x * 2),
        (CODES[0].clone(), X, ROWS),
        "cpu",
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_others_are_the_model_s_own(name: str) -> None:
    function, arguments, target_kind = OWN[name]
    lowered = check(function, *arguments, target_kind=target_kind)
    assert not scatters(lowered)
    assert any(isinstance(step, RunNodes) for step in lowered.plan.steps)


def test_what_something_else_reads_is_in_memory_before_it_is_added() -> None:
    def function(c: Tensor, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        y = x.exp() + 1
        total = c.index_add(0, i, y)
        return total, y, total.sum(1)

    lowered = check(function, CODES, X, ROWS)
    (scatter,) = scatters(lowered)
    assert len(lowered.kernels) == 3
    assert_lowering_is_right(lowered)
    assert scatter.kind == "sum"


def test_source_and_base_of_one_kernel_are_not_read_at_the_point_at_which_they_are_made() -> None:
    def function(x: Tensor, i: Tensor) -> Tensor:
        y = x.exp()
        return y.index_add(0, i, y * 2) - 1

    lowered = check(function, drawn(30, 8), places(30, 30))
    assert len(scatters(lowered)) == 1
    assert len(lowered.kernels) == 3
    assert_lowering_is_right(lowered)


def test_the_sums_of_experts_are_added_one_after_the_other() -> None:
    def function(x: Tensor, w: Tensor, i: Tensor, j: Tensor) -> Tensor:
        made = torch.zeros_like(x)
        made.index_add_(0, i, x[i] * w[i, 0, None])
        made.index_add_(0, j, x[j] * w[j, 1, None])
        return made

    lowered = check(function, drawn(30, 16), drawn(30, 2), places(30, 12), places(30, 9))
    assert len(scatters(lowered)) == 2
    assert len(formers(lowered)) == 1
    assert [type(step) for step in lowered.plan.steps if isinstance(step, RunNodes)] == []
    assert_lowering_is_right(lowered)


@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_a_gpu_counts_whole_numbers_as_they_are(dtype: str) -> None:
    experts, counts = on_gpu(tensor(S0, dtype=dtype)), on_gpu(tensor(8, dtype=dtype))
    nodes = (
        node("neg.default", pr.Ref(0), makes=(experts,)),
        node("histc.default", pr.Ref(1), ex.Int(8), ex.Int(0), ex.Int(7), makes=(counts,)),
    )
    program = pr.Program((pr.Symbol("s0", 1, 4096),), (experts,), nodes, (2,))
    (found,) = lower(program, target_kind="cuda").kernels
    numbers = np.arange(-11, 3)
    (made,) = interpret(found.kernel, {"k0": 14}, [numbers, np.zeros(0)])
    assert made.values.tolist() == np.bincount(-numbers[-10:-2], minlength=8).tolist()


def on_gpu(kind: pr.TensorType) -> pr.TensorType:
    return replace(kind, device="cuda")
