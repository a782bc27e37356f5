"""Requests that are wrong, too big or hostile: a typed error that names the field."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.integration.daemon_in_process import Running, kernels_in, running
from tests.integration.fake_workers import CPU, FakeBenchPool, chain
from tests.integration.statuses import details
from tests.integration.waiting import until

from nearhint_daemon.metrics import JOB_KINDS
from nearhint_daemon.server import MODULES
from nearhint_daemon.services import boundary
from nearhint_daemon.services.admin import AdminService
from nearhint_daemon.traffic import histograms as traffic
from nearhint_daemon.traffic.histograms import CLIENT_CALLS
from nearhint_daemon.traffic.usage import CALLS_LIMIT, SIZES_LIMIT
from nearhint_proto import convert
from nearhint_proto.v1 import (
    admin_service_pb2,
    kernel_service_pb2,
    operation_service_pb2,
    program_pb2,
    types_pb2,
)
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.artifact import ArtifactRef, CpuLaunch
from nearhint_rules.expr import Int
from nearhint_rules.guard import Guard
from nearhint_rules.program import Program

Spoil = Callable[[program_pb2.Program], None]


def _cycle(program: program_pb2.Program) -> None:
    program.nodes[0].inputs[0] = 2
    program.nodes[0].args[0].ref = 2


def _deep(program: program_pb2.Program) -> None:
    expr = types_pb2.Expr(symbol="s0")
    for _ in range(44):
        expr = types_pb2.Expr(mod=types_pb2.Expr.Pair(left=expr, right=types_pb2.Expr(constant=7)))
    program.inputs[0].tensor.shape[0].CopyFrom(expr)


def _rename(name: str) -> Spoil:
    def spoil(program: program_pb2.Program) -> None:
        program.symbols[0].name = name

    return spoil


def _op(name: str) -> Spoil:
    def spoil(program: program_pb2.Program) -> None:
        program.nodes[0].op = name

    return spoil


def _swap(program: program_pb2.Program) -> None:
    for expr in (
        program.inputs[0].tensor.shape[0],
        *(out.tensor.shape[0] for node in program.nodes for out in node.outputs),
    ):
        expr.symbol = "s7"
    program.symbols[0].name = "s7"


def _huge(program: program_pb2.Program) -> None:
    program.symbols[0].high = 2**62


def _size(value: int) -> Spoil:
    def spoil(program: program_pb2.Program) -> None:
        program.inputs[0].tensor.shape[0].CopyFrom(types_pb2.Expr(constant=value))

    return spoil


def _missing_output(program: program_pb2.Program) -> None:
    program.outputs[0].value = 99


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (_cycle, "program.nodes[0]"),
        (_deep, "program.inputs[0]"),
        (_rename('s0"; system("x'), "program.symbols[0].name"),
        (_rename("s0\n"), "program.symbols[0].name"),
        (_op("__import__('os').system"), "program.nodes[0].op"),
        (_op("aten.relu.default\n"), "program.nodes[0].op"),
        (_swap, "program.symbols"),
        (_huge, "program.symbols[0].high"),
        (_missing_output, "program.outputs[0]"),
        (_size(-1), "program.inputs[0].shape"),
        (_size(2**62), "program.inputs[0].shape"),
    ],
)
def test_a_malformed_program_is_refused_with_the_field(
    tmp_path: Path, spoil: Spoil, field: str
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            message = convert.program_to_proto(chain(2))
            spoil(message)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.kernels.RegisterProgram(
                    kernel_service_pb2.RegisterProgramRequest(
                        program=message, device=convert.device_to_proto(CPU)
                    ),
                    timeout=20,
                )
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert str(details(caught.value)["field"]).startswith(field)
            assert daemon.compile.asked["lower_program"] == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["KernelService/RegisterProgram", "TableService/WatchTables"])
def test_bytes_that_are_no_message_are_refused_and_counted(
    tmp_path: Path, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    service, _, name = method.partition("/")

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            send: Callable[..., Any] = daemon.client.channel.unary_unary(f"/nearhint.v1.{method}")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await send(b"\xff", timeout=20)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert details(caught.value) == {"reason": "SPEC_INVALID"}
            counted = daemon.core.metrics.rpcs.labels(service, name, "INVALID_ARGUMENT")
            await until(lambda: counted._value.get() == 1)

    asyncio.run(scenario())
    assert "Traceback" not in capfd.readouterr().err  # else a client fills the disk with tracebacks


def test_a_request_over_the_size_limit_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            message = convert.program_to_proto(chain(1))
            message.label = "x" * (17 * 2**20)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.kernels.RegisterProgram(
                    kernel_service_pb2.RegisterProgramRequest(program=message), timeout=20
                )
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await daemon.client.register(chain(1))

    asyncio.run(scenario())


async def refused(daemon: Running, program: Program, hint: dict[str, int]) -> grpc.aio.AioRpcError:
    registered = await daemon.client.register(program)
    message = types_pb2.SizeHint(
        dims=[types_pb2.Dim(symbol=name, value=size) for name, size in hint.items()]
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await daemon.client.kernels.EnsureKernels(
            kernel_service_pb2.EnsureKernelsRequest(
                program_id=registered.program_id,
                target_id=registered.target_id,
                hints=[message],
            ),
            timeout=20,
        )
    return caught.value


@pytest.mark.parametrize(
    "hint", [{}, {"s0": 1}, {"s0": 5000}, {"s0": 2**62}, {"s0": 2**64 - 1}, {"other": 5}]
)
def test_sizes_outside_the_programs_ranges_are_refused(
    tmp_path: Path, hint: dict[str, int]
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            error = await refused(daemon, chain(1), hint)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert str(details(error)["field"]).startswith("hints[0]")
            assert daemon.core.jobs.running() == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(("high", "told"), [(4096, "2 .. 4096"), (None, "2 .. 2^62")])
def test_the_range_that_sizes_are_outside_of_is_told(
    tmp_path: Path, high: int | None, told: str
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            error = await refused(daemon, chain(1, high=high), {"s0": 1})
            assert error.details() == f"s0 = 1 is outside {told}"

    asyncio.run(scenario())


def test_a_hint_whose_tensors_are_too_large_fails_before_anything_is_allocated(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, measure_memory_bytes=2**20) as daemon:
            registered = await daemon.client.register(chain(1, high=None))
            operation = await daemon.client.tuned(registered, 2**40)
            assert operation.state == operation_service_pb2.OPERATION_STATE_FAILED
            assert "HINT_TOO_LARGE" in str(operation.error)
            assert sum(daemon.bench.asked.values()) == 0
            # Other hints of the same Kernel are not held back by it.
            assert (await daemon.client.tuned(registered, 64)).failed == 0

    asyncio.run(scenario())


def test_a_hint_may_take_as_much_memory_as_the_setting_says(tmp_path: Path) -> None:
    """Also where it is verified: more than that has by default."""
    limits: set[int] = set()

    def noted(job: str, request: pb.WorkerRequest) -> None:
        if job in {"verify_variant", "measure_hint"}:
            limits.add(getattr(request, job).memory_limit_bytes)

    async def scenario() -> None:
        bench = FakeBenchPool(faults=noted)
        async with running(tmp_path, bench=bench, measure_memory_bytes=2**34) as daemon:
            registered = await daemon.client.register(chain(1, high=None))
            assert (await daemon.client.tuned(registered, 2**30)).failed == 0
            assert bench.asked["verify_variant"] > 0

    asyncio.run(scenario())
    assert limits == {2**34}


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("hints", kernel_service_pb2.EnsureKernelsRequest(hints=[types_pb2.SizeHint()] * 257)),
        ("kernels", kernel_service_pb2.EnsureKernelsRequest(kernels=["k"] * 1025)),
        ("threads", kernel_service_pb2.EnsureKernelsRequest(threads=1025)),
        ("namespace", kernel_service_pb2.EnsureKernelsRequest(namespace="a\nb")),
        ("client_id", kernel_service_pb2.EnsureKernelsRequest(client_id="c" * 257)),
    ],
)
def test_too_much_or_unprintable_is_refused_with_the_field(
    tmp_path: Path, field: str, request_: kernel_service_pb2.EnsureKernelsRequest
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.kernels.EnsureKernels(request_, timeout=20)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert details(caught.value)["field"] == field

    asyncio.run(scenario())


def test_a_question_that_makes_no_sense_is_refused_with_the_field(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
            launch = registered.plan.steps[0].launch

            async def field_of(*dims: int, times: int = 1, alignments: int = 0) -> object:
                question = kernel_service_pb2.SelectQuestion(
                    kernel=launch.kernel,
                    fallback=launch.fallback,
                    dims=dims,
                    alignments=[16] * alignments,
                )
                request = kernel_service_pb2.SelectRequest(
                    target_id=registered.target_id, questions=[question] * times
                )
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await daemon.client.kernels.Select(request, timeout=20)
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                return details(caught.value)["field"]

            assert await field_of(2**62) == "questions[0].dims[0]"
            assert await field_of(2**64 - 1) == "questions[0].dims[0]"
            assert str(await field_of(64, 64)).startswith("questions[0]")
            assert await field_of(64, times=1025) == "questions"
            assert await field_of(*[64] * 257) == "questions[0].dims"
            assert await field_of(64, alignments=2049) == "questions[0].alignments"

    asyncio.run(scenario())


def test_what_is_unknown_is_not_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.kernels.EnsureKernels(
                    kernel_service_pb2.EnsureKernelsRequest(program_id="0" * 64), timeout=20
                )
            assert details(caught.value) == {"reason": "KERNEL_UNKNOWN", "field": "program_id"}
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.finished("nothing")
            assert details(caught.value)["reason"] == "OPERATION_UNKNOWN"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.admin.ExplainKernel(
                    admin_service_pb2.ExplainKernelRequest(kernel="abcdef"), timeout=20
                )
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    asyncio.run(scenario())


def test_a_device_that_is_not_here_is_said_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            device = convert.device_to_proto(CPU)
            device.cpu.model = "Another CPU"
            request = kernel_service_pb2.RegisterProgramRequest(
                program=convert.program_to_proto(chain(1)), device=device
            )
            answer = await daemon.client.kernels.RegisterProgram(request, timeout=20)
            await daemon.client.finished(answer.operation.id)
            answer = await daemon.client.kernels.RegisterProgram(request, timeout=20)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.ensure(answer, 64)
            assert details(caught.value)["reason"] == "NO_DEVICE"

    asyncio.run(scenario())


def test_without_a_compiler_the_daemon_says_so_and_refuses_the_target(tmp_path: Path) -> None:
    from tests.integration.fake_workers import FakeCompilePool

    async def scenario() -> None:
        async with running(tmp_path, compile=FakeCompilePool(tools=())) as daemon:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.register(chain(1))
            assert details(caught.value)["reason"] == "TOOLCHAIN_MISSING"
            status = await daemon.client.admin.GetStatus(admin_service_pb2.GetStatusRequest())
            assert any("no C compiler" in problem for problem in status.problems)

    asyncio.run(scenario())


def test_usage_outside_the_ranges_is_refused_and_each_client_is_capped(tmp_path: Path) -> None:
    def report(program: str, size: int, client_id: str) -> kernel_service_pb2.ReportUsageRequest:
        usage = kernel_service_pb2.Usage(
            program_id=program,
            sizes=convert.size_hint_to_proto({"s0": size}),
            calls=2**60,
            launches=[0, 0, 2**60, 0],
        )
        return kernel_service_pb2.ReportUsageRequest(client_id=client_id, usages=[usage])

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            call = daemon.client.kernels.ReportUsage
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(report(registered.program_id, 1, "a"), timeout=20)
            assert details(caught.value)["field"] == "usages[0].sizes"
            codes = set[grpc.StatusCode]()
            for size in range(2, 60):
                try:
                    await call(report(registered.program_id, size, "a"), timeout=20)
                except grpc.aio.AioRpcError as error:
                    codes.add(error.code())
            assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            # Another client is not held back.
            answer = await call(report(registered.program_id, 16, "b"), timeout=20)
            assert answer.accepted == 1

    asyncio.run(scenario())


def test_what_counters_show_of_a_report_is_within_the_caps(tmp_path: Path) -> None:
    """One without launches hides nobody else's; no client makes a counter jump for good."""

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))

            def usage(size: int, launches: list[int]) -> kernel_service_pb2.Usage:
                sizes = convert.size_hint_to_proto({"s0": size})
                return kernel_service_pb2.Usage(
                    program_id=registered.program_id, sizes=sizes, calls=1, launches=launches
                )

            request = kernel_service_pb2.ReportUsageRequest(
                client_id="a",
                usages=[usage(16, [1, 2, 3, 4]), usage(32, []), usage(64, [0, 2**63])],
                fallback_reasons={"no_plan": 2**63},
            )
            await daemon.client.kernels.ReportUsage(request, timeout=20)
            sample = daemon.core.metrics.registry.get_sample_value
            counted = [
                sample("nearhint_dispatch_launches_total", {"tier": f"t{tier}"})
                for tier in range(4)
            ]
            assert counted == [1, 2 + CALLS_LIMIT, 3, 4]
            reason = {"reason": "no_plan"}
            assert sample("nearhint_dispatch_fallbacks_total", reason) == CALLS_LIMIT

    asyncio.run(scenario())


