"""Block pointers: offered beside the same Schedule without, where an access can have one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.legality import check_kernel
from nearhint_compiler.schedule import Schedule, candidates, cuda, parse_schedule
from nearhint_compiler.schedule.block_pointers import TWINS
from nearhint_compiler.schedule.choice import MAX_LIMIT, choose
from nearhint_daemon.workers.cubin import compile_cubin
from nearhint_rules import expr as ex
from nearhint_rules.guard import ALWAYS
from nearhint_rules.program import DTYPES

REST = "warps=4 index=32 aligned=0 divisible=0"
TILED = f"cuda.tiled z=1 y=16 x=32 cuts=1 {REST} block_pointers=1"


def is_pointed(schedule: Schedule) -> bool:
    return bool(schedule.get("block_pointers", 0))


@pytest.mark.parametrize(
    ("name", "dims", "count"),
    [
        ("softmax_f32", (512, 1024), 2),
        ("transpose_add_f32", (512, 512), 1),
        ("bias_relu_dynamic_f32", (512, 512), 1),
        ("row_cumsum_f32", (8, 128_256), 2),
        ("column_sum_f32", (512, 512), 0),  # contiguous along another axis than the last
        ("plane_norm_bf16", (64, 16, 512), 0),  # rows that are no single run
        ("add_f32", (4096,), 0),  # flat
        ("one_row_softmax_f32", (4096,), 0),  # no rows to step over
    ],
)
def test_few_are_offered_and_none_is_the_default_or_the_last(
    name: str, dims: tuple[int, ...], count: int
) -> None:
    kernel = kernel_of(name)
    sizes = dict(zip(kernel.symbols, dims, strict=True))
    found = cuda.candidates(kernel, TARGET, sizes, limit=MAX_LIMIT)
    assert not any(map(is_pointed, candidates(kernel, TARGET, sizes)))
    pointed = [each for each in found if is_pointed(each)]
    assert len(pointed) == count <= TWINS
    assert not is_pointed(found[0])
    assert not is_pointed(found[-1])
    assert ALWAYS in (generate(kernel, each, TARGET).guard for each in (found[0], found[-1]))
    for each in pointed:
        plain = parse_schedule(str(each).replace(" block_pointers=1", ""))
        assert plain in found
        assert generate(kernel, each, TARGET).guard == generate(kernel, plain, TARGET).guard
        assert generate(kernel, each, TARGET).flags == generate(kernel, plain, TARGET).flags


def test_only_accesses_of_the_whole_block_change() -> None:
    source = generate(kernel_of("bias_relu_dynamic_f32"), parse_schedule(TILED), TARGET).source
    assert source.count("tl.load(tl.make_block_ptr(") == 1
    assert source.count("tl.store(tl.make_block_ptr(") == 1
    assert source.count("tl.load(") == 2  # the bias has one element a column
    assert "boundary_check=[0, 1], padding_option=" in source


def test_where_blocks_fill_the_rows_no_bounds_are_checked() -> None:
    text = f"cuda.looped x=1 r=128 {REST} block_pointers=1"
    source = generate(kernel_of("layer_norm_f32"), parse_schedule(text), TARGET).source
    assert "tl.load(tl.make_block_ptr(" in source
    assert "boundary_check" not in source


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("column_sum_f32", f"cuda.looped x=32 r=32 {REST} block_pointers=1"),
        ("add_f32", f"cuda.pointwise x=128 {REST} block_pointers=1"),
        ("softmax_f32", f"cuda.looped x=1 r=64 {REST} block_pointers=1".replace("=32", "=64")),
        ("plane_norm_bf16", f"cuda.looped x=1 r=64 {REST} r1=16 block_pointers=1"),
    ],
)
def test_where_no_access_can_have_one_they_are_refused_and_left_out_of_a_search(
    name: str, schedule: str
) -> None:
    kernel, wrong = kernel_of(name), parse_schedule(schedule)
    with pytest.raises(InvalidSchedule):
        generate(kernel, wrong, TARGET)
    dims = dict.fromkeys(kernel.symbols, 512)
    chosen = choose(kernel, TARGET, dims, effort="full", transferred=[wrong])
    reasons = {each.schedule: each.reason for each in chosen.pruned}
    assert reasons[wrong] == "no access can have a block pointer"


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_compiles(dtype: str, tmp_path: Path) -> None:
    """Booleans stay with plain pointers, beside bytes that do not."""
    k0, k1, p0, p1 = map(ex.symbol, ("k0", "k1", "p0", "p1"))
    at = ex.add(ex.mul(p0, k1), p1)
    params = (ir.Param("in", dtype), ir.Param("in", "i8"), ir.Param("out", dtype))
    body = (ir.Load(0, at), ir.Load(1, at), ir.Op("cast", "i32", (1,)), ir.Store(2, at, 0))
    kernel = check_kernel(ir.Kernel(("k0", "k1"), (k0, k1), (), params, body))
    generated = generate(kernel, parse_schedule(TILED), TARGET)
    assert generated.source.count("make_block_ptr") == (1 if dtype == "bool" else 3)
    assert compile_cubin(generated, TARGET, scratch=tmp_path).binary.startswith(b"\x7fELF")
