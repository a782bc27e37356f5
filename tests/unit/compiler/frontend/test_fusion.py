"""What shares a Kernel, what does not, and that equal loops are equal Kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.building import S0, S1, S2, Builder, tensor
from tests.unit.compiler.frontend.running import (
    assert_chosen_alone,
    assert_lowering_is_right,
    check,
    launched_nodes,
    record,
)
from torch import Tensor
from torch.nn import functional

from nearhint_compiler.frontend.worth import WORK_LIMIT
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import Lowered, lower
from nearhint_rules import expr as ex
from nearhint_rules.plan import Launch, RunNodes
from nearhint_rules.program import Program, Symbol


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def residual_layer_norm(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.layer_norm(x + y, w.shape, w, b)


def residual_rms_norm(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def scaled_masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(x * 0.125 + mask, -1)


def shared_input(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return functional.silu(x) * y, x * 2


CHAINS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "residual and LayerNorm": (
        residual_layer_norm,
        (drawn(3, 5, 16), drawn(3, 5, 16), drawn(16), drawn(16)),
    ),
    "residual and RMSNorm, both written": (
        residual_rms_norm,
        (drawn(3, 5, 16), drawn(3, 5, 16), drawn(16)),
    ),
    "scale, mask and softmax": (
        scaled_masked_softmax,
        (drawn(2, 4, 5, 7), drawn(2, 1, 5, 7)),
    ),
    "bias and gelu": (lambda x, b: functional.gelu(x + b), (drawn(3, 5, 16), drawn(16))),
    "siblings of one input": (shared_input, (drawn(3, 5, 16), drawn(3, 5, 16))),
    "sibling reductions": (lambda x: (x.sum(-1), x.amax(-1), (x * x).mean(-1)), (drawn(9, 7),)),
    "through a reshape": (
        lambda x, y: (x * 2).reshape(-1, 16) + y,
        (drawn(3, 5, 16), drawn(15, 16)),
    ),
    "two producers": (
        lambda x, y: functional.relu(x) * functional.gelu(y),
        (drawn(3, 16), drawn(3, 16)),
    ),
    "transposed producer": (lambda x, y: (x + 1).t() * y, (drawn(5, 9), drawn(9, 5))),
    "broadcast producer": (lambda x, y: x * (1 - y) * -3.0, (drawn(5, 9), drawn(9))),
    "standardised columns": (lambda x: (x - x.mean(0)) / x.std(0), (drawn(9, 7),)),
    "what is heavy of each row, before its sum": (
        lambda x, steps: (x * functional.softplus(steps)[..., None] * steps[..., None]).sum(-1),
        (drawn(3, 5, 16), drawn(3, 5)),
    ),
    "epilogue of a softmax": (lambda x: (x.softmax(-1) * 2).to(torch.float16), (drawn(9, 7),)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_becomes_one_kernel(name: str) -> None:
    function, args = CHAINS[name]
    lowered = check(function, *args)
    assert len(launched_nodes(lowered)) == 1
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)


def results_of_experts(
    rows: Tensor, places: Tensor, residual: Tensor, w: Tensor
) -> tuple[Tensor, Tensor]:
    """Each token's results of some experts are added up, before the next norm."""
    return residual_rms_norm(rows[places].sum(1), residual, w)


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
@pytest.mark.parametrize(("experts", "kernels"), [(2, 1), (8, 1), (9, 2)])
def test_a_sum_of_few_elements_is_written_out_before_a_norm(
    target_kind: str, experts: int, kernels: int
) -> None:
    places = torch.arange(5 * experts).flip(0).view(5, experts)
    inputs = (drawn(5 * experts, 16), places, drawn(5, 16), drawn(16))
    lowered = check(results_of_experts, *inputs, dynamic=False, target_kind=target_kind)
    assert len(launched_nodes(lowered)) == kernels


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_a_sum_that_is_written_out_is_of_its_dim(keepdim: bool, dtype: torch.dtype) -> None:
    def softmax_of_sum(x: Tensor) -> Tensor:
        total = x.sum(1, keepdim=keepdim)
        return (total if total.is_floating_point() else total.float()).softmax(-1)

    x = (drawn(5, 3, 40) * 4).to(dtype)
    (kernel,) = check(softmax_of_sum, x, dynamic=False).kernels
    assert {kind for kind, count in reductions(kernel.kernel).items() if count} == {"max", "sum"}
    check(lambda x: x.sum(-1).softmax(0), drawn(50, 7, 2), dynamic=False)


