from __future__ import annotations

from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.unit.rules.tables import row, table

from nearhint_daemon.errors import STATUS_OF_CODE, DaemonError
from nearhint_daemon.jobs import Priority
from nearhint_daemon.metrics import Metrics
from nearhint_daemon.server import service_methods
from nearhint_daemon.workers import errors as worker_errors
from nearhint_rules import errors as rule_errors

SERIES_LIMIT = 2000


def made() -> Metrics:
    metrics = Metrics(version="test", compiler_version="test")
    metrics.add_methods(service_methods())
    return metrics


def series(metrics: Metrics) -> int:
    families = text_string_to_metric_families(metrics.render().decode())
    return sum(len(family.samples) for family in families)


def test_series_do_not_grow_with_what_clients_send() -> None:
    metrics = made()
    before = series(metrics)
    for number in range(5000):
        metrics.usage_reported([1, 2, 3, 4], {f'reason {number} "; drop\n': 1})
        metrics.worker_restarted("compile", f"reason {number}")
        metrics.store_found_corrupt(f"table {number}", "key")
    assert series(metrics) == before <= SERIES_LIMIT
    assert len(metrics.render()) < 500_000


def test_every_metric_is_there_before_anything_happened() -> None:
    text = made().render().decode()
    for line in (
        'nearhint_rpc_server_handled_total{code="OK",method="Select",service="KernelService"} 0.0',
        'nearhint_jobs_total{kind="tune1",outcome="done"} 0.0',
        'nearhint_worker_restarts_total{kind="bench",reason="died"} 0.0',
        'nearhint_job_queue_depth{priority="live_miss"} 0.0',
        'nearhint_artifact_verify_failures_total{where="artifact"} 0.0',
    ):
        assert line in text


def test_every_metric_has_our_prefix_base_units_and_help() -> None:
    ours = [
        family
        for family in made().registry.collect()
        if not family.name.startswith(("process_", "python_"))
    ]
    assert ours
    for family in ours:
        assert family.name.startswith("nearhint_"), family.name
        assert family.documentation.endswith("."), family.name
        assert not family.name.endswith(("_ms", "_milliseconds", "_kb", "_mb")), family.name


def test_the_speedup_at_a_hint_is_against_the_fastest_original_ops_whatever_their_names() -> None:
    """As its Variants are ranked."""
    slow, fast = (row((64,), {0: 1000}, at, step=step) for at, step in ((9000, "a"), (2000, "b")))
    both = replace(slow, fallbacks=(*slow.fallbacks, *fast.fallbacks))
    metrics = made()
    metrics.table_published(table(both), (64,))
    assert metrics.registry.get_sample_value("nearhint_speedup_vs_baseline_sum") == 2.0


def test_every_priority_has_a_series() -> None:
    text = made().render().decode()
    assert all(f'priority="{priority.name.lower()}"' in text for priority in Priority)


def subclasses(base: type[Any]) -> set[type[Any]]:
    below: set[type[Any]] = {each for sub in base.__subclasses__() for each in subclasses(sub)}
    return {base} | below


def test_every_code_has_a_status() -> None:
    bases: tuple[type[Any], ...] = (DaemonError, rule_errors.RulesError, worker_errors.WorkerLost)
    codes = {each.code for base in bases for each in subclasses(base)}
    assert codes - STATUS_OF_CODE.keys() == set()
