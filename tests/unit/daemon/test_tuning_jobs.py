"""The jobs that hints become, and what is in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearhint_daemon.jobs import JobSpec
from nearhint_daemon.tuning.compiling import COMPILE, compile_jobs
from nearhint_daemon.tuning.efforts import Effort
from nearhint_daemon.tuning.tuning_jobs import CROSS, Wish, near_of, wished_jobs

KEY = ("", "1" * 64, "2" * 64)
WISHES = (
    Wish(KEY, "3" * 64, (128, 524_288), {"s0": 16_384, "s1": 32, "s2": 128}, threads=1),
    Wish(KEY, "3" * 64, (65_536, 256), {"s0": 32, "s1": 8, "s2": 65_536}, threads=1),
)


def crossing(*wishes: Wish) -> JobSpec | None:
    jobs = wished_jobs(wishes, version="1", priority=1, client="")
    return next((job for job in jobs if job.kind == CROSS), None)


def test_crossing_begins_at_each_hint_from_the_sizes_that_wished_it() -> None:
    """From those of another, a product of two sizes may be out of reach."""
    job = crossing(*WISHES)
    assert job is not None
    for wish in WISHES:
        assert near_of(job.payload, wish.dims) == wish.near
    assert near_of(job.payload, (125, 499_937)) == WISHES[0].near
    # The work is the same however it came about.
    other = crossing(*WISHES[::-1])
    assert other is not None
    assert other.key == job.key


def test_a_job_of_one_hint_begins_from_what_wished_it() -> None:
    assert near_of(WISHES[0].payload, (65_536, 256)) == WISHES[0].near


@pytest.mark.parametrize("effort", Effort)
def test_whatever_the_effort_what_a_hint_is_searched_for_is_compiled_ahead_once(
    effort: Effort,
) -> None:
    wishes = [replace(wish, effort=effort) for wish in WISHES]
    jobs = wished_jobs(wishes, version="1", priority=1, client="")
    compiled = compile_jobs(jobs)
    assert [job.payload["dims"] for job in compiled] == [list(wish.dims) for wish in WISHES]
    assert {(job.kind, job.requires, job.payload["effort"]) for job in compiled} == {
        (COMPILE, "", effort)
    }


def test_one_hint_and_little_effort_cross_nothing() -> None:
    assert crossing(WISHES[0]) is None
    quick = Wish(KEY, "3" * 64, (64, 64), {"s0": 8}, threads=1, effort=Effort.QUICK)
    assert crossing(*WISHES, quick) is None
