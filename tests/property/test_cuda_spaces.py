"""What is offered for a GPU, which no machine without one can run: of any Kernel at any sizes.

A default serves every size, and so does the last candidate, where the default needs anything. All
that is offered can be generated, names nothing that it has not made, and serves the sizes that it
is offered for.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from tests.property.examples import unshrunk
from tests.property.kernels import kernels
from tests.property.test_variants import CORPUS, lowered_kernels
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel, print_kernel
from nearhint_compiler.schedule.choice import MAX_LIMIT
from nearhint_compiler.schedule.cuda import candidates
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_daemon.workers.cases import index_range, sizes_at
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CudaLaunch, SizeArgument
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.guard import Divisible, size_facts_hold
from nearhint_rules.target import CudaDevice, Target

SIZES = st.sampled_from((1, 2, 3, 7, 8, 16, 33, 64, 100, 1000, 1024, 4096, 10_007, 65_536, 100_000))
HUGE = st.sampled_from(
    (1, 3, 16, 4096, 65_537, 2**20, 2**27 + 16, 2**30 - 1, 2**30, 2**31 - 16, 2**31, 2**32 + 16)
)
POINTS = 2**40
SMALL = Target(CudaDevice("NVIDIA T4", 80, 40, 16 << 30, "580", 700), ("triton 3.7.1",))

FOUND = {
    "argmax of four halves, and their sums": (
        """(kernel (symbols k0) (pointwise k0) (reduction 4) (params (in f16) (out f16) (out i64))
          (body (load 0 (+ (* 4 p0) r0)) (cast f32 0) (scan sum f32 1) (cast f16 2)
            (store 1 (+ (* 4 p0) r0) 3) (arg max f32 1 r0) (store 2 p0 5)))""",
        (1, 64, 1000),
    ),
    "sums of columns that are stored in another dtype": (
        """(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
          (params (in f16) (out f32) (out f32))
          (body (load 0 (+ (* k0 r0) p0)) (cast f32 0) (store 1 (+ (* k0 r0) p0) 1)
            (reduce sum f32 1) (store 2 p0 3)))""",
        (64, 65_536),
    ),
    "points of three coordinates, each with a weight": (
        """(kernel (symbols k0) (pointwise k0 3) (reduction) (params (in f32) (in f32) (out f32))
          (body (load 0 p0) (load 1 (+ (* 3 p0) p1)) (mul f32 0 1) (store 2 (+ (* 3 p0) p1) 2)))""",
        (64, 1000),
    ),
    "sums of bytes in planes that begin anywhere": (
        """(kernel (symbols k0 k1) (pointwise k0) (reduction k1 2100) (params (in u8) (out i64))
          (body (load 0 (+ (* 3001 k1 p0) (* 3001 r0) r1)) (cast i64 0) (reduce sum i64 1)
            (store 1 p0 2)))""",
        (8, 2100),
    ),
    "long rows of integers of two bytes, twice": (
        """(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
          (params (in i16) (in f32) (out i16) (out f32))
          (body (load 0 (+ (* k1 p0) r0)) (store 2 (+ (* k1 p0) r0) 0) (cast f32 0) (load 1 p0)
            (div f32 2 3) (reduce sum f32 4) (store 3 p0 5)))""",
        (64, 65_536),
    ),
    "sums of planes whose sides are one size, of narrow elements": (
        """(kernel (symbols k0 k1) (pointwise) (reduction k0 k1 k1)
          (params (in bool) (in bf16) (out f32))
          (body (load 0 (+ (* 4 k1 r0) (* 2 r2) r1)) (cast f32 0)
            (load 1 (+ (* (^ k1 2) r0) (* k1 r1) r2)) (cast f32 2) (sub f32 1 3)
            (reduce sum f32 4) (store 2 0 5)))""",
        (127, 100_000),
    ),
    "rows of sixty-five in a wider matrix": (
        """(kernel (symbols k0 k1) (pointwise k0) (reduction 65)
          (params (in f32) (in f32) (out f32))
          (body (load 0 (+ (* k1 p0) r0)) (load 1 r0) (mul f32 0 1) (reduce sum f32 2)
            (store 2 p0 3)))""",
        (1, 1024),
    ),
    "softmax of halves, of rows of one more than a block": (
        print_kernel(kernel_of("softmax_f16")),
        (257, 5120),
    ),
    "long rows in parts of their largest, of which tiles are held": (
        """(kernel (symbols k0 k1) (pointwise k0) (reduction k1) (params (in bf16) (out f8e5m2))
          (body (load 0 (+ (* k1 p0) r0)) (cast f32 0) (abs f32 1) (reduce max f32 2)
            (div f32 1 3) (cast f8e5m2 4) (store 1 (+ (* k1 p0) r0) 5)))""",
        (2051, 131_072),
    ),
    "sums of planes that are columns where one has one element": (
        """(kernel (symbols k0 k1 k2) (pointwise k0) (reduction k1 k2) (params (in f16) (out f16))
          (body (load 0 (+ (* k0 k2 r0) (* k2 p0) r1)) (cast f32 0) (reduce sum f32 1)
            (cast f16 2) (store 1 p0 3)))""",
        (1, 1025, 8185),
    ),
    "normed heads with a weight, rotated": (
        print_kernel(kernel_of("normed_rotary_bf16")),
        (1536,),
    ),
}
"""Kernels of whose candidates some could not be generated, or compiled, and sizes."""


def unbound(source: str) -> set[str]:
    """The names in functions of a source that no line before, or around, has bound."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    known = {"libdevice", "tl", *(each.name for each in functions), *vars(builtins)}
    missing = set[str]()
    for function in functions:
        missing |= _unbound(function.body, known | {each.arg for each in function.args.args})
    return missing


