"""Rows walked twice, with tiles held in registers, or weights in a cache."""

from __future__ import annotations

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.compiler.triton_numerics import Case, Results

from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_compiler.schedule.firsts import firsts
from nearhint_compiler.schedule.schedule import parse_schedule

pytestmark = numerics.RUNS_LONG

pytestmark = pytest.mark.timeout(600)  # all cases are interpreted in one go

ANY, NARROW = "index=64 aligned=0 divisible=0", "index=32 aligned=0 divisible=0"


def held(kernel: str, *dims: tuple[int, ...], special: bool = False) -> list[Case]:
    """Rows of which none, one or more tiles are walked, and whose last is a part, or not there."""
    texts = (
        f"cuda.looped x=1 r=32 warps=1 {NARROW} held=1",
        f"cuda.looped x=2 r=16 warps=1 {ANY} group=4 held=3",
        f"cuda.looped x=1 r=32 warps=1 {NARROW} group=8 unroll=2 held=2",
    )
    return [Case(kernel, text, each, special) for text in texts for each in dims]


KEPT = f"cuda.looped x=1 r=128 warps=1 {NARROW} keep=1"
WORDS = KEPT.replace("aligned=0", "aligned=1") + " words=1"
CASES = [
    *held("layer_norm_dynamic_f32", (2, 1), (3, 64), (2, 131)),
    *held("softmax_f32", (3, 17), (1, 96), (2, 131)),
    *held("softmax_f32", (3, 131), special=True),
    *numerics.filled(-float("inf"), *held("softmax_f32", (2, 67))),
    *held("log_softmax_f32", (3, 101)),
    # Rows that fill their tiles, and are two arrays.
    Case("residual_rms_norm_bf16", f"cuda.looped x=1 r=512 warps=4 {NARROW} group=8 held=3", (2,)),
    *held("softmax_mask_f16", (2, 67)),
    Case("layer_norm_dynamic_f32", KEPT, (2, 131)),
    Case("layer_norm_dynamic_f32", WORDS, (3, 301)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


def source(name: str, schedule: str) -> str:
    return generate(kernel_of(name), parse_schedule(schedule), TARGET).source


def test_what_rows_share_has_no_policy_where_it_is_kept() -> None:
    plain = f"cuda.looped x=1 r=32 warps=1 {NARROW}"
    before, after = (source("layer_norm_dynamic_f32", text) for text in (plain, f"{plain} keep=1"))
    changed = [
        (old, new)
        for old, new in zip(before.splitlines(), after.splitlines(), strict=True)
        if old != new
    ]
    assert [new.split(" = ")[1][:14] for _, new in changed] == ["tl.load(a1 + r", "tl.load(a2 + r"]
    assert all(old.replace(', eviction_policy="evict_first"', "") == new for old, new in changed)


def looped_of(name: str, rows: int, columns: int) -> list[Schedule]:
    found = candidates(kernel_of(name), TARGET, {"k0": rows, "k1": columns})
    return [each for each in found if each.family == "cuda.looped"]


def test_tiles_are_held_where_the_cache_keeps_a_part_of_the_rows_alone() -> None:
    for name, rows, columns, held in (
        ("softmax_f16", 1024, 131_072, [2, 1, 3]),
        ("softmax_f16", 1021, 128_256, [2, 1, 3]),
        ("softmax_f16", 3001, 50_000, []),
        ("softmax_f16", 50, 131_072, []),
        ("softmax_f16", 1021, 128_255, []),
        ("softmax_f32", 1024, 131_072, []),
        ("row_cumsum_f32", 1024, 131_072, []),
    ):
        found = [each["held"] for each in looped_of(name, rows, columns) if each.get("held", 0)]
        assert found == held, (name, rows, columns)
    first = firsts(kernel_of("softmax_f16"), TARGET, {"k0": 1021, "k1": 128_256})[0]
    assert (first.family, first["held"]) == ("cuda.looped", 2)


def test_weights_of_long_rows_are_kept_where_the_first_cache_holds_them() -> None:
    for rows, columns, is_kept in (
        (3001, 20_000, True),
        (3001, 30_000, False),
        (100, 20_000, False),
    ):
        found = {
            each.get("keep", 0)
            for each in looped_of("layer_norm_dynamic_f32", rows, columns)
            if each["r"] >= 4096
        }
        assert found == {int(is_kept)}, (rows, columns)
    masked = looped_of("softmax_mask_f16", 1021, 128_256)
    assert not any(each.get("keep", 0) for each in masked)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("softmax_f32", "cuda.persistent x=1 r=32 warps=1 {} held=1"),
        ("softmax_f32", "cuda.looped x=1 r=32 warps=1 {} held=9"),
        ("softmax_f32", "cuda.persistent x=1 r=32 warps=1 {} keep=1"),
        ("softmax_f32", "cuda.looped x=1 r=32 warps=1 {} held=0"),
        ("softmax_f32", "cuda.looped x=1 r=32 warps=1 {} ahead=2 held=1"),
        ("softmax_f32", "cuda.looped x=1 r=32 warps=1 {} words=1 held=1"),
        ("row_sum_f32", "cuda.looped x=1 r=32 warps=1 {} held=1"),
        ("row_argmax_f32", "cuda.looped x=1 r=32 warps=1 {} held=1"),
        ("row_cumsum_f32", "cuda.looped x=1 r=32 warps=1 {} held=1"),
        ("normalised_cumsum_bf16", "cuda.looped x=1 r=32 warps=1 {} held=1"),
        ("plane_norm_bf16", "cuda.looped x=1 r=32 warps=1 {} held=1 r1=16"),
    ],
)
def test_what_is_not_walked_twice_holds_no_tiles(name: str, schedule: str) -> None:
    with pytest.raises(InvalidSchedule):
        generate(kernel_of(name), parse_schedule(schedule.format(NARROW)), TARGET)
