"""Generated C source, one golden file for each way to lay a Kernel out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
from tests.unit.compiler.kernels import KERNELS
from tests.unit.compiler.native import target

from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.c.primitive import AVX512, FEATURES
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CpuLaunch

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
            "transpose_batched_bf16/lines",
            "cpu.tiles axis=2 lanes=8 unroll=1 across=1 tile=128 rows=256 squares=1 ahead=8",
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
    kernel = parse_kernel((KERNELS / f"{name.partition('/')[0]}.ir").read_text())
    generated = generate(kernel, parse_schedule(schedule), AVX2)
    golden(
        f"c/{name.replace('/', '_')}.c",
        f"// {schedule}\n// {' '.join(generated.flags)}\n{generated.source}",
    )


@pytest.mark.parametrize(
    ("lanes", "squares", "least"),
    [
        (16, "", "16777216"),
        (16, "squares=1", "16777216"),
        (16, "squares=1 ahead=8", "12582912"),
        (8, "squares=1 ahead=8", "(4 * k0 % 512 == 0 || 4 * k1 % 512 == 0 ? 12582912 : 2097152)"),
    ],
)
def test_a_tile_asks_for_the_next_only_where_caches_do_not_hold_everything(
    lanes: int, squares: str, least: str
) -> None:
    """Asked for in a cache, each line would take longer than the wait for it."""
    kernel = parse_kernel((KERNELS / "transpose_add_f32.ir").read_text())
    options = f"cpu.tiles axis=1 lanes={lanes} unroll=1 across=0 tile=64 rows=64 {squares}".strip()
    lines = generate(kernel, parse_schedule(options), MASKING).source.splitlines()
    assert f"    const int is_large = np0 * np1 * 12 > {least};" in lines
    asked = [number for number, line in enumerate(lines) if "__builtin_prefetch" in line]
    assert asked
    assert all(any("is_large" in line for line in lines[n - 5 : n + 1]) for n in asked)


@pytest.mark.parametrize(("lanes", "instead"), [(16, 1), (8, 0)])
def test_blocks_of_lines_are_for_memory_where_squares_read_whole_lines_as_well(
    lanes: int, instead: int
) -> None:
    kernel = parse_kernel((KERNELS / "transpose_add_f32.ir").read_text())
    options = f"cpu.tiles axis=1 lanes={lanes} unroll=1 across=0 tile=64 rows=64 squares=1 ahead=8"
    source = generate(kernel, parse_schedule(options), MASKING).source
    fact = "np0 * np1 * 12 > 262144 && !is_large"
    found = f"    if ({fact}) {{\n        run_squares(parameters, dims, from, to);\n"
    assert source.count(found) == instead


def test_rows_are_turned_in_strips_but_where_they_are_a_power_of_two_apart() -> None:
    """Of a strip, lines stay in the first cache until the next one, if there is room for them."""
    kernel = parse_kernel((KERNELS / "transpose_add_f32.ir").read_text())
    options = "cpu.tiles axis=1 lanes=16 unroll=1 across=0 tile=128 rows=128 squares=1"
    source = generate(kernel, parse_schedule(options), MASKING).source
    assert "const int has_squares = 4 * k0 % 512 == 0;" in source
    before, after = source.split("if (has_squares && at + 16 <= end_p0)")
    assert "load_strip_f32(first" not in before.partition("static void run(")[2]
    assert after.index("turn_f32(") < after.index("load_strip_f32(first")


@pytest.mark.parametrize(
    ("name", "options", "fact"),
    [
        (
            "transpose_add_f32",
            "axis=1 lanes=16 unroll=1 across=0",
            "!is_large && (4 * k0 % 512 == 0) && (4 * k1 % 4096 == 0)",
        ),
        ("transpose_add_f32", "axis=1 lanes=4 unroll=1 across=0", ""),
        (
            "transpose_batched_bf16",
            "axis=2 lanes=16 unroll=2 across=1",
            "!is_large && (2 * k1 % 512 == 0)",
        ),
    ],
)
def test_crowded_tiles_go_through_a_buffer_where_squares_would_leave_the_cache(
    name: str, options: str, fact: str
) -> None:
    """Rows of squares that share a set are more than it has ways; squares that are part of lines
    need no rows for that."""
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    schedule = parse_schedule(f"cpu.tiles {options} tile=128 rows=128 squares=1")
    source = generate(kernel, schedule, MASKING).source
    call = f"    if ({fact}) {{\n        run_crowded(parameters, dims, from, to);\n"
    assert ("run_crowded" in source) is bool(fact)
    assert not fact or call in source


@pytest.mark.parametrize(
    ("name", "axis", "across", "fact"),
    [
        ("transpose_add_f32", 1, 0, "least(1, ((4 * k0) % 4096))"),
        ("transpose_batched_bf16", 2, 1, "least(1, ((2 * k1) % 2048))"),
    ],
)
def test_crowded_tiles_are_staged_where_that_is_said(
    name: str, axis: int, across: int, fact: str
) -> None:
    """A tile is as long as a run of lines both ways there, and as elsewhere where it is not."""
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    options = f"axis={axis} lanes=16 unroll=1 across={across} tile=64 rows=32 squares=1"
    staged = generate(kernel, parse_schedule(f"cpu.tiles {options} staged=1"), MASKING).source
    plain = generate(kernel, parse_schedule(f"cpu.tiles {options}"), MASKING).source
    side = 128 if "f32" in name else 256
    assert "run_staged" not in plain
    assert f"stage0[{side * (side + side // 8)}]" in staged
    (taken,) = [line for line in staged.splitlines() if line.strip().startswith("if (!(")]
    assert fact in taken
    (tall,) = {line for line in staged.splitlines() if "const int64_t tall = " in line}
    (wide,) = {line for line in staged.splitlines() if "const int64_t wide = " in line}
    assert fact in tall
    assert fact in wide
    assert str(side - 32) in tall
    assert str(side - 64) in wide


def test_buffers_of_staged_tiles_are_half_a_second_cache_at_most() -> None:
    rows, columns = ex.symbol("k0"), ex.symbol("k1")
    row, column = ex.symbol("p0"), ex.symbol("p1")
    schedule = parse_schedule(
        "cpu.tiles axis=1 lanes=16 unroll=2 across=0 tile=64 rows=64 squares=1 staged=1"
    )
    for inputs in (3, 4):
        turned = ex.add(ex.mul(column, rows), row)
        body: list[ir.BodyNode] = [ir.Load(number, turned) for number in range(inputs)]
        for number in range(1, inputs):
            last = len(body) - 1 if number > 1 else 0
            body.append(ir.Op("add", "bf16", (last, number)))
        body.append(ir.Store(inputs, ex.add(ex.mul(row, columns), column), len(body) - 1))
        params = (*(ir.Param("in", "bf16"),) * inputs, ir.Param("out", "bf16"))
        kernel = ir.Kernel(("k0", "k1"), (rows, columns), (), params, tuple(body))
        source = generate(kernel, schedule, MASKING).source
        assert ("run_staged" in source) is (inputs == 3)


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


@pytest.mark.parametrize("lanes", [4, 8])
@pytest.mark.parametrize("name", ["compare_bool", "to_u8"])
def test_bytes_are_shuffled_together_where_no_instruction_narrows_words(
    name: str, lanes: int
) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    schedule = parse_schedule(f"cpu.pointwise axis=0 lanes={lanes} unroll=2 block=1024")
    for at, is_shuffled in ((AVX2, True), (MASKING, False)):
        assert ("_shuffle_epi8(" in generate(kernel, schedule, at).source) is is_shuffled


def grain_of(kernel: ir.Kernel) -> int:
    family = "cpu.rows" if kernel.reduction else "cpu.pointwise"
    options = "short=2 stash=0 split=1" if kernel.reduction else "block=1024"
    schedule = parse_schedule(f"{family} axis=0 lanes=8 unroll=2 {options}")
    launch = generate(kernel, schedule, target(FEATURES[AVX512])).launch
    assert isinstance(launch, CpuLaunch)
    return launch.grain


def test_a_thread_has_fewer_elements_the_more_is_done_with_each() -> None:
    index = ex.symbol("p0")

    def chain(*names: str) -> ir.Kernel:
        body: list[ir.BodyNode] = [ir.Load(0, index)]
        body += [ir.Op(name, "f32", (place,)) for place, name in enumerate(names)]
        body.append(ir.Store(1, index, len(names)))
        params = (ir.Param("in", "f32"), ir.Param("out", "f32"))
        return ir.Kernel(("k0",), (ex.symbol("k0"),), (), params, tuple(body))

    copied, changed, exponential = (
        grain_of(chain(*names)) for names in ((), ("neg", "abs", "neg", "abs"), ("exp",))
    )
    assert copied > changed > exponential
    assert 2 * grain_of(chain("exp", "exp", "exp")) < exponential


def test_what_is_done_once_a_row_is_no_work_of_its_elements() -> None:
    mean = parse_kernel((KERNELS / "mean_variance_f32.ir").read_text())
    bare = parse_kernel((KERNELS / "row_sum_f32.ir").read_text())
    divided = replace(
        bare,
        body=(
            *bare.body[:-1],
            ir.Op("exp", "f32", (len(bare.body) - 2,)),
            replace(cast(ir.Store, bare.body[-1]), value=len(bare.body) - 1),
        ),
    )
    assert grain_of(divided) == grain_of(bare) > grain_of(mean)
