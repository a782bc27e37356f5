"""Every private name of torch that the package uses, on whatever torch is installed."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._decomp import decomposition_table
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from nearhint_torch import adapter
from nearhint_torch.adapter import calls
from nearhint_torch.adapter import tracing as capturing
from nearhint_torch.sizes import CONVERSIONS

seen: dict[str, Any] = {}


@pytest.fixture
def graph() -> dict[str, Any]:
    """What a compiler sees of `x.view(-1) * w` with two symbolic sizes."""
    seen.clear()

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.update(
            inputs=inputs,
            static=adapter.static_inputs(),
            facts=adapter.ShapeFacts(inputs),
            nodes=list(module.graph.nodes),
        )
        return module.forward

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return adapter.aot_inference(module, inputs, compiler=compiler)

    layer = torch.nn.Linear(6, 3)
    torch.compile(layer, backend=backend, dynamic=True)(torch.randn(4, 6).requires_grad_(False))
    with torch.no_grad():
        torch.compile(layer, backend=backend, dynamic=True)(torch.randn(4, 6))
    return dict(seen)


def _symbol(graph: dict[str, Any]) -> Any:
    (size,) = (value for value in graph["inputs"] if isinstance(value, torch.SymInt))
    return adapter.size_expression(size)


def test_a_function_is_captured_as_often_as_torch_says_or_always() -> None:
    captured: list[None] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        captured.append(None)
        return module.forward

    compiled = torch.compile(lambda x, by: x * by, backend=backend, dynamic=False)
    limit = adapter.captures_limit()
    with adapter.capturing_all():
        for size in range(1, 2 * limit):
            compiled(torch.ones(size), 2.0)
    assert len(captured) == 2 * limit - 1
    assert adapter.captures_limit() == limit
    compiled(torch.ones(2 * limit), 2.0)
    assert len(captured) == 2 * limit - 1


def test_a_symbolic_size_is_read_without_adding_a_guard(graph: dict[str, Any]) -> None:
    assert getattr(_symbol(graph), "is_Symbol", False)


def test_a_symbols_range_and_source_are_known(graph: dict[str, Any]) -> None:
    facts = graph["facts"].symbol(_symbol(graph))
    assert facts.low == 2
    assert facts.high is None
    assert facts.sources
    assert facts.sources[0].endswith(".size()[0]")
    assert graph["facts"].is_given(_symbol(graph))
    assert graph["facts"].bounds(_symbol(graph)) == (2, None)


def equations_of(function: Any, *args: torch.Tensor) -> tuple[list[tuple[Any, Any]], set[Any]]:
    """The equations of a capture, and the symbols in the sizes of its arguments."""
    found: list[tuple[Any, Any]] = []
    given: set[Any] = set()

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        found.extend(adapter.ShapeFacts(inputs).equations())
        for value in inputs:
            sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
            for size in sizes:
                if isinstance(size, torch.SymInt):
                    given.update(adapter.size_expression(size).free_symbols)
        return module.forward

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return adapter.aot_inference(module, inputs, compiler=compiler)

    compiled: Any = torch.compile(function, backend=backend, dynamic=True)
    with torch.no_grad():
        compiled(*args)
    return found, given


def test_equations_among_the_guards_are_read() -> None:
    found, _ = equations_of(lambda x: x.view(-1, 32) + 1, torch.randn(5, 96))
    kinds = {type(side).__name__ for sides in found for side in sides}
    assert "Mod" in kinds
    assert all(len(sides) == 2 for sides in found)
    assert not list(adapter.ShapeFacts([torch.ones(2)]).equations())


@pytest.mark.parametrize(
    ("relation", "rest"),
    [
        (lambda rest: rest <= 0, 0),
        (lambda rest: rest < 1, 0),
        (lambda rest: rest >= 7, 7),
        (lambda rest: rest > 6, 7),
        (lambda rest: rest <= 1, None),
        (lambda rest: rest > 5, None),
        (lambda rest: rest != 3, None),
    ],
)
def test_a_relation_that_leaves_one_remainder_is_an_equation(
    relation: Callable[[int], bool], rest: int | None
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if relation(x.shape[0] % 8) else x + 1

    found, _ = equations_of(function, torch.randn(16 if rest is None else 8 + rest, 3))
    remainders = [number for side, number in found if type(side).__name__ in adapter.REMAINDERS]
    assert remainders == ([] if rest is None else [rest])


def test_equations_name_no_symbol_that_was_replaced() -> None:
    found, given = equations_of(lambda x, y: x + y[1:], torch.randn(5, 3), torch.randn(6, 3))
    assert {symbol for sides in found for side in sides for symbol in side.free_symbols} <= given


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("name", ["backed_var_to_val", "var_to_val"])
def test_backed_symbols_are_found_under_the_old_and_the_new_name(name: str) -> None:
    facts = adapter.ShapeFacts([])
    facts._environment = SimpleNamespace(**{name: {"s0": 8}})
    assert facts.is_given("s0")
    assert not facts.is_given("u0")


def test_an_unbacked_symbol_is_given_where_it_is_a_size_of_an_argument() -> None:
    given: list[bool] = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        facts = adapter.ShapeFacts(inputs)
        for node in module.graph.nodes:
            given.extend(
                facts.is_given(adapter.size_expression(size))
                for size in getattr(node.meta.get("val"), "shape", ())
                if isinstance(size, torch.SymInt)
            )
        return module.forward

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return adapter.aot_inference(module, inputs, compiler=compiler)

    x = torch.ones(5, 3)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        torch.compile(lambda x: (x * 2, x.nonzero()), backend=backend)(x)
    assert given == [True, True, False], "x, x * 2 and what x.nonzero() finds"


@pytest.mark.parametrize("name", ["x", lambda: "x"], ids=["property", "method"])
def test_a_sources_name_is_read_as_a_property_and_as_a_method(name: Any) -> None:
    assert adapter.source_name(SimpleNamespace(name=name)) == "x"


def test_without_fake_tensors_nothing_is_known() -> None:
    facts = adapter.ShapeFacts([torch.ones(2)])
    assert facts.symbol("s0") == adapter.SymbolFacts(None, None, ())
    assert not facts.is_given("s0")


def test_parameters_are_static_inputs(graph: dict[str, Any]) -> None:
    parameters = [
        position
        for position, value in enumerate(graph["inputs"])
        if isinstance(value, torch.Tensor)
        and not any(isinstance(size, torch.SymInt) for size in value.shape)
    ]
    assert sorted(graph["static"]) == parameters
    assert adapter.static_inputs() == frozenset()


def test_results_that_are_arguments_or_views_of_them_are_known() -> None:
    found: list[frozenset[int]] = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append(adapter.outputs_from_arguments())
        return module.forward

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return adapter.aot_inference(module, inputs, compiler=compiler)

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        made = y * 2
        return made, made[0], x, y.t()  # Dynamo hands out `x` itself

    with torch.no_grad():
        torch.compile(function, backend=backend)(torch.ones(2, 3), torch.ones(2, 3))
    assert found == [frozenset({2})]
    assert adapter.outputs_from_arguments() == frozenset()


@pytest.mark.parametrize("needs", [True, False])
def test_a_graph_whose_results_ask_for_gradients_is_known(needs: bool) -> None:
    found: list[bool] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append(adapter.returns_gradients(module))
        return module.forward

    def function(x: torch.Tensor) -> Any:
        with torch.set_grad_enabled(needs):
            return x * 2, x.shape[0]

    torch.compile(function, backend=backend)(torch.ones(2, requires_grad=True))
    assert found == [needs]


def test_a_graph_that_trains_goes_to_the_compiler_for_that() -> None:
    went: list[str] = []

    def compiler(name: str) -> Any:
        def compile_graph(module: torch.fx.GraphModule, inputs: Any) -> Any:
            went.append(name)
            return module.forward

        return compile_graph

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return adapter.aot_inference(
            module, inputs, compiler=compiler("inference"), training=compiler("training")
        )

    x = torch.ones(2, requires_grad=True)
    torch.compile(lambda x: x * 2, backend=backend)(x)
    assert went == ["training"]
    with torch.no_grad():
        torch.compile(lambda x: x * 3, backend=backend)(x)
    assert went == ["training", "inference"]


def test_capture_hands_out_fake_tensors_and_whole_ops(graph: dict[str, Any]) -> None:
    tensors = [value for value in graph["inputs"] if isinstance(value, torch.Tensor)]
    assert tensors
    assert all(isinstance(value, FakeTensor) for value in tensors)
    names = {adapter.op_name(node.target) for node in graph["nodes"]}
    assert {"aten.t.default", "aten.addmm.default"} <= names


def test_an_operators_name_and_schema_are_read() -> None:
    add = torch.ops.aten.add_.Tensor
    assert adapter.op_name(add) == "aten.add_.Tensor"
    assert adapter.op_name(len) == ""
    schema = adapter.schema_of(add)
    assert schema is not None
    written = [parameter.name for parameter in schema.parameters if parameter.is_written]
    assert written == ["self"]
    assert schema.returns == (frozenset({"a"}),)
    assert adapter.schema_of(len) is None


@pytest.mark.parametrize(
    ("operator", "is_random"),
    [(torch.ops.aten.rand_like.default, True), (torch.ops.aten.add.Tensor, False)],
)
def test_randomness_is_read_from_the_tags(operator: Any, is_random: bool) -> None:
    schema = adapter.schema_of(operator)
    assert schema is not None
    assert schema.is_random is is_random


def test_the_conversion_table_names_classes_that_torch_has() -> None:
    ours = set(CONVERSIONS) - {"Add", "Mul", "Max", "Min"}
    functions = importlib.import_module("torch.utils._sympy.functions")
    assert {name for name in ours if not hasattr(functions, name)} == set()


def test_a_marked_size_that_is_tied_to_a_fixed_one_is_told_by_its_own_error() -> None:
    x, y = torch.ones(3, 4), torch.ones(3, 4)
    adapter.mark_dynamic(x, 0)
    with pytest.raises(adapter.NotDynamic, match="specialized it to be a constant"):
        torch.compile(torch.add, backend="eager", dynamic=False)(x, y)


def test_marking_a_dimension_keeps_it_symbolic_and_leaves_one_alone() -> None:
    captured: list[Any] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        captured.append([value for value in inputs if isinstance(value, torch.SymInt)])
        return module.forward

    compiled = torch.compile(lambda x: x + 1, backend=backend, dynamic=False)
    for rows in (1, 3, 4, 5):
        x = torch.ones(rows, 2)
        adapter.mark_dynamic(x, 0)
        compiled(x)
    assert [len(symbols) for symbols in captured] == [0, 1]


def test_marks_of_a_tensor_are_put_back_as_they_were() -> None:
    x = torch.ones(3, 4)
    for first in (0, 1):
        before = adapter.marks_of(x)
        known = {name: str(value) for name, value in vars(x).items()}
        adapter.mark_dynamic(x, first, low=2, high=9)
        assert {name: str(value) for name, value in vars(x).items()} != known
        adapter.put_back(x, before)
        assert {name: str(value) for name, value in vars(x).items()} == known
        adapter.mark_dynamic(x, first)


def test_a_call_is_done_within_lists_tuples_and_dicts() -> None:
    given = [1, ("one", {"two": 2}), None]
    found = adapter.map_placed(lambda path, each: (adapter.place_text(path), each), given)
    assert found == [("[0]", 1), (("[1][0]", "one"), {"two": ("[1][1]['two']", 2)}), ("[2]", None)]
    assert given == [1, ("one", {"two": 2}), None]


def test_dynamo_may_start_over_through_the_backend() -> None:
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis

    assert issubclass(TensorifyScalarRestartAnalysis, adapter.ControlFlow)


@pytest.mark.parametrize("has_entry", [True, False])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_views_share_their_bases_storage_and_count_from_its_first_element(
    has_entry: bool,
    mode: Callable[[], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_entry:
        monkeypatch.setattr(calls, "_guards", lambda: None)
    view = adapter.viewer()
    with mode():
        for base in (torch.arange(24.0)[4:].view(4, 5), torch.nn.Parameter(torch.ones(4, 5))):
            found = view(base, (3, 2), (5, 1), 2)
            assert (found.shape, found.stride()) == ((3, 2), (5, 1))
            assert torch.equal(found, base[:3, 2:4])
            found.fill_(-1.0)
            assert torch.equal(base[:3, 2:4], torch.full((3, 2), -1.0))


@pytest.mark.parametrize("has_entry", [True, False])
def test_empty_tensors_lie_as_they_are_asked_to(
    has_entry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_entry:
        monkeypatch.setattr(calls, "_guards", lambda: None)
    made = adapter.empty_maker(torch.device("cpu"))((3, 2), (1, 4), torch.bfloat16)
    assert (made.shape, made.stride(), made.dtype) == ((3, 2), (1, 4), torch.bfloat16)


def test_a_step_runs_with_its_device_as_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    @contextmanager
    def device(index: int) -> Generator[None]:
        before, current[0] = current[0], index
        yield
        current[0] = before

    monkeypatch.delattr(torch._C, "_cuda_getDevice", raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", device)
    seen: list[tuple[str, int]] = []

    def step(given: str) -> None:
        seen.append((given, current[0]))

    for index in (0, 1):
        adapter.on_device(torch.device("cuda", index), step)("here")
    assert seen == [("here", 0), ("here", 1)]
    assert current == [0]


@pytest.mark.gpu
def test_the_current_device_has_a_number_and_memory() -> None:
    assert torch._C._cuda_getDevice() == torch.cuda.current_device()
    device = torch.device("cuda", torch.cuda.current_device())
    made = adapter.empty_maker(device)((3, 2), (1, 4), torch.bfloat16)
    assert (made.device, made.shape, made.stride()) == (device, (3, 2), (1, 4))
    found = adapter.viewer()(made, (2, 2), (1, 4), 1)
    assert (found.device, found.data_ptr()) == (device, made.data_ptr() + made.element_size())


@pytest.mark.gpu
def test_the_current_stream_has_a_handle() -> None:
    assert adapter.current_stream(0) == torch.cuda.current_stream(0).cuda_stream


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _seen_by_torch(function: Any, *arguments: torch.Tensor, calls: int = 3) -> list[list[Any]]:
    """The results of calls of a compiled function; beside each, whether torch's wrapper ran it."""
    wrapped: list[bool] = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        def run(*given: Any) -> Any:
            files = [frame.f_code.co_filename for frame in _frames()]
            wrapped.append(any("_functorch" in file for file in files))
            return module.forward(*given)

        return run

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return adapter.aot_inference(module, inputs, compiler=compiler)

    compiled: Any = torch.compile(function, backend=backend, dynamic=True)
    results = [compiled(*arguments) for _ in range(calls)]
    return [[result, is_wrapped] for result, is_wrapped in zip(results, wrapped, strict=True)]


