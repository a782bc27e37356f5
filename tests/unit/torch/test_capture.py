"""Graphs written down as Programs: sizes, arguments, effects, identity, privacy."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as nn
from tests.unit.torch.conftest import Install

import nearhint_torch.backend as backend
from nearhint_rules import expr as ex
from nearhint_rules.expr import Sym
from nearhint_rules.program import (
    OTHER_DTYPE,
    DType,
    IntType,
    Keyword,
    Node,
    OtherType,
    Program,
    Ref,
    TensorType,
    first_outputs,
    value_types,
)
from nearhint_torch import float8, powers
from nearhint_torch.backend import nearhint
from nearhint_torch.capture import Captured, capture
from nearhint_torch.sizes import readable

Tensor = torch.Tensor
Capture = Callable[..., list[Captured]]


@pytest.fixture
def captured(session: Install, monkeypatch: pytest.MonkeyPatch) -> Capture:
    """`captured(function, *args, calls=())` compiles, calls, and gives what was captured."""
    session(lambda program: None)
    found: list[Captured] = []
    original = vars(backend)["capture"]

    def spy(*args: Any, **kwargs: Any) -> Captured:
        found.append(original(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(backend, "capture", spy)

    def capture(function: Callable[..., Any], *calls: tuple[Any, ...], **settings: Any) -> Any:
        compiled = torch.compile(function, backend=nearhint, dynamic=True, **settings)
        with torch.no_grad():
            for args in calls:
                compiled(*args)
        return found

    return capture


def program_of(found: list[Captured]) -> Program:
    assert len(found) == 1
    return found[0].program


def node_of(program: Program, op: str) -> Node:
    return next(node for node in program.nodes if node.op == op)


def test_sizes_are_expressions_over_symbols_in_order_of_appearance(captured: Capture) -> None:
    program = program_of(captured(lambda x: x[1:].reshape(-1), (torch.randn(4, 6),)))
    assert [symbol.name for symbol in program.symbols] == ["s0", "s1"]
    assert [(symbol.low, symbol.high) for symbol in program.symbols] == [(2, None)] * 2
    rows, columns = Sym("s0"), Sym("s1")
    last = value_types(program)[program.outputs[0] or 0]
    assert isinstance(last, TensorType)
    assert last.shape == (ex.mul(ex.sub(rows, 1), columns),)
    assert last.stride == (ex.ONE,)


def test_all_sizes_from_two_share_one_capture_and_one_has_its_own(captured: Capture) -> None:
    calls = [(torch.randn(rows, 6),) for rows in (4, 5, 17, 6, 1, 1)]
    assert len(captured(lambda x: nn.gelu(x) * 2, *calls)) == 2


def test_floor_division_and_extremes_convert(captured: Capture) -> None:
    def function(x: Tensor) -> Tensor:
        return x[: max(2, x.shape[0] // 2)] + 1

    program = program_of(captured(function, (torch.randn(9, 6),)))
    exprs = {ex.to_text(size) for node in program.nodes for out in node.outputs
             if isinstance(out, TensorType) for size in out.shape}  # fmt: skip
    assert any("//" in text for text in exprs)


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (lambda x: x[:, : math.ceil(x.shape[1] / 4)], "(// (+ s1 3) 4)"),
        (lambda x: x[:, : math.floor(x.shape[1] / 4)], "(// s1 4)"),
        (lambda x: x[:, : int(x.shape[1] / 4)], "(// s1 4)"),
        (
            lambda x: torch.arange(0.0, 2.0 * x.shape[1] + 1, 2.0) + x[:, :1],
            "(+ s1 1)",
        ),
        (lambda x: torch.arange(x.shape[1], 0, -3.0) * x[:, :1], "(// (+ s1 2) 3)"),
    ],
)
def test_quotients_that_are_rounded_are_expressions(
    captured: Capture, function: Callable[[Tensor], Tensor], size: str
) -> None:
    (found,) = captured(lambda x: function(x) * 2, (torch.randn(9, 23),))
    assert found.computed == ()
    made = found.program.nodes[-1].outputs[0]
    assert isinstance(made, TensorType)
    assert ex.to_text(made.shape[1]) == size


def test_a_quotient_that_may_be_negative_has_no_expression_where_it_is_cut(
    captured: Capture,
) -> None:
    (found,) = captured(lambda x: x[:, : int((5 - x.shape[1]) / 4)] * 2, (torch.randn(9, 23),))
    assert not isinstance(found.program.nodes[-1].outputs[0], TensorType)


def test_what_the_grammar_lacks_becomes_a_symbol_that_the_client_computes(
    captured: Capture,
) -> None:
    def function(x: Tensor) -> Tensor:
        return nn.interpolate(x, scale_factor=1.5, mode="nearest") + 1

    (found,) = captured(function, (torch.randn(2, 3, 8, 6),))
    assert len(found.computed) == 2
    names = {computed.name for computed in found.computed}
    assert names <= {symbol.name for symbol in found.program.symbols}
    at = {binding.symbol: size for binding, size in zip(found.bindings, (2, 3, 8, 6), strict=True)}
    assert sorted(computed.value(at) for computed in found.computed) == [9, 12]


def test_a_size_from_data_has_no_expression(captured: Capture) -> None:
    def function(x: Tensor) -> Tensor:
        return x.nonzero() * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        program = program_of(captured(function, (torch.randn(5, 6),)))
    made = node_of(program, "aten.nonzero.default")
    assert made.outputs == (OtherType(),)


def test_arguments_fit_the_grammar(captured: Capture) -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        z = torch.cat([x, y], dim=1).to(torch.float16)
        return z, torch.full((x.shape[0], 2), float("-inf"), dtype=torch.bfloat16)

    program = program_of(captured(function, (torch.randn(4, 6), torch.randn(4, 5))))
    assert isinstance(node_of(program, "aten.cat.default").args[0], tuple)
    cast = node_of(program, "aten._to_copy.default")
    assert dict(cast.kwargs)["dtype"] == DType("f16")
    full = node_of(program, "aten.full.default")
    assert full.args == ((Sym("s0"), ex.Int(2)), float("-inf"))
    assert dict(full.kwargs)["device"] == Keyword("device", "cpu")


def test_integers_that_sizes_give_are_expressions_and_no_inputs(captured: Capture) -> None:
    program = program_of(captured(lambda x: x * x.shape[0], (torch.randn(4, 6),)))
    multiply = node_of(program, "aten.mul.Tensor")
    assert multiply.args[1] == Sym("s0")
    assert multiply.inputs == (multiply.args[0].value,)  # type: ignore[union-attr]


def test_an_integer_that_may_be_negative_is_a_reference(captured: Capture) -> None:
    program = program_of(captured(lambda x, n: x * n, (torch.randn(4, 6), 7)))
    reference = node_of(program, "aten.mul.Tensor").args[1]
    assert isinstance(reference, Ref)
    assert value_types(program)[reference.value] == IntType(None)


def test_tuples_are_folded_into_value_numbers(captured: Capture) -> None:
    def function(x: Tensor) -> Any:
        values, indices = x.sort(dim=-1)
        return indices + 1, values

    program = program_of(captured(function, (torch.randn(4, 6),)))
    assert not any("getitem" in node.op for node in program.nodes)
    index = next(i for i, node in enumerate(program.nodes) if node.op.startswith("aten.sort"))
    assert len(program.nodes[index].outputs) == 2
    assert program.outputs[1] == first_outputs(program)[index]


def test_fused_operators_stay_whole(captured: Capture) -> None:
    def function(x: Tensor) -> Any:
        heads = x.view(x.shape[0], -1, 2, 8).transpose(1, 2)
        attended = nn.scaled_dot_product_attention(heads, heads, heads)
        return attended, nn.layer_norm(x, (16,)), x.softmax(-1), nn.gelu(x), nn.silu(x)

    program = program_of(captured(function, (torch.randn(3, 4, 16),)))
    ops = [node.op for node in program.nodes]
    assert sum("attention" in op for op in ops) == 1
    assert {"aten.native_layer_norm.default", "aten._softmax.default"} <= set(ops)
    assert {"aten.gelu.default", "aten.silu.default"} <= set(ops)
    assert not any(node.has_randomness for node in program.nodes)


@pytest.mark.parametrize("move", [nn.pixel_shuffle, nn.pixel_unshuffle])
def test_what_only_moves_is_views_and_a_copy(captured: Capture, move: Any) -> None:
    (found,) = captured(lambda x: move(x, 2), (torch.zeros(3, 8, 6, 10),))
    names = {node.op for node in found.program.nodes if node.op}
    known = ("view", "permute", "clone", "_unsafe_view")
    assert names <= {f"aten.{name}.default" for name in known}
    assert "aten.permute.default" in names


@pytest.mark.parametrize("made", ["none", "mean", "sum"])
def test_a_loss_by_labels_is_a_lookup_in_rows_of_logarithms(captured: Capture, made: str) -> None:
    (found,) = captured(
        lambda x, labels: nn.cross_entropy(x, labels, reduction=made),
        (torch.randn(6, 11), torch.randint(0, 11, (6,))),
    )
    names = {node.op for node in found.program.nodes if node.op}
    assert {"aten._log_softmax.default", "aten.gather.default"} <= names
    assert not any("nll_loss" in name for name in names)


def test_mutations_of_inputs_stay_mutations(captured: Capture) -> None:
    def function(cache: Tensor, new: Tensor) -> Tensor:
        cache[:, 1:3] = new
        return cache.sum(-1)

    program = program_of(captured(function, (torch.zeros(4, 6), torch.ones(4, 2))))
    written = [value for node in program.nodes for value in node.mutates]
    assert len(written) == 1
    makers = dict(zip(first_outputs(program), program.nodes, strict=True))
    (source,) = written
    while source in makers:  # what is written is a part of the cache
        ((_, source),) = makers[source].aliases
    assert isinstance(program.inputs[source], TensorType)
    assert len(program.outputs) == 1


def test_views_alias_and_random_steps_are_marked(captured: Capture) -> None:
    def function(x: Tensor) -> Any:
        return x.t(), torch.split(x, 2), torch.rand_like(x), nn.dropout(x)

    program = program_of(captured(function, (torch.randn(4, 6),)))
    (source,) = [i for i, kind in enumerate(program.inputs) if isinstance(kind, TensorType)]
    assert node_of(program, "aten.t.default").aliases == ((0, source),)
    views = [node for node in program.nodes if "split" in node.op or "slice" in node.op]
    assert {value for node in views for _, value in node.aliases} == {source}
    assert [node.op for node in program.nodes if node.has_randomness] == [
        node.op for node in program.nodes if "rand" in node.op or "dropout" in node.op
    ]


def test_unknown_dtypes_and_operators_are_opaque_and_no_error(captured: Capture) -> None:
    with torch.library._scoped_library("nearhint_test", "DEF") as library:
        library.define("strange(Tensor x, complex z) -> Tensor")
        library.impl("strange", lambda x, z: x.clone(), "CompositeExplicitAutograd")
        library._register_fake("strange", lambda x, z: torch.empty_like(x))

        def function(x: Tensor) -> Any:
            return torch.fft.rfft(x), torch.ops.nearhint_test.strange(x, 1j)

        program = program_of(captured(function, (torch.randn(4, 6),)))
    spectrum = node_of(program, "aten._fft_r2c.default").outputs[0]
    assert isinstance(spectrum, TensorType)
    assert spectrum.dtype == OTHER_DTYPE
    strange = program.nodes[-1]
    assert strange.op == ""
    assert strange.args == ()
    assert len(strange.inputs) == 1


def test_constants_of_the_graph_are_inputs_without_their_bytes(captured: Capture) -> None:
    one = program_of(captured(lambda x: x + torch.tensor([1.5, 2.5]), (torch.randn(4, 2),)))
    assert one.inputs[-1] == TensorType("f32", (ex.Int(2),), (ex.ONE,), "cpu")
    assert "1.5" not in repr(one)


class Named(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.register_parameter(name, torch.nn.Parameter(torch.randn(5)))

    def forward(self, x: Tensor) -> Any:
        return x * getattr(self, self.name)


def test_identity_does_not_depend_on_parameters_names_or_values(captured: Capture) -> None:
    x = torch.randn(4, 5)
    captured(Named("weight"), (x,))
    torch.compiler.reset()
    found = captured(Named("another"), (x + 1,))
    assert len({each.program.id for each in found}) == 1


def test_identity_depends_on_the_assumed_ranges(captured: Capture) -> None:
    x = torch.randn(4, 5)
    captured(lambda x: x * 2, (x,))
    torch.compiler.reset()
    y = copy.deepcopy(x)
    torch._dynamo.mark_dynamic(y, 0, min=2, max=64)
    found = captured(lambda x: x * 2, (y,))
    assert len({each.program.id for each in found}) == 2
    assert found[1].program.symbols[0].high == 64


def test_sources_name_module_and_line_and_no_folder(captured: Capture) -> None:
    program = program_of(captured(torch.nn.Sequential(Named("w")), (torch.randn(4, 5),)))
    source = node_of(program, "aten.mul.Tensor").source
    assert source.startswith("0 test_capture.py:")
    assert "/" not in "".join(node.source for node in program.nodes) + program.label


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['input_ids'].size()[1]", "input_ids_1"),
        ("L['args'][0].size()[2]", "args_2"),
        ("L['self']._modules['2'].eps", "eps"),
        ("", ""),
        ("L['a b'].size()[1]", ""),
    ],
)
def test_symbols_get_readable_names(source: str, name: str) -> None:
    assert readable(source) == name


def test_capture_adds_no_guard_of_its_own(captured: Capture) -> None:
    """A backend that asked a size would be called again for other sizes."""
    calls = [(torch.randn(rows, columns),) for rows, columns in ((4, 6), (5, 9), (70, 3), (8, 8))]

    def function(x: Tensor) -> Tensor:
        return nn.interpolate(x[None, None], scale_factor=2.5) * x.shape[0] + x.shape[1] // 3

    assert len(captured(function, *calls)) == 1


def test_capture_does_not_ask_whether_an_image_has_a_single_column_of_windows(
    captured: Capture,
) -> None:
    calls = [(torch.randn(*shape),) for shape in ((4, 5, 9, 2), (5, 6, 7, 3))]
    for (x,) in calls:
        torch._dynamo.mark_dynamic(x, 3)
    assert len(captured(lambda x: nn.unfold(x, 2, stride=2), *calls)) == 1


def test_a_torch_that_makes_nan_of_large_numbers_has_a_name_for_casts_of_others_than_clamped_ones(
    captured: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def narrowed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.clamp(-448, 448).to(torch.float8_e4m3fn), x.to(torch.float8_e4m3fn)

    monkeypatch.setattr(float8, "SATURATES", True)
    named = program_of(captured(narrowed, (torch.randn(4, 6),)))
    assert [node.op for node in named.nodes].count("aten._to_copy.default") == 2
    torch._dynamo.reset()
    monkeypatch.setattr(float8, "SATURATES", False)
    _, again = captured(narrowed, (torch.randn(4, 6),))
    assert [node.op for node in again.program.nodes] == [
        "aten.clamp.default", "aten._to_copy.default", "nearhint.cast_or_nan.default",
    ]  # fmt: skip


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_torch_that_makes_the_power_first_scales_by_integers_itself(
    captured: Capture, monkeypatch: pytest.MonkeyPatch, is_exact: bool
) -> None:
    def scaled(x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ldexp(x, places), torch.ldexp(x, x)

    monkeypatch.setattr(powers, "IS_EXACT", is_exact)
    (only,) = captured(scaled, (torch.randn(4, 6), torch.arange(6)))
    named = [node.op for node in only.program.nodes]
    assert named == ["aten.ldexp.Tensor" if is_exact else "", "aten.ldexp.Tensor"]


@pytest.mark.parametrize("given", [None, 1e-6])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_rms_norm_of_a_gpu_says_which_epsilon_it_takes(
    dtype: torch.dtype, given: float | None
) -> None:
    """There it is one op, which chooses by what it computes in; the op is the same on a CPU."""
    op, value = torch.ops.aten._fused_rms_norm.default, torch.randn(3, 8, dtype=dtype) * 1e-3
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = value
    node = graph.call_function(op, (x, [8], None, given))
    node.meta["val"] = op(value, [8], None, given)
    graph.output(graph.call_function(operator.getitem, (node, 0)))
    program = capture(torch.fx.GraphModule({}, graph), [value]).program
    epsilon = program.nodes[0].args[-1]
    assert given is None or epsilon == given
    assert torch.equal(op(value, [8], None, epsilon)[0], op(value, [8], None, given)[0])
