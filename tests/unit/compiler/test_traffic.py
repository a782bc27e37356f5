"""Bytes read and written: each distinct element once, by what the loops touch."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import KERNELS

from nearhint_compiler.analysis.traffic import traffic
from nearhint_compiler.ir.text import parse_kernel
from nearhint_rules import expr as ex

SIZES = {"k0": 24, "k1": 100, "k2": 7}

EXPECTED = {
    "add_f32": (8 * 24, 4 * 24),
    "layer_norm_f32": (4 * (24 * 384 + 2 * 384), 4 * 24 * 384),
    "column_sum_f32": (4 * 24 * 100, 4 * 100),
    "scalars_f16": (2 * 24, 2 * 24),
}
"""Kernel -> bytes read and written at `SIZES`; what all rows share counts once."""


@pytest.mark.parametrize("name", EXPECTED)
def test_each_element_is_read_and_written_once(name: str) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text(encoding="ascii"))
    found = traffic(kernel)
    sizes = {symbol: SIZES[symbol] for symbol in kernel.symbols}
    assert (ex.evaluate(found.read, sizes), ex.evaluate(found.written, sizes)) == EXPECTED[name]