def test_every_kind_of_job_is_counted_from_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            assert set(daemon.core.jobs._handlers) == set(JOB_KINDS)

    asyncio.run(scenario())


def test_one_client_cannot_outweigh_another_or_report_endless_sizes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)

            async def report(client_id: str, sizes: range, calls: int) -> int:
                usages = [
                    kernel_service_pb2.Usage(
                        program_id=registered.program_id,
                        sizes=convert.size_hint_to_proto({"s0": size}),
                        calls=calls,
                        launches=[0, 0, calls, 0],
                    )
                    for size in sizes
                ]
                request = kernel_service_pb2.ReportUsageRequest(client_id=client_id, usages=usages)
                return (await daemon.client.kernels.ReportUsage(request, timeout=20)).accepted

            assert await report("loud", range(64, 65), 2**60) == 1
            assert await report("quiet", range(1024, 1025), 3) == 1
            assert await report("endless", range(2, 902), 1) == SIZES_LIMIT
            assert await report("endless", range(902, 1802), 1) == 0
            await daemon.core.traffic.fold()
            (kernel,) = kernels_in(registered.plan)
            met = daemon.core.traffic.met("", kernel)
            assert [each.dims for each in met[:2]] == [(64,), (1024,)]
            # However loud, a client counts for so many calls; the quiet one's are not lost.
            assert met[0].weight == pytest.approx(CLIENT_CALLS, abs=1)
            assert met[1].weight == pytest.approx(3, abs=1)
            assert len(met) == traffic.SIZES_LIMIT
            # Who serves for long may meet any number of them, one write after the other.
            await daemon.core.usage.flush()
            assert await report("endless", range(902, 1802), 1) == SIZES_LIMIT

    asyncio.run(scenario())


