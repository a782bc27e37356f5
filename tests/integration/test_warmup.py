"""Warm-up jobs on a real daemon: nothing twice, nothing lost, whatever is killed meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.integration.daemon_process import DaemonProcess, daemon_in
from tests.integration.forking import Forked, fork

from nearhint.connection import Connection
from nearhint.counters import Counters
from nearhint.exit_codes import ExitCode
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2
from nearhint_rules.beyond import own_hints, rows_beyond
from nearhint_rules.companions import companions, odd_below
from nearhint_rules.metrics import Dims
from nearhint_rules.table import ROW_LIMIT, HintRow, Table, Timing

END_S = 120.0
FLAGS = (
    *("--devices", "cpu", "--measure-budget-s", "0.3", "--threads", "1"),
    *("--refine-share", "0", "--regret-share", "0"),
)
"""What idle time would add is no repetition: a slow run leaves half a minute of it."""

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.timeout(300),
]

ENTRY = """
import weakref

import torch
from nearhint_torch import WarmUp


def activation(x, bias):
    return torch.nn.functional.gelu(x + bias)


class Scores(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2, -1)


def warm_up():
    return WarmUp(
        model=activation,
        args=(torch.randn(2, 96), torch.randn(96)),
        dynamic={"x": {0: "rows"}},
    )


def broken():
    raise RuntimeError("its weights are gone")


class Large(torch.nn.Module):
    held = weakref.WeakSet()

    def __init__(self, width):
        if len(self.held):
            raise MemoryError("another model is in memory")
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.held.add(self)

    def forward(self, x):
        return self.norm(x * 2)


def large(width):
    return WarmUp(model=Large(width), args=(torch.randn(2, width),), dynamic={"x": {0: "rows"}})


def narrow():
    return large(32)


def wide():
    return large(48)


def told(x):
    print("a call")
    return torch.tanh(x * 2)


def talkative():
    print("loading its weights")
    return WarmUp(model=told, args=(torch.randn(4, 96),), dynamic={"x": {0: "rows"}})


if __name__ == "__main__":
    rows = torch.export.Dim("rows", min=2, max=64)
    exported = torch.export.export(Scores(), (torch.randn(4, 33),), dynamic_shapes=({0: rows},))
    torch.export.save(exported, "scores.pt2")
    both = {0: rows, 1: torch.export.Dim("columns", min=16, max=128)}
    exported = torch.export.export(Scores(), (torch.randn(4, 32),), dynamic_shapes=(both,))
    torch.export.save(exported, "bounded.pt2")
"""

GOOD = """
[[model]]
entry = "warm_entry:warm_up"
dims = { rows = [1, 4, 16, 64] }
"""
BAD = """
[[model]]
name = "bad"
entry = "warm_entry:broken"
"""
TALKATIVE = """
effort = "quick"

[[model]]
entry = "warm_entry:talkative"
dims = { rows = 4 }
"""
LARGE = """
effort = "quick"

[[model]]
entry = "warm_entry:narrow"
dims = { rows = [4, 16] }

[[model]]
entry = "warm_entry:wide"
dims = { rows = [4, 16] }
"""
EXPORTED = """
[[model]]
exported = "scores.pt2"
dims = { x_0 = [2, 64] }
"""

BOUNDED = """
[[model]]
exported = "bounded.pt2"
dims = { x_0 = [4, 64], x_1 = [32, 128] }
"""

Timings = dict[str, Timing]
"""By Variant and Fallback."""
Rows = dict[str, dict[tuple[int, ...], Timings]]
"""What is at T2, hints and companions, by Kernel and sizes."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    folder = tmp_path / "daemon"
    folder.mkdir()
    (tmp_path / "warm_entry.py").write_text(ENTRY)
    with daemon_in(folder, module="nearhint_daemon", verb=("serve",), flags=FLAGS) as process:
        process.start()
        yield process


def command(daemon: DaemonProcess, folder: Path, *arguments: str) -> Forked:
    """A process of its own in `folder`, as a user starts one."""
    environment = {"NEARHINT_ADDRESS": daemon.address, "NEARHINT_CACHE_DIR": str(folder / "cache")}
    return fork(arguments, folder=folder, environment=environment, stdout=folder / "stdout")


def start(daemon: DaemonProcess, folder: Path, text: str, *options: str) -> Forked:
    """A warm-up by the manifest `text`."""
    (folder / "manifest.toml").write_text(text)
    return command(daemon, folder, "-m", "nearhint", "warmup", "manifest.toml", *options)


