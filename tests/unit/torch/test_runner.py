"""Running Plans: launches, arenas, views, frees, and every way to fall back."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import Install
from tests.unit.torch.fake_session import (
    FakeKernel,
    FakeSession,
    FakeSnapshot,
    all_nodes,
    chosen,
    plan_of,
)
from torch.multiprocessing.reductions import StorageWeakRef

from nearhint_rules import expr as ex
from nearhint_rules.expr import Sym
from nearhint_rules.guard import Aligned
from nearhint_rules.plan import Free, Launch, MakeView, Output, Plan, RunNodes, Step
from nearhint_rules.program import Program, TensorType, first_outputs, value_types
from nearhint_torch.backend import nearhint
from nearhint_torch.runner import watch

Tensor = torch.Tensor


def twice_plus_one(x: Tensor) -> Tensor:
    return x * 2 + 1


def chained(x: Tensor) -> Tensor:
    """Two launches with an intermediate between them, then ATen."""
    return ((x * 2 + 1) * 2 + 1).sin()


def slot_of(program: Program, op: str, occurrence: int = 0) -> int:
    found = [index for index, node in enumerate(program.nodes) if node.op == op]
    return first_outputs(program)[found[occurrence]]


def index_of(program: Program, op: str, occurrence: int = 0) -> int:
    return [index for index, node in enumerate(program.nodes) if node.op == op][occurrence]


def launch_of(program: Program, occurrence: int = 0, *, storage: int = -1) -> Launch:
    """Launches `2 * x + 1` in place of the n-th mul and add."""
    mul, add = (index_of(program, op, occurrence) for op in ("aten.mul.Tensor", "aten.add.Tensor"))
    starts = first_outputs(program)
    kind = value_types(program)[starts[add]]
    assert isinstance(kind, TensorType)
    output = Output(starts[add], kind.dtype, kind.shape, kind.stride, "cpu", storage)
    return Launch(
        kernel="k",
        fallback="f",
        dims=(ex.product(kind.shape),),
        inputs=(program.nodes[mul].inputs[0],),
        outputs=(output,),
        nodes=(mul, add),
    )


class Fixture:
    """Compiles a function with a Plan made from its Program, and FakeKernels at its launches."""

    def __init__(self, install: Install) -> None:
        self.install = install
        self.kernel = FakeKernel()
        self.snapshots: list[FakeSnapshot] = []
        self.session: FakeSession | None = None

    def compile(
        self,
        function: Callable[..., Any],
        steps: Callable[[Program], tuple[Step, ...]],
        *,
        choice: Callable[[tuple[int, ...]], Any] | None = None,
        storages: int = 0,
    ) -> Callable[..., Any]:
        answer = choice or (lambda dims: chosen(self.kernel, dims))

        def make(program: Program) -> FakeSnapshot:
            plan = plan_of(program, *steps(program), storages=storages)
            choices = {
                number: answer for number, step in enumerate(plan.steps) if isinstance(step, Launch)
            }
            self.snapshots.append(FakeSnapshot(plan, choices))
            return self.snapshots[-1]

        self.session = self.install(make)
        compiled: Callable[..., Any] = torch.compile(function, backend=nearhint, dynamic=True)
        return torch.no_grad()(compiled)

    @property
    def fallbacks(self) -> list[str]:
        assert self.session is not None
        return self.session.fallbacks


@pytest.fixture
def plans(session: Install) -> Fixture:
    return Fixture(session)


def chained_steps(program: Program) -> tuple[Step, ...]:
    first, second = launch_of(program, storage=0), launch_of(program, 1, storage=1)
    return (
        first,
        second,
        Free((first.outputs[0].slot,)),
        RunNodes((index_of(program, "aten.sin.default"),)),
    )


def test_a_launch_runs_the_binary_at_the_kernels_sizes(plans: Fixture) -> None:
    compiled = plans.compile(twice_plus_one, lambda program: (launch_of(program),))
    x = torch.randn(3, 5)
    with watch() as reports:
        assert torch.equal(compiled(x), x * 2 + 1)
    assert plans.kernel.bound == [((15,), torch.get_num_threads())]
    assert plans.kernel.calls[0][0] == x.data_ptr()
    assert [report.tiers for report in reports] == [(0, 0, 1)]
    assert reports[0].launches[0].hint == (15,)
    assert not plans.fallbacks


def test_sizes_are_resolved_once_and_counted_every_time(plans: Fixture) -> None:
    compiled = plans.compile(twice_plus_one, lambda program: (launch_of(program),))
    for rows in (3, 4, 3, 3):
        compiled(torch.randn(rows, 5))
    assert [dims for dims, _ in plans.kernel.bound] == [(15,), (20,)]
    assert plans.session is not None
    counted = plans.session.handles[0].counted
    assert counted == [(sizes, (0, 0, 1, 0)) for sizes in ((3, 5), (4, 5), (3, 5), (3, 5))]


def test_a_call_at_known_sizes_is_few_python_calls(plans: Fixture) -> None:
    """What we add to a kernel is some microseconds, at about a tenth for each call of Python."""
    compiled = plans.compile(twice_plus_one, lambda program: (launch_of(program),))
    x = torch.randn(3, 5)
    for _ in range(2):
        compiled(x)
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/nearhint_torch/" in frame.f_code.co_filename:
            called.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        compiled(x)
    finally:
        sys.setprofile(None)
    assert called.index("CompiledGraph.__call__") <= 1
    assert len(called) - called.index("CompiledGraph.__call__") <= 9, called


def test_an_output_that_leaves_is_never_used_again(plans: Fixture) -> None:
    compiled = plans.compile(twice_plus_one, lambda program: (launch_of(program),))
    x = torch.randn(4, 4)
    first = compiled(x)
    kept = first.clone()
    compiled(x + 1)
    assert torch.equal(first, kept)


def test_intermediates_use_the_same_memory_in_every_call(plans: Fixture) -> None:
    compiled = plans.compile(chained, chained_steps, storages=2)
    for _ in range(3):
        x = torch.randn(6, 7)
        assert torch.equal(compiled(x), chained(x))
    intermediates = {addresses[1] for addresses in plans.kernel.calls[::2]}
    assert len(intermediates) == 1


def test_memory_grows_with_the_sizes_and_is_kept(plans: Fixture) -> None:
    compiled = plans.compile(chained, chained_steps, storages=2)
    for rows in (3, 300, 3, 40):
        x = torch.randn(rows, 8)
        assert torch.equal(compiled(x), chained(x))
    grown = [addresses[1] for addresses in plans.kernel.calls[::2]]
    assert grown[1] == grown[2] == grown[3]


def test_calls_at_the_same_time_share_no_memory(plans: Fixture) -> None:
    compiled = plans.compile(chained, chained_steps, storages=2)
    compiled(torch.randn(3, 5))
    failures: list[int] = []

    def serve(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for turn in range(40):
            x = torch.randn(5 + (turn + seed) % 3, 64, generator=generator)
            if not torch.equal(compiled(x), chained(x)):
                failures.append(seed)

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not plans.fallbacks


@pytest.mark.parametrize("is_there", [True, False])
def test_an_unaligned_address_takes_the_next_variant_or_the_fallback(
    plans: Fixture, is_there: bool
) -> None:
    other = FakeKernel()

    def choice(dims: tuple[int, ...]) -> Any:
        last = chosen(other if is_there else None, dims)
        return chosen(plans.kernel, dims, facts=(Aligned(0, 16),), otherwise=last)

    compiled = plans.compile(twice_plus_one, lambda program: (launch_of(program),), choice=choice)
    base = torch.randn(13)
    aligned, unaligned = base[:12].view(3, 4), base[1:].view(3, 4)
    assert torch.equal(compiled(aligned), aligned * 2 + 1)
    assert other.bound == []
    for _ in range(2):
        assert torch.equal(compiled(unaligned), unaligned * 2 + 1)
    assert len(other.bound) == (1 if is_there else 0)
    assert len(plans.kernel.calls) == 1
    assert len(other.calls) == (2 if is_there else 0)
    assert plans.fallbacks == ([] if is_there else ["unaligned"] * 2)


def test_an_error_of_the_launcher_runs_the_fallback(plans: Fixture) -> None:
    plans.kernel.fails = True
    compiled = plans.compile(chained, chained_steps, storages=2)
    x = torch.randn(5, 6)
    assert torch.equal(compiled(x), chained(x))
    assert plans.fallbacks == ["launch_failed"] * 2


def test_a_launch_without_a_variant_runs_its_nodes(plans: Fixture) -> None:
    compiled = plans.compile(
        chained, chained_steps, storages=2, choice=lambda dims: chosen(None, dims, tier=0)
    )
    x = torch.randn(5, 6)
    with watch() as reports:
        assert torch.equal(compiled(x), chained(x))
    assert reports[0].tiers == (2, 0, 0)


def test_no_elements_means_no_launch(plans: Fixture) -> None:
    compiled = plans.compile(twice_plus_one, lambda program: (launch_of(program),))
    compiled(torch.randn(3, 5))
    empty = compiled(torch.randn(0, 5))
    assert empty.shape == (0, 5)
    assert len(plans.kernel.calls) == 1


def test_no_elements_at_a_symbolic_size_means_no_launch(plans: Fixture) -> None:
    def function(x: Tensor) -> Tensor:
        return x[2:] * 2 + 1

    def steps(program: Program) -> tuple[Step, ...]:
        return RunNodes((index_of(program, "aten.slice.Tensor"),)), launch_of(program)

    compiled = plans.compile(function, steps)
    compiled(torch.randn(3, 5))
    assert compiled(torch.randn(2, 5)).shape == (0, 5)
    assert len(plans.kernel.calls) == 1


def test_a_reduction_over_nothing_runs_as_aten(plans: Fixture) -> None:
    def function(x: Tensor) -> Tensor:
        return x[2:].sum(0)

    def steps(program: Program) -> tuple[Step, ...]:
        node = index_of(program, "aten.sum.dim_IntList")
        base = first_outputs(program)[index_of(program, "aten.slice.Tensor")]
        output = Output(first_outputs(program)[node], "f32", (Sym("s1"),), (ex.ONE,))
        dims = (ex.sub(Sym("s0"), 2), Sym("s1"))
        launch = Launch("k", "f", dims, (base,), (output,), (node,))
        return RunNodes((index_of(program, "aten.slice.Tensor"),)), launch

    compiled = plans.compile(function, steps)
    assert torch.equal(compiled(torch.randn(2, 5)), torch.zeros(5))
    assert not plans.kernel.bound


def test_a_view_of_a_launch_and_of_a_node_are_views(plans: Fixture) -> None:
    def function(x: Tensor) -> Any:
        y = x * 2 + 1
        z = x.sin()
        return y, y.t(), z, z.t()

    def steps(program: Program) -> tuple[Step, ...]:
        views = [
            MakeView(
                slot=slot_of(program, "aten.t.default", number),
                base=base,
                shape=(Sym("s1"), Sym("s0")),
                stride=(ex.ONE, Sym("s1")),
                offset=ex.ZERO,
                node=index_of(program, "aten.t.default", number),
            )
            for number, base in enumerate(
                (slot_of(program, "aten.add.Tensor"), slot_of(program, "aten.sin.default"))
            )
        ]
        return launch_of(program), RunNodes((index_of(program, "aten.sin.default"),)), *views

    x = torch.randn(3, 5)
    y, y_t, z, z_t = plans.compile(function, steps)(x)
    for tensor, view, expected in ((y, y_t, x * 2 + 1), (z, z_t, x.sin())):
        assert torch.equal(tensor, expected)
        assert torch.equal(view, expected.t())
        assert view.data_ptr() == tensor.data_ptr()
    assert not plans.fallbacks


def test_a_view_inside_the_arena_is_read_by_a_launch(plans: Fixture) -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 2 + 1)[1:] * 2 + 1

    def steps(program: Program) -> tuple[Step, ...]:
        rows, columns = Sym("s0"), Sym("s1")
        view = MakeView(
            slot=slot_of(program, "aten.slice.Tensor"),
            base=slot_of(program, "aten.add.Tensor"),
            shape=(ex.sub(rows, 1), columns),
            stride=(columns, ex.ONE),
            offset=columns,
            node=index_of(program, "aten.slice.Tensor"),
        )
        return launch_of(program, storage=0), view, launch_of(program, 1)

    compiled = plans.compile(function, steps, storages=1)
    for rows in (3, 6):
        x = torch.randn(rows, 5)
        assert torch.equal(compiled(x), function(x))
    written, read = plans.kernel.calls[0][1], plans.kernel.calls[1][0]
    assert read == written + 5 * 4


def moody_result(plans: Fixture, made: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A Kernel behind an op that makes something else of `x` than torch foresees."""
    with torch.library._scoped_library("nearhint_test", "DEF") as library:
        library.define("moody(Tensor x) -> Tensor")
        library.impl("moody", made, "CompositeExplicitAutograd")
        library._register_fake("moody", torch.empty_like)

        def function(x: Tensor) -> Any:
            return torch.ops.nearhint_test.moody(x) * 2 + 1

        def steps(program: Program) -> tuple[Step, ...]:
            return RunNodes((0,)), launch_of(program)

        result: Tensor = plans.compile(function, steps)(x)
    return result


