"""Tensors that are no plain memory, and callers who look at ops: what eager gives, or its error."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.torch import addressless_calls
from tests.unit.torch.compiled_session import Compiled
from tests.unit.torch.conftest import Install
from tests.unit.torch.fake_session import FakeSession
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.autograd import forward_ad
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils import mkldnn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from nearhint.session import counters
from nearhint_torch.backend import nearhint
from nearhint_torch.report import Report
from nearhint_torch.runner import watch

Tensor = torch.Tensor

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def row(x: Tensor) -> Tensor:
    return (x * 2 + 1).softmax(-1)


def pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.relu(x * 2 + y), x - y


class Calls:
    """Compiles functions with real Kernels; `reports` has a Report of each call of a graph."""

    def __init__(self, session: FakeSession, reports: list[Report]) -> None:
        self.session = session
        self.reports = reports

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(function, backend=nearhint, dynamic=True)
        return compiled

    @property
    def launches(self) -> int:
        """How many Kernels have run."""
        return sum(report.tiers[2] for report in self.reports)

    def check(self, function: Callable[..., Any], *calls: Sequence[Any], launches: int) -> None:
        """Every call gives what eager gives; `launches` Kernels have run by the last."""
        compiled = self.compile(function)
        for arguments in calls:
            same(compiled(*arguments), function(*arguments))
        assert self.launches == launches
        assert not self.session.fallbacks


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def calls(session: Install, binaries: Compiled) -> Iterator[Calls]:
    with torch.no_grad(), watch() as reports:
        yield Calls(session(binaries.snapshot), reports)


GUARDS_PARAMETERS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Torch 2.11 does not capture anew where a parameter's data gets another layout or dtype."""


def same(found: Any, expected: Any) -> None:
    for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        if not isinstance(other, Tensor):
            assert one == other
            continue
        assert (type(one), one.layout, one.device) == (type(other), other.layout, other.device)
        assert (one.requires_grad, one.is_neg()) == (other.requires_grad, other.is_neg())
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.device.type != "meta":
            torch.testing.assert_close(one, other)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What came of each addressless call, in a process that one of them may have crashed."""
    folder: Path = tmp_path_factory.mktemp("addressless")
    command = [sys.executable, "-m", "tests.unit.torch.addressless_calls", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines = [line.partition(":") for line in made.stdout.splitlines()]
    found = {name: outcome for name, _, outcome in lines}
    if made.returncode:
        found[list(found)[-1]] = f"exit status {made.returncode}: {made.stderr[-2000:]}"
    return found


@pytest.mark.parametrize("case", [case.__name__ for case in addressless_calls.CASES])
def test_what_has_no_memory_crashes_nothing(case: str, outcomes: dict[str, str]) -> None:
    assert outcomes.get(case, "an earlier one ended the process") == ""


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the ops that it is told of."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_is_told_of_every_op(calls: Calls) -> None:
    compiled, x = calls.compile(row), torch.randn(3, 8)
    same(compiled(x), row(x))
    with Seen() as mode:
        found = compiled(x)
    same(found, row(x))
    assert mode.ops == ["aten.mul.Tensor", "aten.add.Tensor", "aten._softmax.default"]
    assert calls.launches == 1


def test_a_graph_itself_shows_its_ops_to_a_mode(calls: Calls) -> None:
    """Dynamo leaves users' modes to eager; a graph may be called under one all the same."""
    made: list[Callable[..., Any]] = []

    def backend(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        made.append(nearhint(module, inputs))
        return made[0]

    x = torch.randn(3, 8)
    torch.compile(row, backend=backend, dynamic=False)(x)
    for times in (1, 2):
        with Seen() as mode:
            (found,) = made[0](x)
        same(found, row(x))
        assert mode.ops == ["aten.mul.Tensor", "aten.add.Tensor", "aten._softmax.default"]
        assert calls.session.fallbacks == ["watched"] * times
    assert [report.reason for report in calls.reports] == ["", "watched", "watched"]


def test_flops_are_counted(calls: Calls) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w) * 2 + 1).softmax(-1)

    compiled, x, w = calls.compile(function), torch.randn(3, 8), torch.randn(8, 8)
    for _ in range(2):
        with FlopCounterMode(display=False) as mode:
            same(compiled(x, w), function(x, w))
        assert mode.get_total_flops() == 2 * 2 * 3 * 8 * 8
        compiled(x, w)