@pytest.mark.parametrize("graph_mode", [torch.no_grad, torch.inference_mode])
def test_torchs_wrapper_is_left_out_after_a_first_call_that_it_hands_through(
    graph_mode: Any,
) -> None:
    x = torch.randn(5, 7)
    with graph_mode():
        calls = _seen_by_torch(lambda x: (x * 2, x.sum(1)), x)
    assert [is_wrapped for _, is_wrapped in calls] == [True, False, False]
    for results, _ in calls:
        assert torch.equal(results[0], x * 2)
        assert [vars(result) for result in results] == [vars(result) for result in calls[0][0]]
    assert any(vars(result) for result in calls[0][0]), "torch marks what varies"


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.add_(1), id="a mutation"),
        pytest.param(lambda x: x.view(-1), id="a view of an input"),
    ],
)
def test_torchs_wrapper_stays_where_it_has_something_to_do(function: Any) -> None:
    with torch.no_grad():
        calls = _seen_by_torch(function, torch.randn(5, 7))
    assert all(is_wrapped for _, is_wrapped in calls)


def test_torchs_wrapper_switches_off_what_is_on() -> None:
    x = torch.randn(5, 7)
    with torch.enable_grad():
        calls = _seen_by_torch(lambda x: x * 2, x)
    assert all(is_wrapped for _, is_wrapped in calls)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        calls = _seen_by_torch(lambda x: x @ x.t(), x)
    assert all(is_wrapped for _, is_wrapped in calls)
    assert calls[0][0].dtype is torch.bfloat16