def test_strides_that_capture_did_not_foresee_run_the_fallback(plans: Fixture) -> None:
    x = torch.randn(3, 5)
    result = moody_result(plans, lambda x: x.t().contiguous().t(), x)
    assert torch.equal(result, x * 2 + 1)
    assert result.stride() == (5, 1)
    assert not plans.kernel.calls
    assert plans.fallbacks == ["strides_differ"]


@pytest.mark.parametrize(
    "made",
    [lambda x: x.double(), lambda x: x.bfloat16(), lambda x: x[:, :-1], lambda x: x.view(-1)],
    ids=["f64", "bf16", "smaller", "flat"],
)
def test_types_that_capture_did_not_foresee_run_the_fallback(
    plans: Fixture, made: Callable[[Tensor], Tensor]
) -> None:
    """What torch says of an op's result is not always what the op makes."""
    x = torch.randn(3, 5)
    result = moody_result(plans, lambda x: made(x).clone(), x)
    torch.testing.assert_close(result, made(x) * 2 + 1, check_dtype=False)
    assert not plans.kernel.calls
    assert plans.fallbacks == ["strides_differ"]


def test_a_node_writes_into_the_storage_that_the_plan_offers(plans: Fixture) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w) * 2 + 1

    def steps(program: Program) -> tuple[Step, ...]:
        made = slot_of(program, "aten.mm.default")
        kind = value_types(program)[made]
        assert isinstance(kind, TensorType)
        offer = Output(made, "f32", kind.shape, kind.stride, "cpu", 0)
        node = index_of(program, "aten.mm.default")
        return RunNodes((node,), (offer,)), launch_of(program)

    compiled = plans.compile(function, steps, storages=1)
    for _ in range(3):
        x, w = torch.randn(3, 5), torch.randn(5, 7)
        assert torch.equal(compiled(x, w), x @ w * 2 + 1)
    assert len({addresses[0] for addresses in plans.kernel.calls}) == 1
    assert not plans.fallbacks