@pytest.mark.parametrize("is_grad_on", [False, True])
def test_derivatives_go_forward(calls: Calls, is_grad_on: bool) -> None:
    compiled, x, direction = calls.compile(row), torch.randn(3, 8), torch.randn(3, 8)
    dual: Any = forward_ad.make_dual
    parts: Any = forward_ad.unpack_dual
    with torch.set_grad_enabled(is_grad_on):
        compiled(x)
        with forward_ad.dual_level():
            given = dual(x, direction)
            found, expected = compiled(given), row(given)
            assert parts(expected).tangent is not None
            same(parts(found), parts(expected))
        same(compiled(x), row(x))


def _squares(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: (function(x) ** 2).sum()


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "vmap": lambda function, x: torch.func.vmap(function)(x),
    "grad": lambda function, x: torch.func.grad(_squares(function))(x),
    "jvp": lambda function, x: torch.func.jvp(function, (x,), (x + 1,)),
    "jacrev": lambda function, x: torch.func.jacrev(function)(x),
    "hessian": lambda function, x: torch.func.hessian(_squares(function))(x),
    "functionalize": lambda function, x: torch.func.functionalize(function)(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("is_grad_on", [False, True])
def test_a_transform_of_a_compiled_function(calls: Calls, name: str, is_grad_on: bool) -> None:
    compiled, x = calls.compile(row), torch.randn(3, 8)
    compiled(x)
    with torch.set_grad_enabled(is_grad_on):
        same(TRANSFORMS[name](compiled, x), TRANSFORMS[name](row, x))


@pytest.mark.parametrize("name", ["vmap", "jvp", "functionalize"])
def test_a_transform_within_a_compiled_function(calls: Calls, name: str) -> None:
    def function(x: Tensor) -> Any:
        return TRANSFORMS[name](row, x)

    compiled = calls.compile(function)
    for rows in (3, 4):
        x = torch.randn(rows, 8)
        same(compiled(x), function(x))


def test_an_export_has_the_ops(calls: Calls) -> None:
    compiled = calls.compile(row)

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return compiled(x)

    x = torch.randn(3, 8)
    compiled(x)
    exported = torch.export.export(Model(), (x,))
    same(exported.module()(x), row(x))
    assert {"aten.mul.Tensor", "aten.softmax.int"} <= {
        str(node.target) for node in exported.graph.nodes
    }


def test_a_compiled_function_within_another(calls: Calls) -> None:
    inner = calls.compile(row)
    calls.check(lambda x: inner(x) + 1, [torch.randn(3, 8)], launches=2)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_wrapper_is_unpacked(calls: Calls, is_first: bool) -> None:
    compiled, x = calls.compile(row), torch.randn(3, 8)
    if not is_first:
        same(compiled(x), row(x))
    twice: Any = TwoTensor
    found = compiled(twice(x, x.clone()))
    assert type(found) is TwoTensor
    same((found.a, found.b), (row(x), row(x)))
    same(compiled(x), row(x))


class Silent(Tensor):
    """Does its ops itself, and says nothing of what is in it."""

    within: Tensor

    @staticmethod
    def __new__(cls: type[Silent], within: Tensor) -> Silent:
        made: Silent = Tensor._make_wrapper_subclass(
            cls, within.shape, strides=within.stride(), dtype=within.dtype, device=within.device
        )
        made.within = within
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        args, kwargs = pytree.tree_map_only(cls, lambda each: each.within, (args, kwargs or {}))
        return pytree.tree_map_only(Tensor, cls, func(*args, **kwargs))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_subclass_that_does_its_ops_itself_does_them(calls: Calls, is_first: bool) -> None:
    compiled, x = calls.compile(row), torch.randn(3, 8)
    if not is_first:
        same(compiled(x), row(x))
    found = compiled(Silent(x))
    assert type(found) is Silent
    same(found.within, row(x))
    same(compiled(x), row(x))


def test_a_subclass_that_does_nothing_is_kept(calls: Calls) -> None:
    class Named(Tensor):
        pass

    x = torch.randn(3, 8)
    compiled = calls.compile(row)
    for given in (x.as_subclass(Named), x):
        same(compiled(given), row(given))


def test_a_subclass_that_does_nothing_goes_through_a_librarys_op(calls: Calls) -> None:
    class Named(Tensor):
        pass

    def product(x: Tensor, weight: Tensor) -> Tensor:
        x.mul_(2)
        return torch.relu(x @ weight)

    weight = torch.randn(8, 8)
    compiled = calls.compile(product)
    for given in (torch.randn(3, 8).as_subclass(Named), torch.randn(3, 8)):
        twin = given.clone()
        same(compiled(given, weight), product(twin, weight))
        same(given, twin)


def test_parameters_with_and_without_gradients(calls: Calls) -> None:
    given = torch.randn(3, 8)
    parameter, frozen = (torch.nn.Parameter(given, requires_grad=on) for on in (True, False))
    compiled = calls.compile(row)
    for is_grad_on in (False, True):
        with torch.set_grad_enabled(is_grad_on):
            for x in (parameter, frozen, given):
                same(compiled(x), row(x))
    with torch.inference_mode():
        inside = torch.randn(3, 8)
        for x in (parameter, frozen, inside):
            same(compiled(x), row(x))
    same(compiled(inside), row(inside))


def test_training_gives_eagers_gradients(calls: Calls) -> None:
    compiled, x = calls.compile(row), torch.randn(3, 8)
    same(compiled(x), row(x))
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        for given in (leaf, leaf * 2):
            found, expected = (
                torch.autograd.grad(_squares(function)(given), leaf, retain_graph=True)
                for function in (compiled, row)
            )
            same(found, expected)
    same(compiled(x), row(x))


def test_a_parameters_data_may_be_replaced(calls: Calls) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8))

        def forward(self, x: Tensor) -> Any:
            return (x * self.weight.view(1, 8) + 1).softmax(-1), self.weight.unsqueeze(0)

    model, x = Model(), torch.randn(3, 8)
    compiled = calls.compile(model)
    replaced = [torch.randn(8)]
    if GUARDS_PARAMETERS:
        replaced += [torch.randn(16)[::2], torch.randn(8).double()]
    for data in replaced:
        for _ in range(2):
            same(compiled(x), model(x))
        model.weight.data = data
        gc.collect()
        same(compiled(x), model(x))
    weights = torch.randn(4, 8)

    def called(of: Any, name: str) -> Any:
        return torch.func.vmap(lambda each: torch.func.functional_call(of, {name: each}, (x,)))(
            weights
        )

    same(called(compiled, "_orig_mod.weight"), called(model, "weight"))


