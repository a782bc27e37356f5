"""Generated Triton source, the Guards it brings, and the schedules that lead to it."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import pytest
from tests.unit.compiler.kernels import KERNELS, TARGET, kernel_of

from nearhint_compiler.analysis.index_width import INDEX_LIMIT, index_bounds
from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.triton.text import constant_text, index_text
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir.nodes import Kernel, Load
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.cuda import CANDIDATE_LIMIT
from nearhint_compiler.schedule.schedule import Schedule, parse_schedule
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CudaLaunch
from nearhint_rules.guard import ALWAYS, Aligned, AtMost, Divisible, size_facts_hold

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = sorted(path.stem for path in KERNELS.glob("*.ir"))
HINTS = (
    (2048, 512, 64, 32, 1000),
    (1, 1, 1, 1, 1),
    (37, 53, 3, 5, 7),
    (4, 16384, 2, 2, 64),
    (16, 131072, 16, 2, 3),
)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("bias_gelu_f16", "cuda.pointwise x=1024 warps=4 index=32 aligned=1 divisible=0"),
        (
            "transpose_add_f32",
            "cuda.tiled z=1 y=32 x=32 cuts=1 warps=4 index=32 aligned=1 divisible=3",
        ),
        ("softmax_mask_f16", "cuda.persistent x=2 r=512 warps=4 index=32 aligned=1 divisible=2"),
        (
            "residual_rms_norm_bf16",
            "cuda.looped x=1 r=1024 warps=4 index=64 aligned=0 divisible=0",
        ),
        ("masked_mean_pool_f16", "cuda.looped x=64 r=32 warps=8 index=32 aligned=1 divisible=0"),
        (
            "softmax_f16",
            "cuda.looped x=1 r=1024 warps=4 index=32 aligned=1 divisible=0 group=8 words=1",
        ),
        ("float_division", "cuda.pointwise x=256 warps=2 index=64 aligned=0 divisible=0"),
    ],
)
def test_source_is_golden(name: str, schedule: str, golden: Callable[[str, str], None]) -> None:
    generated = generate(kernel_of(name), parse_schedule(schedule), TARGET)
    flags = "".join(f"# {flag}\n" for flag in generated.flags)
    golden(f"triton/{name}.py", f"# {schedule}\n{flags}{generated.source}")


@pytest.mark.parametrize("name", NAMES)
def test_all_candidates_generate_and_one_promises_nothing(name: str) -> None:
    kernel = kernel_of(name)
    for hint in HINTS:
        dims = dict(zip(kernel.symbols, hint, strict=False))
        found = candidates(kernel, TARGET, dims)
        assert 2 <= len(found) == len(set(found)) <= CANDIDATE_LIMIT
        guards = [generate(kernel, schedule, TARGET).guard for schedule in found]
        assert ALWAYS in (guards[0], guards[-1])
        assert all(size_facts_hold(guard, dims) for guard in guards[1:])


@pytest.mark.parametrize("name", NAMES)
def test_a_default_serves_other_sizes_than_its_hint(name: str) -> None:
    """A Table's default is measured at every hint; one that excludes a hint would block it."""
    kernel = kernel_of(name)
    for hint in HINTS:
        default = candidates(kernel, TARGET, dict(zip(kernel.symbols, hint, strict=False)))[0]
        guard = generate(kernel, default, TARGET).guard
        for other in ((1, 1, 1, 1, 1), (409, 1023, 33, 7, 5), (7, 3001, 5, 2, 9)):
            assert size_facts_hold(guard, dict(zip(kernel.symbols, other, strict=False)))


def test_transposed_loads_get_tiles_and_contiguous_ones_do_not() -> None:
    dims = {"k0": 512, "k1": 512, "k2": 512}
    batched = candidates(kernel_of("transpose_batched_bf16"), TARGET, dims)[0]
    assert batched.family == "cuda.tiled"
    assert batched["cuts"] == 2
    assert candidates(kernel_of("add_f32"), TARGET, dims)[0].family == "cuda.pointwise"