def view_of_a_weight(program: Program) -> tuple[Step, ...]:
    """A layer of 5 to 7 without a bias: the Plan makes the view of its weight."""
    view = MakeView(
        slot=slot_of(program, "aten.t.default"),
        base=0,
        shape=(ex.Int(5), ex.Int(7)),
        stride=(ex.ONE, ex.Int(5)),
        offset=ex.ZERO,
        node=index_of(program, "aten.t.default"),
    )
    rest = [index for index, node in enumerate(program.nodes) if node.op != "aten.t.default"]
    return view, RunNodes(tuple(rest))


def test_a_view_of_a_weight_is_made_once_until_the_weight_moves(plans: Fixture) -> None:
    layer = torch.nn.Linear(5, 7, bias=False)
    compiled = plans.compile(layer, view_of_a_weight)
    x = torch.randn(3, 5)
    for change in (lambda: None, lambda: None, lambda: layer.weight.data.mul_(2)):
        change()
        assert torch.equal(compiled(x), layer(x))
    layer.weight.data = torch.randn(7, 5)
    assert torch.equal(compiled(x), layer(x))


def test_a_view_of_a_weight_keeps_nothing_of_a_model_that_is_gone(plans: Fixture) -> None:
    layer = torch.nn.Linear(5, 7, bias=False)
    compiled = plans.compile(layer, view_of_a_weight)
    compiled(torch.randn(3, 5))
    reference: Any = StorageWeakRef
    weight, memory = weakref.ref(layer.weight), reference(layer.weight.untyped_storage())
    del layer, compiled
    gc.collect()
    assert weight() is None
    assert memory.expired()