def test_a_mean_of_few_elements_is_written_out_too() -> None:
    lowered = check(lambda x: x.mean(1).softmax(-1), drawn(5, 3, 40), dynamic=False)
    assert len(launched_nodes(lowered)) == 1


def test_a_sum_of_few_heavy_elements_stays_a_reduction() -> None:
    lowered = check(
        lambda x: torch.erf(torch.sin(x)).sum(1).softmax(-1), drawn(5, 3, 40), dynamic=False
    )
    assert len(lowered.kernels) == 2
    assert any("sum" in kernel.title for kernel in lowered.kernels)


def reductions(kernel: ir.Kernel) -> Counter[str]:
    return Counter(node.kind for node in kernel.body if isinstance(node, ir.Reduce))


def test_a_transposed_read_of_a_stored_value_reads_memory() -> None:
    lowered = check(lambda x, y: (z := x.exp(), z.t() * y), drawn(5, 9), drawn(9, 5))
    assert len(launched_nodes(lowered)) == 2


def test_rows_and_columns_are_not_one_space() -> None:
    lowered = check(lambda x: (x.sum(0), x.sum(1)), drawn(9, 7))
    assert len(launched_nodes(lowered)) == 2


def test_a_heavy_producer_is_not_computed_again_for_each_row() -> None:
    lowered = check(lambda x, y: x * torch.exp(torch.sin(y)), drawn(90, 80), drawn(80))
    assert len(launched_nodes(lowered)) == 2


@pytest.mark.parametrize(
    ("function", "target_kind", "kernels"),
    [
        (torch.sigmoid, "cuda", 1),
        (torch.tanh, "cuda", 1),
        (torch.sigmoid, "cpu", 2),
        (torch.sin, "cuda", 2),
        (lambda y: torch.exp(torch.exp(y)), "cuda", 2),
    ],
    ids=["sigmoid", "hyperbolic tangent", "sigmoid on a CPU", "sine", "two"],
)
def test_what_a_gpu_has_an_instruction_for_is_computed_again_for_each_row(
    function: Callable[[Tensor], Tensor], target_kind: str, kernels: int
) -> None:
    lowered = check(lambda x, y: x * function(y), drawn(90, 80), drawn(80), target_kind=target_kind)
    assert len(launched_nodes(lowered)) == kernels


