"""Sizes that are constants where they pay: loops of few points are written out under a Guard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import KERNELS, TARGET
from tests.unit.compiler.native import MACHINE, check, compile_kernel

from nearhint_compiler.analysis.fixed import with_sizes, written_at
from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule
from nearhint_compiler.schedule.firsts import firsts
from nearhint_rules import expr as ex
from nearhint_rules.guard import Equals
from nearhint_rules.target import Target

COLOURS = parse_kernel((KERNELS / "mixed_colours_f32.ir").read_text())
FIXED = parse_kernel("""(kernel (symbols k0) (pointwise k0 3) (reduction 3)
    (params (in f32) (in f32) (out f32)) (body (load 0 (+ (* 3 p0) r0)) (exp f32 0)
    (load 1 (+ (* 3 p1) r0)) (mul f32 1 2) (reduce sum f32 3) (store 2 (+ (* 3 p0) p1) 4)))""")
TARGETS = pytest.mark.parametrize("target", [TARGET, MACHINE], ids=["cuda", "cpu"])


@TARGETS
@pytest.mark.parametrize(("size", "expected"), [(2, True), (3, True), (4, True), (5, False)])
def test_few_points_are_written_out_at_a_hint_that_has_them(
    target: Target, size: int, expected: bool
) -> None:
    offered = candidates(COLOURS, target, {"k0": 4000, "k1": size})
    written = [each for each in offered if each.sizes]
    assert bool(written) is expected
    for each in written:
        assert each.sizes == {"k1": size}
        generated = generate(COLOURS, each, target)
        assert Equals(ex.symbol("k1"), size) in generated.guard.facts
    for each in (offered[0], offered[-1]):
        facts = generate(COLOURS, each, target).guard.facts
        assert not any(isinstance(fact, Equals) for fact in facts)


@TARGETS
def test_what_is_constant_anyway_needs_no_guard_for_it(target: Target) -> None:
    offered = candidates(FIXED, target, {"k0": 4000})
    written = [each for each in offered if each.get("written", 0)]
    assert written
    for each in written:
        facts = generate(FIXED, each, target).guard.facts
        assert not any(isinstance(fact, Equals) for fact in facts)


def test_a_sum_of_three_terms_is_first_written_out_on_a_gpu() -> None:
    for kernel, dims in ((COLOURS, {"k0": 4000, "k1": 3}), (FIXED, {"k0": 4000})):
        first, *others = firsts(kernel, TARGET, dims)
        assert (first.family, first["written"]) == ("cuda.pointwise", 1)
        assert others
        assert not any(each.get("written", 0) for each in others)


def test_a_kernel_with_constants_has_the_arguments_that_it_had() -> None:
    found = written_at(COLOURS, {"k0": 4000, "k1": 3})
    assert found is not None
    assert (found.sizes, found.kernel.reduction) == ({"k1": 3}, ())
    assert found.kernel.symbols == with_sizes(COLOURS, {"k1": 3}).symbols == COLOURS.symbols
    few_rows = written_at(COLOURS, {"k0": 2, "k1": 3})
    assert few_rows is not None
    assert few_rows.sizes == {"k1": 3}
    assert written_at(COLOURS, {"k0": 4000, "k1": 300}) is None
    assert written_at(COLOURS, {}) is None


@TARGETS
def test_sizes_of_symbols_that_are_not_there_are_refused(target: Target) -> None:
    blocks = "x=64 warps=4 index=32 aligned=0 divisible=0"
    if target.kind == "cpu":
        blocks = "axis=0 lanes=8 unroll=1 block=64"
    schedule = parse_schedule(f"{target.kind}.pointwise {blocks} written=1 k7=3")
    with pytest.raises(InvalidSchedule, match="k7"):
        generate(COLOURS, schedule, target)


@pytest.mark.parametrize("rows", [1, 7, 32, 101])
def test_c_with_constants_is_right(rows: int, tmp_path: Path) -> None:
    schedule = "cpu.pointwise axis=0 lanes=8 unroll=1 block=32 written=1 k1=3"
    native = compile_kernel(COLOURS, parse_schedule(schedule), tmp_path)
    rng = np.random.default_rng(0)
    x, matrix = (rng.uniform(-2, 2, 3 * count).astype(np.float32) for count in (rows, 3))
    check(native, (rows, 3), [x, matrix], threads=2)