def _unbound(lines: Sequence[ast.stmt], bound: set[str]) -> set[str]:
    """The same of lines, whose names are added: what a branch binds is so behind it, too."""
    missing = set[str]()
    for line in lines:
        inside = [*getattr(line, "body", ()), *getattr(line, "orelse", ())]
        names = [
            node
            for part in ast.iter_child_nodes(line)
            if part not in inside
            for node in ast.walk(part)
            if isinstance(node, ast.Name)
        ]
        missing |= {name.id for name in names if isinstance(name.ctx, ast.Load)} - bound
        bound |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
        missing |= _unbound(inside, bound)
    return missing


def test_names_are_bound_before_they_are_read() -> None:
    source = "def f(a):\n    if a:\n        b = a + c\n    c = b\n    return d"
    assert unbound(source) == {"c", "d"}


def assert_space_is_sound(kernel: ir.Kernel, target: Target, dims: Mapping[str, int]) -> None:
    found = candidates(kernel, target, dims)
    default, last = (generate(kernel, each, target).guard for each in (found[0], found[-1]))
    assert not any(isinstance(fact, Divisible) for fact in default.facts)
    assert not default.facts or not last.facts


def assert_serves(
    kernel: ir.Kernel, target: Target, schedule: Schedule, dims: Mapping[str, int]
) -> None:
    generated = generate(kernel, schedule, target)
    assert not unbound(generated.source)
    assert size_facts_hold(generated.guard, dims), schedule


def test_columns_of_a_scan_that_are_more_than_programs_share_have_a_variant_for_all_sizes() -> None:
    for name in ("column_cumsum_f32", "column_cumprod_i64"):
        assert_space_is_sound(kernel_of(name), TARGET, {"k0": 100_000, "k1": 16_384})


@pytest.mark.parametrize("name", FOUND)
def test_all_that_is_offered_can_be_generated(name: str) -> None:
    text, sizes = FOUND[name]
    kernel = parse_kernel(text)
    for point in itertools.product(sizes, repeat=len(kernel.symbols)):
        dims = dict(zip(kernel.symbols, point, strict=True))
        assert_space_is_sound(kernel, TARGET, dims)
        for each in candidates(kernel, TARGET, dims, limit=MAX_LIMIT):
            assert_serves(kernel, TARGET, each, dims)


@unshrunk(80)
@given(st.one_of(kernels(), kernels(), lowered_kernels(), st.sampled_from(CORPUS)), st.data())
def test_any_kernel_has_a_default_and_a_variant_for_all_sizes(
    kernel: ir.Kernel, data: st.DataObject
) -> None:
    dims = {name: data.draw(SIZES, label=name) for name in kernel.symbols}
    try:
        sizes_at(kernel, dims)
    except InvalidExpression:
        reject()
    target = data.draw(st.sampled_from((TARGET, SMALL)))
    assert_space_is_sound(kernel, target, dims)
    space = candidates(kernel, target, dims, limit=MAX_LIMIT)
    assert_serves(kernel, target, data.draw(st.sampled_from(space)), dims)


@pytest.mark.timeout(600)  # NEARHINT_EXPLORE draws many
@unshrunk(120)
@given(st.one_of(kernels(), lowered_kernels(), st.sampled_from(CORPUS)), st.data())
def test_what_a_guard_allows_fits_indices_and_grids(kernel: ir.Kernel, data: st.DataObject) -> None:
    """At sizes whose elements no memory holds; of a grid's first axis the launcher checks more."""
    hint = {name: data.draw(SIZES, label=f"hint {name}") for name in kernel.symbols}
    dims = {name: data.draw(HUGE, label=name) for name in kernel.symbols}
    try:
        sizes_at(kernel, hint)
        extents = [ex.evaluate(extent, dims) for extent in (*kernel.pointwise, *kernel.reduction)]
        space = candidates(kernel, TARGET, hint, limit=MAX_LIMIT)
        schedule = data.draw(st.sampled_from(space), label="schedule")
        generated = generate(kernel, schedule, TARGET)
        assume(size_facts_hold(generated.guard, dims) and math.prod(extents) <= POINTS)
    except InvalidExpression:
        reject()
    launch = generated.launch
    assert isinstance(launch, CudaLaunch)
    programs, shares, layers = (ex.evaluate(size, dims) for size in launch.grid)
    assert programs >= 1
    assert 1 <= shares < 2**16
    assert layers == 1
    for argument in launch.arguments:
        if isinstance(argument, SizeArgument) and argument.dtype == "i32":
            assert 0 <= ex.evaluate(argument.expr, dims) < 2**31
    if schedule["index"] == 32:
        rank = len(kernel.pointwise)
        for node in kernel.body:
            if isinstance(node, ir.Indexed):
                low, high = index_range(node.index, dims, extents[:rank], extents[rank:])
                assert -(2**31) <= low <= high < 2**31