def warm_up(
    daemon: DaemonProcess, folder: Path, text: str, *options: str
) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON report and stderr of a whole warm-up."""
    process = start(daemon, folder, text, "--json", "report.json", *options)
    _, talk = process.communicate()
    path = folder / "report.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return process.wait(END_S), report, talk


def until_line(process: Forked, number: int) -> None:
    """Reads stderr up to the `number`th change of what is tuned."""
    for line in process.stderr:
        number -= line.startswith("tuned")
        if number <= 0:
            return
    raise AssertionError("it ended before")


def wait_for_device(daemon: DaemonProcess) -> None:
    """Until the bench worker has said what it runs on."""
    deadline = time.monotonic() + END_S
    while not daemon.status().devices[0].is_worker_ready:
        assert time.monotonic() < deadline
        time.sleep(0.05)  # a process of its own gives no event to wait for


def tables(daemon: DaemonProcess) -> Iterator[Table]:
    """All of the daemon's Tables."""
    uids = frozenset({os.getuid()})
    with closing(
        Connection(daemon.address, trusted_uids=uids, counters=Counters(), version="test")
    ) as connection:
        listed = connection.list_kernels(admin_service_pb2.ListKernelsRequest())
        for kernel in listed.kernels:
            asked = admin_service_pb2.ExplainKernelRequest(kernel=kernel.id)
            for message in connection.explain_kernel(asked).tables:
                yield convert.table_from_proto(message)


def searched(daemon: DaemonProcess) -> Rows:
    """What the daemon's Tables hold at T2."""
    return {
        table.kernel: {row.dims: timings(table, row) for row in table.hints if row.tier >= 2}
        for table in tables(daemon)
    }


def timings(table: Table, row: HintRow) -> Timings:
    """Of everybody timed at a hint."""
    ranked = {table.variants[position].id: timing for position, timing in row.ranked}
    return ranked | dict(row.fallbacks)


def work_done(daemon: DaemonProcess) -> tuple[int, int, int]:
    status = daemon.status()
    return status.compiles_run, status.measurements, status.variants


def is_kept(before: Rows, after: Rows) -> bool:
    """Whether nothing that was measured is lost or measured again without need.

    Only a newcomer, which won elsewhere and is crossed with a hint, is held against those timed
    there before: then they are all there still. Without one the very samples are. Gone is nothing
    but one-sided companions that gave way to others, in a Table that is full.
    """
    return all(
        timings == after[kernel][dims] or timings.keys() < after[kernel][dims].keys()
        if dims in after[kernel]
        else len(after[kernel]) == ROW_LIMIT and is_one_sided(dims)
        for kernel, rows in before.items()
        for dims, timings in rows.items()
    )


def is_one_sided(dims: Dims) -> bool:
    """Whether one size is odd and another a multiple of 16."""
    return any(size % 2 for size in dims) and not all(size % 16 for size in dims)


EXPECTED_POINTS = 4
OUTGROWN = {(96, 208)}
"""What has 2.5 times the elements of (64, 128), the largest hint, in multiples of 16."""
BESIDE = {
    (4, 125),
    *((15, 125), (15, 128), (16, 125)),
    *((63, 125), (63, 128), (64, 125)),
}
"""The companions of (4, 128), (16, 128) and (64, 128), none of (96, 208): odd in all that is a
multiple of 16, and where both are, in each of them alone. One row is a Kernel of its own, with one
hint."""


def hints(daemon: DaemonProcess) -> int:
    """How many hints the daemon's Tables have at T2, without what is beside or beyond others."""
    return sum(row.tier >= 2 for table in tables(daemon) for row in own_hints(table))


def farther(daemon: DaemonProcess) -> set[Dims]:
    """What the daemon's Tables have beyond hints."""
    return {dims for table in tables(daemon) for dims in rows_beyond(table)}


def beside(daemon: DaemonProcess) -> set[Dims]:
    """The companions that the daemon's Tables have."""
    return {dims for table in tables(daemon) for dims in companions(table)}


