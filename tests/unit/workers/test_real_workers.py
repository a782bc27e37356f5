"""The real workers through their pools: from a Program to timings, and what they are."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from tests.unit.workers.building import norm

from nearhint.launchers.openmp import runtimes_in
from nearhint_daemon.workers.clock import last_cache_bytes
from nearhint_daemon.workers.pool import BenchPool, CompilePool
from nearhint_daemon.workers.toolchain import for_kind
from nearhint_proto.convert import (
    device_from_proto,
    program_to_proto,
    size_hint_to_proto,
    target_to_proto,
)
from nearhint_proto.v1 import types_pb2
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.target import Target

TIMEOUT_S = 120.0
SIZES = {"s0": 2, "s1": 8}

pytestmark = pytest.mark.timeout(300)


@asynccontextmanager
async def workers(folder: Path) -> AsyncGenerator[tuple[CompilePool, BenchPool]]:
    compilers = CompilePool(1, scratch_root=folder)
    bench = BenchPool(("cpu",), scratch_root=folder)
    compilers.start()
    bench.start()
    try:
        yield compilers, bench
    finally:
        await asyncio.gather(compilers.stop(), bench.stop())
        assert list(folder.iterdir()) == []


async def ask(pool: CompilePool | BenchPool, request: pb.WorkerRequest) -> pb.WorkerResponse:
    response = await pool.run(request, timeout_s=TIMEOUT_S)
    assert response.WhichOneof("result") != "error", response.error
    return response


async def compiled_variants(
    compilers: CompilePool, target: types_pb2.Target, kernel: pb.KernelText
) -> list[pb.Candidate]:
    listed = await ask(
        compilers,
        pb.WorkerRequest(
            list_schedules=pb.ListSchedules(
                kernel_ir=kernel.ir, target=target, hint=size_hint_to_proto({"k0": 16})
            )
        ),
    )
    found: list[pb.Candidate] = []
    for schedule in listed.schedules.schedules[:2]:
        job = pb.CompileVariant(kernel_ir=kernel.ir, schedule=schedule, target=target)
        compiled = (await ask(compilers, pb.WorkerRequest(compile_variant=job))).compiled
        binary = pb.BinaryCandidate(
            artifact=compiled.artifact, binary=compiled.binary, guard=compiled.guard
        )
        found.append(pb.Candidate(id=schedule, binary=binary))
    return found


def test_a_program_becomes_verified_and_timed_variants(tmp_path: Path) -> None:
    async def run() -> None:
        async with workers(tmp_path) as (compilers, bench):
            device = device_from_proto((await bench.hello()).device)
            toolchain = for_kind("cpu", await compilers.toolchain())
            target = target_to_proto(Target(device, toolchain))
            job = pb.LowerProgram(program=program_to_proto(norm()), target_kind="cpu")
            lowered = (await ask(compilers, pb.WorkerRequest(lower_program=job))).lowered
            (kernel,), (fallback,) = lowered.kernels, lowered.fallbacks
            candidates = await compiled_variants(compilers, target, kernel)

            for candidate in candidates:
                verify = pb.VerifyVariant(
                    kernel_ir=kernel.ir,
                    candidate=candidate,
                    sizes=[size_hint_to_proto({"k0": 16})],
                    threads=2,
                    seed=3,
                )
                verdict = (await ask(bench, pb.WorkerRequest(verify_variant=verify))).verdict
                assert verdict.is_ok, verdict.problem
            check = pb.CheckLowering(kernel_ir=kernel.ir, fallback=fallback, seed=2**64 - 1)
            verdict = (await ask(bench, pb.WorkerRequest(check_lowering=check))).verdict
            assert verdict.is_ok, verdict.problem
            measure = pb.MeasureHint(
                kernel_ir=kernel.ir,
                fallback=fallback,
                sizes=size_hint_to_proto(SIZES),
                candidates=[*candidates, pb.Candidate(id="ops", fallback=True)],
                threads=2,
                cache="warm",
                budget_s=0.2,
                memory_limit_bytes=1 << 30,
                seed=5,
            )
            measured = (await ask(bench, pb.WorkerRequest(measure_hint=measure))).measured
            assert len(measured.candidates) == len(candidates) + 1
            assert all(entry.timing.median_ns > 0 for entry in measured.candidates)
            assert "2 threads, warm cache" in measured.conditions

            copy = pb.MeasureCopy(threads=2, budget_s=0.1, memory_limit_bytes=1 << 30)
            copied = (await ask(bench, pb.WorkerRequest(measure_copy=copy))).measured_copy
            assert copied.bytes_moved > 4 * last_cache_bytes()
            assert copied.timing.median_ns > 0
            assert "2 threads, cold cache, two buffers of" in copied.conditions

            (pid,) = bench.pids()
            maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
            assert len(runtimes_in(maps)) == 1
            for pid in (*bench.pids(), *compilers.pids()):
                worker = psutil.Process(pid)
                assert os.sched_getscheduler(pid) == os.SCHED_IDLE or worker.nice() == 19
                assert os.getsid(pid) == pid
                assert "state" not in " ".join(worker.cmdline())

    asyncio.run(run())


def test_a_measurement_that_may_gives_way_and_the_worker_lives_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with workers(tmp_path) as (compilers, bench):
            job = pb.LowerProgram(program=program_to_proto(norm()), target_kind="cpu")
            lowered = (await ask(compilers, pb.WorkerRequest(lower_program=job))).lowered
            request = pb.WorkerRequest(
                measure_hint=pb.MeasureHint(
                    kernel_ir=lowered.kernels[0].ir,
                    fallback=lowered.fallbacks[0],
                    sizes=size_hint_to_proto(SIZES),
                    candidates=[pb.Candidate(id="ops", fallback=True)],
                    threads=1,
                    cache="cold",
                    budget_s=0.5,
                    memory_limit_bytes=1 << 30,
                    seed=5,
                )
            )
            await ask(bench, request)
            (pid,) = bench.pids()
            for gives_way, result in ((True, "error"), (False, "measured")):
                request.measure_hint.gives_way = gives_way
                asked = asyncio.ensure_future(bench.run(request, timeout_s=TIMEOUT_S))
                while not asked.done():
                    bench.interrupt("cpu")
                    await asyncio.wait({asked}, timeout=0.001)
                assert asked.result().WhichOneof("result") == result
                if gives_way:
                    assert asked.result().error.code == "DEVICE_WANTED"
            assert bench.pids() == (pid,)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (pb.WorkerRequest(verify_variant=pb.VerifyVariant(kernel_ir="(kernel")), "KERNEL_INVALID"),
        (pb.WorkerRequest(measure_hint=pb.MeasureHint(cache="tepid")), "REQUEST_INVALID"),
        (pb.WorkerRequest(lower_program=pb.LowerProgram()), "REQUEST_INVALID"),
    ],
)
def test_a_request_that_means_nothing_is_a_typed_answer(
    request_: pb.WorkerRequest, code: str, tmp_path: Path
) -> None:
    async def run() -> None:
        bench = BenchPool(("cpu",), scratch_root=tmp_path)
        try:
            response = await bench.run(request_, timeout_s=TIMEOUT_S)
            assert response.error.code == code, response.error
        finally:
            await bench.stop()

    asyncio.run(run())


def test_the_pools_load_none_of_what_their_workers_need() -> None:
    script = (
        "import sys; import nearhint_daemon.workers.pool;"
        "print(*{'torch', 'triton', 'numpy', 'sympy', 'nearhint', 'nearhint_compiler'}"
        " & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == ""
