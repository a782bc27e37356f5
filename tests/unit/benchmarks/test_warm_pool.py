"""What fills Inductor's caches before anything is timed: units, how they travel, lost processes."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict

import pytest
from tests.benchmarks.gpu_sweep_cases import sweeps_of
from tests.benchmarks.warm_pool import LOST, Unit, WarmPool, processes_for, units_of


def test_each_size_that_is_left_has_its_static_code_and_each_sweep_its_dynamic() -> None:
    first, second, third = sweeps_of("a")[:3]
    left = {first: first.sizes[:2], second: [], third: third.sizes[:1]}
    units = units_of(left, "a")
    assert units[:2] == [
        Unit(first.title, "a", first.sizes[:2], is_dynamic=True),
        Unit(third.title, "a", third.sizes[:1], is_dynamic=True),
    ]
    assert [each.sizes for each in units[2:]] == [
        first.sizes[:1],
        first.sizes[1:2],
        third.sizes[:1],
    ]
    assert not any(each.is_dynamic for each in units[2:])


@pytest.mark.parametrize("mode", ["a", "b"])
def test_units_are_named_apart_and_travel_as_lines(mode: str) -> None:
    units = units_of({sweep: sweep.sizes for sweep in sweeps_of(mode)}, mode)
    assert len({unit.name for unit in units}) == len(units)
    assert [Unit.from_line(json.dumps(asdict(unit))) for unit in units] == units


def test_processes_are_as_many_as_there_is_room_for() -> None:
    assert processes_for(12, units=5, cpus=16, free_bytes=80 << 30) == 5
    assert processes_for(12, units=99, cpus=8, free_bytes=80 << 30) == 5
    assert processes_for(12, units=99, cpus=16, free_bytes=10 << 30) == 3
    assert processes_for(12, units=0, cpus=16, free_bytes=80 << 30) == 1


@pytest.mark.skipif(shutil.which("false") is None, reason="needs a program that fails")
def test_a_process_that_ends_loses_one_unit_and_the_pool_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    units = [Unit("softmax bf16", "a", ((1, 5120),), is_dynamic=False)] * 3
    with WarmPool(units, device="cpu", processes=2) as pool:
        facts = pool.wait(timeout_s=60).facts()
    assert facts["done"] == 2
    assert facts["problems"] == {"softmax bf16, 1x5120": LOST}