def test_freed_slots_hold_no_memory(plans: Fixture) -> None:
    alive: list[Any] = []

    with torch.library._scoped_library("nearhint_test", "DEF") as library:
        library.define("look(Tensor x) -> Tensor")

        def look(x: Tensor) -> Tensor:
            gc.collect()
            alive.append([reference() is None for reference in references])
            return x.clone()

        references: list[weakref.ref[Tensor]] = []

        def keep(x: Tensor) -> Tensor:
            made = x.clone()
            references.append(weakref.ref(made))
            return made

        library.impl("look", look, "CompositeExplicitAutograd")
        library._register_fake("look", torch.empty_like)
        library.define("keep(Tensor x) -> Tensor")
        library.impl("keep", keep, "CompositeExplicitAutograd")
        library._register_fake("keep", torch.empty_like)

        def kept(x: Tensor) -> Any:
            made = torch.ops.nearhint_test.keep(x)
            return torch.ops.nearhint_test.look(made + 1)

        def steps(program: Program) -> tuple[Step, ...]:
            return (
                RunNodes((0,)),
                RunNodes((1,)),
                Free((first_outputs(program)[0],)),
                RunNodes((2,)),
            )

        x = torch.randn(3, 5)
        assert torch.equal(plans.compile(kept, steps)(x), x + 1)
    assert alive == [[True]]