def test_a_kernel_without_symbols_is_explained_at_its_one_size(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
            (key,) = daemon.core.tables.every_key()
            found = daemon.core.tables.newest(key)
            row = daemon.core.programs.kernel("", key[1])
            assert found is not None
            binary = ArtifactRef("b" * 64, 9, CpuLaunch("entry", Int(1), 1))
            fixed = replace(
                found,
                kernel="e" * 64,
                symbols=(),
                variants=tuple(
                    replace(each, guard=Guard(()), artifact=binary) for each in found.variants
                ),
                hints=(replace(found.hints[0], dims=()),),
            )
            await daemon.core.store.write(lambda tx: tx.put(replace(row, id="e" * 64, symbols="")))
            await daemon.core.tables.publish(fixed)
            request = admin_service_pb2.ExplainKernelRequest(kernel="eeee")
            answer = await daemon.client.admin.ExplainKernel(request, timeout=20)
            assert list(answer.selections) == [key[2]]
            request.kernel = key[1]  # one with symbols is asked about sizes, or about none
            answer = await daemon.client.admin.ExplainKernel(request, timeout=20)
            assert not answer.selections

    asyncio.run(scenario())


def test_listing_kernels_forgets_no_selector_that_is_in_use(tmp_path: Path) -> None:
    """A line of each says what its message says: to decode all would push out what serves."""

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(2))
            await daemon.client.tuned(registered, 64)
            daemon.core.tables._decoded.clear()
            request = admin_service_pb2.ListKernelsRequest()
            answer = await daemon.client.admin.ListKernels(request, timeout=20)
            assert [max(kernel.tiers.values()) for kernel in answer.kernels] == [2, 2]
            assert [kernel.hints for kernel in answer.kernels] == [1, 1]
            assert not daemon.core.tables._decoded

    asyncio.run(scenario())


