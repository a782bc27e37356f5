"""Generated C of tiles, whose inputs are turned round, at every level and width."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import KERNELS
from tests.unit.compiler.native import LEVELS, WIDTHS, compile_kernel, encode

from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule
from nearhint_rules import expr as ex

WIDTHS_OF_TILES = [*WIDTHS, ("avx2", 4)]


def kernel(name: str) -> ir.Kernel:
    return parse_kernel((KERNELS / f"{name}.ir").read_text())


@pytest.mark.parametrize(
    "options",
    ["unroll=2 across=0 tile=64", "unroll=2 across=0 tile=128 rows=32",
     "unroll=2 across=0 tile=32 rows=64", "unroll=1 across=0 tile=64 rows=128 squares=1",
     "unroll=2 across=0 tile=16 rows=32 squares=2", "unroll=2 across=0 tile=64 rows=32 squares=2",
     "unroll=4 across=0 tile=64 rows=48 squares=1",
     "unroll=1 across=0 tile=128 rows=128 squares=1",
     "unroll=1 across=0 tile=128 rows=512 squares=1 ahead=8",
     "unroll=1 across=0 tile=64 rows=64 squares=1 ahead=2"],
)  # fmt: skip
@pytest.mark.parametrize(("level", "lanes"), WIDTHS_OF_TILES)
def test_tiles_turn_every_dtype(level: str, lanes: int, options: str, tmp_path: Path) -> None:
    rows, columns = ex.symbol("k0"), ex.symbol("k1")
    row, column = ex.symbol("p0"), ex.symbol("p1")
    schedule = parse_schedule(f"cpu.tiles axis=1 lanes={lanes} {options}")
    for dtype in ("f64", "f32", "bf16", "f8e5m2", "bool"):
        body = (
            ir.Load(0, ex.add(ex.mul(column, rows), row)),
            ir.Store(1, ex.add(ex.mul(row, columns), column), 0),
        )
        params = (ir.Param("in", dtype), ir.Param("out", dtype))
        given = ir.Kernel(("k0", "k1"), (rows, columns), (), params, body)
        native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
        # Rows of 256 elements are crowded, whatever their dtype, and get several squares at once;
        # tiles of some are as tall as the last, which has rows of three.
        # Fewer rows than a strip has, a few more, and sides that it is moved back at come first.
        sizes = (
            *((1, 1), (3, 67), (67, 3), (35, 5), (140, 23), (130, 65), (64, 64), (33, 81)),
            *((256, 81), (80, 256), (1152, 40), (1024, 128), (90, 256)),
            # Blocks of lines where vectors are lines: up to 256 KB, and where no cache holds all.
            *(((1281, 1301),) if dtype == "f32" and "ahead" in options else ()),
        )
        for dims in sizes:
            bits = np.random.default_rng(0).integers(0, 2, dims, np.uint8)
            x = encode(dtype, bits.astype(np.float64))
            got = np.zeros(dims[::-1], x.dtype)
            native.run(dims[::-1], [x, got], threads=2)
            assert (got == x.T).all()


@pytest.mark.parametrize(("level", "lanes"), WIDTHS_OF_TILES)
def test_staged_tiles_turn_every_dtype(level: str, lanes: int, tmp_path: Path) -> None:
    rows, columns = ex.symbol("k0"), ex.symbol("k1")
    row, column = ex.symbol("p0"), ex.symbol("p1")
    options = "unroll=2 across=0 tile=64 rows=32 squares=1 staged=1"
    schedule = parse_schedule(f"cpu.tiles axis=1 lanes={lanes} {options}")
    for dtype in ("f64", "f32", "bf16", "f8e5m2", "bool"):
        body = (
            ir.Load(0, ex.add(ex.mul(column, rows), row)),
            ir.Store(1, ex.add(ex.mul(row, columns), column), 0),
        )
        params = (ir.Param("in", dtype), ir.Param("out", dtype))
        given = ir.Kernel(("k0", "k1"), (rows, columns), (), params, body)
        native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
        # Rows of 1024 elements are crowded; others go as they would if nothing were staged. Some
        # are fewer than a strip has, or a few more than tiles have.
        for dims in ((1, 1024), (3, 2048), (70, 1024), (259, 1024), (515, 1024), (65, 1000)):
            bits = np.random.default_rng(0).integers(0, 2, dims, np.uint8)
            x = encode(dtype, bits.astype(np.float64))
            got = np.zeros(dims[::-1], x.dtype)
            native.run(dims[::-1], [x, got], threads=2)
            assert (got == x.T).all()


@pytest.mark.parametrize(("level", "lanes"), WIDTHS_OF_TILES)
@pytest.mark.parametrize("dims", [(5, 41), (9, 70), (40, 33), (130, 67), (128, 1024), (1024, 133)])
@pytest.mark.parametrize(
    "steps",
    ["unroll=2 squares=2", "unroll=1 squares=1", "unroll=1 squares=1 staged=1",
     "unroll=1 squares=1 ahead=4"],
)  # fmt: skip
def test_what_is_written_where_it_is_read_is_done_once(
    dims: tuple[int, int], steps: str, level: str, lanes: int, tmp_path: Path
) -> None:
    """Squares that are moved back do again what is done: not so where that changed what is read."""
    options = f"across=0 tile=64 rows=64 {steps}"
    schedule = parse_schedule(f"cpu.tiles axis=1 lanes={lanes} {options}")
    native = compile_kernel(kernel("transpose_add_f32"), schedule, tmp_path, at=LEVELS[level])
    for apart in (False, True):
        x = np.random.default_rng(0).normal(size=dims).astype(np.float32)
        y = np.random.default_rng(1).normal(size=dims[::-1]).astype(np.float32)
        expected, got = x + y.T, np.zeros_like(x) if apart else x
        native.run(dims, [y, x, got], threads=2)
        assert (got == expected).all()


@pytest.mark.parametrize(("level", "lanes"), WIDTHS_OF_TILES)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_several_inputs_are_turned_for_one_tile(
    dtype: str, level: str, lanes: int, tmp_path: Path
) -> None:
    """Of narrow elements the later ones are turned in pairs of squares."""
    rows, columns = ex.symbol("k0"), ex.symbol("k1")
    row, column = ex.symbol("p0"), ex.symbol("p1")
    turned = ex.add(ex.mul(column, rows), row)
    read: list[ir.BodyNode] = [ir.Load(place, turned) for place in range(3)]
    read += [ir.Op("cast", "f32", (place,)) for place in range(3) if dtype != "f32"]
    last = len(read) - 3
    body = (
        *read,
        ir.Op("add", "f32", (last, last + 1)),
        ir.Op("add", "f32", (last + 2, last + 3)),
        ir.Store(3, ex.add(ex.mul(row, columns), column), last + 4),
    )
    params = (*[ir.Param("in", dtype)] * 3, ir.Param("out", "f32"))
    given = ir.Kernel(("k0", "k1"), (rows, columns), (), params, body)
    schedule = parse_schedule(f"cpu.tiles axis=1 lanes={lanes} unroll=2 across=0 tile=64 rows=64")
    native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
    for dims in ((1, 1), (33, 81), (67, 35), (130, 65), (64, 128)):
        bits = np.random.default_rng(0).integers(0, 8, (3, *dims), np.uint8)
        values = [encode(dtype, each.astype(np.float64)) for each in bits]
        got = np.zeros(dims[::-1], np.float32)
        native.run(dims[::-1], [*values, got], threads=2)
        assert (got == bits.sum(0).T).all()


@pytest.mark.parametrize(
    "sides",
    ["tile=12", "tile=64 rows=0", "tile=64 rows=20", "tile=256", "tile=64 squares=4",
     "tile=64 squares=-1", "tile=64 staged=1", "tile=64 squares=2 staged=1", "tile=64 ahead=4",
     "tile=64 squares=1 ahead=4", "tile=24 rows=64 unroll=1 squares=1 ahead=4",
     "tile=64 rows=24 unroll=1 squares=1 ahead=4"],
)  # fmt: skip
def test_tiles_that_do_not_fit_are_refused(sides: str, tmp_path: Path) -> None:
    more = sides if "unroll" in sides else f"unroll=2 {sides}"
    schedule = parse_schedule(f"cpu.tiles axis=1 lanes=8 across=0 {more}")
    with pytest.raises(InvalidSchedule):
        compile_kernel(kernel("transpose_add_f32"), schedule, tmp_path)
