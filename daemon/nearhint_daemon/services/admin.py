"""AdminService: what the daemon is, how it fares, what operators may change."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nearhint_compiler import COMPILER_VERSION
from nearhint_daemon.core import VERSION, Core
from nearhint_daemon.errors import InvalidRequest, StoreDamaged
from nearhint_daemon.jobs import Priority
from nearhint_daemon.services import regret
from nearhint_daemon.services.boundary import Context
from nearhint_daemon.services.messages import (
    POLICIES,
    device_message,
)
from nearhint_daemon.services.operating import PREFIX, OperatingCalls
from nearhint_daemon.services.requests import (
    read_namespace,
    read_page_size,
    read_sizes,
    read_text,
)
from nearhint_daemon.sightings import KERNEL, PROGRAM
from nearhint_daemon.store import Reading, queries
from nearhint_daemon.store.rows import (
    ArtifactRow,
    CopyBandwidthRow,
    KernelRow,
    LaunchRow,
    MeasurementRow,
    ProgramRow,
    QuarantinedVariantRow,
    TriedRow,
    VariantRow,
)
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2 as pb
from nearhint_proto.v1 import admin_service_pb2_grpc, kernel_service_pb2, types_pb2
from nearhint_rules import expr as ex
from nearhint_rules.choice import FALLBACK
from nearhint_rules.interpolation import InterpolatedSelector
from nearhint_rules.ladder import distance
from nearhint_rules.metrics import Dims
from nearhint_rules.selectors import Selector
from nearhint_rules.table import Table, is_complete

PROTOCOL = 1
FEATURES = (
    "kernels.compile_only",
    "namespaces",
    "operations",
    "operators",
    "regret",
    "select",
    "tables.watch",
    "usage",
)
MEASUREMENTS_LIMIT = 500
SOURCES_LIMIT = 50
BARRED_LIMIT = 100
TRIED_LIMIT = 2000


class AdminService(OperatingCalls, admin_service_pb2_grpc.AdminServiceServicer):
    """Serves `nearhint.v1.AdminService`."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)

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
        """Counts, devices and queue; where the store is damaged, that it is, and no counts."""
        core = self._core
        counts: Mapping[str, int] = {}
        # Of one moment: what waits is no more than what was taken up.
        running, waiting = core.jobs.running(), 0
        with suppress(StoreDamaged):
            waiting = core.waiting_jobs()
            counts = {**await core.store.read(_counts), "quarantined": core.quarantine.count()}
        depth = core.jobs.depth()
        sizes = await asyncio.to_thread(core.store.size_bytes)
        return pb.GetStatusResponse(
            state=core.state,
            devices=self._devices(),
            queued_jobs={Priority(number).name.lower(): n for number, n in depth.items()},
            running_jobs=running - waiting,
            waiting_jobs=waiting,
            compiles_run=core.workshop.compiles_run,
            store_size_bytes=sum(sizes.values()),
            forgotten_programs=core.forgetter.counts[PROGRAM],
            forgotten_kernels=core.forgetter.counts[KERNEL],
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
        size = read_page_size(request.page_size)
        if request.page_token and not PREFIX.fullmatch(request.page_token):
            raise InvalidRequest("not a page token", field="page_token")

        def page(reading: Reading) -> list[tuple[KernelRow, int]]:
            rows = queries.kernels_after(reading, namespace, request.page_token, limit=size + 1)
            return [(row, queries.programs_using(reading, namespace, row.id)) for row in rows]

        rows = await self._core.store.read(page)
        response = pb.ListKernelsResponse(
            next_page_token=rows[size - 1][0].id if len(rows) > size else ""
        )
        for row, programs in rows[:size]:
            response.kernels.append(self._summary(row, programs))
            await asyncio.sleep(0)  # a long page holds up nobody
        return response

    async def ExplainKernel(  # noqa: N802 - the protocol's name
        self, request: pb.ExplainKernelRequest, context: Context
    ) -> pb.ExplainKernelResponse:
        """One Kernel: Tables, Measurements, what was rejected and what runs at given sizes."""
        namespace = read_namespace(request.namespace)
        kernel = await self.find(namespace, request.kernel)
        known = await self._core.store.read(lambda reading: _known(reading, kernel))
        tables = [
            table
            for key in self._core.tables.of_kernel(namespace, kernel.id)
            if (table := self._core.tables.newest(key)) is not None
        ]
        selections = {}
        if request.HasField("dims") or not kernel.symbols:
            sizes = read_sizes(request.dims, field="dims")
            if unknown := sizes.keys() - set(kernel.symbols.split()):
                problem = f"the Kernel has no symbol {min(unknown)}"
                raise InvalidRequest(problem, field="dims")
            fallback = known.launches[0].fallback if known.launches else ""
            selections = {
                table.target: _select(table, sizes, otherwise=fallback) for table in tables
            }
        moved = [
            types_pb2.Expr.FromString(each) for each in (kernel.bytes_read, kernel.bytes_written)
        ]
        return pb.ExplainKernelResponse(
            kernel=self._summary(kernel, known.programs),
            ir=kernel.ir,
            bytes_moved=convert.expr_to_proto(ex.add(*map(convert.expr_from_proto, moved))),
            bytes_read=moved[0],
            bytes_written=moved[1],
            tables=[convert.table_to_proto(table) for table in tables],
            measurements=map(_measurement_message, known.measurements),
            selections=selections,
            rejected=[
                *(f"{row.schedule}: {row.problem}" for row in known.rejected),
                *(
                    f"{row.schedule}: quarantined by {row.actor}: {row.reason}"
                    for row in known.barred
                ),
            ],
            provenance=list(
                dict.fromkeys(line for row in known.launches for line in row.sources.splitlines())
            )[:SOURCES_LIMIT],
            copy_bandwidths={
                row.target: _bandwidth_message(row)
                for table in tables
                if (row := self._core.bandwidths.of(table.target)) is not None
            },
            searches=_search_messages(known.tried),
        )

    async def MeasureRegret(  # noqa: N802 - the protocol's name
        self, request: pb.MeasureRegretRequest, context: Context
    ) -> pb.MeasureRegretResponse:
        """Has selector rules judged at sizes between a Kernel's hints."""
        kernel = await self.find(read_namespace(request.namespace), request.kernel)
        return await regret.measure(self._core, kernel, request)

    async def GetRegret(  # noqa: N802 - the protocol's name
        self, request: pb.GetRegretRequest, context: Context
    ) -> pb.GetRegretResponse:
        """A page of what rules lose, the longest known first."""
        kernel = await self.find(read_namespace(request.namespace), request.kernel)
        return await regret.page(self._core, kernel, request)

    def _devices(self) -> list[pb.DeviceStatus]:
        return [
            device_message(
                state,
                target_id="" if state.device is None else self._core.target_id(state.device),
            )
            for state in self._core.devices.states()
        ]

    def _summary(self, row: KernelRow, programs: int) -> pb.KernelSummary:
        entries = [
            entry
            for key in self._core.tables.of_kernel(row.namespace, row.id)
            if (entry := self._core.tables.entry(key)) is not None
        ]
        tables = [types_pb2.Table.FromString(entry.message) for entry in entries]
        return pb.KernelSummary(
            id=row.id,
            title=row.title,
            symbols=row.symbols.split(),
            tiers={
                table.target: max((hint.tier for hint in table.hints), default=0)
                for table in tables
            },
            hints=sum(entry.hints for entry in entries),
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
        "change_seq": reading.change_seq(),
    }


@dataclass(frozen=True, slots=True)
class _Known:
    """What the store has of one Kernel."""

    programs: int
    launches: tuple[LaunchRow, ...]
    measurements: tuple[MeasurementRow, ...]
    rejected: tuple[VariantRow, ...]
    barred: tuple[QuarantinedVariantRow, ...]
    tried: tuple[TriedRow, ...]


def _known(reading: Reading, kernel: KernelRow) -> _Known:
    key = (kernel.namespace, kernel.id)
    rejected = reading.where(VariantRow, namespace=key[0], kernel=key[1], state="rejected")
    return _Known(
        programs=queries.programs_using(reading, *key),
        launches=queries.launches_of_kernel(reading, *key, limit=SOURCES_LIMIT),
        measurements=queries.newest_measurements(reading, *key, limit=MEASUREMENTS_LIMIT),
        rejected=tuple(rejected),
        barred=queries.quarantined_variants(reading, *key, limit=BARRED_LIMIT),
        tried=queries.tried_of_kernel(reading, *key, limit=TRIED_LIMIT),
    )


def _select(
    table: Table, sizes: Mapping[str, int], *, otherwise: str
) -> kernel_service_pb2.Selection:
    """What runs at sizes beside the Fallback that was timed nearest; `otherwise` where none was."""
    missing = [name for name in table.symbols if name not in sizes]
    if missing:
        raise InvalidRequest(f"no size for {', '.join(missing)}", field="dims")
    dims = tuple(sizes[name] for name in table.symbols)
    fallback = _timed_near(table, dims) or otherwise
    selector = Selector(table)
    message = convert.selection_to_proto(selector.select(dims, fallback=fallback), table)
    step = selector.step(fallback)
    if message.reason.startswith("predicted") and isinstance(step, InterpolatedSelector):
        message.predictions.extend(
            kernel_service_pb2.Prediction(
                variant_id="" if each.variant == FALLBACK else table.variants[each.variant].id,
                time_ns=each.time_ns,
                relative_error=each.error,
            )
            for each in step.forecast(dims)
        )
    return message


def _timed_near(table: Table, dims: Dims) -> str:
    """The Fallback that was timed nearest to sizes; of several the one that was timed most often.

    What Programs have in common is one Kernel, and a Program that was never tuned has it, too.
    """
    at = tuple(max(1, size) for size in dims)
    timed = [
        (row.dims, name)
        for row in (*table.hints, *table.probes)
        for name, _ in row.fallbacks
        if is_complete(row, table.default, name)
    ]
    often = Counter(name for _, name in timed)
    order = ((distance(known, at), -often[name], name) for known, name in timed)
    return min(order, default=(0.0, 0, ""))[2]


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
        discarded=row.discarded,
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