def test_a_dry_run_lists_the_work_and_does_none_of_it(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    code, report, _ = warm_up(daemon, tmp_path, GOOD, "--dry-run")
    assert code == ExitCode.OK
    assert report["dry_run"]
    assert report["models"][0]["points"] == EXPECTED_POINTS
    assert sum(len(program["points"]) for program in report["programs"]) == EXPECTED_POINTS
    assert report["estimated_jobs"] == 2 * len(report["goals"]) == 2 * EXPECTED_POINTS
    assert work_done(daemon) == (0, 0, 0)
    assert sum(daemon.status().queued_jobs.values()) == 0


def test_a_second_run_compiles_and_measures_nothing_and_reports_the_same(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    code, first, talk = warm_up(daemon, tmp_path, GOOD, "--html", "page.html")
    assert code == ExitCode.OK, talk
    assert first["settled"]
    assert all(kernel["hints"] for kernel in first["kernels"])
    assert [point["sizes"]["rows"] for point in first["points"]] == [1, 4, 16, 64]
    text = (tmp_path / "page.html").read_text()
    HTMLParser().feed(text)
    assert all(kernel["id"][:12] in text for kernel in first["kernels"])
    assert farther(daemon) == OUTGROWN
    done = work_done(daemon)
    code, second, talk = warm_up(daemon, tmp_path, GOOD)
    assert code == ExitCode.OK, talk
    assert work_done(daemon) == done
    times = [
        [(hint["sizes"], hint["eager_ns"], hint["t2_ns"]) for hint in kernel["hints"]]
        for report in (first, second)
        for kernel in report["kernels"]
    ]
    assert times[: len(times) // 2] == times[len(times) // 2 :]


def test_hints_that_come_to_a_full_table_have_companions_and_one_sided_ones_give_way(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    rows = [16 << at for at in range(ROW_LIMIT // 4 + 2)]

    def manifest(count: int) -> str:
        return GOOD.replace("[1, 4, 16, 64]", str(rows[:count]))

    # What has 2.5 times the elements of the largest of those that came first.
    outgrown = (50416, 208)

    def odd_in_both(count: int) -> set[Dims]:
        return {(odd_below(size), 125) for size in rows[:count]}

    code, _, talk = warm_up(daemon, tmp_path, manifest(len(rows) - 2))
    assert code == ExitCode.OK, talk
    before = searched(daemon)
    assert [len(table) for table in before.values()] == [ROW_LIMIT]
    assert farther(daemon) == {outgrown}
    assert {dims for dims in beside(daemon) if not is_one_sided(dims)} == odd_in_both(len(rows) - 2)
    code, _, talk = warm_up(daemon, tmp_path, manifest(len(rows)))
    assert code == ExitCode.OK, talk
    assert is_kept(before, searched(daemon))
    assert hints(daemon) == len(rows)
    assert farther(daemon) == {outgrown}
    assert len(beside(daemon)) == ROW_LIMIT - len(rows) - 1
    assert {dims for dims in beside(daemon) if not is_one_sided(dims)} == odd_in_both(len(rows))
    done = work_done(daemon)
    code, _, talk = warm_up(daemon, tmp_path, manifest(len(rows)))
    assert (code, work_done(daemon)) == (ExitCode.OK, done), talk


def test_models_that_fill_the_memory_are_loaded_one_after_the_other(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    code, report, talk = warm_up(daemon, tmp_path, LARGE)
    assert code == ExitCode.OK, talk
    assert [model["problem"] for model in report["models"]] == ["", ""]
    assert all(point["nearhint_ms"] for point in report["points"])
    assert len(report["points"]) == 4


def test_a_bad_model_among_good_ones_is_listed_and_the_others_are_tuned(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    made = command(daemon, tmp_path, "warm_entry.py")
    assert made.wait(END_S) == 0, made.stderr.read()
    code, report, talk = warm_up(daemon, tmp_path, BAD + EXPORTED)
    assert code == ExitCode.PARTIAL
    problems = {model["name"]: model["problem"] for model in report["models"]}
    assert "its weights are gone" in problems["bad"]
    assert problems["scores"] == ""
    assert [point["sizes"] for point in report["points"]] == [{"x_0": 2}, {"x_0": 64}]
    assert [point["tiers"]["T2"] for point in report["points"]] == [1, 1]
    assert "its weights are gone" in talk


def test_sizes_beyond_the_ranges_of_a_program_are_not_timed(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    made = command(daemon, tmp_path, "warm_entry.py")
    assert made.wait(END_S) == 0, made.stderr.read()
    code, _, talk = warm_up(daemon, tmp_path, BOUNDED)
    assert code == ExitCode.OK, talk
    (table,) = tables(daemon)
    assert {row.dims for row in own_hints(table)} == {(4, 32), (4, 128), (64, 32), (64, 128)}
    # (96, 208) has 2.5 times the elements.
    assert max(row.dims for row in table.hints) == (64, 128)
    assert farther(daemon) == set()


def test_what_models_print_is_no_part_of_what_is_printed_of_them(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    process = start(daemon, tmp_path, TALKATIVE, "--json", "-")
    _, talk = process.communicate()
    assert process.wait(END_S) == ExitCode.OK, talk
    assert len(json.loads((tmp_path / "stdout").read_text())["points"]) == 1
    assert "loading its weights\n" in talk
    assert "a call\n" in talk.split("tuned 1 of 1", 1)[1], "also while it is timed"


def test_a_manifest_of_nothing_but_bad_models_says_what_is_wrong(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    missing = '[[model]]\nexported = "absent.pt2"\n'
    code, report, talk = warm_up(daemon, tmp_path, missing)
    assert (code, report) == (ExitCode.NOT_FOUND, {})
    assert "absent.pt2" in talk
    code, report, talk = warm_up(daemon, tmp_path, BAD)
    assert (code, report) == (ExitCode.USAGE, {})
    assert "its weights are gone" in talk


@pytest.mark.parametrize("line", [1, 3])
def test_a_daemon_killed_in_mid_run_and_started_again_repeats_nothing(
    daemon: DaemonProcess, tmp_path: Path, line: int
) -> None:
    process = start(daemon, tmp_path, GOOD)
    until_line(process, line)
    before = searched(daemon)
    daemon.kill()
    daemon.start()
    output, talk = process.communicate()
    assert process.returncode == ExitCode.OK, talk + output
    assert is_kept(before, searched(daemon))
    assert hints(daemon) == EXPECTED_POINTS
    assert (farther(daemon), beside(daemon)) == (OUTGROWN, BESIDE)


@pytest.mark.parametrize("line", [1, 3])
def test_a_warm_up_killed_in_mid_run_goes_on_where_it_was(
    daemon: DaemonProcess, tmp_path: Path, line: int
) -> None:
    process = start(daemon, tmp_path, GOOD)
    until_line(process, line)
    process.kill()
    process.communicate()
    before = searched(daemon)
    code, report, talk = warm_up(daemon, tmp_path, GOOD)
    assert code == ExitCode.OK, talk
    assert is_kept(before, searched(daemon))
    assert hints(daemon) == EXPECTED_POINTS
    assert (farther(daemon), beside(daemon)) == (OUTGROWN, BESIDE)
    assert report["pending"] == []


def test_a_budget_that_ends_leaves_nothing_queued_and_the_next_run_finishes(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    code, report, _ = warm_up(daemon, tmp_path, GOOD, "--budget", "0.05s")
    assert code == ExitCode.PARTIAL
    assert not report["settled"]
    assert any("the budget ended" in kernel["problems"][0] for kernel in report["kernels"])
    assert daemon.status().queued_jobs.get("warm_up", 0) == 0
    code, report, talk = warm_up(daemon, tmp_path, GOOD)
    assert code == ExitCode.OK, talk
    assert hints(daemon) == EXPECTED_POINTS
    assert (farther(daemon), beside(daemon)) == (OUTGROWN, BESIDE)


def test_what_was_compiled_ahead_is_only_measured_where_the_device_is(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    wait_for_device(daemon)
    shown = command(daemon, tmp_path, "-m", "nearhint", "status", "--json")
    text, _ = shown.communicate()
    (tmp_path / "target.json").write_text(text)
    code, report, talk = warm_up(
        daemon, tmp_path, GOOD, "--compile-only", "--target", "target.json"
    )
    assert code == ExitCode.OK, talk
    assert report["compile_only"]
    compiles, measurements, verified = work_done(daemon)
    assert compiles > 0
    assert (measurements, verified) == (0, 0)
    daemon.terminate()
    daemon.start()
    code, report, talk = warm_up(daemon, tmp_path, GOOD)
    assert code == ExitCode.OK, talk
    compiles, measurements, verified = work_done(daemon)
    assert compiles == 0
    assert min(measurements, verified) > 0


def test_a_target_that_is_not_here_is_compiled_for_and_not_measured_on(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    half = {"kind": "cpu", "model": "elsewhere", "features": ["avx2", "fma"], "libc": "glibc 2.36"}
    (tmp_path / "target.json").write_text(json.dumps(half))
    code, report, talk = warm_up(
        daemon, tmp_path, GOOD, "--compile-only", "--target", "target.json"
    )
    assert code == ExitCode.OK, talk
    here = {device.target_id for device in daemon.status().devices}
    assert here.isdisjoint(goal["target"] for goal in report["goals"])
    compiles, measurements, _ = work_done(daemon)
    assert (compiles > 0, measurements) == (True, 0)
