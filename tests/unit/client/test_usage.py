"""What a process tells the daemon of its calls: counts, when it serves, and at its end."""

from __future__ import annotations

from tests.unit.client import doubling
from tests.unit.client.conftest import DEADLINE_S, Eventually
from tests.unit.client.test_session import calling, open_session, serve

from nearhint import session
from nearhint.session import session_for
from nearhint.testing import FakeDaemon


def test_usage_travels_as_counts(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    serve(daemon, 64)
    opened = open_session(daemon)
    handle = opened.register(doubling.program())
    handle.wait_ready(DEADLINE_S)
    opened.count_fallback("guard")
    for _ in range(3):
        handle.count((64,), (0, 0, 1))

    def reported() -> tuple[int, int, int]:
        reports = daemon.asked("ReportUsage")
        usages = [usage for report in reports for usage in report.usages]
        guards = sum(report.fallback_reasons["guard"] for report in reports)
        return sum(each.calls for each in usages), sum(each.launches[2] for each in usages), guards

    eventually(lambda: reported() == (3, 3, 1))


def test_the_daemon_hears_at_once_when_calls_begin_and_when_they_have_ended(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    handle = calling(daemon)
    (began,) = daemon.wait_asked("ReportUsage")
    assert (began.is_serving, bool(began.target_id)) == (True, True)
    *_, ended = daemon.wait_asked("ReportUsage", times=2)
    assert not ended.is_serving
    assert handle.snapshot is not None


def test_what_ran_since_the_last_report_is_told_at_the_end(
    daemon: FakeDaemon, loaded: list[bytes]
) -> None:
    handle = calling(daemon)
    daemon.wait_asked("ReportUsage")
    sizes = 300  # more than one report has room for
    for size in range(sizes):
        handle.count((size + 1,), (0, 0, 1))
    session.shutdown()
    reports = daemon.asked("ReportUsage")
    assert sum(usage.calls for report in reports for usage in report.usages) == 1 + sizes
    assert not reports[-1].is_serving


def test_what_a_program_that_nobody_holds_any_more_ran_is_told(
    daemon: FakeDaemon, loaded: list[bytes], eventually: Eventually
) -> None:
    handle = calling(daemon)
    opened = session_for(daemon.address, doubling.DEVICE)
    daemon.wait_asked("ReportUsage")
    for size in range(1, 9):
        handle.count((size,), (0, 0, 1))
    del handle
    other = opened.register(doubling.program(high=100))  # the engine looks who is there
    eventually(lambda: list(opened.state.registrations) == [other.program_id])
    session.shutdown()
    reports = daemon.asked("ReportUsage")
    assert sum(usage.calls for report in reports for usage in report.usages) == 9


def test_calls_of_a_warm_up_are_no_traffic(daemon: FakeDaemon, loaded: list[bytes]) -> None:
    opened = open_session(daemon)
    session.count_no_traffic()
    later = session_for(daemon.address, doubling.DEVICE, device_index=1)
    handles = [calling(daemon, each) for each in (opened, later)]
    assert daemon.wait_asked("ReportUsage")[0].is_serving
    session.shutdown()
    assert not any(report.usages for report in daemon.asked("ReportUsage"))
    assert all(handle.snapshot is not None for handle in handles)
