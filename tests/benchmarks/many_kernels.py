"""Many small Programs of one Kernel each, no two alike, and how long a daemon takes over them all.

The Programs are chains of the kind that tests/kernels holds, with constants and dtypes that vary.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
from tests.integration.daemon_in_process import Client, kernels_in
from tests.integration.daemon_process import daemon_in
from tests.unit.workers.building import S0, SYMBOLS, node, tensor

from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2, kernel_service_pb2, table_service_pb2
from nearhint_rules import expr as ex
from nearhint_rules import program as pr

WIDTH = 384
ROWS = 64
DTYPES = ("f32", "f32", "bf16", "f32", "f16")
LIMIT_S = 900.0
LAST = ex.Int(-1)

Chain = Callable[[str, float], pr.Program]


def _program(dtype: str, width: int, inputs: int, *nodes: pr.Node) -> pr.Program:
    rows = tensor(S0, width, dtype=dtype)
    row = tensor(width, dtype=dtype)
    given = (rows, row)[:inputs]
    return pr.Program(SYMBOLS[:1], given, nodes, (inputs + len(nodes) - 1,))


def _pointwise(*ops: str) -> Chain:
    """relu(x * c + b), say: the ops after a product and a sum."""

    def made(dtype: str, constant: float) -> pr.Program:
        x = tensor(S0, WIDTH, dtype=dtype)
        nodes = [
            node("mul.Scalar", pr.Ref(0), constant, makes=(x,)),
            node("add.Tensor", pr.Ref(2), pr.Ref(1), makes=(x,)),
        ]
        nodes += [
            node(f"{op}.default", pr.Ref(3 + number), makes=(x,)) for number, op in enumerate(ops)
        ]
        return _program(dtype, WIDTH, 2, *nodes)

    return made


def _rows(op: str, *arguments: pr.Arg, keeps: bool = True) -> Chain:
    """softmax(x * c), say: a product, then an op over each row."""

    def made(dtype: str, constant: float) -> pr.Program:
        x = tensor(S0, WIDTH, dtype=dtype)
        result = x if keeps else tensor(S0, dtype=dtype)
        return _program(
            dtype,
            WIDTH,
            1,
            node("mul.Scalar", pr.Ref(0), constant, makes=(x,)),
            node(op, pr.Ref(1), *arguments, makes=(result,)),
        )

    return made


CHAINS: Mapping[str, Chain] = {
    "gelu": _pointwise("gelu"),
    "relu": _pointwise("relu"),
    "tanh": _pointwise("tanh"),
    "silu": _pointwise("silu"),
    "exp of sigmoid": _pointwise("sigmoid", "exp"),
    "softmax": _rows("_softmax.default", LAST, False),
    "log softmax": _rows("_log_softmax.default", LAST, False),
    "sums of rows": _rows("sum.dim_IntList", (LAST,), keeps=False),
    "largest of rows": _rows("amax.default", (LAST,), keeps=False),
    "means of rows": _rows("mean.dim", (LAST,), keeps=False),
}


def programs(count: int) -> Iterator[pr.Program]:
    """`count` different Programs: the chains by turns, each time with another constant."""
    chains = tuple(CHAINS.values())
    for number in range(count):
        turn, chain = divmod(number, len(chains))
        yield pr.canonicalise(chains[chain](DTYPES[turn % len(DTYPES)], (turn + 1) / 64))


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a daemon brought them: seconds from the first request, Kernels at T1 or above."""

    kernels: int
    at_t1: int
    seconds: float
    problems: tuple[str, ...]


def to_t1(count: int, advance: Callable[[int, int], None]) -> Reached:
    """Has a daemon of its own bring `count` Kernels to T1 on this machine's CPU."""
    with tempfile.TemporaryDirectory(prefix="nearhint-bench-") as name:
        flags = ("--devices", "cpu")
        with daemon_in(
            Path(name), module="nearhint_daemon", verb=("serve",), flags=flags
        ) as daemon:
            daemon.start()
            return asyncio.run(_reach(daemon.address, tuple(programs(count)), advance))


async def _reach(
    address: str, wanted: tuple[pr.Program, ...], advance: Callable[[int, int], None]
) -> Reached:
    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(LIMIT_S):
        client = Client(channel)
        device = await _device(client)
        started = time.monotonic()
        asked = asyncio.gather(*(_ask(client, program, device) for program in wanted))
        found: dict[str, str] = {}
        request = table_service_pb2.WatchTablesRequest(target_id=device.target_id)
        async for answer in client.tables.WatchTables(request):
            for message in answer.tables:
                table = convert.table_from_proto(message)
                if table.hints or table.reason:
                    found[table.kernel] = table.reason
            advance(len(found), len(wanted))
            if len(found) >= len(wanted):
                break
        seconds = time.monotonic() - started
        kernels = {kernel for kernels in await asked for kernel in kernels}
    problems = tuple(dict.fromkeys(reason for reason in found.values() if reason))
    at_t1 = sum(not reason for reason in found.values())
    return Reached(len(kernels), at_t1, seconds, problems)


async def _device(client: Client) -> admin_service_pb2.DeviceStatus:
    while True:
        status = await client.admin.GetStatus(admin_service_pb2.GetStatusRequest())
        if status.devices[0].is_worker_ready and status.devices[0].target_id:
            return status.devices[0]
        await asyncio.sleep(0.1)


async def _ask(
    client: Client, program: pr.Program, device: admin_service_pb2.DeviceStatus
) -> list[str]:
    """Registers a Program, waits for its Plan, asks for its Kernel; the Kernels of the Plan."""
    request = kernel_service_pb2.RegisterProgramRequest(
        program=convert.program_to_proto(program), device=device.device
    )
    response = await client.kernels.RegisterProgram(request)
    if response.HasField("operation"):
        await client.finished(response.operation.id)
        response = await client.kernels.RegisterProgram(request)
    if not kernels_in(response.plan):
        raise SystemExit(f"no launch for {program}: {response.reason}")
    await client.ensure(response, ROWS)
    return kernels_in(response.plan)
