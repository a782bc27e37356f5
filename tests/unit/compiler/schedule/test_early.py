"""When rows in registers have their loads first, and when programs take them in turn."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates, parse_schedule
from nearhint_rules.guard import size_facts_hold

NARROW_NORM = parse_kernel(
    """(kernel (symbols k0 k1) (pointwise k0) (reduction k1) (params (in bf16) (in bf16) (out bf16))
    (body (load 0 (+ (* k1 p0) r0)) (cast f32 0) (mul f32 1 1) (reduce sum f32 2) (rsqrt f32 3)
    (mul f32 1 4) (load 1 r0) (cast f32 6) (mul f32 5 7) (cast bf16 8)
    (store 2 (+ (* k1 p0) r0) 9)))"""
)


def offered(name: str, dims: tuple[int, int]) -> tuple[Schedule, ...]:
    kernel = kernel_of(name)
    return candidates(kernel, TARGET, dict(zip(kernel.symbols, dims, strict=True)))


def is_early(schedule: Schedule) -> bool:
    return bool(schedule.get("early", 0))


def test_loads_come_first_where_few_bytes_are_moved_beside_one_form_without() -> None:
    found = offered("layer_norm_dynamic_f32", (512, 1021))
    early = [each for each in found if is_early(each)]
    assert {each.family for each in early} == {"cuda.persistent"}
    plain = {each.options for each in found if not is_early(each)}
    assert any(each.options[:-1] in plain for each in early)


@pytest.mark.parametrize(
    ("name", "dims"),
    [("layer_norm_dynamic_f32", (30_011, 1021)), ("softmax_f32", (512, 1021))],
    ids=["many bytes", "no load behind a reduction"],
)
def test_loads_stay_where_they_are(name: str, dims: tuple[int, int]) -> None:
    assert not any(is_early(each) for each in offered(name, dims) if not each.get("pieces", 0))


def test_loads_of_rows_in_pieces_come_first_while_a_thread_holds_few_elements() -> None:
    found = candidates(NARROW_NORM, TARGET, {"k0": 7000, "k1": 3008})
    ways = [is_early(each) for each in found if each.get("pieces", 0) == 3]
    assert set(ways[:1]) == {True}
    assert set(ways) == {True, False}


WEIGHTED_NORM = parse_kernel(
    """(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
    (params (in bf16) (in bf16) (in bf16) (out bf16))
    (body (load 0 (+ (* k1 p0) r0)) (cast f32 0) (mul f32 1 1) (reduce sum f32 2) (rsqrt f32 3)
    (mul f32 1 4) (load 1 r0) (cast f32 6) (mul f32 5 7) (load 2 r0) (cast f32 9) (add f32 8 10)
    (cast bf16 11) (store 3 (+ (* k1 p0) r0) 12)))"""
)


@pytest.mark.parametrize(
    ("kernel", "warps", "pieces", "early"),
    [
        (WEIGHTED_NORM, 16, 4, False),  # 32 widened elements, and 32 registers of weights
        (WEIGHTED_NORM, 16, 3, True),
        (WEIGHTED_NORM, 8, 4, True),  # a processor has three of its programs for four
        (NARROW_NORM, 16, 4, True),
    ],
    ids=["four pieces", "three", "fewer warps", "fewer weights"],
)
def test_loads_come_first_while_a_processor_has_two_of_the_widest_programs(
    kernel: ir.Kernel, warps: int, pieces: int, early: bool
) -> None:
    dims = {"k0": 2053, "k1": 256 * warps * pieces}
    shape = warps, pieces
    found = candidates(kernel, TARGET, dims)
    ways = [is_early(each) for each in found if (each["warps"], each.get("pieces", 0)) == shape]
    assert ways[0] == early
    assert set(ways) == {True, False}
    # Words of weights, two a vector, are loaded for one piece after the other.
    dims["k1"] -= 1
    found = candidates(kernel, TARGET, dims)
    ways = [is_early(each) for each in found if (each["warps"], each.get("pieces", 0)) == shape]
    assert ways == [False, True]


@pytest.mark.parametrize(("name", "has_halves"), [("softmax_f32", True), ("softmax_f16", False)])
def test_many_short_rows_of_wide_elements_come_with_half_as_many_a_thread(
    name: str, has_halves: bool
) -> None:
    found = [
        e
        for e in offered(name, (100_003, 32))
        if e.family == "cuda.persistent" and not e.get("pieces", 0)
    ]
    first = found[0]
    halves = [e for e in found if (e["x"], e["warps"]) == (first["x"] // 2, first["warps"])]
    assert bool(halves) == has_halves


def test_early_loads_come_before_the_first_reduction() -> None:
    text = "cuda.persistent x=2 r=1024 warps=4 index=32 aligned=0 divisible=0"
    for more, is_before in (("", False), (" early=1", True)):
        generated = generate(
            kernel_of("layer_norm_dynamic_f32"), parse_schedule(text + more), TARGET
        )
        before, _, after = generated.source.partition("tl.reduce(")
        assert ("tl.load(a1" in before) == is_before
        assert ("tl.load(a1" in after) != is_before


@pytest.mark.parametrize("rows", [1, 4096, 30_011, 60_000])
def test_many_rows_that_share_weights_are_taken_in_turn(rows: int) -> None:
    found = candidates(NARROW_NORM, TARGET, {"k0": rows, "k1": 1021})
    turns = [each for each in found if each.get("turns", 0)]
    assert bool(turns) == (rows > 32 * 132)
    # Two vectors a thread, and one, of threads so small that a processor holds forty warps.
    bounds = {(each["warps"], each.get("registers", 0)) for each in turns}
    assert bounds == ({(2, 0), (4, 48)} if turns else set())
    for each in turns:
        assert each["x"] == 1
        guard = generate(NARROW_NORM, each, TARGET).guard
        assert all(
            size_facts_hold(guard, {"k0": other, "k1": length})
            for other in (1, 7, rows)
            for length in (1, 1021, 1031)
        )


def test_rows_of_wide_elements_or_without_weights_take_no_turns() -> None:
    for name in ("layer_norm_dynamic_f32", "softmax_f16"):
        assert not [each for each in offered(name, (30_011, 1021)) if each.get("turns", 0)]


def test_short_rows_and_those_that_share_with_some_take_no_turns() -> None:
    """A mask is of the rows of an image: who has other rows in turn reads it again for each."""
    masked = parse_kernel("""(kernel (symbols k0 k1 k2) (pointwise k0 k1) (reduction k2)
        (params (in bf16) (in bf16) (out bf16)) (body (load 0 (+ (* k1 k2 p0) (* k2 p1) r0))
        (cast f32 0) (load 1 (+ (* k2 p0) r0)) (cast f32 2) (add f32 1 3) (reduce max f32 4)
        (sub f32 4 5) (cast bf16 6) (store 2 (+ (* k1 k2 p0) (* k2 p1) r0) 7)))""")
    for kernel, dims in (
        (NARROW_NORM, {"k0": 60_000, "k1": 97}),
        (masked, {"k0": 60, "k1": 500, "k2": 1021}),
    ):
        found = candidates(kernel, TARGET, dims)
        assert not [each for each in found if each.get("turns", 0)]


def test_what_turns_share_is_read_before_them() -> None:
    text = "cuda.persistent x=1 r=1024 warps=2 index=32 aligned=1 divisible=0 words=1 turns=4"
    source = generate(NARROW_NORM, parse_schedule(text), TARGET).source
    before, _, inside = source.partition("for row in")
    # Two words, and an element of the edges.
    assert before.count("tl.load(a1") == 3
    assert "tl.load(a1" not in inside
    assert inside.count("tl.load(a0") == 2


def test_loads_of_many_short_rows_come_first_and_pass_by_the_cache() -> None:
    found = offered("layer_norm_dynamic_f32", (131_072, 32))
    early = [each for each in found if is_early(each)]
    assert early
    assert all(each["stream"] == 1 and each["x"] > 1 for each in early)
    # Each beside the same without, of which the first is still the first.
    plain = [each.options for each in found if not is_early(each)]
    assert all(each.options[:-2] in plain for each in early)
    assert found.index(early[0]) > 1
    longer = offered("layer_norm_dynamic_f32", (32_768, 512))
    assert not [each for each in longer if is_early(each) and each.get("stream", 0)]