def widths_of_walks(name: str, dims: dict[str, int]) -> list[int]:
    """How many columns, or rows, a program walks: of the default, then what the hint suggests."""
    found = candidates(kernel_of(name), TARGET, dims)
    return [schedule["x"] for schedule in found if schedule.family == "cuda.looped"]


def test_the_reduction_that_is_not_contiguous_keeps_columns_along_threads() -> None:
    dims = {"k0": 8192, "k1": 16_384}
    for name, columns, first in (("column_sum_f32", 32, 128), ("masked_mean_pool_f16", 64, 64)):
        default, *others = widths_of_walks(name, dims)
        assert default == 16
        assert columns in others
        assert others[0] == first
    assert widths_of_walks("row_sum_f32", dims)[0] == 2


def test_few_columns_are_spread_over_all_processors() -> None:
    assert widths_of_walks("column_sum_f32", {"k0": 30_000, "k1": 256})[:2] == [8, 2]


def test_only_symbols_that_matter_are_promised_to_be_multiples_of_16() -> None:
    dims = {"k0": 64, "k1": 64}
    softmax = candidates(kernel_of("softmax_f32"), TARGET, dims)
    assert {schedule["divisible"] for schedule in softmax} == {0, 2}
    static_rows = candidates(kernel_of("layer_norm_f32"), TARGET, {"k0": 64})
    assert {schedule["divisible"] for schedule in static_rows} == {0}
    odd = candidates(kernel_of("softmax_f32"), TARGET, {"k0": 64, "k1": 63})
    assert {schedule["divisible"] for schedule in odd} == {0}


def test_promises_to_triton_are_guards() -> None:
    schedule = parse_schedule("cuda.persistent x=1 r=1024 warps=4 index=32 aligned=1 divisible=2")
    generated = generate(kernel_of("softmax_f32"), schedule, TARGET)
    facts = generated.guard.facts
    assert AtMost(ex.symbol("k1"), 1024) in facts
    assert Divisible(ex.symbol("k1"), 4) in facts
    assert {fact for fact in facts if isinstance(fact, Aligned)} == {Aligned(0, 16), Aligned(1, 16)}
    assert {flag for flag in generated.flags if flag.startswith("divisible")} == {
        "divisible:0=16",
        "divisible:1=16",
        "divisible:3=4",
    }


def test_32_bit_guards_hold_just_below_the_limit_and_fail_above() -> None:
    bounds = index_bounds(kernel_of("add_f32"))
    assert bounds is not None
    for size, fits in ((2**30 - 1, True), (2**30, False)):
        assert all(ex.evaluate(bound, {"k0": size}) <= INDEX_LIMIT for bound in bounds) == fits


def test_split_indices_do_not_need_64_bits_before_their_elements_do() -> None:
    """(p0 // k1) * k1 is bounded by the rows, not by rows times k1."""
    bounds = index_bounds(kernel_of("merge_heads_f16"))
    assert bounds is not None
    sizes = {"k0": 64, "k1": 4096}
    assert all(ex.evaluate(bound, sizes) <= INDEX_LIMIT for bound in bounds)
    large = {"k0": 64, "k1": 65_536}
    assert not all(ex.evaluate(bound, large) <= INDEX_LIMIT for bound in bounds)


def test_a_static_space_that_needs_64_bits_is_refused_and_never_proposed() -> None:
    text = (KERNELS / "layer_norm_f32.ir").read_text()
    kernel = parse_kernel(text.replace("384", str(2**31)))
    narrow = Schedule(
        "cuda.looped",
        (("x", 1), ("r", 1024), ("warps", 4), ("index", 32), ("aligned", 1), ("divisible", 0)),
    )
    with pytest.raises(InvalidSchedule, match="64 bits"):
        generate(kernel, narrow, TARGET)
    assert all(schedule["index"] == 64 for schedule in candidates(kernel, TARGET))