def test_meta_tensors_stay_without_memory(calls: Calls) -> None:
    x = torch.randn(3, 8)
    calls.check(row, [x.to("meta")], [x], [x.to("meta")], [x], launches=2)


def test_a_tensor_of_another_device_is_refused(calls: Calls) -> None:
    compiled, x = calls.compile(pair), torch.randn(3, 8)
    same(compiled(x, x), pair(x, x))
    for given in ((x, x.to("meta")), (x.to("meta"), x)):
        with pytest.raises(RuntimeError):
            compiled(*given)


def test_bits_of_conjugation_and_negation_are_seen(calls: Calls) -> None:
    numbers = torch.randn(3, 8, dtype=torch.complex64)
    negative = torch.ops.aten._neg_view(torch.randn(3, 8))
    assert negative.is_neg()
    assert numbers.conj().imag.is_neg()

    def function(x: Tensor) -> Tensor:
        return (x * 2).abs() + 1

    for given in (negative, numbers.imag, numbers.conj().imag, numbers, numbers.conj()):
        plain = torch.randn(given.shape, dtype=given.dtype)
        for each in ([given, plain], [plain, given]):
            torch.compiler.reset()
            compiled = calls.compile(function)
            for x in each:
                same(compiled(x), function(x))


def test_bits_that_a_graph_sets_are_seen(calls: Calls) -> None:
    numbers = torch.randn(3, 8, dtype=torch.complex64)
    calls.check(lambda z: (z.conj().imag * 2 + 1, z.conj().imag), [numbers], launches=1)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "mkldnn": lambda x: x.to_mkldnn(),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("is_first", [True, False])
def test_another_layout_is_computed_by_eager(calls: Calls, name: str, is_first: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.relu(torch.relu(x))

    compiled, x = calls.compile(function), torch.randn(3, 8)
    if not is_first:
        same(compiled(x), function(x))
    given = LAYOUTS[name](x)
    found, expected = compiled(given), function(given)
    assert found.layout is expected.layout
    same(found.to_dense(), expected.to_dense())
    same(compiled(x), function(x))
    assert not calls.session.fallbacks


def test_sparse_and_quantised_tensors_beside_dense_ones(calls: Calls) -> None:
    x = torch.randn(8, 8)
    sparse = (x * (x > 0)).to_sparse()
    quantised = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)

    def product(matrix: Tensor, x: Tensor) -> Tensor:
        return torch.relu(torch.sparse.mm(matrix, x) * 2 + 1)

    def dequantised(x: Tensor) -> Tensor:
        return torch.relu(x.dequantize() * 2 + 1)

    same(calls.compile(product)(sparse, x), product(sparse, x))
    same(calls.compile(dequantised)(quantised), dequantised(quantised))


