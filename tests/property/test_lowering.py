"""Lowering against eager on random Programs: shapes, strides, dtypes, views, and what is opaque."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.unit.compiler.frontend.building import S0, S1, Builder
from tests.unit.compiler.frontend.running import close, run_built

from nearhint_compiler.ir.index import contiguous_strides
from nearhint_compiler.ir.legality import check_kernel
from nearhint_compiler.ir.text import kernel_id, parse_kernel, print_kernel
from nearhint_compiler.pipeline import lower
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int
from nearhint_rules.plan import Free, Launch, MakeView, RunNodes
from nearhint_rules.program import DType, Program, Ref, Symbol, TensorType, value_types
from nearhint_torch.arguments import DTYPE_NAMES, DTYPES_BY_NAME

TYPING_SIZES = {"s0": 11, "s1": 13}
DIMS: list[Expr] = [S0, S1, Int(1), Int(4), Int(6)]
UNARY = ("tanh", "neg", "sigmoid", "relu", "abs", "sin")
BINARY = ("add", "mul", "sub")
FLOATS = ("f32", "f64", "f16")


@dataclass(frozen=True)
class Value:
    """A value under construction, with its symbolic type."""

    ref: Ref
    kind: TensorType

    @property
    def rank(self) -> int:
        return len(self.kind.shape)


def meta(kind: TensorType) -> torch.Tensor:
    """The type as a tensor without data, at the typing sizes."""
    return torch.empty_strided(
        [ex.evaluate(size, TYPING_SIZES) for size in kind.shape],
        [ex.evaluate(step, TYPING_SIZES) for step in kind.stride],
        dtype=DTYPES_BY_NAME[kind.dtype],
        device="meta",
    )


def typed(shape: Sequence[Expr], like: torch.Tensor) -> TensorType:
    """The symbolic type of a dense result whose strides torch chose."""
    order = sorted(range(len(shape)), key=lambda dim: (-like.stride()[dim], dim))
    dense = contiguous_strides([shape[dim] for dim in order])
    stride = tuple(dense[order.index(dim)] for dim in range(len(shape)))
    return TensorType(DTYPE_NAMES[like.dtype], tuple(shape), stride)


def broadcast(left: Sequence[Expr], right: Sequence[Expr]) -> tuple[Expr, ...] | None:
    result: list[Expr] = []
    for one, two in itertools.zip_longest(reversed(left), reversed(right), fillvalue=ex.ONE):
        if one != two and ex.ONE not in (one, two):
            return None
        result.append(two if one == ex.ONE else one)
    return tuple(reversed(result))


def without(shape: Sequence[Expr], dims: Iterable[int], keepdim: bool) -> tuple[Expr, ...]:
    """A shape with some dims reduced."""
    gone = {dim % len(shape) for dim in dims}
    return tuple(
        ex.ONE if dim in gone else size
        for dim, size in enumerate(shape)
        if keepdim or dim not in gone
    )


@dataclass
class Drawer:
    """Draws one call at a time."""

    draw: st.DrawFn
    builder: Builder
    values: list[Value]

    def pick(self, *, floats: bool = True, low: int = 0) -> Value | None:
        fitting = [
            value
            for value in self.values[-8:]
            if value.rank >= low and (not floats or value.kind.dtype in FLOATS)
        ]
        return self.draw(st.sampled_from(fitting)) if fitting else None

    def dense(self, op: str, shape: Sequence[Expr], result: torch.Tensor, *args: object) -> None:
        kind = typed(shape, result)
        self.values.append(Value(self.builder.call(op, *args, out=kind), kind))

    def view(self, op: str, base: Value, kind: TensorType, *args: object) -> None:
        ref = self.builder.call(op, base.ref, *args, out=kind, alias=base.ref)
        self.values.append(Value(ref, kind))

    def unary(self) -> None:
        name = self.draw(st.sampled_from(UNARY))
        if x := self.pick():
            result = getattr(torch, name)(meta(x.kind))
            self.dense(f"aten.{name}.default", x.kind.shape, result, x.ref)

    def binary(self) -> None:
        name = self.draw(st.sampled_from(BINARY))
        x, y = self.pick(), self.pick()
        if x and y and (shape := broadcast(x.kind.shape, y.kind.shape)) is not None:
            result = getattr(torch, name)(meta(x.kind), meta(y.kind))
            self.dense(f"aten.{name}.Tensor", shape, result, x.ref, y.ref)

    def scalar(self) -> None:
        if x := self.pick():
            self.dense("aten.mul.Tensor", x.kind.shape, meta(x.kind) * 0.5, x.ref, 0.5)

    def select_by_sign(self) -> None:
        if x := self.pick():
            positive = meta(x.kind) > 0
            self.dense("aten.gt.Scalar", x.kind.shape, positive, x.ref, 0)
            condition = self.values[-1].ref
            result = torch.where(positive, meta(x.kind), meta(x.kind))
            self.dense("aten.where.self", x.kind.shape, result, condition, x.ref, x.ref)

    def cast(self) -> None:
        name = self.draw(st.sampled_from(FLOATS))
        if (x := self.pick()) and x.kind.dtype != name:
            result = meta(x.kind).to(DTYPES_BY_NAME[name])
            kind = typed(x.kind.shape, result)
            ref = self.builder.call("aten._to_copy.default", x.ref, out=kind, dtype=DType(name))
            self.values.append(Value(ref, kind))

    def reduction(self) -> None:
        name = self.draw(st.sampled_from(("sum.dim_IntList", "mean.dim", "amax.default")))
        x = self.pick(low=1)
        if x is None:
            return
        dims = self.draw(st.lists(st.integers(0, x.rank - 1), min_size=1, unique=True))
        keepdim = self.draw(st.booleans())
        function = getattr(torch, name.partition(".")[0])
        shape = [
            ex.ONE if dim in dims else size
            for dim, size in enumerate(x.kind.shape)
            if keepdim or dim not in dims
        ]
        result = function(meta(x.kind), dims, keepdim)
        self.dense(f"aten.{name}", shape, result, x.ref, dims, keepdim)

    def softmax(self) -> None:
        if x := self.pick(low=1):
            dim = self.draw(st.integers(-x.rank, x.rank - 1))
            result = torch.softmax(meta(x.kind), dim)
            self.dense("aten._softmax.default", x.kind.shape, result, x.ref, dim, False)

    def place(self) -> None:
        name = self.draw(st.sampled_from(("argmax", "argmin")))
        if x := self.pick(low=1):
            dim = self.draw(st.none() | st.integers(-x.rank, x.rank - 1))
            keepdim = self.draw(st.booleans())
            shape = without(x.kind.shape, range(x.rank) if dim is None else [dim], keepdim)
            result = getattr(torch, name)(meta(x.kind), dim, keepdim)
            self.dense(f"aten.{name}.default", shape, result, x.ref, dim, keepdim)

    def extremum(self) -> None:
        name = self.draw(st.sampled_from(("max", "min")))
        if x := self.pick(low=1):
            dim, keepdim = self.draw(st.integers(-x.rank, x.rank - 1)), self.draw(st.booleans())
            shape = without(x.kind.shape, [dim], keepdim)
            results = getattr(torch, name)(meta(x.kind), dim, keepdim)
            kinds = tuple(typed(shape, result) for result in results)
            ref = self.builder.call(f"aten.{name}.dim", x.ref, dim, keepdim, out=kinds)
            self.values.extend(Value(Ref(ref.value + i), kind) for i, kind in enumerate(kinds))

    def running(self) -> None:
        if x := self.pick(low=1):
            dim = self.draw(st.integers(-x.rank, x.rank - 1))
            result = torch.cumsum(meta(x.kind), dim)
            self.dense("aten.cumsum.default", x.kind.shape, result, x.ref, dim)

    def join(self) -> None:
        x, y = self.pick(low=1), self.pick(low=1)
        if x is None or y is None or x.rank != y.rank:
            return
        dim = self.draw(st.integers(0, x.rank - 1))
        if without(x.kind.shape, [dim], True) == without(y.kind.shape, [dim], True):
            total = ex.add(x.kind.shape[dim], y.kind.shape[dim])
            shape = (*x.kind.shape[:dim], total, *x.kind.shape[dim + 1 :])
            result = torch.cat((meta(x.kind), meta(y.kind)), dim)
            self.dense("aten.cat.default", shape, result, [x.ref, y.ref], dim)

    def moved(self) -> None:
        name = self.draw(st.sampled_from(("roll", "flip")))
        if x := self.pick(low=1):
            dim = self.draw(st.integers(0, x.rank - 1))
            args = ([self.draw(st.integers(-1, 2))], [dim]) if name == "roll" else ([dim],)
            result = getattr(torch, name)(meta(x.kind), *args)
            self.dense(f"aten.{name}.default", x.kind.shape, result, x.ref, *args)

    def layer_norm(self) -> None:
        x = self.pick(low=2)
        if x is None or x.kind.shape[-1] == ex.ONE or x.kind.dtype == "f16":
            return
        size = x.kind.shape[-1]
        width = ex.evaluate(size, TYPING_SIZES)
        results = torch.native_layer_norm(meta(x.kind), [width], None, None, 1e-3)
        shapes = (x.kind.shape, *((*x.kind.shape[:-1], ex.ONE),) * 2)
        kinds = tuple(typed(shape, result) for shape, result in zip(shapes, results, strict=True))
        ref = self.builder.call(
            "aten.native_layer_norm.default", x.ref, [size], None, None, 1e-3, out=kinds
        )
        self.values.extend(Value(Ref(ref.value + place), kind) for place, kind in enumerate(kinds))

    def permute(self) -> None:
        if x := self.pick(floats=False, low=2):
            order = self.draw(st.permutations(range(x.rank)))
            shape = tuple(x.kind.shape[dim] for dim in order)
            stride = tuple(x.kind.stride[dim] for dim in order)
            self.view("aten.permute.default", x, TensorType(x.kind.dtype, shape, stride), order)

    def unsqueeze(self) -> None:
        x = self.pick(floats=False)
        if x and x.rank < 4:
            dim = self.draw(st.integers(0, x.rank))
            like = meta(x.kind).unsqueeze(dim)
            shape = (*x.kind.shape[:dim], ex.ONE, *x.kind.shape[dim:])
            step = ex.ONE if dim == x.rank else ex.mul(x.kind.shape[dim], x.kind.stride[dim])
            stride = (*x.kind.stride[:dim], step, *x.kind.stride[dim:])
            assert ex.evaluate(step, TYPING_SIZES) == like.stride(dim)
            self.view("aten.unsqueeze.default", x, TensorType(x.kind.dtype, shape, stride), dim)

    def expand(self) -> None:
        x = self.pick(floats=False, low=1)
        if x and ex.ONE in x.kind.shape:
            dim = x.kind.shape.index(ex.ONE)
            size = self.draw(st.sampled_from(DIMS))
            if size == ex.ONE:
                return
            shape = (*x.kind.shape[:dim], size, *x.kind.shape[dim + 1 :])
            stride = (*x.kind.stride[:dim], ex.ZERO, *x.kind.stride[dim + 1 :])
            self.view("aten.expand.default", x, TensorType(x.kind.dtype, shape, stride), shape)

    def part(self) -> None:
        x = self.pick(floats=False, low=1)
        if x is None:
            return
        dims = [dim for dim, size in enumerate(x.kind.shape) if size in (Int(4), Int(6))]
        if dims:
            dim = self.draw(st.sampled_from(dims))
            start, end = self.draw(st.sampled_from(((0, 2), (1, 4), (-2, 2**63 - 1), (-3, -1))))
            size = len(range(20)[slice(start, end)]) if start >= 0 else {2**63 - 1: 2, -1: 2}[end]
            shape = (*x.kind.shape[:dim], Int(size), *x.kind.shape[dim + 1 :])
            kind = TensorType(x.kind.dtype, shape, x.kind.stride)
            self.view("aten.slice.Tensor", x, kind, dim, start, end)

    def merge(self) -> None:
        x = self.pick(floats=False, low=2)
        if x and x.kind.stride == contiguous_strides(x.kind.shape):
            dim = self.draw(st.integers(0, x.rank - 2))
            both = ex.mul(x.kind.shape[dim], x.kind.shape[dim + 1])
            shape = (*x.kind.shape[:dim], both, *x.kind.shape[dim + 2 :])
            kind = TensorType(x.kind.dtype, shape, contiguous_strides(shape))
            self.view("aten.view.default", x, kind, shape)

    def opaque(self) -> None:
        if x := self.pick(low=1):
            result = torch.i0(meta(x.kind))
            self.dense("aten.i0.default", x.kind.shape, result, x.ref)


STEPS = (
    "unary", "unary", "binary", "binary", "binary", "scalar", "select_by_sign", "cast",
    "reduction", "reduction", "place", "extremum", "running", "join", "join", "moved", "softmax",
    "layer_norm", "permute", "unsqueeze", "expand", "part", "merge", "opaque",
)  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, list[TensorType]]:
    """A Program of up to fourteen calls, and the types of its inputs."""
    builder = Builder((Symbol("s0", 1), Symbol("s1", 1)))
    kinds: list[TensorType] = []
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.sampled_from(DIMS), max_size=3)))
        order = draw(st.permutations(range(len(shape))))
        dense = contiguous_strides([shape[dim] for dim in order])
        stride = tuple(dense[order.index(dim)] for dim in range(len(shape)))
        kinds.append(TensorType(draw(st.sampled_from(("f32", "f32", "f64", "f16"))), shape, stride))
    values = [Value(builder.typed(kind), kind) for kind in kinds]
    drawer = Drawer(draw, builder, values)
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=14)):
        getattr(drawer, step)()
    made = [value.ref for value in values[len(kinds) :]]
    if not made:
        return builder.program(values[0].ref), kinds
    chosen = draw(st.lists(st.sampled_from(made), max_size=3, unique=True))
    return builder.program(*chosen, made[-1]), kinds


def inputs_of(kinds: Sequence[TensorType], sizes: dict[str, int], seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    found: list[Any] = []
    for kind in kinds:
        shape = [ex.evaluate(size, sizes) for size in kind.shape]
        stride = [ex.evaluate(step, sizes) for step in kind.stride]
        like = torch.empty_strided(shape, stride, dtype=DTYPES_BY_NAME[kind.dtype])
        found.append(like.copy_(torch.randn(shape, generator=generator)))
    return found


@examples(60)
@given(programs(), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**20))
def test_a_plan_computes_what_its_program_says(
    drawn: tuple[Program, list[TensorType]], s0: int, s1: int, seed: int
) -> None:
    program, kinds = drawn
    sizes = {"s0": s0, "s1": s1}
    lowered = lower(program, target_kind="cpu")
    ran = run_built(lowered, program, inputs_of(kinds, sizes, seed), sizes)
    # A chain in f16 is rounded once here, and after each op in eager; a result in f64 may come
    # through f32, where both sides round.
    types = {kind.dtype for kind in value_types(program) if isinstance(kind, TensorType)}
    coarsest = 1e-2 if "f16" in types else 2e-5 if "f32" in types else 0.0
    for result, expected in zip(ran.results, ran.expected, strict=True):
        close(result, expected, at_least=coarsest)


@examples(25)
@given(programs())
def test_kernels_are_legal_canonical_and_repeatable(
    drawn: tuple[Program, list[TensorType]],
) -> None:
    program, _ = drawn
    lowered = lower(program, target_kind="cpu")
    assert lower(program, target_kind="cpu") == lowered
    for kernel in lowered.kernels:
        assert parse_kernel(print_kernel(check_kernel(kernel.kernel))) == kernel.kernel
        assert kernel_id(kernel.kernel) == kernel.id


@examples(25)
@given(programs())
def test_every_launch_has_the_fallback_that_fits_it(
    drawn: tuple[Program, list[TensorType]],
) -> None:
    program, _ = drawn
    lowered = lower(program, target_kind="cpu")
    launches = [step for step in lowered.plan.steps if isinstance(step, Launch)]
    assert len(launches) == len(lowered.fallbacks) == len(lowered.sources)
    for launch, fallback in zip(launches, lowered.fallbacks, strict=True):
        assert launch.fallback == fallback.id
        assert launch.kernel == fallback.kernel
        assert len(launch.inputs) == len(fallback.inputs)
        assert len(launch.outputs) == len(fallback.outputs)
        assert len(launch.nodes) == len(fallback.program.nodes)


@examples(25)
@given(programs())
def test_nothing_is_read_before_it_is_there_or_after_it_is_gone(
    drawn: tuple[Program, list[TensorType]],
) -> None:
    program, _ = drawn
    lowered = lower(program, target_kind="cpu")
    starts = [len(program.inputs)]
    for node in program.nodes:
        starts.append(starts[-1] + len(node.outputs))
    there = set(range(len(program.inputs)))
    for step in lowered.plan.steps:
        match step:
            case Launch():
                assert {*step.inputs} <= there
                there.update(output.slot for output in step.outputs)
            case RunNodes(nodes):
                for index in nodes:
                    assert {*program.nodes[index].inputs} <= there
                    there.update(range(starts[index], starts[index + 1]))
            case MakeView():
                assert step.base in there
                there.add(step.slot)
            case Free(slots):
                assert {*slots} <= there
                there.difference_update(slots)
    assert {value for value in program.outputs if value is not None} <= there
