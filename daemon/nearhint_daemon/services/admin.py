"""AdminService: what the daemon is, how it fares, what operators may change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence

from nearhint_compiler import COMPILER_VERSION
from nearhint_daemon.core import VERSION, Core
from nearhint_daemon.errors import InvalidRequest, KernelUnknown
from nearhint_daemon.jobs import Priority
from nearhint_daemon.services.boundary import Context
from nearhint_daemon.services.messages import (
    POLICIES,
    device_message,
    read_namespace,
    read_sizes,
    read_text,
)
from nearhint_daemon.store import Reading, queries
from nearhint_daemon.store.rows import (
    ArtifactRow,
    CopyBandwidthRow,
    KernelRow,
    MeasurementRow,
    ProgramRow,
    QuarantineRow,
    TriedRow,
    VariantRow,
)
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2 as pb
from nearhint_proto.v1 import admin_service_pb2_grpc, kernel_service_pb2, types_pb2
from nearhint_rules import expr as ex
from nearhint_rules.selection import select
from nearhint_rules.table import Table

PROTOCOL = 1
FEATURES = ("namespaces", "operations", "select", "tables.watch", "usage")
PAGE_SIZE = 100
PAGE_LIMIT = 1000
MEASUREMENTS_LIMIT = 500
SOURCES_LIMIT = 50
TRIED_LIMIT = 2000
_PREFIX = re.compile(r"[0-9a-f]{4,64}")


class AdminService(admin_service_pb2_grpc.AdminServiceServicer):
    """Serves `nearhint.v1.AdminService`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def GetServerInfo(  # noqa: N802 - the protocol's name
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        """Version, protocol range and features."""
        return pb.GetServerInfoResponse(
            version=VERSION,
            protocol_min=PROTOCOL,
            protocol_max=PROTOCOL,
            features=FEATURES,
            daemon_id=self._core.store.daemon_id,
            compiler_version=COMPILER_VERSION,
        )

    async def GetStatus(  # noqa: N802 - the protocol's name
        self, request: pb.GetStatusRequest, context: Context
    ) -> pb.GetStatusResponse:
        """Counts, devices and queue."""
        core = self._core
        counts = await core.store.read(_counts)
        depth = core.jobs.depth()
        sizes = await asyncio.to_thread(core.store.size_bytes)
        return pb.GetStatusResponse(
            state=core.state,
            devices=self._devices(),
            queued_jobs={Priority(number).name.lower(): n for number, n in depth.items()},
            running_jobs=core.jobs.running(),
            compiles_run=core.workshop.compiles_run,
            store_size_bytes=sum(sizes.values()),
            metrics_address=core.metrics_address,
            problems=core.problems(),
            **counts,
        )

    async def SetDevicePolicy(  # noqa: N802 - the protocol's name
        self, request: pb.SetDevicePolicyRequest, context: Context
    ) -> pb.SetDevicePolicyResponse:
        """Says whether a device may be used for verifying and measuring."""
        names = {value: name for name, value in POLICIES.items()}
        policy = names.get(request.policy)
        if policy is None:
            raise InvalidRequest("must be always, idle or never", field="policy")
        actor = read_text(request.actor, field="actor")
        await self._core.devices.set_policy(request.device, policy, actor=actor)
        return pb.SetDevicePolicyResponse(devices=self._devices())

    async def ListKernels(  # noqa: N802 - the protocol's name
        self, request: pb.ListKernelsRequest, context: Context
    ) -> pb.ListKernelsResponse:
        """A page of Kernels, by identity."""
        namespace = read_namespace(request.namespace)
        size = min(request.page_size or PAGE_SIZE, PAGE_LIMIT)
        if request.page_token and not _PREFIX.fullmatch(request.page_token):
            raise InvalidRequest("not a page token", field="page_token")

        def page(reading: Reading) -> list[tuple[KernelRow, int]]:
            rows = queries.kernels_after(reading, namespace, request.page_token, limit=size + 1)
            return [(row, queries.programs_using(reading, namespace, row.id)) for row in rows]

        rows = await self._core.store.read(page)
        return pb.ListKernelsResponse(
            kernels=[self._summary(row, programs) for row, programs in rows[:size]],
            next_page_token=rows[size - 1][0].id if len(rows) > size else "",
        )

    async def ExplainKernel(  # noqa: N802 - the protocol's name
        self, request: pb.ExplainKernelRequest, context: Context
    ) -> pb.ExplainKernelResponse:
        """One Kernel: Tables, Measurements, what was rejected and what runs at given sizes."""
        namespace = read_namespace(request.namespace)
        kernel = await self._find(namespace, request.kernel)
        store = self._core.store
        measurements = await store.read(
            lambda reading: queries.newest_measurements(
                reading, namespace, kernel.id, limit=MEASUREMENTS_LIMIT
            )
        )
        variants = await store.read(
            lambda reading: tuple(
                reading.where(VariantRow, namespace=namespace, kernel=kernel.id, state="rejected")
            )
        )
        launches = await store.read(
            lambda reading: queries.launches_of_kernel(
                reading, namespace, kernel.id, limit=SOURCES_LIMIT
            )
        )
        programs = await store.read(
            lambda reading: queries.programs_using(reading, namespace, kernel.id)
        )
        tried = await store.read(
            lambda reading: queries.tried_of_kernel(
                reading, namespace, kernel.id, limit=TRIED_LIMIT
            )
        )
        tables = [
            table
            for key in self._core.tables.of_kernel(namespace, kernel.id)
            if (table := self._core.tables.newest(key)) is not None
        ]
        selections = {}
        if request.HasField("dims"):
            sizes = read_sizes(request.dims, field="dims")
            fallback = launches[0].fallback if launches else ""
            selections = {
                table.target: _select(table, sizes, fallback=fallback) for table in tables
            }
        moved = [
            types_pb2.Expr.FromString(each) for each in (kernel.bytes_read, kernel.bytes_written)
        ]
        return pb.ExplainKernelResponse(
            kernel=self._summary(kernel, programs),
            ir=kernel.ir,
            bytes_moved=convert.expr_to_proto(ex.add(*map(convert.expr_from_proto, moved))),
            bytes_read=moved[0],
            bytes_written=moved[1],
            tables=[convert.table_to_proto(table) for table in tables],
            measurements=map(_measurement_message, measurements),
            selections=selections,
            rejected=[f"{row.schedule}: {row.problem}" for row in variants],
            provenance=list(
                dict.fromkeys(line for row in launches for line in row.sources.splitlines())
            )[:SOURCES_LIMIT],
            copy_bandwidths={
                row.target: _bandwidth_message(row)
                for table in tables
                if (row := self._core.bandwidths.of(table.target)) is not None
            },
            searches=_search_messages(tried),
        )

    def _devices(self) -> list[pb.DeviceStatus]:
        return [
            device_message(
                state,
                target_id="" if state.device is None else self._core.target_id(state.device),
            )
            for state in self._core.devices.states()
        ]

    async def _find(self, namespace: str, prefix: str) -> KernelRow:
        if not _PREFIX.fullmatch(prefix):
            raise InvalidRequest("must be 4 to 64 hex digits", field="kernel")
        rows = await self._core.store.read(
            lambda reading: queries.kernels_with_prefix(reading, namespace, prefix)
        )
        match rows:
            case []:
                raise KernelUnknown("no Kernel of that name", field="kernel")
            case [row]:
                return row
            case _:
                raise InvalidRequest("several Kernels start so; give more digits", field="kernel")

    def _summary(self, row: KernelRow, programs: int) -> pb.KernelSummary:
        tables = [
            table
            for key in self._core.tables.of_kernel(row.namespace, row.id)
            if (table := self._core.tables.newest(key)) is not None
        ]
        return pb.KernelSummary(
            id=row.id,
            title=row.title,
            symbols=row.symbols.split(),
            tiers={
                table.target: max((hint.tier for hint in table.hints), default=0)
                for table in tables
            },
            hints=sum(len(table.hints) for table in tables),
            programs=programs,
            reason=next((table.reason for table in tables if table.reason), ""),
        )


def _counts(reading: Reading) -> Mapping[str, int]:
    return {
        "programs": reading.count(ProgramRow),
        "kernels": reading.count(KernelRow),
        "variants": reading.count(VariantRow, " WHERE state = 'verified'"),
        "measurements": reading.count(MeasurementRow),
        "artifacts": reading.count(ArtifactRow),
        "quarantined": reading.count(QuarantineRow),
        "change_seq": reading.change_seq(),
    }


def _select(
    table: Table, sizes: Mapping[str, int], *, fallback: str
) -> kernel_service_pb2.Selection:
    missing = [name for name in table.symbols if name not in sizes]
    if missing:
        raise InvalidRequest(f"no size for {', '.join(missing)}", field="dims")
    dims = tuple(sizes[name] for name in table.symbols)
    return convert.selection_to_proto(select(table, dims, fallback=fallback), table)


def _measurement_message(row: MeasurementRow) -> pb.MeasurementRecord:
    return pb.MeasurementRecord(
        kind=row.subject_kind,
        subject=row.subject,
        dims=map(int, row.dims.split()),
        timing=types_pb2.Timing(median_ns=row.median_ns, spread=row.spread, samples=row.samples),
        conditions=row.conditions,
        measured_at_s=row.measured_at_s,
        daemon_id=row.daemon_id,
        origin=row.origin,
    )


def _bandwidth_message(row: CopyBandwidthRow) -> pb.CopyBandwidth:
    return pb.CopyBandwidth(
        timing=types_pb2.Timing(median_ns=row.median_ns, spread=row.spread, samples=row.samples),
        bytes_moved=row.bytes_moved,
        conditions=row.conditions,
        measured_at_s=row.measured_at_s,
        daemon_id=row.daemon_id,
    )


def _search_messages(rows: Sequence[TriedRow]) -> list[pb.SearchReport]:
    """One a Target and hint, the smallest hint first."""
    found: dict[tuple[str, tuple[int, ...]], pb.SearchReport] = {}
    for row in rows:
        dims = tuple(map(int, row.dims.split()))
        report = found.setdefault(
            (row.target, dims), pb.SearchReport(target_id=row.target, dims=dims)
        )
        report.searched_at_s = max(report.searched_at_s, row.at_s)
        report.tried.append(
            pb.TriedSchedule(
                schedule=row.schedule, outcome=row.outcome, reason=row.reason, stage=row.stage
            )
        )
    return [found[key] for key in sorted(found)]
