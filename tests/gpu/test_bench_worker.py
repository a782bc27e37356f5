"""The bench worker on a real device: right and wrong binaries, and a device that breaks."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nearhint.launchers.detect_cuda import cuda_device
from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel, print_kernel
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_daemon.workers.cubin import compile_cubin
from nearhint_daemon.workers.cuda_watch import watch_of
from nearhint_daemon.workers.inputs import TensorSpec, random_tensor
from nearhint_daemon.workers.pool import BenchPool
from nearhint_proto.convert import artifact_to_proto, guard_to_proto
from nearhint_proto.convert_table import size_hint_to_proto
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.target import Target

pytestmark = pytest.mark.gpu

KERNELS = Path(__file__).parents[1] / "kernels"
PLAIN = "cuda.pointwise x=1024 warps=4 index=64 aligned=0 divisible=0"


def request(scratch: Path, *, change: tuple[str, str] = ("", "")) -> pb.WorkerRequest:
    """Asks to verify add_f32, its source changed."""
    target = Target(cuda_device(0), ("triton",))
    kernel = parse_kernel((KERNELS / "add_f32.ir").read_text())
    generated = generate(kernel, parse_schedule(PLAIN), target)
    before, after = change
    assert before in generated.source
    changed = replace(generated, source=generated.source.replace(before, after))
    built = compile_cubin(changed if before else generated, target, scratch=scratch)
    artifact = ArtifactRef(
        hashlib.sha256(built.binary).hexdigest(), len(built.binary), built.launch
    )
    binary = pb.BinaryCandidate(
        artifact=artifact_to_proto(artifact),
        binary=built.binary,
        guard=guard_to_proto(generated.guard),
    )
    return pb.WorkerRequest(
        verify_variant=pb.VerifyVariant(
            kernel_ir=print_kernel(kernel),
            candidate=pb.Candidate(id="add", binary=binary),
            sizes=[size_hint_to_proto({"k0": 4096})],
            threads=1,
            seed=1,
        )
    )


@asynccontextmanager
async def pool() -> AsyncGenerator[BenchPool, None]:
    found = BenchPool(["cuda:0"])
    found.start()
    try:
        yield found
    finally:
        await found.stop()


async def verdicts(requests: list[pb.WorkerRequest]) -> list[pb.WorkerResponse]:
    async with pool() as bench:
        return [await bench.run(job, device="cuda:0", timeout_s=60) for job in requests]


def test_a_right_binary_passes(tmp_path: Path) -> None:
    (answer,) = asyncio.run(verdicts([request(tmp_path)]))
    assert answer.verdict.is_ok, answer
    assert answer.verdict.cases > 3


def test_a_device_copies_from_memory_not_from_its_cache() -> None:
    copy = pb.MeasureCopy(threads=1, budget_s=0.5, memory_limit_bytes=2 << 30)
    (answer,) = asyncio.run(verdicts([pb.WorkerRequest(measure_copy=copy)]))
    copied = answer.measured_copy
    assert copied.bytes_moved > 4 * torch.cuda.get_device_properties(0).L2_cache_size
    assert copied.bytes_moved / copied.timing.median_ns > 10  # GB/s: any device has more
    assert "cold cache, two buffers of" in copied.conditions


def test_a_device_that_is_timed_says_its_clock_its_heat_and_who_else_is_there() -> None:
    watch = watch_of(0)
    assert watch is not None, "the driver has no management library"
    torch.ones(1, device="cuda:0").sum().item()
    assert isinstance(watch.is_disturbed(), bool)
    found = re.match(r"(\d+) MHz, (\d+) C.*, (\d+) other processes, (\d+) at work$", watch.words())
    assert found is not None, watch.words()
    clock_mhz, heat_c, others, at_work = map(int, found.groups())
    assert 100 < clock_mhz < 5000
    assert 10 < heat_c < 110
    assert at_work <= others


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8e4m3fn", "i64", "bool"])
def test_inputs_of_a_contest_are_drawn_by_the_device(dtype: str) -> None:
    spec = TensorSpec(dtype, (300, 5), (5, 1), "cuda")
    first, second = (
        random_tensor(spec, "native", "cuda:0", torch.Generator("cuda:0").manual_seed(3), scale=1.0)
        for _ in range(2)
    )
    assert (first.is_cuda, first.shape) == (True, (300, 5))
    assert torch.equal(first.double(), second.double())
    assert first.double().std() > 0.3


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("v0 + v1", "v0 - v1"), "is"),
        (("a2 + (tl.broadcast_to(p0", "a2 + 1 + (tl.broadcast_to(p0"), ""),
        (("a2 + (tl.broadcast_to(p0", "a2 + 2**40 + (tl.broadcast_to(p0"), ""),
    ],
)
def test_a_wrong_binary_fails_and_the_next_job_is_served(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    wrong, right = request(tmp_path, change=change), request(tmp_path)
    first, second = asyncio.run(verdicts([wrong, right]))
    assert not first.verdict.is_ok
    assert problem in first.verdict.problem
    assert second.verdict.is_ok, second
