"""Columns of which few lie beside one another have programs as wide as their runs."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import TARGET

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.cuda_facts import facts_of
from nearhint_compiler.schedule.cuda_short_runs import MOST_SPLITS, short_runs
from nearhint_rules.guard import ALWAYS

MEANS = """(kernel (symbols k0 k1) (pointwise k0 {run}) (reduction k1) (params (in u8) (out f32))
  (body (load 0 (+ (* {run} k1 p0) (* {run} r0) p1)) (cast f32 0) (reduce sum f32 1)
    (store 1 (+ (* {run} p0) p1) 2)))"""


@pytest.mark.parametrize(
    ("run", "dims", "family"),
    [
        (3, (64, 50_400), "split"),
        (3, (3, 2_066_040), "split"),
        (4, (3, 2_066_040), "split"),
        (2, (64, 50_400), "split"),
        (3, (301, 3192), "looped"),
        (3, (64, 300), None),
        (1, (64, 50_400), None),
        (5, (64, 50_400), None),
        (64, (64, 50_400), None),
    ],
)
def test_blocks_are_as_wide_as_a_run_of_few(
    run: int, dims: tuple[int, int], family: str | None
) -> None:
    kernel = parse_kernel(MEANS.format(run=run))
    sizes = dict(zip(kernel.symbols, dims, strict=True))
    found = tuple(short_runs(facts_of(kernel, TARGET, sizes)))
    assert [each.family for each in found[:1]] == ([f"cuda.{family}"] if family else [])
    offered = candidates(kernel, TARGET, sizes)
    layouts = {(each.family, each["x"], each["r"]) for each in offered}
    assert {(each.family, each["x"], each["r"]) for each in found} <= layouts
    for each in found:
        assert each["x"] == (2 if run == 2 else 4)
        assert each.get("splits", 1) <= MOST_SPLITS
        generate(kernel, each, TARGET)
    assert generate(kernel, offered[-1], TARGET).guard == ALWAYS
