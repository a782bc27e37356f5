"""Scans of long rows that programs share: which schedules, in what stages, with which workspace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.triton.ops import LOG1P
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.legality import check_kernel
from nearhint_compiler.schedule import candidates, parse_schedule
from nearhint_compiler.schedule.choice import choose
from nearhint_daemon.workers.cubin import compile_cubin, read_flags
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CudaLaunch, StageArgument, WorkspaceArgument
from nearhint_rules.guard import ALWAYS, AtMost, size_facts_hold

SPLIT = "cuda.split x=2 r=64 splits=5 warps=4 index=32 aligned=0 divisible=0"
PROMISES = "index=32 aligned=0 divisible=0"


@pytest.mark.parametrize(
    ("name", "dims", "family"),
    [
        ("row_cumsum_f32", (8, 128_256), "cuda.split"),
        ("row_cumprod_f64", (1, 8192), "cuda.split"),
        ("column_cumprod_i64", (32, 65_536), "cuda.split"),
        ("normalised_cumsum_bf16", (4, 50_000), "cuda.split"),
        ("row_cumsum_f32", (300, 128_256), "cuda.looped"),  # a row for every processor
        ("row_cumsum_f32", (8, 1021), "cuda.looped"),  # not worth a second launch
        ("row_sum_f32", (8, 128_256), "cuda.looped"),  # no scan
    ],
)
def test_few_long_rows_of_a_scan_are_shared_by_default(
    name: str, dims: tuple[int, ...], family: str
) -> None:
    kernel = kernel_of(name)
    sizes = dict(zip(kernel.symbols, dims, strict=True))
    found = choose(kernel, TARGET, sizes, effort="full").schedules
    assert found[0].family == family
    assert generate(kernel, found[-1], TARGET).guard == ALWAYS


def test_a_shared_row_is_never_persistent_and_every_form_has_the_signature_of_the_others() -> None:
    kernel = kernel_of("normalised_cumsum_bf16")
    offered = candidates(kernel, TARGET, {"k0": 4, "k1": 16_000})
    assert {"cuda.split", "cuda.looped", "cuda.persistent"} == {each.family for each in offered}
    signatures = {
        each: dict(read_flags(generate(kernel, each, TARGET).flags).signature)
        for each in offered
        if each["index"] == 32
    }
    whole = [signature for each, signature in signatures.items() if "splits" not in str(each)]
    assert all(signature == whole[0] for signature in whole)
    for each, signature in signatures.items():
        extra = {name: kind for name, kind in signature.items() if name not in whole[0]}
        assert list(signature)[: len(whole[0])] == list(whole[0])
        # Maximum and sum, then the totals of the scan, then the last maximum.
        left = {**{f"w{number}": "*fp32" for number in range(4)}, "stage": "i32"}
        assert extra == (left if each.family == "cuda.split" else {})


def test_stages_grid_and_workspace_follow_the_rows_and_the_parts() -> None:
    launch = generate(kernel_of("row_cumsum_f32"), parse_schedule(SPLIT), TARGET).launch
    assert isinstance(launch, CudaLaunch)
    sizes = {"k0": 7, "k1": 1001}
    assert launch.stages == 2
    assert [ex.evaluate(size, sizes) for size in launch.grid] == [4 * 5, 1, 1]
    assert launch.arguments[-2:] == (WorkspaceArgument(ex.ZERO), StageArgument())
    assert ex.evaluate(launch.workspace_bytes, sizes) == 4 * 48  # 35 totals, whole 16s
    guard = generate(kernel_of("row_cumsum_f32"), parse_schedule(SPLIT), TARGET).guard
    assert AtMost(ex.mul(5, ex.symbol("k0")), 2**31 - 1) in guard.facts
    assert size_facts_hold(guard, {"k0": 1, "k1": 1})


def test_a_part_starts_from_those_before_it_and_the_first_pass_stores_nothing() -> None:
    source = generate(kernel_of("row_cumsum_f32"), parse_schedule(SPLIT), TARGET).source
    first, second = source.split("if stage == 1:")
    assert "tl.store(a" not in first
    assert "associative_scan" not in first
    assert "(part < chunk)" in second
    assert second.count("tl.load(a0") == 1


@pytest.mark.parametrize(
    ("kind", "dtype"), [(kind, dtype) for kind, dtypes in ir.SCANS.items() for dtype in dtypes]
)
def test_every_scan_compiles_in_stages(kind: str, dtype: str, tmp_path: Path) -> None:
    k0, k1, p0, r0 = map(ex.symbol, ("k0", "k1", "p0", "r0"))
    at = ex.add(ex.mul(p0, k1), r0)
    params = (ir.Param("in", dtype), ir.Param("out", dtype))
    body = (ir.Load(0, at), ir.Scan(kind, dtype, 0), ir.Op("neg", dtype, (1,)), ir.Store(1, at, 2))
    kernel = check_kernel(ir.Kernel(("k0", "k1"), (k0,), (k1,), params, body))
    wide = parse_schedule("cuda.split x=1 r=1024 splits=64 warps=4 index=64 aligned=0 divisible=0")
    built = compile_cubin(generate(kernel, wide, TARGET), TARGET, scratch=tmp_path)
    assert isinstance(built.launch, CudaLaunch)
    assert built.launch.stages == 2


def test_a_step_of_a_scan_of_log_sums_has_the_digits_of_f32() -> None:
    t = np.linspace(0.0, 1.0, 100_001)[1:]
    error = np.abs(np.polyval(LOG1P, t) * t / np.log1p(t) - 1)
    assert error.max() < np.finfo(np.float32).eps
