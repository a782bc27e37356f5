"""An index that rounding may have moved passes; a wrong one never does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.workers.building import compiled, hand_written

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_daemon.workers.subjects import CpuSubject
from nearhint_daemon.workers.ties import is_exact, rounded_arg
from nearhint_daemon.workers.verify import References, Verdict, verify
from nearhint_rules.guard import ALWAYS

SATURATED = parse_kernel("""
    (kernel (symbols k0 k1) (pointwise k0) (reduction k1)
      (params (in f32) (out i64))
      (body (load 0 (+ (* k1 p0) r0))
            (const f32 0x41000000)
            (mul f32 0 1)
            (sigmoid f32 2)
            (arg max f32 3 r0)
            (store 1 p0 4)))
""")
"""argmax(sigmoid(8 * x)): in f32 many elements are 1."""
PLAIN = parse_kernel("""
    (kernel (symbols k0 k1) (pointwise k0) (reduction k1)
      (params (in f32) (out i64))
      (body (load 0 (+ (* k1 p0) r0))
            (abs f32 0)
            (arg max f32 1 r0)
            (store 1 p0 2)))
""")
LOOP = """
    int64_t *places = parameters[1];
    const int64_t columns = dims[1];
    for (int64_t row = 0; row < n; row++) {{
        int64_t best = 0;
        float most = -INFINITY;
        for (int64_t i = 0; i < columns; i++) {{
            const float value = {value};
            if ({better}) {{ best = i; most = value; }}
        }}
        places[row] = {result};
    }}
    (void)y;
"""
SIGMOID = "1 / (1 + expf(-8 * x[row * columns + i]))"
PLAIN_VALUE = "fabsf(x[row * columns + i])"
FIRST = "!(value <= most) && !isnan(most)"
LAST = "!(value < most) && !isnan(most)"


def verdict(
    kernel: ir.Kernel, folder: Path, *, value: str, better: str = FIRST, result: str = "best"
) -> Verdict:
    source = hand_written(LOOP.format(value=value, better=better, result=result))
    subject = CpuSubject(*compiled(source, folder))
    hints = [{"k0": 40, "k1": 3000}]
    return verify(kernel, subject, ALWAYS, hints, threads=1, seed=1, references=References())


def test_equals_after_rounding_may_be_exchanged(tmp_path: Path) -> None:
    assert verdict(SATURATED, tmp_path, value=SIGMOID).problem == ""
    # Which of the equals it is does not matter either, where rounding made them equal.
    assert verdict(SATURATED, tmp_path, value=SIGMOID, better=LAST).problem == ""


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (SIGMOID.replace("-8", "8"), "best"),
        (SIGMOID, "best + 1"),
        (SIGMOID, "columns"),
        (SIGMOID, "-1 - best"),
        (SIGMOID, "row % 40 == 39 ? 0 : best"),
    ],
)
def test_a_wrong_index_fails(value: str, result: str, tmp_path: Path) -> None:
    found = verdict(SATURATED, tmp_path, value=value, result=result)
    assert "output 1" in found.problem


def test_without_rounding_the_first_of_equals_is_wanted(tmp_path: Path) -> None:
    assert rounded_arg(PLAIN, 1) is None
    assert verdict(PLAIN, tmp_path, value=PLAIN_VALUE).problem == ""
    found = verdict(PLAIN, tmp_path, value=PLAIN_VALUE, result="best + 1 < columns ? best + 1 : 0")
    assert "output 1" in found.problem


def test_what_counts_as_rounded() -> None:
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise) (reduction k0)
          (params (in bf16) (in i64) (out i64))
          (body (load 0 r0)
                (cast f32 0)
                (max f32 1 1)
                (reduce max f32 2)
                (sub f32 2 3)
                (load 1 r0)
                (cast f32 5)
                (add i64 5 5)
                (lt bool 4 1)
                (arg max f32 4 r0)
                (store 2 0 9)))
    """)
    exact = [True, True, True, True, False, True, False, True, False, False]
    assert is_exact(kernel)[:10] == tuple(exact)
    assert rounded_arg(kernel, 2) == kernel.body[9]
