"""Generated C of rows that no near cache holds: what is asked for before it is read, and when."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import KERNELS, kernel_of
from tests.unit.compiler.native import AVX2, LEVELS, check, compile_kernel, encode, target

from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.c.far import FAR_ELEMENTS
from nearhint_compiler.schedule import candidates, parse_schedule
from nearhint_daemon.workers.cases import awkward_sizes, sizes_at
from nearhint_rules import expr as ex
from nearhint_rules.guard import ALWAYS
from nearhint_rules.target import Target

AVX512 = target(("avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "f16c", "fma"))
ROWS = "cpu.rows axis=0 lanes=16 unroll=2 short=1 stash=0 split=0"
BESIDE = f"{ROWS} beside=256"
ROW_SUM, LAYER_NORM, SOFTMAX = "row_sum_f32", "layer_norm_dynamic_f32", "softmax_f32"


def function(kernel: str, name: str, schedule: str = ROWS) -> str:
    """The text of a function of the C for machines with vectors of 512 bits; "" for none."""
    source = generate(kernel_of(kernel), parse_schedule(schedule), AVX512).source
    found = re.search(rf"^static void {name}\(.*?^}}$", source, re.DOTALL | re.MULTILINE)
    return found[0] if found else ""


def asked(text: str) -> set[str]:
    """The parameters that are asked for."""
    return set(re.findall(r"__builtin_prefetch\((\w+)", text))


def walks(text: str) -> list[str]:
    """The loops over full vectors, one a walk."""
    return re.findall(r"for \(; r0 \+ \d+ <= \w+; r0 \+= \d+\) \{(.*?)\n +\}", text, re.DOTALL)


def test_the_first_walk_reads_in_halves_and_later_ones_ask_for_what_comes() -> None:
    sums, squares, values = walks(function(LAYER_NORM, "far_rows"))
    assert "load_halves_f32" in sums
    assert "load_halves_f32" not in squares + values
    assert asked(sums) == set()
    assert asked(squares) == {"out3"}, "before the walk that stores"
    assert asked(values) == {"in0"}, "of the next rows; what all rows share is in a cache"
    assert "next_rows" in values
    assert "next_rows" not in squares


def test_what_is_kept_in_an_output_is_asked_for_before_it_is_written() -> None:
    schedule = ROWS.replace("stash=0", "stash=8192")
    largest, exponentials, quotients = walks(function(SOFTMAX, "far_rows", schedule))
    assert asked(largest) == {"out1"}
    assert asked(exponentials) == {"in0"}
    assert asked(quotients) == set()


def test_a_line_is_asked_for_once_a_step() -> None:
    _, squares, _ = walks(function(LAYER_NORM, "far_rows"))
    assert squares.count("__builtin_prefetch") == 2, "two vectors of a line each"
    _, squares, _ = walks(function(LAYER_NORM, "far_rows", ROWS.replace("lanes=16", "lanes=8")))
    assert squares.count("__builtin_prefetch") == 1


def test_two_walks_of_which_one_stores_ask_for_nothing() -> None:
    text = function("rms_norm_bf16", "far_rows")
    assert asked(text) == set()
    assert asked(function("logsumexp_f32", "far_rows")) == {"in0"}, "none of these stores"


def test_a_single_walk_asks_where_rows_lie_beside_each_other() -> None:
    assert asked(function(ROW_SUM, "far_rows", BESIDE)) == set()
    assert asked(function(ROW_SUM, "far_rows_beside_up_to_256", BESIDE)) == {"in0"}
    assert asked(function(ROW_SUM, "rows_beside_up_to_256", BESIDE)) == set()


@pytest.mark.parametrize(("lanes", "at"), [(8, AVX512), (8, AVX2)])
def test_only_vectors_of_a_line_are_read_in_halves(lanes: int, at: Target) -> None:
    schedule = parse_schedule(ROWS.replace("lanes=16", f"lanes={lanes}"))
    assert "halves" not in generate(kernel_of(LAYER_NORM), schedule, at).source


def test_what_is_not_otherwise_has_one_function() -> None:
    schedule = parse_schedule(ROWS.replace("lanes=16", "lanes=8"))
    source = generate(kernel_of(ROW_SUM), schedule, AVX512).source
    assert "far" not in source
    assert "far" not in generate(kernel_of("row_argmax_f32"), parse_schedule(ROWS), AVX512).source


def test_a_length_that_is_known_has_the_functions_that_it_may_want() -> None:
    source = generate(kernel_of("layer_norm_f32"), parse_schedule(BESIDE), AVX512).source
    (length,) = kernel_of("layer_norm_f32").reduction
    assert isinstance(length, ex.Int)
    assert length.value > 256
    names = re.findall(r"^static void (\w*rows\w*)\(", source, re.MULTILINE)
    assert names == ["far_rows", "rows"]


def test_rows_that_no_stash_holds_are_walked_as_near_ones_are() -> None:
    source = generate(
        kernel_of("softmax_mask_f16"), parse_schedule(ROWS.replace("stash=0", "stash=512")), AVX512
    ).source
    names = re.findall(r"^static void (\w*rows\w*)\(", source, re.MULTILINE)
    assert names == ["rows_of_1", "far_rows_with_stash", "rows_with_stash", "rows"]


@pytest.mark.parametrize("level", ["machine", "avx2"])
@pytest.mark.parametrize(
    "name", [LAYER_NORM, SOFTMAX, ROW_SUM, "layer_norm_f16", "logsumexp_f32", "plane_norm_bf16"]
)
def test_far_rows_are_right_wherever_they_begin(tmp_path: Path, name: str, level: str) -> None:
    kernel = kernel_of(name)
    default = candidates(kernel, LEVELS[level], {})[0]
    native = compile_kernel(kernel, default, tmp_path, at=LEVELS[level])
    random = np.random.default_rng(0)
    for columns in (101, 193, 643):
        rows = -(-5 * FAR_ELEMENTS // (2 * columns))
        dims = dict(zip(kernel.symbols, (rows, columns), strict=False))
        sizes = sizes_at(
            kernel, dims if len(kernel.symbols) < 3 else {"k0": 3, "k1": rows // 3, "k2": columns}
        )
        inputs = [
            encode(param.dtype, random.uniform(-2.0, 2.0, count))
            for param, count in zip(kernel.params, sizes.elements, strict=True)
            if param.role == "in"
        ]
        for threads in (1, 2):
            check(native, tuple(sizes.dims.values()), inputs, threads=threads)


@pytest.mark.parametrize("name", sorted(path.stem for path in KERNELS.glob("*.ir")))
def test_far_rows_are_among_those_that_verification_walks(name: str) -> None:
    """Whatever the lengths are that Schedules differ by: long rows, and some beside each other."""
    kernel = kernel_of(name)
    if not kernel.reduction or not kernel.symbols:
        return
    found = [sizes for sizes in awkward_sizes(kernel, ALWAYS) if sizes.points > FAR_ELEMENTS]
    assert found
    if kernel.pointwise == (ex.symbol("k0"),) and kernel.reduction == (ex.symbol("k1"),):
        lengths = {math.prod(sizes.reduction) for sizes in found}
        assert min(lengths) <= 275
        assert max(lengths) >= 643
