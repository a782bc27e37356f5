"""Rows that data names, on a real device: every kind of Kernel by the Schedules offered for it."""

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
from nearhint_daemon.workers.errors import KernelOversized
from nearhint_daemon.workers.toolchain import detect, for_kind
from nearhint_daemon.workers.verify import References, verify
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.canonical import content_hash
from nearhint_rules.target import Target

pytestmark = pytest.mark.gpu

HINTS = {
    "embedded_layer_norm_f16": (128, 384, 500, 64),
    "looked_up_rms_norm_bf16": (300, 70),
    "paged_rows_f32": (64, 8, 128, 40, 16),
    "gathered_elements_f32": (256, 32, 700),
    "rotated_at_places_bf16": (4, 8, 33, 64, 500),
    "looked_up_columns_f32": (96, 256, 200),
    "cross_entropy_bf16": (20, 9000),
    "logs_of_choices_f32": (20, 9000),
}
MOST = 8


@pytest.mark.parametrize("name", HINTS)
def test_all_that_is_offered_reads_the_rows_that_are_named(name: str) -> None:
    target = Target(cuda_device(0), for_kind("cuda", detect()))
    kernel = kernel_of(name)
    dims = dict(zip(kernel.symbols, HINTS[name], strict=True))
    references, verified = References(), 0
    for schedule in candidates(kernel, target, dims)[:MOST]:
        generated = generate(kernel, schedule, target)
        with tempfile.TemporaryDirectory() as folder:
            try:
                built = compile_cubin(generated, target, scratch=Path(folder))
            except KernelOversized:
                continue
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
        verified += 1
    assert verified >= 4
