"""Generated C source, one golden file for each way to lay a Kernel out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.compiler.native import target

from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.c.primitive import AVX512, FEATURES
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule

KERNELS = Path(__file__).parents[2] / "kernels"
AVX2 = target(("avx", "avx2", "f16c", "fma"))
MASKING = target(FEATURES[AVX512])


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("bias_gelu_f16", "cpu.pointwise axis=1 lanes=8 unroll=2 block=1024"),
        ("transpose_add_f32", "cpu.tiles axis=1 lanes=8 unroll=2 across=0 tile=64 rows=32"),
        (
            "transpose_batched_bf16",
            "cpu.tiles axis=2 lanes=8 unroll=2 across=1 tile=32 rows=64 squares=2",
        ),
        (
            "residual_rms_norm_bf16",
            "cpu.rows axis=0 lanes=8 unroll=2 short=4 stash=8192 split=1",
        ),
        (
            "log_softmax_f32",
            "cpu.rows axis=0 lanes=8 unroll=2 short=1 stash=0 split=0 beside=64",
        ),
        ("column_sum_f32", "cpu.columns axis=0 lanes=8 unroll=4 split=1"),
        ("row_argmax_f32", "cpu.rows axis=0 lanes=8 unroll=2 short=1 stash=0 split=1"),
        (
            "transposed_softmax_f32",
            "cpu.panels axis=0 lanes=8 unroll=2 short=0 stash=0 across=0 rows=16 length=64 split=0",
        ),
        ("column_cumprod_i64", "cpu.columns axis=0 lanes=8 unroll=2 split=0"),
    ],
)
def test_source_is_golden(name: str, schedule: str, golden: Callable[[str, str], None]) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    generated = generate(kernel, parse_schedule(schedule), AVX2)
    golden(f"c/{name}.c", f"// {schedule}\n// {' '.join(generated.flags)}\n{generated.source}")


def test_crowded_rows_are_turned_by_whole_lines_where_they_are_only_moved() -> None:
    """Beside what is computed there are no registers for as much."""
    scaled = parse_kernel((KERNELS / "transpose_batched_bf16.ir").read_text())
    first, *_, last = scaled.body
    assert isinstance(last, ir.Store)
    moved = replace(scaled, body=(first, replace(last, value=0)))
    options = "cpu.tiles axis=2 lanes=16 across=1 rows=64"
    for given, sides, has_lines in (
        (moved, "unroll=2 tile=64 squares=2", True),
        (moved, "unroll=2 tile=64 squares=1", False),
        (moved, "unroll=2 tile=16 squares=2", False),
        (scaled, "unroll=2 tile=64 squares=2", False),
    ):
        generated = generate(given, parse_schedule(f"{options} {sides}"), MASKING)
        assert ("load_lines_bf16(" in generated.source) is has_lines
        assert ("const int64_t tall = " in generated.source) is has_lines


@pytest.mark.parametrize(
    ("name", "lanes", "has_pairs"),
    [("column_argmin_bf16", 16, True), ("column_argmin_bf16", 8, False),
     ("transposed_softmax_f32", 16, False)],
)  # fmt: skip
def test_panels_of_two_byte_elements_are_turned_in_pairs(
    name: str, lanes: int, has_pairs: bool
) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    schedule = parse_schedule(
        f"cpu.panels axis=0 lanes={lanes} unroll=2 short=0 stash=0 across=0 rows=16 length=64"
        " split=0"
    )
    assert ("load_pair_bf16(" in generate(kernel, schedule, MASKING).source) is has_pairs


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("name", ["add_bf16", "compare_bool", "narrow_mix", "to_u8"])
def test_a_tail_is_masked_where_a_vector_is_part_of_a_register(name: str, lanes: int) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    schedule = parse_schedule(f"cpu.pointwise axis=0 lanes={lanes} unroll=2 block=1024")
    source = generate(kernel, schedule, MASKING).source
    assert "_mask_storeu_epi" in source
    assert "memcpy(" not in source