def test_no_elements(calls: Calls) -> None:
    given = [[torch.randn(shape)] for shape in ((3, 8), (0, 8), (3, 0), (0, 0))]
    calls.check(row, *given, launches=1)


def test_arguments_that_overlap_themselves(calls: Calls) -> None:
    flat = torch.randn(40)
    given = [
        [torch.randn(3, 1).expand(3, 8)],
        [torch.randn(1).expand(3, 8)],
        [flat.as_strided((3, 8), (2, 1))],
        [flat.as_strided((4, 5), (1, 1), 2)],
        [flat[7:31].view(3, 8)],
        [torch.randn(6, 16)[1::2, 3::2]],
        [torch.randn(8, 3).t()],
    ]
    calls.check(row, *given, launches=len(given))


def test_arguments_that_share_memory(calls: Calls) -> None:
    flat = torch.randn(40)
    first, second = flat[:24].view(3, 8), flat[8:32].view(3, 8)
    calls.check(pair, [first, second], [first, first.view(3, 8)], [first, first], launches=3)


SHARED: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "apart": lambda flat: (flat[:24].view(3, 8).clone(), flat[:24].view(3, 8)),
    "behind": lambda flat: (flat[:24].view(3, 8), flat[8:32].view(3, 8)),
    "before": lambda flat: (flat[8:32].view(3, 8), flat[:24].view(3, 8)),
    "equal": lambda flat: (flat[:24].view(3, 8), flat[:24].view(3, 8)),
    "one": lambda flat: (given := flat[:24].view(3, 8), given),
}


@pytest.mark.parametrize("name", SHARED)
def test_writing_an_argument_that_shares_memory_with_another(calls: Calls, name: str) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        z = y * 3 + 1
        x.add_(z)
        return z, x.softmax(-1)

    compiled = calls.compile(function)
    for _ in range(2):
        flat = torch.arange(40.0) / 10
        twin = flat.clone()
        same(compiled(*SHARED[name](flat)), function(*SHARED[name](twin)))
        same(flat, twin)


def test_an_expanded_argument_is_not_written(calls: Calls) -> None:
    def function(x: Tensor) -> Tensor:
        return x.add_(1) * 2

    compiled = calls.compile(function)
    compiled(torch.randn(4))
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        compiled(torch.zeros(1).expand(4))


def test_results_stay_as_they_were_and_share_what_eagers_do(calls: Calls) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.view(-1), x * 2 + 1, x[1:]

    compiled, x = calls.compile(function), torch.randn(3, 8)
    twin = x.clone()
    found, expected = compiled(x), function(twin)
    for given, results in ((x, found), (twin, expected)):
        given.add_(1)
        results[0].mul_(3)
    same((x, found), (twin, expected))
    again = compiled(x)
    again[1].zero_()
    same(found, expected)
    same(compiled(x), function(twin))


def test_memory_that_is_read_only_or_begins_anywhere(calls: Calls) -> None:
    shifted = torch.frombuffer(bytearray(24 * 4 + 1), dtype=torch.float32, count=24, offset=1)
    assert shifted.data_ptr() % 4
    shifted.normal_()
    calls.check(row, [torch.randn(3, 8)], [shifted.view(3, 8)], launches=2)


def test_nested_tensors(calls: Calls) -> None:
    parts = [torch.randn(2, 8), torch.randn(5, 8)]

    def function(x: Tensor) -> Tensor:
        return torch.relu(x * 2 + 1)

    compiled = calls.compile(function)
    for layout in (torch.jagged, torch.strided):
        given = torch.nested.nested_tensor(parts, layout=layout)
        for _ in range(2):
            same(list(compiled(given).unbind()), [function(part) for part in parts])


def test_functional_tensors(calls: Calls) -> None:
    compiled, x = calls.compile(row), torch.randn(3, 8)
    compiled(x)
    before = counters.seen().get("original_no_addresses", 0)
    with FunctionalTensorMode():
        found = compiled(FunctionalTensor.to_functional(x))
        assert isinstance(found, FunctionalTensor)
        same(found.from_functional(), row(x))
    assert counters.seen()["original_no_addresses"] == before + 1


def test_a_model_with_mkldnn_weights_and_dense_activations(calls: Calls) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    packed = mkldnn.to_mkldnn(model)  # type: ignore[no-untyped-call]
    x = torch.randn(3, 8)
    same(calls.compile(packed)(x), packed(x))
    same(functional.relu(x), calls.compile(functional.relu)(x))
