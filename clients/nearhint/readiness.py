"""Settling and status: how far this process's Kernels are, over all its sessions."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from nearhint import session as sessions_of_process
from nearhint._engine import Inquiry
from nearhint._registration import NO_PLAN, SEARCHED_TIER, Demand, Phase, Registration, is_first
from nearhint._state import SessionState
from nearhint.session import Session, counters
from nearhint.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class SettleReport:
    """How far the Kernels are that this process has used, at the sizes it used them with.

    `at_t2`: measured there, and the winner serves (it may be the original ops). `at_t1`: the
    first Variant there serves, or one that was measured at other sizes, since the search failed,
    or there is none, for the reason given. `at_t0`: the original ops serve, for the reason given.
    `pending`: none of these yet. Kernels are named by identity; a Program without a Plan by its
    label.
    """

    settled: bool
    at_t2: tuple[str, ...] = ()
    at_t1: Mapping[str, str] = field(default_factory=dict[str, str])
    at_t0: Mapping[str, str] = field(default_factory=dict[str, str])
    pending: tuple[str, ...] = ()


@dataclass(slots=True)
class _Tally:
    """Kernels by what may be said of them; one of which several things may be is the least far."""

    at_t2: set[str] = field(default_factory=set[str])
    at_t1: dict[str, str] = field(default_factory=dict[str, str])
    at_t0: dict[str, str] = field(default_factory=dict[str, str])
    pending: set[str] = field(default_factory=set[str])

    def report(self, *, settled: bool) -> SettleReport:
        """Each Kernel once, in order."""
        at_t1, at_t0 = self.at_t1, self.at_t0
        return SettleReport(
            settled=settled,
            at_t2=tuple(sorted(self.at_t2 - at_t1.keys() - at_t0.keys() - self.pending)),
            at_t1={
                kernel: at_t1[kernel]
                for kernel in sorted(at_t1.keys() - at_t0.keys() - self.pending)
            },
            at_t0={kernel: at_t0[kernel] for kernel in sorted(at_t0.keys() - self.pending)},
            pending=tuple(sorted(self.pending)),
        )


@dataclass(frozen=True, slots=True)
class Status:
    """What a readiness probe wants to know.

    `ready` once nothing is on its way that a first call would miss: each Program that was
    registered has its Plan, Tables and binaries, or will not get them for now.
    """

    ready: bool
    connected: bool
    addresses: tuple[str, ...]
    programs: int
    planned: int
    kernels: int
    tables: int
    artifacts: int
    fallbacks: Mapping[str, int]
    events: Mapping[str, int]
    problems: tuple[str, ...]


def settle(*, timeout_s: float = 60.0) -> SettleReport:
    """Waits until every Kernel that this process has used is at T2 at the sizes it was used with.

    For benchmarks, tests and warm-up; never for serving. It never raises; when the time is up, the
    report says what is still pending. A Kernel whose search failed is not waited for, also where
    that may pass: where a device was full, the work is asked for again by and by.

    >>> settle(timeout_s=0.1).settled  # nothing was used
    True
    """
    deadline = time.monotonic() + timeout_s
    counters.wait()
    reports: list[SettleReport] = []
    for session in sessions_of_process.sessions():
        if session.engine is None:
            names = {handle.program.label or handle.program_id[:12] for handle in session.handles()}
            reports.append(SettleReport(True, at_t0=dict.fromkeys(sorted(names), session.reason)))
        else:
            reports.append(_settle_session(session, deadline))
    return _merged(reports)


def _settle_session(session: Session, deadline: float) -> SettleReport:
    """Asks the engine to report after each of its turns until it is settled or time is up."""
    engine = session.engine
    assert engine is not None
    answers: queue.SimpleQueue[SettleReport] = queue.SimpleQueue()
    inquiry = Inquiry(lambda: answers.put(progress(session.state)))
    engine.post(inquiry)
    report = SettleReport(settled=False, pending=("not yet known",))
    try:
        while not report.settled:
            left_s = deadline - time.monotonic()
            report = answers.get(timeout=max(0.0, left_s)) if left_s > 0 else answers.get_nowait()
    except queue.Empty:
        pass
    finally:
        inquiry.is_open = False
    return report


def progress(state: SessionState) -> SettleReport:
    """How far one session is; for the engine's thread."""
    tally = _Tally()
    for registration, handle in state.alive():
        if registration.plan is not None:
            for demand in list(registration.demands.values()):
                if not demand.is_beside:  # its bucket's demand says what becomes of it
                    _count(tally, state, registration, handle.snapshot, demand)
        elif registration.phase in NO_PLAN:
            tally.at_t0[registration.name] = registration.reason
        else:
            tally.pending.add(registration.name)
    return tally.report(settled=not tally.pending)


