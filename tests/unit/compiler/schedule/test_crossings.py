"""Where in a bucket another schedule may win."""

from __future__ import annotations

import pytest
from tests.unit.compiler.test_online import TARGET, kernel_of

from nearhint_compiler.schedule import crossings
from nearhint_rules.target import CpuDevice, Target

CPU = Target(CpuDevice("AMD EPYC", ("avx2",), "glibc 2.36"), ("cc 12.2.0",))


@pytest.mark.parametrize(
    ("name", "hint", "other"),
    [
        ("softmax_f32", (512, 4096), (512, 5792)),
        ("softmax_f32", (512, 64), (512, 80)),
        ("softmax_f32", (512, 8192), (512, 11584)),
        ("softmax_f32", (512, 2816), (512, 5792)),  # beyond the block of 4096
        ("softmax_f32", (512, 32), None),  # shorter than it matters
        ("softmax_f32", (512, 16_384), None),  # registers hold no longer one
        ("layer_norm_f32", (512,), None),  # rows of one length
        ("column_sum_f32", (4096, 4096), None),  # rows that lie across
    ],
)
def test_rows_that_registers_may_hold_cross_at_the_far_end_of_their_block(
    name: str, hint: tuple[int, ...], other: tuple[int, ...] | None
) -> None:
    kernel = kernel_of(name)
    dims = dict(zip(kernel.symbols, hint, strict=True))
    expected = () if other is None else (dict(zip(kernel.symbols, other, strict=True)),)
    assert crossings(kernel, TARGET, dims) == expected
    assert crossings(kernel, CPU, dims) == ()
