"""Sums at places that data names, on a real device: many threads onto one place, and few."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from tests.unit.compiler.kernels import kernel_of

from nearhint.launchers.detect_cuda import cuda_device
from nearhint_compiler.codegen import generate
from nearhint_compiler.schedule import candidates
from nearhint_daemon.workers.cubin import compile_cubin
from nearhint_daemon.workers.cuda_subject import CudaSubject
from nearhint_daemon.workers.toolchain import detect, for_kind
from nearhint_daemon.workers.verify import References, verify
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.canonical import content_hash
from nearhint_rules.target import Target

pytestmark = pytest.mark.gpu

HINTS: dict[str, list[tuple[int, ...]]] = {
    "added_at_two_places_f32": [(9000,)],
    "added_elements_i64": [(64, 2000, 3), (100, 300, 5000)],
    "added_in_the_middle_f32": [(8, 64, 500, 33)],
    "added_rows_bf16": [(256, 600, 2), (4096, 512, 3000)],
    "added_rows_f32": [(256, 8192, 1), (96, 5000, 700), (37, 3001, 20_000)],
    "counts_f32": [(400_000, 1), (70_001, 300)],
    "least_elements_i32": [(64, 2000, 3)],
}


@pytest.mark.parametrize("name", HINTS)
def test_all_that_is_offered_adds_each_point_once(name: str) -> None:
    target = Target(cuda_device(0), for_kind("cuda", detect()))
    kernel, references = kernel_of(name), References()
    for sizes in HINTS[name]:
        dims = dict(zip(kernel.symbols, sizes, strict=True))
        for schedule in candidates(kernel, target, dims):
            generated = generate(kernel, schedule, target)
            with tempfile.TemporaryDirectory() as folder:
                built = compile_cubin(generated, target, scratch=Path(folder))
            reference = ArtifactRef(content_hash(built.binary), len(built.binary), built.launch)
            verdict = verify(
                kernel,
                CudaSubject(built.binary, reference, device_index=0),
                generated.guard,
                [dims],
                threads=1,
                seed=5,
                references=references,
            )
            assert verdict.problem == "", schedule