@pytest.mark.parametrize(
    ("name", "schedule", "problem"),
    [
        ("add_f32", "cuda.looped x=1 r=64 warps=4 index=32 aligned=0 divisible=0", "pointwise"),
        ("softmax_f32", "cuda.pointwise x=64 warps=4 index=32 aligned=0 divisible=0", "reduction"),
        ("add_f32", "cuda.tiled z=1 y=8 x=8 cuts=1 warps=4 index=32 aligned=0 divisible=0", "cuts"),
        ("layer_norm_f32", "cuda.persistent x=1 r=256 warps=4 index=32 aligned=0 divisible=0",
         "longer"),
        ("add_f32", "cuda.pointwise x=96 warps=4 index=32 aligned=0 divisible=0", "block size"),
        ("add_f32", "cuda.pointwise x=64 warps=3 index=32 aligned=0 divisible=0", "warps"),
        ("add_f32", "cuda.pointwise x=64 warps=4 index=32 aligned=0 divisible=2", "symbols"),
        ("row_sum_f32", "cuda.looped x=1 r=64 warps=4 index=32 aligned=0 divisible=0 group=3",
         "group"),
        ("row_sum_f32", "cuda.looped x=1 r=4 warps=4 index=32 aligned=0 divisible=0 group=8",
         "longer"),
        ("add_f32", "cuda.spiral x=64 warps=4 index=32 aligned=0 divisible=0", "family"),
        ("add_f32", "cpu.rows x=64", "no schedule for cuda"),
    ],
)  # fmt: skip
def test_schedules_that_do_not_fit_are_refused(name: str, schedule: str, problem: str) -> None:
    with pytest.raises(InvalidSchedule, match=problem):
        generate(kernel_of(name), parse_schedule(schedule), TARGET)


def source_of(kernel: Kernel, schedule: str) -> str:
    return generate(kernel, parse_schedule(schedule), TARGET).source


def of_two_tensors(kernel: Kernel, dtype: str) -> Kernel:
    """The kernel with the second part of its join read from another tensor, of `dtype`."""
    place = 11
    part = kernel.body[place]
    assert isinstance(part, Load)
    assert "max" in ex.to_text(part.index)
    body = (*kernel.body[:place], replace(part, param=1), *kernel.body[place + 1 :])
    params = (kernel.params[0], replace(kernel.params[1], dtype=dtype), *kernel.params[2:])
    return replace(kernel, body=body, params=params)


def test_parts_of_a_join_are_read_under_their_condition_without_clamps() -> None:
    plain = "cuda.pointwise x=64 warps=4 index=32 aligned=1 divisible=0"
    source = source_of(of_two_tensors(kernel_of("rotary_joined_f16"), "bf16"), plain)
    body = source[source.index("def nearhint_") :]
    assert "tl.minimum" not in body
    assert "tl.maximum" not in body
    assert source.count("xmask & v7,") == source.count("xmask & (v7 == 0),") == 1


def test_parts_of_a_join_that_are_of_one_dtype_are_read_where_the_wanted_one_is() -> None:
    plain = "cuda.pointwise x=64 warps=4 index=32 aligned=1 divisible=0"
    source = source_of(of_two_tensors(kernel_of("rotary_joined_f16"), "f16"), plain)
    wanted = "tl.where(v7, a0 + (k2 + x), a1 + (((-1) * k1) + k2 + x))"
    assert f"v8 = tl.load({wanted}, xmask, other=0)" in source
    assert "v11 = v8\n" in source
    assert source.count("tl.load(") == 4


def test_the_wanted_one_of_several_parts_is_read_once() -> None:
    plain = "cuda.pointwise x=64 warps=4 index=32 aligned=1 divisible=0"
    source = source_of(kernel_of("join_of_three_bf16"), plain)
    loads = [line for line in source.splitlines() if "tl.load(" in line]
    assert len(loads) == 1
    assert source.index("v6 = p1 < (2 * k1)") < source.index("v3 = tl.load(tl.where(v2, a0 + ")