def angles(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    both = x[:, None] * y
    return both.cos(), both.sin(), both.tan()


@pytest.mark.parametrize(("parts", "stores"), [(2, 1), (3, 3)])
def test_a_gpu_joins_few_heavy_parts_at_each_point_and_stores_more_of_them_in_pieces(
    parts: int, stores: int
) -> None:
    lowered = check(
        lambda x, y: torch.cat(angles(x, y)[:parts], -1),
        drawn(9),
        drawn(80),
        target_kind="cuda",
    )
    (kernel,) = (each.kernel for each in lowered.kernels)
    assert sum(isinstance(node, ir.Store) for node in kernel.body) == stores


@pytest.mark.parametrize("target_kind", ["cuda", "cpu"])
def test_what_is_padded_is_computed_where_it_is_written(target_kind: str) -> None:
    """Each element once, whatever it costs, and what lies beside them seldom."""
    lowered = check(
        lambda x: functional.pad(functional.gelu(torch.sin(x)), (1, 2)),
        drawn(9, 80),
        target_kind=target_kind,
    )
    assert len(launched_nodes(lowered)) == 1


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of heads by halves, each of them written out."""
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def two_turned(heads: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    query, key, _ = heads.double().unbind(1)
    return turned(query, cos, sin).float(), turned(key, cos, sin).float()


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
def test_halves_that_are_joined_again_are_never_stored(target_kind: str) -> None:
    angles = drawn(9, 1, 4), drawn(9, 1, 4)
    lowered = check(two_turned, drawn(9, 3, 5, 8), *angles, target_kind=target_kind)
    (outputs, more) = launched_nodes(lowered).values()
    assert len(outputs) == len(more) == 1
    assert {param.dtype for each in lowered.kernels for param in each.kernel.params} == {"f32"}


STORED: dict[str, tuple[Callable[..., Any], int, bool]] = {
    "turned": (lambda x, w, c, s: turned(normed(x, w), c, s), 1, True),
    "flipped": (lambda x, w, c, s: normed(x, w).flip(-1), 1, True),
    "flipped and reduced": (lambda x, w, c, s: (normed(x, w).flip(-1) * w).amax(-1), 1, False),
    "of another row": (lambda x, w, c, s: normed(x, w).flip(0), 2, False),
    "of two rows": (lambda x, w, c, s: (y := normed(x, w)) + y.flip(0, 2), 2, False),
    "transposed": (lambda x, w, c, s: normed(x, w).transpose(0, 1).contiguous(), 1, True),
    "turned, and kept": (lambda x, w, c, s: (y := normed(x, w), turned(y, c, s)), 1, True),
    "of more than the result": (lambda x, w, c, s: normed(x + x.flip(0), w).flip(-1), 1, True),
    "of much more, of another row": (lambda x, w, c, s: normed(x + x.flip(1), w).flip(0), 2, True),
    "of a softmax": (lambda x, w, c, s: (x * w).softmax(-1).flip(-1), 2, True),
    "after what costs much": (lambda x, w, c, s: torch.exp(normed(x, w)).flip(-1), 2, False),
    "of a running sum": (lambda x, w, c, s: normed(x, w).cumsum(-1).flip(-1), 2, True),
}
"""What is made of rows: how many Kernels there are, and whether one that reduces writes rows."""


def stores_rows(lowered: Lowered) -> bool:
    """Whether what reduces rows writes them as well."""
    bodies = [kernel.kernel.body for kernel in lowered.kernels]
    return any(
        isinstance(node, ir.Store) and any(map(ir.is_reduction_variable, ex.symbols_of(node.index)))
        for body in bodies
        if any(isinstance(other, ir.Reduce) for other in body)
        for node in body
    )


@pytest.mark.parametrize("name", STORED)
def test_rows_that_are_read_in_another_order_are_computed_there(name: str) -> None:
    function, kernels, is_stored = STORED[name]
    args = drawn(9, 5, 8), drawn(8), drawn(9, 1, 4), drawn(9, 1, 4)
    lowered = check(function, *args, target_kind="cuda")
    assert_lowering_is_right(lowered)
    assert (len(lowered.kernels), stores_rows(lowered)) == (kernels, is_stored)


@pytest.mark.parametrize("name", STORED)
def test_rows_that_another_step_reads_are_stored_on_a_cpu_if_they_are_made_of_more(
    name: str,
) -> None:
    function, kernels, is_stored = STORED[name]
    args = drawn(9, 5, 8), drawn(8), drawn(9, 1, 4), drawn(9, 1, 4)
    lowered = check(function, *args)
    assert (len(lowered.plan.steps) == 1) == (kernels == 1)
    assert kernels == 1 or stores_rows(lowered) == is_stored


def chosen(x: Tensor, place: Tensor, dim: int = -1) -> Tensor:
    return x.gather(dim, place.unsqueeze(dim)).squeeze(dim)


def token_and_entropy(x: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    logs = (x / 0.7).log_softmax(-1)
    return chosen(logs, place), -(logs.exp() * logs).sum(-1)


CHOSEN: dict[str, Callable[..., Any]] = {
    "log probabilities": lambda x, place: chosen(x.log_softmax(-1), place),
    "and entropy": token_and_entropy,
    "with a mask": lambda x, place: chosen((x * (x > -0.5)).softmax(-1), place) * 2,
    "minus infinity": lambda x, place: chosen(torch.log(torch.relu(x)).log_softmax(-1), place),
    "of a middle dim": lambda x, place: chosen(x.transpose(1, 2).softmax(1), place, 1),
    "of what is summed as well": lambda x, place: (chosen(x, place), x.sum(-1)),
    "of a norm": lambda x, place: chosen(normed(x, x[0, 0]), place),
    "of half precision": lambda x, place: chosen(x.half().log_softmax(-1), place),
    "of integers": lambda x, place: chosen((x * 9).int(), place) + (x * 9).int().amax(-1),
    "of a loss": lambda x, place: functional.cross_entropy(
        x.mT, place.masked_fill(place < 2, -100), reduction="none"
    ),
}
WALKED: dict[str, Callable[..., Any]] = {
    "sums up to there": lambda x, place: chosen(x.cumsum(-1), place),
    "of the other end": lambda x, place: chosen(x.flip(-1).log_softmax(-1), place),
}


def chosen_in_one_kernel(function: Callable[..., Any], target_kind: str) -> ir.Kernel:
    place = torch.randint(0, 8, (9, 5), generator=torch.Generator().manual_seed(0))
    lowered = check(function, drawn(9, 5, 8), place, target_kind=target_kind)
    assert_lowering_is_right(lowered)
    assert len(launched_nodes(lowered)) == 1
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)
    (kernel,) = lowered.kernels
    return kernel.kernel


@pytest.mark.parametrize("target_kind", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CHOSEN)
def test_one_element_of_a_row_that_is_read_whole_is_looked_up(name: str, target_kind: str) -> None:
    kernel = chosen_in_one_kernel(CHOSEN[name], target_kind)
    assert kernel.reduction
    assert any(isinstance(node, ir.Gather) for node in kernel.body)
    is_compared = (isinstance(node, ir.Op) and node.name == "eq" for node in kernel.body)
    assert not any(is_compared)


@pytest.mark.parametrize("name", WALKED)
def test_an_element_that_no_place_names_is_found_by_the_walk(name: str) -> None:
    kernel = chosen_in_one_kernel(WALKED[name], "cuda")
    assert not any(isinstance(node, ir.Gather) for node in kernel.body)


@pytest.mark.parametrize("name", WALKED)
def test_an_element_that_no_place_names_is_looked_up_by_eager_on_a_cpu(name: str) -> None:
    """Eager refuses a place that there is not, and a walk would find nothing there."""
    place = torch.randint(0, 8, (9, 5), generator=torch.Generator().manual_seed(0))
    lowered = check(WALKED[name], drawn(9, 5, 8), place)
    assert_lowering_is_right(lowered)
    assert any(isinstance(step, RunNodes) for step in lowered.plan.steps)
    (kernel,) = lowered.kernels
    assert kernel.kernel.reduction


@pytest.mark.parametrize(
    "function",
    [
        lambda x, place: chosen(x, place) * 2,
        lambda x, place: chosen(x * 2, place),
        lambda x, place: (chosen(x, place), x.sum(0)),
    ],
)
def test_what_is_chosen_of_rows_that_nothing_else_reads_is_read_alone(
    function: Callable[..., Any],
) -> None:
    place = torch.randint(0, 8, (9, 5), generator=torch.Generator().manual_seed(0))
    lowered = check(function, drawn(9, 5, 8), place, target_kind="cuda")
    assert_chosen_alone(lowered)


def test_what_is_computed_point_by_point_is_computed_where_it_is_chosen() -> None:
    place = torch.randint(0, 8, (9, 5), generator=torch.Generator().manual_seed(0))
    lowered = check(
        lambda x, at: chosen(x.abs() * 2, at), drawn(9, 5, 8), place, target_kind="cuda"
    )
    assert [kernel.title for kernel in lowered.kernels] == ["gather"]


def test_places_for_the_first_rows_of_a_table_are_looked_up_there() -> None:
    place = torch.randint(0, 8, (4, 5), generator=torch.Generator().manual_seed(0))
    lowered = check(
        lambda x, at: x.exp().gather(-1, at[..., None]), drawn(9, 5, 8), place, target_kind="cuda"
    )
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)


def smoothed(x: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        x = x.roll(1, 0) + x.roll(-1, 0) + x.roll(1, 1) + x.roll(-1, 1) - 4 * x
    return x


def grown(x: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        x = functional.pad(x, (1, 1)) * 2
    return x


@pytest.mark.parametrize(
    ("function", "steps", "target_kind"), [(smoothed, 3, "cpu"), (grown, 24, "cuda")]
)
def test_steps_that_read_one_another_at_several_places_grow_no_kernel_without_end(
    function: Callable[..., Tensor], steps: int, target_kind: str
) -> None:
    """Each step computed where the next one reads it would be twice or five times as much each."""
    lowered = check(partial(function, steps=steps), drawn(7, 5), target_kind=target_kind)
    assert lowered.kernels
    assert max(len(found.kernel.body) for found in lowered.kernels) <= 2 * WORK_LIMIT


def test_attention_is_never_split() -> None:
    def attend(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = (x @ w).view(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        return functional.scaled_dot_product_attention(q, k, v) + 1

    captured = record(attend, drawn(2, 5, 32), drawn(32, 96), dynamic=False).captured
    lowered = lower(captured.program, target_kind="cpu")
    ops = [
        captured.program.nodes[node].op
        for step in lowered.plan.steps
        if isinstance(step, RunNodes)
        for node in step.nodes
    ]
    assert sum("scaled_dot_product" in op for op in ops) == 1
    assert not any("softmax" in kernel.title for kernel in lowered.kernels)


def layer(symbols: tuple[Symbol, ...], *batch: ex.Expr | int) -> Program:
    """A residual LayerNorm, a bias and GELU over rows of 384, as torch traces them."""
    b = Builder(symbols)
    hidden = tensor(*batch, 384)
    rows = tensor(ex.product(batch), 1536)
    statistics = tensor(*batch, 1)
    x, y = b.input(*batch, 384), b.input(*batch, 384)
    w, bias = b.input(384), b.input(384)
    wide = b.input(ex.product(batch), 1536)
    total = b.call("aten.add.Tensor", x, y, out=hidden)
    norm = b.call(
        "aten.native_layer_norm.default", total, [384], w, bias, 1e-12,
        out=(hidden, statistics, statistics),
    )  # fmt: skip
    gelu = b.call("aten.gelu.default", wide, out=rows)
    return b.program(norm, gelu)


def ids(lowered: Lowered) -> set[str]:
    return {kernel.id for kernel in lowered.kernels}


def test_a_batch_of_one_has_the_same_kernels() -> None:
    one = lower(layer((Symbol("s0", 2),), 1, S0), target_kind="cpu")
    many = lower(layer((Symbol("s0", 2), Symbol("s1", 2)), S0, S1), target_kind="cpu")
    assert ids(one) == ids(many)
    assert len(ids(one)) == 2
    assert all(kernel.kernel.symbols == ("k0",) for kernel in one.kernels)


def test_kernels_do_not_depend_on_the_names_and_numbers_of_symbols() -> None:
    plain = lower(layer((Symbol("s0", 2), Symbol("s1", 2)), S0, S1), target_kind="cpu")
    other = lower(layer((Symbol("s1", 2), Symbol("s2", 2)), S2, S1), target_kind="cpu")
    assert ids(plain) == ids(other)
    assert [fallback.id for fallback in plain.fallbacks] == [
        fallback.id for fallback in other.fallbacks
    ]


def test_siblings_give_one_kernel_in_either_order() -> None:
    def program(first: str, second: str) -> Program:
        b = Builder()
        x = b.input(S0, 64)
        left = b.call(f"aten.{first}.default", x, out=tensor(S0, 64))
        right = b.call(f"aten.{second}.default", x, out=tensor(S0, 64))
        return b.program(left, right)

    left = lower(program("exp", "tanh"), target_kind="cpu")
    right = lower(program("tanh", "exp"), target_kind="cpu")
    assert ids(left) == ids(right)


def test_steps_never_wait_for_one_another() -> None:
    """x feeds an opaque node whose result meets x again: all three cannot be one launch."""
    b = Builder()
    x = b.input(S0, 64)
    kind = tensor(S0, 64)
    doubled = b.call("aten.exp.default", x, out=kind)
    product = b.opaque(doubled, out=kind)
    total = b.call("aten.add.Tensor", product, doubled, out=kind)
    lowered = lower(b.program(total), target_kind="cpu")
    assert [type(step) for step in lowered.plan.steps if isinstance(step, (Launch, RunNodes))] == [
        Launch,
        RunNodes,
        Launch,
    ]


def test_strides_and_extents_that_coincide_share_a_symbol() -> None:
    """(s0, s1, 64) transposed: the stride 64*s1 is an extent times a constant."""
    b = Builder()
    x, y = b.input(S0, S1, 64), b.input(S1, S0, 64)
    turned = b.call("aten.transpose.int", x, 0, 1, out=_turned(S0, S1))
    total = b.call("aten.add.Tensor", turned, y, out=tensor(S1, S0, 64))
    (kernel,) = lower(b.program(total), target_kind="cpu").kernels
    assert kernel.kernel.symbols == ("k0", "k1")


def _turned(left: ex.Expr, right: ex.Expr) -> Any:
    kind = tensor(left, right, 64)
    shape, stride = kind.shape, kind.stride
    return type(kind)(
        "f32", (shape[1], shape[0], shape[2]), (stride[1], stride[0], stride[2]), "cpu"
    )


def test_low_precision_is_computed_in_single_precision() -> None:
    b = Builder()
    x = b.input(S0, 64, dtype="bf16")
    kind = tensor(S0, 64, dtype="bf16")
    total = b.call("aten.add.Tensor", b.call("aten.exp.default", x, out=kind), x, out=kind)
    (kernel,) = lower(b.program(total), target_kind="cpu").kernels
    ops = [node for node in kernel.kernel.body if isinstance(node, ir.Op) and node.name != "cast"]
    assert {node.dtype for node in ops} == {"f32"}


def test_a_cast_that_undoes_an_exact_one_is_no_operation() -> None:
    x = drawn(3, 5).to(torch.bfloat16)
    (lowered,) = check(lambda x, y: x.float().bfloat16() * y, x, x + 1).kernels
    casts = [
        node.dtype
        for node in lowered.kernel.body
        if isinstance(node, ir.Op) and node.name == "cast"
    ]
    assert sorted(casts) == ["bf16", "f32", "f32"]


def test_small_integers_reach_single_precision_without_a_half_float_between() -> None:
    def dequantised(w: Tensor, scale: Tensor) -> Tensor:
        return w.to(torch.bfloat16) * scale

    weight = torch.randint(-127, 127, (33, 8)).to(torch.int8)
    lowered = check(dequantised, weight, drawn(33, 1).to(torch.bfloat16))
    (kernel,) = lowered.kernels
    casts = [n for n in kernel.kernel.body if isinstance(n, ir.Op) and n.name == "cast"]
    assert [cast.dtype for cast in casts] == ["f32", "f32", "bf16"]


def test_zero_dim_cpu_tensors_are_scalars_of_a_cuda_kernel() -> None:
    b = Builder()
    x = b.input(S0, 64, device="cuda")
    eps = b.input(dtype="f64")
    narrow = b.call("aten._to_copy.default", eps, out=tensor())
    total = b.call("aten.add.Tensor", x, narrow, out=tensor(S0, 64, device="cuda"))
    (kernel,) = lower(b.program(total), target_kind="cuda").kernels
    assert ir.Param("scalar", "f32") in kernel.kernel.params or (
        ir.Param("scalar", "f64") in kernel.kernel.params
    )


def test_tensors_of_another_device_stay_opaque() -> None:
    b = Builder()
    x = b.input(S0, 64)
    total = b.call("aten.exp.default", x, out=tensor(S0, 64))
    lowered = lower(b.program(total), target_kind="cuda")
    assert lowered.plan.steps == (RunNodes((0,)),)


def test_a_copy_that_turns_its_input_is_a_kernel_and_a_plain_one_is_none() -> None:
    turned = check(lambda x: x.transpose(0, 1).contiguous(), drawn(33, 70), dynamic=True)
    assert len(turned.kernels) == 1
    plain = check(lambda x: x.clone(), drawn(33, 70), dynamic=True)
    assert not plain.kernels


TURNED: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "group norm": (2, lambda x: functional.silu(functional.group_norm(x.contiguous(), 8))),
    "group norm of what is computed": (2, lambda x: functional.group_norm((x * 2).contiguous(), 8)),
    "layer norm": (2, lambda x: functional.layer_norm(x.contiguous(), x.shape[1:])),
    "columns": (1, lambda x: functional.instance_norm(x.contiguous())),
    "a sum": (1, lambda x: x.contiguous().sum((1, 2, 3))),
    "rows of one dim": (1, lambda x: x.contiguous().softmax(-1)),
}


@pytest.mark.parametrize("name", TURNED)
def test_long_rows_are_turned_before_they_are_walked(name: str) -> None:
    """Read where they lie, with their channels last, each walk would turn them again."""
    count, function = TURNED[name]
    images = torch.randn(3, 16, 5, 6, generator=torch.Generator().manual_seed(1))
    lowered = check(
        function, images.contiguous(memory_format=torch.channels_last), target_kind="cuda"
    )
    assert_lowering_is_right(lowered)
    assert len(lowered.kernels) == count
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)


def test_turned_rows_that_registers_hold_are_read_once_where_they_lie() -> None:
    images = torch.randn(3, 16, 5, 6).contiguous(memory_format=torch.channels_last)
    lowered = check(
        lambda x: functional.group_norm(x.contiguous(), 8),
        images,
        target_kind="cuda",
        dynamic=False,
    )
    assert len(lowered.kernels) == 1