def _count(
    tally: _Tally,
    state: SessionState,
    registration: Registration,
    snapshot: Snapshot | None,
    demand: Demand,
) -> None:
    """Adds the Kernel of one demand where it belongs."""
    kernel = demand.site.kernel
    is_met = state.copies.is_met(demand)
    never = "" if is_met else _why_never(state, registration, demand)
    if never:
        (tally.at_t1 if _is_served(snapshot, demand) else tally.at_t0)[kernel] = never
        return
    is_coming = not is_met or kernel in state.copies.incoming or registration.is_stale
    if is_coming or snapshot is None:
        tally.pending.add(kernel)
        return
    selection = snapshot.choose(demand.site.step, demand.dims).selection
    if selection.tier >= SEARCHED_TIER:
        tally.at_t2.add(kernel)
    elif not is_first(selection):
        tally.at_t0[kernel] = _why_not(state, demand, selection.reason)
    elif (beside := registration.beside(demand)) is not None and beside.final:
        tally.at_t1[kernel] = beside.final
    else:  # traffic has its very sizes searched
        tally.pending.add(kernel)


def _is_served(snapshot: Snapshot | None, demand: Demand) -> bool:
    """Whether a Variant serves at these sizes: the first one there, or one of other sizes."""
    return (
        snapshot is not None and snapshot.choose(demand.site.step, demand.dims).kernel is not None
    )


def _why_never(state: SessionState, registration: Registration, demand: Demand) -> str:
    """Why a search is not waited for, as far as is known now; empty where it is."""
    if demand.final or demand.operation:
        return demand.final
    if registration.phase in NO_PLAN:
        return registration.reason
    is_current = registration.phase is Phase.PLANNED
    return state.copies.refusal(demand.site.kernel) if is_current else ""


def _why_not(state: SessionState, demand: Demand, reason: str) -> str:
    """Why a tuned bucket is not served at T2: a binary that cannot be loaded explains it best."""
    table = state.copies.tables.get(demand.site.kernel)
    for variant in table.variants if table is not None else ():
        problem = state.copies.unloadable.get(variant.artifact)
        if problem:
            return problem
    return reason


def _merged(reports: list[SettleReport]) -> SettleReport:
    tally = _Tally()
    for report in reports:
        tally.at_t2.update(report.at_t2)
        tally.at_t1.update(report.at_t1)
        tally.at_t0.update(report.at_t0)
        tally.pending.update(report.pending)
    return tally.report(settled=all(report.settled for report in reports))


def status() -> Status:
    """How far this process is; answers at once, from what is known here."""
    every = sessions_of_process.sessions()
    states = [session.state for session in every]
    registrations = [each for state in states for each in list(state.registrations.values())]
    engines = {session.engine for session in every if session.engine is not None}
    handles = [handle for session in every for handle in session.handles()]
    problems = [session.reason for session in every if session.reason]
    problems += [engine.problem for engine in engines if engine.problem]
    return Status(
        ready=all(handle.is_answered for handle in handles),
        connected=bool(engines) and all(engine.is_connected for engine in engines),
        addresses=tuple(sorted({engine.address for engine in engines})),
        programs=len(handles),
        planned=sum(each.plan is not None for each in registrations),
        kernels=sum(len(state.kernels()) for state in states),
        tables=sum(len(state.copies.tables) for state in states),
        artifacts=sum(len(state.copies.loaded) for state in states),
        fallbacks=dict(counters.fallbacks),
        events=counters.seen(),
        problems=tuple(dict.fromkeys(problems)),
    )
