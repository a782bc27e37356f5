"""KernelService: Programs in, Kernels and Selections out."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from nearhint_daemon.core import Core
from nearhint_daemon.errors import GenerationGone, InvalidRequest
from nearhint_daemon.jobs import Priority
from nearhint_daemon.services.boundary import Context, below
from nearhint_daemon.services.messages import (
    operation_message,
    provenance_messages,
)
from nearhint_daemon.services.requests import (
    at_most,
    read_dims,
    read_kernels,
    read_namespace,
    read_sizes,
    read_text,
    read_threads,
)
from nearhint_daemon.tables import TableKey
from nearhint_daemon.traffic.usage import (
    CALLS_LIMIT,
    TIERS,
    USAGES_LIMIT,
    Used,
    launches_by_tier,
)
from nearhint_daemon.tuning.compiling import compile_jobs
from nearhint_daemon.tuning.efforts import Effort
from nearhint_daemon.tuning.lowered import sizes_within
from nearhint_proto import convert
from nearhint_proto.v1 import kernel_service_pb2 as pb
from nearhint_proto.v1 import kernel_service_pb2_grpc, program_pb2
from nearhint_rules.choice import FALLBACK, Selection
from nearhint_rules.errors import RulesError
from nearhint_rules.hints import bucket
from nearhint_rules.table import Table

HINTS_LIMIT = 256
QUESTIONS_LIMIT = 1024
ALIGNMENTS_LIMIT = 2048
"""As many as a launch may have arguments."""
REASONS_LIMIT = 64
BUDGET_LIMIT_S = 7 * 86_400.0


class KernelService(kernel_service_pb2_grpc.KernelServiceServicer):
    """Serves `nearhint.v1.KernelService`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def RegisterProgram(  # noqa: N802 - the protocol's name
        self, request: pb.RegisterProgramRequest, context: Context
    ) -> pb.RegisterProgramResponse:
        """Keeps a Program; answers with its Plan, or with the operation that makes it."""
        namespace = read_namespace(request.namespace)
        client_id = read_text(request.client_id, field="client_id")
        device = convert.device_from_proto(request.device, field="device")
        registered = await self._core.programs.register(
            request.program,
            device,
            namespace=namespace,
            client_id=client_id,
            is_full=self._core.restorer.is_full,
        )
        response = pb.RegisterProgramResponse(
            program_id=registered.program, target_id=registered.target.id
        )
        if registered.plan is not None:
            response.plan.CopyFrom(program_pb2.Plan.FromString(registered.plan.message))
            response.provenance.extend(provenance_messages(registered.launches))
            response.reason = registered.plan.reason
            return response
        spec = self._core.programs.lower_job(
            (namespace, registered.program, registered.target.kind)
        )
        # Where that was done, what it made has lost its hashes since: it is made again.
        is_lost = spec.key in self._core.jobs.reached([spec.key])
        rows = await self._core.jobs.ensure([replace(spec, is_repeatable=is_lost)])
        response.operation.CopyFrom(operation_message(self._core.operations.create(rows)))
        return response

    async def EnsureKernels(  # noqa: N802 - the protocol's name
        self, request: pb.EnsureKernelsRequest, context: Context
    ) -> pb.EnsureKernelsResponse:
        """Asks for a Program's Kernels to be tuned at sizes or over their ranges, with an effort.

        Where it says so, they are compiled and no more.
        """
        namespace = read_namespace(request.namespace)
        client_id = read_text(request.client_id, field="client_id")
        budget_s = _within_limits(request)
        ranges = await self._core.programs.asked_for(namespace, request.program_id)
        hints = [
            read_sizes(hint, field=f"hints[{position}]")
            for position, hint in enumerate(request.hints)
        ]
        for position, sizes in enumerate(hints):
            sizes_within(sizes, ranges, field=f"hints[{position}]")
        if not ranges and not hints:
            hints = [{}]  # a Program without symbols has one hint
        target = self._core.programs.target(request.target_id)
        if not request.compile_only:
            self._core.devices.require(target.device)
        key = (namespace, request.program_id, target.kind)
        kernels, priority = frozenset(request.kernels), _priority(request.priority)
        effort = _effort(request.effort)
        if hints:
            specs = await self._core.tuner.jobs_for(
                key,
                target,
                hints,
                kernels=kernels,
                effort=effort,
                threads=request.threads,
                priority=priority,
                client=client_id,
                place=tuple if request.as_given else bucket,
            )
        else:
            specs = await self._core.ladders.jobs_for(
                key,
                target,
                kernels=kernels,
                effort=effort,
                threads=request.threads,
                priority=priority,
                client=client_id,
            )
        if request.compile_only:
            specs = compile_jobs(specs)
        lost = await self._core.tuner.lost(specs)
        specs = [replace(spec, is_repeatable=spec.key in lost) for spec in specs]
        jobs = self._core.jobs
        keys = [spec.key for spec in specs]
        specs = self._core.budgets.open(specs, budget_s=budget_s, open_before=jobs.open_among(keys))
        try:
            rows = await jobs.ensure(specs)
        finally:
            self._core.budgets.keep_only(keys, still_open=jobs.open_among(keys))
        return pb.EnsureKernelsResponse(
            operation=operation_message(self._core.operations.create(rows))
        )

    async def Select(  # noqa: N802 - the protocol's name
        self, request: pb.SelectRequest, context: Context
    ) -> pb.SelectResponse:
        """Says what runs at sizes, as a client's own Tables would."""
        namespace = read_namespace(request.namespace)
        at_most(QUESTIONS_LIMIT, len(request.questions), "questions a call", field="questions")
        response = pb.SelectResponse()
        for position, question in enumerate(request.questions):
            key = (namespace, question.kernel, request.target_id)
            dims = read_dims(question.dims, field=f"questions[{position}].dims")
            alignments = question.alignments
            where = f"questions[{position}].alignments"
            at_most(ALIGNMENTS_LIMIT, len(alignments), "alignments", field=where)
            selector = self._core.tables.selector(key, request.generation)
            try:
                selection = selector.select(
                    dims,
                    fallback=question.fallback,
                    alignments=tuple(alignments) or None,
                )
            except RulesError as error:
                raise below(f"questions[{position}]", error) from None
            if request.generation and selector.table is not None:
                self._check_unbarred(key, selector.table, selection)
            response.selections.append(convert.selection_to_proto(selection, selector.table))
            # The first question to a Table takes milliseconds: others are not to wait for all.
            await asyncio.sleep(0)
        return response

    def _check_unbarred(self, key: TableKey, table: Table, selection: Selection) -> None:
        """Raises `GenerationGone` where an earlier Table answers with what may not serve since."""
        if selection.variant == FALLBACK:
            return
        variant = table.variants[selection.variant]
        quarantine = self._core.quarantine
        if quarantine.bar(*key, schedule=variant.schedule, artifact=variant.artifact.sha256):
            raise GenerationGone("its answer is quarantined since", field="generation")
        if quarantine.is_rejected(*key, schedule=variant.schedule, variant=variant.id):
            raise GenerationGone("its answer was rejected since", field="generation")

    async def ReportUsage(  # noqa: N802 - the protocol's name
        self, request: pb.ReportUsageRequest, context: Context
    ) -> pb.ReportUsageResponse:
        """Counts what clients ran, and notes whether they serve now."""
        namespace = read_namespace(request.namespace)
        client_id = read_text(request.client_id, field="client_id")
        why = request.fallback_reasons
        at_most(REASONS_LIMIT, len(why), "reasons a call", field="fallback_reasons")
        used = [
            Used(
                program=usage.program_id,
                sizes=read_sizes(usage.sizes, field=f"usages[{position}].sizes"),
                calls=usage.calls,
                launches=tuple(usage.launches[:TIERS]),
            )
            for position, usage in enumerate(request.usages[:USAGES_LIMIT])
        ]
        if request.target_id:
            device = self._core.programs.target(request.target_id).device
            self._core.presence.note(client_id, device, is_serving=request.is_serving)
        accepted = await self._core.usage.report(client_id, used, namespace=namespace)
        reasons = {name: min(count, CALLS_LIMIT) for name, count in why.items()}
        self._core.metrics.usage_reported(launches_by_tier(used), reasons)
        programs = self._core.programs
        named = sorted({each.program for each in used})
        unknown = [program for program in named if not programs.is_known(namespace, program)]
        return pb.ReportUsageResponse(accepted=accepted, unknown_programs=unknown)


def _within_limits(request: pb.EnsureKernelsRequest) -> float | None:
    """The budget in seconds, if there is one; raises `InvalidRequest` for more than one may ask."""
    at_most(HINTS_LIMIT, len(request.hints), "hints a call", field="hints")
    read_kernels(request.kernels)
    read_threads(request.threads)
    budget_s = request.budget_s if request.HasField("budget_s") else None
    if budget_s is not None and not 0.0 < budget_s <= BUDGET_LIMIT_S:
        raise InvalidRequest(
            f"must be more than 0 and at most {BUDGET_LIMIT_S:g} seconds", field="budget_s"
        )
    return budget_s


def _priority(value: int) -> Priority:
    try:
        return Priority(value or Priority.LIVE_MISS)
    except ValueError:
        # A newer client's: the least that is known.
        return Priority.REFINEMENT


def _effort(value: int) -> Effort:
    try:
        return Effort(value or Effort.FULL)
    except ValueError:
        # A newer client's: what nobody has to ask for.
        return Effort.FULL
