"""The Plan around the Kernels: order, views, storage, and what is dropped when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest
import torch
from tests.unit.compiler.frontend.building import S0, S1, Builder, tensor
from tests.unit.compiler.frontend.running import check, launched_nodes
from torch import Tensor

from nearhint_compiler.pipeline import Lowered, lower
from nearhint_daemon.workers.lowering_check import check_lowering
from nearhint_rules import expr as ex
from nearhint_rules.plan import Free, Launch, MakeView, RunNodes, Step
from nearhint_rules.program import TensorType

KIND = tensor(S0, 64)
Kind = TypeVar("Kind")


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def steps_of(lowered: Lowered, kind: type[Kind]) -> list[Kind]:
    return [step for step in lowered.plan.steps if isinstance(step, kind)]


def order_of(lowered: Lowered) -> list[tuple[int, ...]]:
    """The nodes of each step that computes, in order."""
    return [step.nodes for step in lowered.plan.steps if isinstance(step, (Launch, RunNodes))]


def test_a_read_before_a_write_in_place_stays_before_it() -> None:
    b = Builder()
    x = b.input(S0, 64)
    before = b.call("aten.exp.default", x, out=KIND)
    b.call("aten.copy_.default", x, before, out=KIND, alias=x, mutates=(x,))
    after = b.call("aten.tanh.default", x, out=KIND)
    lowered = lower(b.program(before, after), target_kind="cpu")
    assert order_of(lowered) == [(0,), (1,), (2,)]


def test_a_read_through_a_view_sees_the_write() -> None:
    b = Builder()
    x, y = b.input(S0, 64), b.input(S0, 64)
    view = b.call("aten.view.default", x, [S0, 64], out=KIND, alias=x)
    before = b.call("aten.exp.default", view, out=KIND)
    b.call("aten.copy_.default", x, y, out=KIND, alias=x, mutates=(x,))
    after = b.call("aten.exp.default", view, out=KIND)
    lowered = lower(b.program(before, after), target_kind="cpu")
    # The view is no step: it is the same memory before and after.
    assert order_of(lowered) == [(0, 1), (2,), (0, 3)]


def test_a_value_that_is_written_in_place_is_not_computed_again() -> None:
    b = Builder()
    x = b.input(S0, 64)
    value = b.call("aten.exp.default", x, out=KIND)
    b.call("aten.add_.Tensor", value, x, out=KIND, alias=value, mutates=(value,))
    result = b.call("aten.tanh.default", value, out=KIND)
    lowered = lower(b.program(result), target_kind="cpu")
    assert order_of(lowered)[0] == (0, 1)


def test_random_steps_stay_in_order_and_run_once() -> None:
    b = Builder()
    x = b.input(S0, 64)
    first = b.call("aten.rand_like.default", x, out=KIND, is_random=True)
    slow = b.opaque(x, out=KIND)
    second = b.call("aten.native_dropout.default", slow, 0.5, True, out=KIND, is_random=True)
    third = b.call("aten.rand_like.default", x, out=KIND, is_random=True)
    total = b.call("aten.add.Tensor", b.call("aten.mul.Tensor", second, third, out=KIND), first,
                   out=KIND)  # fmt: skip
    lowered = lower(b.program(total), target_kind="cpu")
    ran = [node for nodes in steps_of(lowered, RunNodes) for node in nodes.nodes]
    assert [node for node in ran if node in (0, 2, 3)] == [0, 2, 3]
    assert len(ran) == len(set(ran))


def test_outputs_that_leave_the_plan_have_memory_of_their_own() -> None:
    b = Builder()
    x = b.input(S0, 64)
    kept = b.call("aten.exp.default", x, out=KIND)
    viewed = b.call("aten.tanh.default", kept, out=KIND)
    hidden = b.opaque(viewed, out=KIND)
    flat = b.call("aten.view.default", viewed, [ex.mul(64, S0)], out=tensor(ex.mul(64, S0)),
                  alias=viewed)  # fmt: skip
    inner = b.call("aten.neg.default", hidden, out=KIND)
    result = b.opaque(inner, out=KIND)
    lowered = lower(b.program(kept, flat, result), target_kind="cpu")
    storages = {
        output.slot: output.storage
        for launch in steps_of(lowered, Launch)
        for output in launch.outputs
    }
    assert storages[kept.value] == storages[viewed.value] == -1
    assert storages[inner.value] >= 0


def test_an_opaque_alias_that_leaves_the_plan_keeps_its_base() -> None:
    b = Builder()
    x = b.input(S0, 64)
    base = b.call("aten.exp.default", x, out=KIND)
    alias = b.call("aten.something.default", base, out=KIND, alias=base)
    lowered = lower(b.program(alias), target_kind="cpu")
    (launch,) = steps_of(lowered, Launch)
    assert launch.outputs[0].storage == -1


def test_storage_is_shared_by_what_does_not_live_together() -> None:
    b = Builder()
    value = b.input(S0, 64)
    for _ in range(6):
        value = b.call("aten.exp.default", value, out=KIND)
        value = b.call("aten.mm.default", value, value, out=KIND)
    lowered = lower(b.program(value), target_kind="cpu")
    # A launch's input and output live together; the last product leaves.
    assert lowered.plan.storages == 2
    offered = [output for step in steps_of(lowered, RunNodes) for output in step.outputs]
    assert len(offered) == 5


def test_a_smaller_tensor_may_use_a_larger_storage_only_if_that_is_provable() -> None:
    def storages(first: TensorType, second: TensorType) -> int:
        b = Builder()
        x = b.typed(first)
        large = b.opaque(b.call("aten.exp.default", x, out=first), out=second)
        small = b.opaque(b.call("aten.exp.default", large, out=second), out=second)
        return lower(b.program(small), target_kind="cpu").plan.storages

    assert storages(tensor(S0, 128), tensor(S0, 64)) == 1
    assert storages(tensor(S0, 64), tensor(S1, 64)) == 2


def test_slots_are_dropped_after_their_last_use() -> None:
    b = Builder()
    x = b.input(S0, 64)
    first = b.call("aten.exp.default", x, out=KIND)
    second = b.opaque(first, out=KIND)
    third = b.opaque(second, out=KIND)
    lowered = lower(b.program(third), target_kind="cpu")
    steps: Sequence[Step] = lowered.plan.steps
    assert steps[2:] == () or isinstance(steps[-1], RunNodes)
    freed = {slot for step in steps_of(lowered, Free) for slot in step.slots}
    assert x.value not in freed
    assert third.value not in freed


def test_what_a_fallback_reads_is_alive_when_it_may_run() -> None:
    """zeros_like reads nothing of x as a kernel, but everything of it as ATen."""
    b = Builder()
    x, y = b.input(S0, 64), b.input(S0, 64)
    hidden = b.opaque(x, out=KIND)
    zeros = b.call("aten.zeros_like.default", hidden, out=KIND)
    total = b.call("aten.add.Tensor", b.call("aten.exp.default", y, out=KIND), zeros, out=KIND)
    lowered = lower(b.program(total), target_kind="cpu")
    places = {type(step): place for place, step in enumerate(lowered.plan.steps)}
    assert places[RunNodes] < places[Launch]
    assert hidden.value not in steps_of(lowered, Launch)[0].inputs
    assert lowered.fallbacks[0].program.inputs == (KIND, KIND)


def test_views_of_a_launch_are_made_from_its_output() -> None:
    b = Builder()
    x = b.input(S0, 64)
    value = b.call("aten.exp.default", x, out=KIND)
    part = TensorType("f32", (S0, ex.Int(32)), KIND.stride)
    right = b.call("aten.slice.Tensor", value, 1, 32, 2**63 - 1, out=part, alias=value)
    turned = TensorType("f32", part.shape[::-1], part.stride[::-1])
    view = b.call("aten.t.default", right, out=turned, alias=right)
    result = b.opaque(view, out=KIND)
    lowered = lower(b.program(result), target_kind="cpu")
    (made,) = steps_of(lowered, MakeView)
    assert (made.base, made.offset, made.stride) == (value.value, ex.Int(32), turned.stride)


def test_a_view_with_strides_that_it_cannot_have_is_left_to_the_client() -> None:
    b = Builder()
    x = b.input(S0, 64)
    value = b.call("aten.exp.default", x, out=KIND)
    wrong = TensorType("f32", KIND.shape, (ex.Int(999), ex.ONE))
    view = b.call("aten.alias.default", value, out=wrong, alias=value)
    lowered = lower(b.program(b.opaque(view, out=KIND)), target_kind="cpu")
    assert not steps_of(lowered, MakeView)


def test_equal_loops_are_computed_once() -> None:
    b = Builder()
    x = b.input(S0, 64)
    first = b.opaque(b.call("aten.exp.default", x, out=KIND), out=KIND)
    second = b.opaque(b.call("aten.exp.default", x, out=KIND), first, out=KIND)
    lowered = lower(b.program(second), target_kind="cpu")
    (launch,) = steps_of(lowered, Launch)
    assert len(launch.outputs) == 1


def test_equal_outputs_do_not_share_memory() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp(), x.exp()

    b = Builder()
    x = b.input(S0, 64)
    results = [b.call("aten.exp.default", x, out=KIND) for _ in range(2)]
    lowered = lower(b.program(*results), target_kind="cpu")
    assert not steps_of(lowered, MakeView)
    check(both, drawn(5, 7))


def test_layouts_that_torch_chose_are_kept() -> None:
    def chosen(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.transpose(0, 1).exp(), x.transpose(0, 1).sum(-1)

    check(chosen, drawn(5, 7, 9))


def test_inputs_and_their_views_can_be_outputs() -> None:
    def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x + y
        return x, x[1:], z, z.view(-1), z[1:]

    lowered = check(mixed, drawn(5, 7), drawn(5, 7))
    assert len(launched_nodes(lowered)) == 1


def test_input_mutations_stay_mutations() -> None:
    def step(cache: Tensor, x: Tensor) -> Tensor:
        cache[:, 1:3].copy_(x * 2)
        return cache.sum(-1) + 1

    check(step, drawn(5, 7), drawn(5, 2))


def test_sources_name_the_nodes_of_each_launch() -> None:
    lowered = check(lambda x: torch.softmax(x * 2, -1), drawn(5, 7))
    (source,) = lowered.sources
    launch = lowered.plan.steps[source.step]
    assert isinstance(launch, Launch)
    assert launch.nodes == source.nodes


def test_an_empty_program_is_an_empty_plan() -> None:
    b = Builder()
    x = b.input(S0, 64)
    assert lower(b.program(x, None), target_kind="cpu").plan.steps == ()


def test_a_fallback_reads_what_its_kernel_reads_though_a_node_repeats_another() -> None:
    """The row sum and the layer norm want different loops; both read an equal tanh."""
    square, row = tensor(S0, S0), tensor(S0)
    b = Builder()
    x = b.input(S0, S0)
    first = b.call("aten.tanh.default", x, out=square)
    again = b.call("aten.tanh.default", x, out=square)
    total = b.call("aten.sum.dim_IntList", first, [0], False, out=row)
    stats = tensor(S0, 1)
    norm = b.call(
        "aten.native_layer_norm.default", again, [S0], None, None, 1e-3, out=(square, stats, stats)
    )
    program = b.program(first, total, norm)
    lowered = lower(program, target_kind="cpu")
    made = {value for step in steps_of(lowered, Launch) for value in step.inputs}
    assert again.value not in made
    for fallback in lowered.fallbacks:
        assert all(0 <= place < len(fallback.program.inputs) for place in fallback.inputs)


def test_gates_of_a_recurrent_cell_are_read_where_one_product_left_them() -> None:
    def gated(x: Tensor) -> Tensor:
        first, second, third = (x @ x.t() @ x).unsafe_chunk(3, 1)
        return first.sigmoid() * second.tanh() + third

    lowered = check(gated, torch.randn(5, 12))
    (launch,) = steps_of(lowered, Launch)
    assert len(launch.inputs) == 1
    assert not steps_of(lowered, MakeView)[1:]  # but x.t()


def test_a_fallback_computes_nothing_again_that_its_kernel_reads() -> None:
    """Both halves of a rotary embedding compute the same angles, and are one Kernel."""

    def turned(x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] * torch.arange(4) * 0.1
        twice = torch.cat([angles.cos(), angles.cos()], -1)
        first, second = x.chunk(2, -1)
        return x * twice + torch.cat([-second, first], -1)

    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return turned(x), turned(y)

    lowered = check(both, torch.randn(2, 6, 8), torch.randn(2, 6, 8))
    kernels = {found.id: found.kernel for found in lowered.kernels}
    for fallback in lowered.fallbacks:
        assert check_lowering(kernels[fallback.kernel], fallback, seed=1).problem == ""


def test_what_repeats_a_node_that_stays_opaque_runs_by_itself() -> None:
    """Nothing here is worth a launch, so nothing is fused and every node runs as it is."""
    number, truth = tensor(), tensor(dtype="bool")
    b = Builder()
    chosen = x = b.input()
    for _ in range(2):
        is_positive = b.call("aten.gt.Scalar", x, 0, out=truth)
        chosen = b.call("aten.where.self", is_positive, x, x, out=number)
    lowered = lower(
        b.program(b.call("aten.mul.Tensor", chosen, 0.5, out=number)), target_kind="cpu"
    )
    made = {step.slot for step in steps_of(lowered, MakeView)}
    ran = [node for step in steps_of(lowered, RunNodes) for node in step.nodes]
    assert not made
    assert ran == [2, 3, 4]


def test_loops_over_no_elements_stay_the_clients_own() -> None:
    """Sizes of Kernels are at least 1, so there is none for rows without elements."""
    b = Builder()
    x = b.input(0, S0)
    square = b.call("aten.pow.Tensor_Scalar", x, 2, out=tensor(0, S0))
    mean = b.call("aten.mean.dim", square, [-1], True, out=tensor(0, 1))
    scaled = b.call("aten.mul.Tensor", x, mean, out=tensor(0, S0))
    total = b.call("aten.sum.dim_IntList", scaled, [0], out=tensor(S0))
    lowered = lower(b.program(scaled, total), target_kind="cpu")
    assert not lowered.kernels
    assert sorted(node for nodes in order_of(lowered) for node in nodes) == [0, 1, 2, 3]


def test_a_program_that_reshapes_no_elements_is_lowered_all_the_same() -> None:
    b = Builder()
    x, empty = b.input(S0, 64), b.input(S0, 0)
    view = b.call("aten.view.default", empty, [2, 0], out=tensor(2, 0), alias=empty)
    total = b.call("aten.exp.default", x, out=KIND)
    lowered = lower(b.program(view, total), target_kind="cpu")
    assert [step.nodes for step in steps_of(lowered, Launch)] == [(1,)]


def test_what_a_reduction_that_runs_as_it_is_takes_is_in_memory() -> None:
    """So few elements are worth no launch; on a GPU readers would compute them again otherwise."""

    def function(x: Tensor) -> Tensor:
        wide = x.float()
        largest = wide.sum(0, keepdim=True).sort()[0]
        return ((wide / largest) * (wide * 2)).sum(0)

    count = torch.arange(1, 13, dtype=torch.uint8)
    assert check(function, count[:, None], dynamic=False, target_kind="cuda").kernels == ()
    check(function, count.view(6, 2), dynamic=False, target_kind="cuda")
    check(function, count.repeat(9).view(12, 9), dynamic=False, target_kind="cuda")


@pytest.mark.parametrize(("ops", "kernels"), [(2, 2), (6, 3)])
def test_many_ops_of_a_few_numbers_are_one_kernel(ops: int, kernels: int) -> None:
    """Each of them is a call; one or two are as fast as a Kernel's launch."""

    def norms(x: Tensor, y: Tensor) -> Tensor:
        found = torch.stack((x.square().sum(), y.square().sum()))
        for _ in range(ops - 1):
            found = found.sqrt() + 1
        return found

    lowered = check(norms, drawn(5, 7), drawn(70))
    assert sum(isinstance(step, Launch) for step in lowered.plan.steps) == kernels