def test_parts_of_a_join_that_are_of_one_tensor_are_read_at_once() -> None:
    plain = "cuda.pointwise x=64 warps=4 index=32 aligned=1 divisible=0"
    source = source_of(kernel_of("rotary_joined_f16"), plain)
    assert "v8 = tl.load(a0 + tl.where(v7, (k2 + x), (((-1) * k1) + k2 + x)), xmask, " in source
    assert "v11 = v8\n" in source
    assert source.count("tl.load(") == 4


def test_parts_of_a_join_lie_at_the_flat_index_and_what_loops_share_at_one_remainder() -> None:
    plain = "cuda.pointwise x=64 warps=4 index=32 aligned=1 divisible=0"
    source = source_of(kernel_of("rotary_joined_f16"), plain)
    assert "tl.load(a0 + tl.where(v7, (k2 + x), " in source
    assert source.count("+ (_remainder(x, (k0 * k1), by_k0_k1)), ") == 2


@pytest.mark.parametrize(
    ("name", "schedule", "read_again"),
    [
        ("rotary_f16", "cuda.pointwise x=64 warps=1", {"a1", "a2"}),
        ("rotary_f16", "cuda.tiled z=1 y=2 x=64 cuts=1 warps=1", {"a1", "a2"}),
        ("bias_gelu_f16", "cuda.pointwise x=64 warps=1", {"a1"}),
        ("looked_up_columns_f32", "cuda.looped x=64 r=8 warps=1", set[str]()),
        ("softmax_mask_f16", "cuda.persistent x=2 r=64 warps=1", set[str]()),
        ("group_norm_bf16", "cuda.persistent x=1 r=512 warps=1", {"a1", "a2"}),
        ("residual_layer_norm_f16", "cuda.persistent x=1 r=512 warps=1", set[str]()),
    ],
)
def test_what_outer_loops_read_again_is_to_stay_in_a_cache(
    name: str, schedule: str, read_again: set[str]
) -> None:
    text = f"{schedule} index=32 aligned=0 divisible=0"
    source = generate(kernel_of(name), parse_schedule(text), TARGET).source
    kept = (line for line in source.splitlines() if "evict_last" in line)
    assert {found for line in kept for found in re.findall(r"tl\.load\((a\d)", line)} == read_again


def test_places_are_compared_in_the_width_of_indices() -> None:
    source = source_of(
        kernel_of("rotary_joined_f16"),
        "cuda.pointwise x=64 warps=4 index=32 aligned=1 divisible=0",
    )
    assert "v7 = p2 < (k1 + ((-1) * k2))" in source
    assert "tl.int64" not in source


def test_only_the_last_of_whole_blocks_has_a_mask() -> None:
    plain = "cuda.pointwise x=64 warps=4 index=32 aligned=1 divisible=0"
    added = source_of(kernel_of("add_f32"), f"{plain} whole=1")
    full, last = added.partition("else:")[::2]
    assert "if pid * X + X <= k0:" in full
    assert full.count("tl.load") == last.count("tl.load") == last.count("other=0") == 2
    assert "other=0" not in full
    assert "if pid" not in source_of(kernel_of("add_f32"), plain)


def test_rows_of_any_length_are_read_at_their_flat_index() -> None:
    plain = "cuda.pointwise x=64 warps=4 index=32 aligned=1 divisible=0"
    source = source_of(kernel_of("bias_relu_dynamic_f32"), plain)
    assert "tl.load(a0 + x, " in source
    assert "tl.load(a1 + p1, " in source


@pytest.mark.parametrize(
    ("low", "high", "is_checked"),
    [(-448.0, 448.0, False), (-464.0, 464.0, False), (-448.0, 480.0, True), (None, 448.0, True)],
)
def test_a_cast_to_f8_is_checked_unless_a_clamp_keeps_it_finite(
    low: float | None, high: float, *, is_checked: bool
) -> None:
    bits = [struct.pack("<f", each or 0.0)[::-1].hex().lstrip("0") or "0" for each in (low, high)]
    lower = "(max f32 0 1)" if low is not None else "(add f32 0 1)"
    kernel = parse_kernel(
        f"""(kernel (symbols k0) (pointwise k0) (reduction) (params (in f32) (out f8e4m3fn))
        (body (load 0 p0) (const f32 0x{bits[0]}) {lower} (const f32 0x{bits[1]})
        (min f32 2 3) (cast f8e4m3fn 4) (store 1 p0 5)))"""
    )
    source = source_of(kernel, "cuda.pointwise x=64 warps=4 index=32 aligned=1 divisible=0")
    assert ("_to_f8e4m3fn" in source) == is_checked


