"""Regret on the wire: asking for rules to be judged, and reading what they lose."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from nearhint_daemon.core import Core
from nearhint_daemon.errors import InvalidRequest
from nearhint_daemon.regret.regrets import Planned, Wanted
from nearhint_daemon.services.messages import operation_message
from nearhint_daemon.services.requests import (
    at_most,
    read_page_size,
    read_sizes,
    read_text,
    read_threads,
)
from nearhint_daemon.store import Reading, queries
from nearhint_daemon.store.rows import KernelRow, RegretRow, VariantRow
from nearhint_proto.v1 import admin_service_pb2 as pb
from nearhint_rules.selectors import SELECTORS, rule_name

SIZES = 32
SIZES_LIMIT = 1024
AT_LIMIT = 256
SELECTORS_LIMIT = 64
SEED_LIMIT = 2**63
TOKEN_DIGITS = 18


async def measure(
    core: Core, kernel: KernelRow, request: pb.MeasureRegretRequest
) -> pb.MeasureRegretResponse:
    """Plans points, asks for their jobs, and answers with the operation over them."""
    client = read_text(request.client_id, field="client_id")
    target = read_text(request.target_id, field="target_id")
    _check_selectors(request.selectors)
    plans = await core.regrets.plan(kernel.namespace, kernel.id, _wanted(request), target=target)
    for planned in plans:
        await core.regrets.forget_older(planned.table)
    rows = await core.jobs.ensure(
        [spec for planned in plans for spec in core.regrets.jobs(planned, client=client)]
    )
    return pb.MeasureRegretResponse(
        operation=operation_message(core.operations.create(rows)),
        kernel=kernel.id,
        plans=map(_plan_message, plans),
    )


async def page(core: Core, kernel: KernelRow, request: pb.GetRegretRequest) -> pb.GetRegretResponse:
    """A page of records, the longest known first."""
    target = read_text(request.target_id, field="target_id")
    _check_selectors(request.selectors)
    token = request.page_token or "0"
    if not (token.isascii() and token.isdigit() and len(token) <= TOKEN_DIGITS):
        raise InvalidRequest("not a page token", field="page_token")
    size = read_page_size(request.page_size)

    def read(reading: Reading) -> tuple[tuple[RegretRow, ...], dict[str, str]]:
        rows = queries.regrets_after(
            reading,
            kernel.namespace,
            kernel.id,
            target=target,
            selectors=request.selectors,
            generation=min(request.generation, SEED_LIMIT - 1),
            after=int(token),
            limit=size + 1,
        )
        variants = reading.where(VariantRow, namespace=kernel.namespace, kernel=kernel.id)
        return rows, {row.id: row.schedule for row in variants} if rows else {}

    rows, schedules = await core.store.read(read)
    return pb.GetRegretResponse(
        kernel=kernel.id,
        symbols=kernel.symbols.split(),
        records=[_record(row, schedules) for row in rows[:size]],
        next_page_token=str(rows[size - 1].change_seq) if len(rows) > size else "",
    )


def _wanted(request: pb.MeasureRegretRequest) -> Wanted:
    if request.at and request.sizes:
        raise InvalidRequest("not together with at", field="sizes")
    at_most(SIZES_LIMIT, request.sizes, "sizes a call", field="sizes")
    at_most(AT_LIMIT, len(request.at), "sizes a call", field="at")
    if request.seed >= SEED_LIMIT:
        raise InvalidRequest("must be below 2^63", field="seed")
    return Wanted(
        count=request.sizes or SIZES,
        seed=request.seed,
        at=tuple(
            read_sizes(sizes, field=f"at[{number}]") for number, sizes in enumerate(request.at)
        ),
        threads=read_threads(request.threads),
    )


def _check_selectors(names: Sequence[str]) -> None:
    at_most(SELECTORS_LIMIT, len(names), "rules a call", field="selectors")
    for position, name in enumerate(names):
        if name not in SELECTORS:
            close = difflib.get_close_matches(name[:64], SELECTORS, n=1)
            meant = f"did you mean {close[0]}?" if close else f"known: {', '.join(SELECTORS)}"
            raise InvalidRequest(f"no such rule; {meant}", field=f"selectors[{position}]")


def _plan_message(planned: Planned) -> pb.RegretPlan:
    return pb.RegretPlan(
        target_id=planned.table.target,
        generation=planned.table.generation,
        selector=rule_name(planned.table),
        points=[pb.RegretPoint(dims=point.dims) for point in planned.points],
    )


def _record(row: RegretRow, schedules: dict[str, str]) -> pb.RegretRecord:
    return pb.RegretRecord(
        target_id=row.target,
        dims=map(int, row.dims.split()),
        selector=row.selector,
        served=row.served,
        served_schedule=schedules.get(row.served, ""),
        served_ns=row.served_ns,
        best=row.best,
        best_schedule=schedules.get(row.best, ""),
        best_ns=row.best_ns,
        regret=row.regret,
        noise=row.noise,
        slower_than=row.slower_than.split(),
        generation=row.generation,
        fallback=row.fallback,
        measured_at_s=row.measured_at_s,
        daemon_id=row.daemon_id,
    )
