"""The pinned sizes of the GPU sweep, and the sizes at which its Tables are made.

Rows first: one to 100 003; columns from 32 to 128 256; odd and prime sizes beside those of models;
at most about 2 GB are moved. What is compiled, or tuned by hand, is so at other sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from tests.benchmarks import sweep_functions as of
from tests.benchmarks.cpu_cases import layer_norm
from tests.benchmarks.gpu_sweep_adjacent import ADJACENT_SWEEPS
from tests.benchmarks.gpu_sweep_applied import APPLIED_SWEEPS
from tests.benchmarks.gpu_sweep_composed import COMPOSED_SWEEPS
from tests.benchmarks.gpu_sweep_deployed import DEPLOYED_SWEEPS
from tests.benchmarks.gpu_sweep_everyday import EVERYDAY_SWEEPS
from tests.benchmarks.gpu_sweep_further import FURTHER_SWEEPS
from tests.benchmarks.gpu_sweep_kindred import KINDRED_SWEEPS
from tests.benchmarks.gpu_sweep_looked_up import LOOKED_UP_SWEEPS
from tests.benchmarks.gpu_sweep_mixed import MIXED_SWEEPS
from tests.benchmarks.gpu_sweep_others import OTHER_SWEEPS
from tests.benchmarks.gpu_sweep_served import SERVED_SWEEPS
from tests.benchmarks.gpu_sweep_strided import STRIDED_SWEEPS
from tests.benchmarks.gpu_sweep_trained import TRAINED_SWEEPS
from tests.benchmarks.sweeps import Sizes, Sweep, ones_of, rows_alone, starts_of

from nearhint_rules.hints import bucket

LEAST_ROWS = 2
"""Of a capture of several."""
MIDDLE = (2040, 1984)
"""Where what takes a matrix is compiled. Both multiples of an MX block."""
_BF16 = torch.bfloat16
_MANY = ((1, 5120), (7000, 5120), (30_011, 1021), (100_003, 32), (8, 128_256), (1021, 128_256))
_FEW = ((1, 5120), (7000, 5120), (509, 1021), (100_003, 32), (300, 128_256))
_BLOCKED = ((1, 5120), (7000, 5120), (30_011, 992), (100_003, 32), (8, 128_256), (1021, 128_256))
_BLOCKED_FEW = ((1, 5120), (7000, 5120), (509, 992), (100_003, 32), (300, 128_256))
_SQUARE = (8192, 8192)

TRANSPOSED_MX = f"mx_quantise_transposed bf16 {_SQUARE[0]}x{_SQUARE[1]}"
"""The point with a bar of its own."""

_PLANES = ((1, 96, 5120), (7, 509, 1021), (64, 256, 3137), (100_003, 3, 32), (8, 3, 128_256))
_PERMUTED = ((1, 5120, 33), (61, 509, 1021), (1009, 127, 515), (100_003, 3, 32), (5, 7, 128_256))
_HEADS = ((1, 32, 128), (509, 7, 66), (4001, 32, 128), (16_411, 8, 96), (100_003, 3, 32))


def _both(sweep: Sweep, few: tuple[Sizes, ...] | None = None) -> tuple[Sweep, Sweep]:
    """The sweep in bf16 and in f32, which may have sizes of its own."""
    return replace(sweep, dtype=_BF16), replace(sweep, sizes=few or sweep.sizes)


SWEEPS: tuple[Sweep, ...] = (
    *_both(Sweep("softmax", of.softmax, of.matrix, MIDDLE, _MANY), _FEW),
    *_both(Sweep("rms_norm_residual", of.rms_norm_residual, of.matrix_and_rows(1, matrices=2),
                 MIDDLE, _MANY), _FEW),
    *_both(Sweep("layer_norm", layer_norm, of.matrix_and_rows(2), MIDDLE, _MANY), _FEW),
    *_both(Sweep("column_sum", of.column_sum, of.matrix, MIDDLE, _MANY,
                 magnitudes=of.column_magnitudes), _FEW),
    *_both(Sweep("mx_quantise", of.mx_quantise, of.matrix, MIDDLE, _BLOCKED, unit=of.BLOCK),
           _BLOCKED_FEW),
    *_both(Sweep("mx_quantise_transposed", of.mx_quantise_transposed, of.transposed_matrix,
                 (1984, 2048), (_SQUARE, (7001, 5120), (1009, 4000), (32, 100_000), (1, 5120),
                                (128_256, 992))),
           ((7001, 5120), (1009, 4000), (32, 100_000), (1, 5120), (40_013, 992))),
    *_both(Sweep("swiglu", of.swiglu, of.two_matrices, MIDDLE, _MANY), _FEW),
    *_both(Sweep("dequantise", of.dequantise, of.matrix_and_column, MIDDLE, _MANY,
                 prepare=of.int8_weight), _FEW),
    *_both(Sweep("permute_add", of.permute_add, of.permuted_planes, (120, 136, 150), _PERMUTED)),
    *_both(Sweep("rotary", of.rotary, of.heads, (2040, 12, 72), _HEADS)),
    *_both(Sweep("var_mean", of.var_mean, of.planes, (120, 136, 150), _PLANES,
                 magnitudes=of.var_mean_magnitudes)),
    *_both(Sweep("argmax", of.argmax, of.matrix, MIDDLE, _MANY), _FEW),
    *_both(Sweep("cumsum", of.cumsum, of.matrix, MIDDLE, _MANY,
                 magnitudes=of.cumsum_magnitudes), _FEW),
    *_both(Sweep("log_softmax", of.log_softmax, of.matrix, MIDDLE, _MANY), _FEW),
)  # fmt: skip


FUNCTIONS: dict[str, tuple[Sweep, ...]] = {
    "pinned": SWEEPS,
    "others": OTHER_SWEEPS,
    "further": FURTHER_SWEEPS,
    "looked_up": LOOKED_UP_SWEEPS,
    "strided": STRIDED_SWEEPS,
    "served": SERVED_SWEEPS,
    "mixed": MIXED_SWEEPS,
    "trained": TRAINED_SWEEPS,
    "deployed": DEPLOYED_SWEEPS,
    "composed": COMPOSED_SWEEPS,
    "applied": APPLIED_SWEEPS,
    "everyday": EVERYDAY_SWEEPS,
    "kindred": KINDRED_SWEEPS,
    "adjacent": ADJACENT_SWEEPS,
}
FUNCTIONS["all"] = tuple(sweep for sweeps in FUNCTIONS.values() for sweep in sweeps)
"""Sets of sweeps; no two sweeps have one title."""


def sweeps_of(mode: str, functions: str = "pinned") -> tuple[Sweep, ...]:
    """What is captured once each: mode "a", all dimensions dynamic; mode "b", the rows alone."""
    return tuple(part for each in FUNCTIONS[functions] for part in parts_of(each, mode))


def parts_of(sweep: Sweep, mode: str) -> tuple[Sweep, ...]:
    """What of a sweep is captured once each in a mode."""
    return (sweep,) if mode == "a" else rows_alone(sweep)


def starts_for_tuning(sweep: Sweep, mode: str) -> list[Sizes]:
    """Where a sweep is captured to be tuned: for each of its captures a bucket that is tuned
    anyhow, if there is one; sizes all different, and those of tensors where they are so at
    `compiled_at`, so that no two are taken for one symbol.
    """
    hints = {ones_of(sweep, hint): hint for hint in reversed(hints_of(sweep, mode))}
    found: list[Sizes] = []
    for start in starts_of(sweep, sweep.compiled_at):
        hint = hints.get(ones_of(sweep, start))
        if hint is None:
            found.append(start)
        elif mode == "a":
            found.append(_all_apart(sweep, hint, like=start))
        else:
            found.append(_rows_apart(sweep, hint, like=start))
    return found


def _rows_apart(sweep: Sweep, sizes: Sizes, *, like: Sizes) -> Sizes:
    """The same with so many rows that no size of a tensor that follows them is another, fixed one,
    but where it is so at `like`.
    """
    expected = _equal_sizes(sweep, _rows_different(like))
    found = _rows_different(sizes)
    while _equal_sizes(sweep, found) != expected and found[0] > LEAST_ROWS:
        found = _rows_different((found[0] - max(found[0] // 16, 1), *found[1:]))
    return found


def _all_apart(sweep: Sweep, sizes: Sizes, *, like: Sizes) -> Sizes:
    """All different, and no two sizes of tensors equal that are not so at `like`: twice one may be
    another.
    """
    expected = _equal_sizes(sweep, like)
    found = _all_different(sizes)
    for place, size in enumerate(found[:-1]):
        if _equal_sizes(sweep, found) == expected:
            break
        if size == 1:
            continue  # of another capture
        found = _all_different((*found[:place], size - max(size // 16, 1), *found[place + 1 :]))
    return found


def _equal_sizes(sweep: Sweep, sizes: Sizes) -> frozenset[tuple[int, int]]:
    """The places of equal sizes among those of the tensors that a sweep's case has."""
    found = [size for shape in sweep.case(sizes).shapes for size in shape]
    return frozenset(
        (place, other)
        for place, size in enumerate(found)
        for other in range(place)
        if found[other] == size
    )


def _all_different(sizes: Sizes) -> Sizes:
    found = sizes[-1:]
    for size in reversed(sizes[:-1]):
        found = _rows_different((size, *found))
    return found


def _rows_different(sizes: Sizes) -> Sizes:
    rows, *others = sizes
    while rows in others:
        rows -= max(1, rows // 16)
    return (rows, *others)


def hints_of(sweep: Sweep, mode: str, *, measured: Sequence[Sizes] | None = None) -> list[Sizes]:
    """The sizes that are tuned for a sweep: of each bucket that is met, a power of two for each
    dynamic size, but none that is measured: half the rows then, or twice as many, as one row is
    another capture's. One row stays one row.
    """
    measured = sweep.sizes if measured is None else measured
    found: dict[Sizes, None] = {}
    for sizes in measured:
        wanted = bucket(sizes) if mode == "a" else (*bucket(sizes[:1]), *sizes[1:])
        if sizes[0] == 1:
            wanted = (1, *wanted[1:])
        elif wanted in measured:
            rows = wanted[0] // 2 if wanted[0] > LEAST_ROWS else 2 * wanted[0]
            wanted = (rows, *wanted[1:])
        found[wanted] = None
    return list(found)