def test_a_new_snapshot_serves_the_next_call(plans: Fixture) -> None:
    compiled = plans.compile(twice_plus_one, lambda program: (launch_of(program),))
    x = torch.randn(3, 5)
    compiled(x)
    assert plans.session is not None
    handle = plans.session.handles[0]
    newer = FakeKernel()
    plan = plans.snapshots[0].plan
    handle.snapshot = FakeSnapshot(plan, {0: lambda dims: chosen(newer, dims)})  # type: ignore[assignment]
    assert torch.equal(compiled(x), x * 2 + 1)
    assert (len(plans.kernel.calls), len(newer.calls)) == (1, 1)


def test_a_plan_that_cannot_be_resolved_leaves_the_model_at_t0(plans: Fixture) -> None:
    def broken(program: Program) -> tuple[Step, ...]:
        launch = launch_of(program)
        return (replace(launch, dims=(Sym("nowhere"),)),)

    compiled = plans.compile(twice_plus_one, broken)
    x = torch.randn(3, 5)
    assert torch.equal(compiled(x), x * 2 + 1)
    assert plans.fallbacks == ["plan_unusable"]


def test_sizes_that_no_bucket_covers_are_asked_for(plans: Fixture) -> None:
    compiled = plans.compile(
        twice_plus_one,
        lambda program: (launch_of(program),),
        choice=lambda dims: chosen(None, dims, tier=0, is_covered=dims[0] > 15),
    )
    for rows in (3, 4, 3):
        compiled(torch.randn(rows, 5))
    assert plans.session is not None
    assert plans.session.handles[0].wanted == [{"s0": 3, "s1": 5}]


def test_the_models_own_errors_pass_through(plans: Fixture) -> None:
    def function(x: Tensor, index: Tensor) -> Tensor:
        return x[index]

    compiled = plans.compile(function, lambda program: all_nodes(program).steps)
    x = torch.randn(3, 5)
    compiled(x, torch.tensor([0, 2]))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([0, 7]))
    assert torch.equal(compiled(x, torch.tensor([1, 1])), x[[1, 1]])


def test_random_steps_run_once_and_in_order(plans: Fixture) -> None:
    def function(x: Tensor) -> Any:
        return torch.rand_like(x), x * 2 + 1, torch.rand_like(x)

    def steps(program: Program) -> tuple[Step, ...]:
        first, second = (index_of(program, "aten.rand_like.default", n) for n in (0, 1))
        return RunNodes((first,)), launch_of(program), RunNodes((second,))

    compiled = plans.compile(function, steps)
    x = torch.randn(3, 5)
    compiled(x)
    torch.manual_seed(7)
    expected = function(x)
    torch.manual_seed(7)
    for left, right in zip(compiled(x), expected, strict=True):
        assert torch.equal(left, right)


def test_a_call_inside_a_call_has_an_arena_of_its_own(plans: Fixture) -> None:
    """A node may call the compiled graph again, by way of a custom op."""
    inner: list[Callable[[Tensor], Tensor]] = []
    with torch.library._scoped_library("nearhint_test", "DEF") as library:
        library.define("again(Tensor x) -> Tensor")
        library.impl(
            "again",
            lambda x: inner.pop()(x) if inner else x.clone(),
            "CompositeExplicitAutograd",
        )
        library._register_fake("again", torch.empty_like)

        def function(x: Tensor) -> Any:
            y = x * 2 + 1
            return y.sin() + torch.ops.nearhint_test.again(x) + y

        def steps(program: Program) -> tuple[Step, ...]:
            launch = launch_of(program, storage=0)
            rest = [i for i in range(len(program.nodes)) if i not in launch.nodes]
            return launch, RunNodes(tuple(rest))

        compiled = plans.compile(function, steps, storages=1)
        x = torch.randn(3, 5)
        compiled(x)
        inner.append(compiled)
        got = compiled(x)
        y = x * 2 + 1
        assert torch.allclose(got, y.sin() + (y.sin() + x + y) + y)


def test_plans_are_made_for_the_program_that_was_captured(plans: Fixture) -> None:
    compiled = plans.compile(twice_plus_one, lambda program: (launch_of(program),))
    compiled(torch.randn(3, 5))
    plan: Plan = plans.snapshots[0].plan
    assert plans.session is not None
    assert plan.program == plans.session.handles[0].program.id


def test_a_watch_within_another_ends_alone(plans: Fixture) -> None:
    compiled = plans.compile(twice_plus_one, lambda program: (launch_of(program),))
    with watch() as outer:
        with watch() as inner:
            pass
        compiled(torch.ones(3, 5))
    assert (len(outer), len(inner)) == (1, 0)
