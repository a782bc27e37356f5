"""A daemon whose compiler brings forth kernels that crash, hang and overrun: none is ever served.

The bench worker, the verification and the launchers are real; the compile worker is a stand-in that
answers with C written by hand.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.integration.daemon_in_process import Client, hints_of, running
from tests.integration.fake_workers import FakeCompilePool
from tests.integration.waiting import until
from tests.unit.workers.building import SYMBOLS, compiled, hand_written, node, tensor

from nearhint.launchers.detect import cpu_device
from nearhint_daemon.workers.compile_worker import lower_program
from nearhint_daemon.workers.pool import BenchPool
from nearhint_proto import convert
from nearhint_proto.v1 import kernel_service_pb2, operation_service_pb2
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules import expr as ex
from nearhint_rules.program import Program, Ref

RIGHT = "for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];"
BODIES: Mapping[str, str] = {
    "right": RIGHT,
    "crashes": "raise(SIGSEGV);",
    "hangs": "for (volatile int forever = 1; forever;) {}",
    "overruns": f"{RIGHT} y[n] = 0;",
    "is_wrong": "for (int64_t i = 0; i < n; i++) y[i] = x[i];",
    "right_too": "for (int64_t i = n; i-- > 0;) y[i] = 2 * x[i];",
}
"""By Schedule; the first is the default."""
VERIFY_TIMEOUT_S = 3.0
TUNE_S = 90.0

X = tensor(ex.symbol("s0"))
DOUBLE = Program(SYMBOLS[:1], (X,), (node("add.Tensor", Ref(0), Ref(0), makes=(X,)),), (1,))

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.timeout(180),
]


def hostile(folder: Path) -> FakeCompilePool:
    def answer(job: str, request: pb.WorkerRequest) -> pb.WorkerResponse:
        response = pb.WorkerResponse(id=request.id)
        match job:
            case "lower_program":
                response.lowered.CopyFrom(lower_program(request.lower_program))
            case "list_schedules":
                response.schedules.CopyFrom(pb.Schedules(schedules=BODIES))
            case "choose_first":
                response.schedules.CopyFrom(pb.Schedules())
            case _:
                generated = hand_written(BODIES[request.compile_variant.schedule])
                binary, artifact = compiled(generated, folder)
                message = convert.artifact_to_proto(artifact)
                response.compiled.CopyFrom(
                    pb.Compiled(artifact=message, binary=binary, source=generated.source)
                )
        return response

    return FakeCompilePool(faults=answer)


async def ended(client: Client, name: str) -> operation_service_pb2.Operation:
    watch = operation_service_pb2.WatchOperationRequest(id=name)
    last = operation_service_pb2.Operation()
    async for response in client.operations.WatchOperation(watch, timeout=TUNE_S):
        last = response.operation
    return last


def test_hostile_kernels_are_quarantined_with_a_reproducer_and_never_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearhint_daemon.workshop.VERIFY_TIMEOUT_S", VERIFY_TIMEOUT_S)
    lost: list[str] = []

    async def scenario() -> None:
        # Typed as the stand-in that `running` is made for.
        bench: Any = BenchPool(("cpu",), on_restart=lambda kind, reason: lost.append(reason))
        compile_pool = hostile(tmp_path)
        async with running(
            tmp_path, compile=compile_pool, bench=bench, measure_budget_s=0.3, threads=1
        ) as daemon:
            await until(lambda: daemon.core.devices.states()[0].device is not None)
            request = kernel_service_pb2.RegisterProgramRequest(
                program=convert.program_to_proto(DOUBLE),
                device=convert.device_to_proto(cpu_device()),
            )
            first = await daemon.client.kernels.RegisterProgram(request, timeout=TUNE_S)
            await daemon.client.finished(first.operation.id)
            registered = await daemon.client.kernels.RegisterProgram(request, timeout=TUNE_S)
            # No job is lost: both hints reach T2, and the Variants behind a crash are verified.
            operation = await daemon.client.ensure(registered, 64, 2048)
            operation = await ended(daemon.client, operation.id)
            assert (operation.state, operation.failed) == (
                operation_service_pb2.OPERATION_STATE_DONE,
                0,
            )
            (table,) = await daemon.client.tables_of(registered)
            assert {variant.schedule for variant in table.variants} == {"right", "right_too"}
            assert [row.dims for row in hints_of(table)] == [(64,), (2048,)]
            assert [row.tier for row in table.hints] == [2] * 4  # and two companions
            assert daemon.core.state == "serving"
            assert lost.count("died") == 2
            assert lost.count("hung") == 2
            assert daemon.core.quarantine.count() == 2
            reproduced: dict[str, set[str]] = {}
            for place in ("quarantine", "rejected"):
                folders = list((daemon.core.config.state_dir / place).iterdir())
                keys = [(folder / "key.txt").read_text().strip() for folder in folders]
                reproduced[place] = {key.rpartition("/")[2] for key in keys}
                lost_a_worker = place == "quarantine"
                assert all((folder / "repro.py").exists() == lost_a_worker for folder in folders)
            assert reproduced["quarantine"] == {"crashes", "hangs"}
            assert reproduced["rejected"] == {"overruns", "is_wrong"}
            # What was given up is neither compiled nor run again.
            compiles, restarts = compile_pool.asked["compile_variant"], len(lost)
            again = await daemon.client.ensure(registered, 512)
            assert (await ended(daemon.client, again.id)).failed == 0
            assert (compile_pool.asked["compile_variant"], len(lost)) == (compiles, restarts)

    asyncio.run(scenario())
