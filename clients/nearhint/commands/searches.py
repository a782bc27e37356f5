"""What searches tried at each hint, for `nearhint explain`."""

from __future__ import annotations

from collections.abc import Sequence

from nearhint.cli_output import table
from nearhint.commands.sizes import dims_text
from nearhint_proto.v1 import admin_service_pb2


def print_searches(
    reports: Sequence[admin_service_pb2.SearchReport], symbols: Sequence[str]
) -> None:
    """A row a Schedule: what became of it and why."""
    rows = [
        (_hint(report, symbols), tried.schedule, tried.outcome, tried.stage, tried.reason)
        for report in reports
        for tried in report.tried
    ]
    if rows:
        table(["hint", "schedule", "outcome", "for", "reason"], rows, title="what was tried")


def searches_json(
    reports: Sequence[admin_service_pb2.SearchReport], symbols: Sequence[str]
) -> list[dict[str, object]]:
    """The same as data."""
    return [
        {
            "target": report.target_id,
            "dims": dict(zip(symbols, report.dims, strict=False)),
            "searched_at_s": report.searched_at_s,
            "tried": [
                {
                    "schedule": tried.schedule,
                    "outcome": tried.outcome,
                    "stage": tried.stage,
                    "reason": tried.reason,
                }
                for tried in report.tried
            ],
        }
        for report in reports
    ]


def _hint(report: admin_service_pb2.SearchReport, symbols: Sequence[str]) -> str:
    return dims_text(symbols, report.dims)