@pytest.mark.parametrize(
    ("low", "high", "is_cast"),
    [
        (-448.0, 448.0, "v0"),  # the hardware's cast saturates there
        (-464.0, 448.0, "v0"),
        (-240.0, 448.0, "v4"),
        (-448.0, 447.0, "v4"),
        (448.0, 448.0, "v4"),
    ],
)
def test_a_clamp_that_a_cast_to_f8_does_itself_is_left_to_it(
    low: float, high: float, is_cast: str
) -> None:
    bits = [struct.pack(">f", each).hex() for each in (low, high)]
    kernel = parse_kernel(
        f"""(kernel (symbols k0) (pointwise k0) (reduction) (params (in f32) (out f8e4m3fn))
        (body (load 0 p0) (const f32 0x{bits[0]}) (max f32 0 1) (const f32 0x{bits[1]})
        (min f32 2 3) (cast f8e4m3fn 4) (store 1 p0 5)))"""
    )
    source = source_of(kernel, "cuda.pointwise x=64 warps=4 index=32 aligned=1 divisible=0")
    assert f"v5 = {is_cast}.to(tl.float8e4nv)" in source


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ("cuda.looped x=4 r=32 spread=1", "spread and not in registers"),
        ("cuda.tiled_looped z=1 y=4 x=4 r=32 cuts=1 spread=1", "spread and not in registers"),
        ("cuda.tiled_persistent z=1 y=4 x=4 r=32 cuts=1 spread=1 block_pointers=1", "no access"),
        ("cuda.tiled_persistent z=1 y=4 x=4 r=32 cuts=1 order=-5000", "order of"),
    ],
)
def test_rows_are_spread_over_tiles_in_registers_alone(schedule: str, problem: str) -> None:
    family, _, blocks = schedule.partition(" ")
    text = f"{family} warps=4 index=32 aligned=0 divisible=0 {blocks}"
    with pytest.raises(InvalidSchedule, match=problem):
        source_of(kernel_of("transposed_block_scale_f8e4m3fn"), text)


def test_a_walk_steps_one_accumulator_for_each_group() -> None:
    rest = "x=1 r=64 warps=4 index=32 aligned=1 divisible=0 group=8"
    for name, accumulator in (("softmax_f32", "acc1"), ("row_sum_f32", "acc1")):
        source = source_of(kernel_of(name), f"cuda.looped {rest}")
        assert f"{accumulator} = tl.full([X, R // 8]" in source


def test_short_blocks_of_one_length_are_tiles_by_default_and_so_at_any_size() -> None:
    default, *_, last = candidates(
        kernel_of("transposed_block_scale_f8e4m3fn"), TARGET, {"k0": 1024, "k1": 128}
    )
    assert default.family == "cuda.tiled_persistent"
    assert (last.family, last["index"]) == ("cuda.looped", 64)


def test_tiles_that_are_read_element_by_element_are_small() -> None:
    """So many loads take Triton a second to compile."""
    for k0, k1 in ((1024, 128), (1009, 125)):
        given = kernel_of("transposed_block_scale_f8e4m3fn")
        default, *others = candidates(given, TARGET, {"k0": k0, "k1": k1})
        shares = {
            each: each["x"] * each["y"] * each["r"] / (32 * each["warps"])
            for each in (default, *others)
            if each.family == "cuda.tiled_persistent"
        }
        assert max(share for each, share in shares.items() if not each["divisible"]) <= 64
        assert not default["divisible"]
        assert shares[default] <= 32