def test_arguments_in_a_list_go_through_torchs_wrapper() -> None:
    class Twice(torch.nn.Module):
        def forward(self, given: list[torch.Tensor]) -> tuple[torch.Tensor]:
            return (given[0] * 2,)

    x = torch.randn(5, 7)
    known = TracingContext(FakeTensorMode())
    with torch.no_grad(), tracing(known):
        module = torch.fx.symbolic_trace(Twice())
        run = adapter.aot_inference(module, [[x]], compiler=lambda graph, _: graph.forward)
        for _ in range(3):
            (result,) = run([x])
            assert torch.equal(result, x * 2)


def test_fake_tensors_of_others_have_no_addresses() -> None:
    x, own, others = torch.randn(3), FakeTensorMode(), FakeTensorMode()
    twice: Any = TwoTensor
    with tracing(TracingContext(own)):
        assert adapter.has_addresses(x)
        assert adapter.has_addresses(torch.nn.Parameter(x))
        assert adapter.has_addresses(own.from_tensor(x))
        assert not adapter.has_addresses(others.from_tensor(x))
        assert not adapter.has_addresses(twice(x, others.from_tensor(x)))
        assert adapter.has_addresses(twice(x, x))
        assert not adapter.has_addresses(x.to_sparse())
        assert not adapter.has_addresses(x.to_mkldnn())


