"""Scatters in generated C: each element has its terms in the order of the loops, as eager's has."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import kernel_of, largest_at_places
from tests.unit.compiler.native import LEVELS, Native, check, compile_kernel

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_daemon.workers.cases import sizes_at
from nearhint_rules.artifact import CHECKED_ENTRY

SIZES: dict[str, list[tuple[int, ...]]] = {
    "added_at_two_places_f32": [(70,)],
    "added_elements_i64": [(9, 40, 61), (1, 5, 3)],
    "added_in_the_middle_f32": [(3, 5, 31, 6), (2, 133, 4, 9)],
    "added_rows_f32": [(24, 40, 61), (1300, 40, 9), (3, 90, 1)],
    "counts_f32": [(150, 61)],
    "largest_elements_i64": [(9, 40, 61)],
    "largest_rows_f32": [(24, 40, 61)],
    "least_elements_i32": [(9, 40, 61)],
}


def drawn(kernel: ir.Kernel, dims: tuple[int, ...], seed: int) -> list[np.ndarray]:
    """Inputs of which the integers are places that there are."""
    random = np.random.default_rng(seed)
    sizes = dict(zip(kernel.symbols, dims, strict=True))
    counts = sizes_at(kernel, sizes).elements
    scatter = ir.scatter_of(kernel)
    assert scatter is not None
    most = min(5, dims[-1]) if "k" in str(scatter.size) else 5
    return [
        random.integers(0, most, count).astype({"i64": np.int64, "i32": np.int32}[param.dtype])
        if param.dtype[0] == "i"
        else random.standard_normal(count).astype(np.float32)
        for param, count in zip(kernel.params, counts, strict=True)
        if param.role == "in"
    ]


def scattering(name: str) -> ir.Kernel:
    """The kernel of that name, which adds, or which finds the largest instead."""
    kind, kernel = name.split("_", 1)
    if kind != "largest":
        return kernel_of(name)
    return largest_at_places(kernel_of(f"added_{kernel}"))


def variants(name: str, folder: Path, level: str) -> list[Native]:
    kernel, at = scattering(name), LEVELS[level]
    return [compile_kernel(kernel, schedule, folder, at=at) for schedule in candidates(kernel, at)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", SIZES)
def test_points_are_added_where_their_places_say(name: str, level: str, tmp_path: Path) -> None:
    for native in variants(name, tmp_path, level):
        for dims in SIZES[name]:
            inputs = drawn(native.kernel, dims, seed=len(dims))
            for threads in (1, 3):
                check(native, dims, inputs, threads=threads)


def test_a_single_point_is_added_to_a_single_place(tmp_path: Path) -> None:
    kernel = parse_kernel(
        "(kernel (symbols) (pointwise) (reduction) (params (in i64) (in f32) (out f32)) (body"
        " (load 0 0) (load 1 0) (const f32 0x0) (scatter sum f32 2 0 1 1 0 2 1)))"
    )
    at = LEVELS["portable"]
    for schedule in candidates(kernel, at):
        native = compile_kernel(kernel, schedule, tmp_path, at=at)
        check(native, (), [np.zeros(1, np.int64), np.full(1, 2.5, np.float32)], threads=1)


def test_terms_are_added_in_the_order_of_the_loops_by_any_number_of_threads(
    tmp_path: Path,
) -> None:
    for native in variants("added_rows_f32", tmp_path, "portable"):
        dims = (200, 300, 4)
        places, x, weights = drawn(native.kernel, dims, seed=1)
        wanted = np.zeros((4, 200), np.float32)
        for place, row, weight in zip(places, x.reshape(300, 200), weights, strict=True):
            wanted[place] += row * weight
        for threads in (1, 2, 7):
            found = np.full(800, np.nan, np.float32)
            native.run(dims, [places, x, weights, found], threads=threads)
            np.testing.assert_array_equal(found, wanted.ravel())


@pytest.mark.parametrize("name", ["added_rows_f32", "counts_f32"])
@pytest.mark.parametrize("place", [-1, 4])
def test_it_tells_of_a_place_that_there_is_not_and_writes_nothing_there(
    name: str, place: int, tmp_path: Path
) -> None:
    for native in variants(name, tmp_path, "portable"):
        dims = {"added_rows_f32": (9, 30, 4), "counts_f32": (30, 4)}[name]
        inputs = drawn(native.kernel, dims, seed=2)
        entry = native.library[CHECKED_ENTRY]
        entry.restype = ctypes.c_int32
        found = np.full(4 * dims[0] + 64, 7.0, np.float32)
        arrays = [*inputs, found[32:]]
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        sizes = (ctypes.c_int64 * len(dims))(*dims)
        assert entry(pointers, sizes, 2) == 0
        inputs[0][11] = place
        assert entry(pointers, sizes, 2) == 1
        written = 4 * (dims[0] if len(dims) > 2 else 1)
        assert (found[:32] == 7).all()
        assert (found[32 + written :] == 7).all()