def test_columns_are_shared_by_as_many_programs_as_run_at_once() -> None:
    for columns, rows in ((5120, 7000), (1021, 30_011), (32, 131_072)):
        given = kernel_of("column_sum_f32")
        found = candidates(given, TARGET, {"k0": rows, "k1": columns})
        shared = [schedule for schedule in found if schedule.family == "cuda.split"]
        assert shared
        for schedule in shared:
            launch = generate(given, schedule, TARGET).launch
            assert isinstance(launch, CudaLaunch)
            # At the hint, and where there are fewer columns or more.
            for other in (columns, columns * 2 // 3, columns * 3 // 2):
                dims = {"k0": rows, "k1": other}
                programs = prod(ex.evaluate(extent, dims) for extent in launch.grid)
                assert programs * schedule["warps"] <= 132 * 64
                assert programs >= min(schedule["programs"], 2 * -(-other // schedule["x"])) // 2


def test_programs_alone_with_their_columns_keep_processors_busy() -> None:
    for columns in (2048, 5120, 16_384, 131_072):
        found = candidates(kernel_of("column_sum_f32"), TARGET, {"k0": 8192, "k1": columns})
        _, first, *_ = (each for each in found if each.family == "cuda.looped")
        blocks = -(-columns // first["x"])
        # A vector for each thread.
        assert first["x"] * first["r"] == 4 * 32 * first["warps"]
        assert blocks >= 0.9 * 132
        assert blocks * first["warps"] >= 16 * 132


def test_divisions_that_may_meet_negatives_floor() -> None:
    p0, k0 = ex.symbol("p0"), ex.symbol("k0")
    assert index_text(ex.floordiv(p0, 4)) == "(p0 // 4)"
    assert index_text(ex.mod(p0, k0)) == "(p0 % k0)"
    assert index_text(ex.floordiv(ex.sub(p0, 5), 4)) == "_floordiv((p0 + (-5)), 4)"


@pytest.mark.parametrize(
    ("dtype", "bits", "text"),
    [
        ("f32", 0x7F800000, 'float("inf")'),
        ("f32", 0x7FC00000, 'float("nan")'),
        ("f16", 0x3C00, "1.0"),
        ("bf16", 0x3F80, "1.0"),
        ("f64", 0x3FB999999999999A, "0.1"),
        ("i64", 1 << 63, str(-(2**63))),
        ("u8", 0xFF, "255"),
        ("bool", 1, "True"),
    ],
)
def test_constants_are_spelled_by_their_bits(dtype: str, bits: int, text: str) -> None:
    assert constant_text(dtype, bits) == text


def test_hidden_loop_stores_wait_for_the_last_loop() -> None:
    """A store may share memory with an input that a later loop reads again."""
    schedule = parse_schedule("cuda.looped x=1 r=1024 warps=4 index=64 aligned=0 divisible=0")
    generated = generate(kernel_of("residual_rms_norm_bf16"), schedule, TARGET)
    lines = generated.source.splitlines()
    loops = [place for place, line in enumerate(lines) if "    for r" in line]
    stores = [place for place, line in enumerate(lines) if "tl.store" in line]
    assert len(loops) == 2
    assert len(stores) == 2
    assert min(stores) > loops[-1]
    assert isinstance(generated.launch, CudaLaunch)


def test_tiles_that_a_whole_number_of_fills_planes_end_with_them_where_steps_are_counted() -> None:
    text = (KERNELS / "sum_outer_inner_f32.ir").read_text()
    kernel = parse_kernel(text.replace("(symbols k0 k1 k2)", "(symbols k1 k2)").replace("k0", "6"))
    split = "cuda.split x=2 r=16 splits=4 warps=1 index=32 aligned=0 divisible=0"
    masks = [
        generate(kernel, parse_schedule(f"{split}{more} r1=8"), TARGET).source.count("(r0 < 6)")
        for more in ("", " programs=64", " unroll=2 programs=64")
    ]
    assert masks == [0, 1, 0]