def test_modes_and_derivatives_are_seen_while_they_last() -> None:
    assert not adapter.is_watched()
    with FakeTensorMode():
        assert adapter.is_watched()
    with forward_ad.dual_level():
        assert adapter.is_watched()
    assert not adapter.is_watched()


def test_torchs_own_check_of_a_first_call_watches_nothing() -> None:
    watched: list[bool] = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            watched.append(adapter.is_watched())
            return module(*args)

        return run

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return adapter.aot_inference(module, inputs, compiler=compiler)

    x = torch.randn(4)
    with torch.no_grad():
        run = torch.compile(lambda x: x * 2, backend=backend)
        run(x)
        run(x)
    assert watched == [False, False]


def test_other_threads_call_compiled_functions_while_one_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where torch does not say itself that it compiles."""
    doubled = torch.compile(lambda x: x * 2, backend="eager", dynamic=True)
    x = torch.randn(3, 4)
    doubled(x)
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(torch.equal(doubled(x), x * 2))
        except RuntimeError as error:
            found.append(error)

    def sin_while_another_calls(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return x.cos()

    op = torch.ops.aten.sin
    monkeypatch.setattr(capturing, "DECOMPOSED", (op,))
    monkeypatch.setitem(decomposition_table, op.default, sin_while_another_calls)
    captured = adapter.aot_inference(
        torch.fx.symbolic_trace(lambda x: (x.sin(),)), [x], compiler=lambda graph, _: graph.forward
    )
    assert torch.equal(captured(x)[0], x.cos())
    assert found
    assert all(each is True for each in found)


def test_no_op_that_is_dynamos_own_is_left_in_a_graph_that_runs_as_it_is() -> None:
    left: list[list[str]] = []
    region: Any = torch.compiler.nested_compile_region(lambda x: x * 2)

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        run = adapter.original_of(module)
        left.append([str(node.target) for node in module.graph.nodes])
        return run

    def function(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(torch.relu, region(x), use_reentrant=False)
        return made

    x = torch.randn(4, requires_grad=True)
    assert torch.equal(torch.compile(function, backend=backend)(x), function(x))
    (targets,) = left
    assert not {"tag_activation_checkpoint", "invoke_subgraph"} & set(targets)