def test_the_server_says_what_it_speaks_and_how_an_operation_fares(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            info = await daemon.client.admin.GetServerInfo(
                admin_service_pb2.GetServerInfoRequest(), timeout=20
            )
            assert info.protocol_min <= info.protocol_max
            assert info.version
            assert info.compiler_version
            assert info.daemon_id == daemon.core.store.daemon_id
            assert set(info.features) >= {"operations", "select", "tables.watch", "usage"}
            registered = await daemon.client.register(chain(1))
            finished = await daemon.client.tuned(registered, 64)
            answer = await daemon.client.operations.GetOperation(
                operation_service_pb2.GetOperationRequest(id=finished.id), timeout=20
            )
            assert answer.operation == finished

    asyncio.run(scenario())


def test_a_call_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*args: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(boundary, "UNARY_LIMIT_S", 0.05)
    monkeypatch.setattr(AdminService, "GetServerInfo", never)

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest())
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            monkeypatch.setattr(boundary, "UNARY_LIMIT_S", 20.0)  # a busy machine takes longer
            assert (await daemon.client.register(chain(1))).program_id

    asyncio.run(scenario())


def test_every_service_is_healthy_while_it_serves(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            # The stubs for types do not know asyncio channels.
            health: Any = health_pb2_grpc.HealthStub(daemon.client.channel)
            names = [
                service.full_name
                for module in MODULES
                for service in module.DESCRIPTOR.services_by_name.values()
            ]
            for name in ("", *names):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING, name

    asyncio.run(scenario())


def test_no_rpc_takes_results_from_a_client() -> None:
    """Nothing that a client sends holds a Measurement, Variant, Artifact or Table."""
    results = {"Table", "Variant", "ArtifactRef", "HintRow", "Timing", "MeasurementRecord"}

    def reachable(descriptor: object, seen: set[str]) -> set[str]:
        name = str(descriptor.name)  # type: ignore[attr-defined]
        if name in seen:
            return seen
        seen.add(name)
        for field in descriptor.fields:  # type: ignore[attr-defined]
            if field.message_type is not None:
                reachable(field.message_type, seen)
        return seen

    for module in MODULES:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                assert not reachable(method.input_type, set()) & results, method.full_name
