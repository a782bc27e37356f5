"""Histograms of traffic: decay, bounds, what is written and what survives."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

import pytest
from tests.integration.fake_workers import chain, kernel_of, lowered
from tests.unit.daemon.stores import LIMIT_S, cancelled_in_the_queue
from tests.unit.rules.tables import row, table

from nearhint_daemon.errors import KernelUnknown
from nearhint_daemon.programs import Programs
from nearhint_daemon.store import Reading, Store, Writing
from nearhint_daemon.store.rows import TrafficRow
from nearhint_daemon.traffic import histograms as traffic
from nearhint_daemon.traffic.histograms import (
    CLIENT_CALLS,
    FORGOTTEN,
    GATHERED_LIMIT,
    SIZES_LIMIT,
    Histogram,
    Met,
    Traffic,
    decayed,
)
from nearhint_daemon.tuning.lowered import Lowered, decode
from nearhint_proto import convert
from nearhint_rules.hints import bucket
from nearhint_rules.metrics import Dims

HALF_LIFE_S = 60.0
PROGRAM = chain(2)
KERNEL = kernel_of(PROGRAM, 0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class KnownPrograms:
    """Lowers one Program for a CPU, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        answer = lowered(PROGRAM, "cpu")
        fallbacks = {
            convert.fallback_from_proto(message).id: message.SerializeToString()
            for message in answer.fallbacks
        }
        self._lowered = decode(
            convert.program_to_proto(PROGRAM).SerializeToString(),
            answer.plan.SerializeToString(),
            fallbacks,
        )

    async def lowered(self, key: tuple[str, str, str]) -> Lowered:
        self.asked += 1
        if key[1:] != (PROGRAM.id, "cpu"):
            raise KernelUnknown("no Plan")
        return self._lowered


class Quiet:
    def store_wrote(self, batch: object) -> None: ...

    def store_read_only(self, is_read_only: bool, /) -> None: ...

    def store_found_corrupt(self, what: str, key: str) -> None: ...


class Kept:
    """Traffic over a store in a folder, with a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.programs = KnownPrograms()
        folder.mkdir(exist_ok=True)
        self.store = Store(folder, observer=Quiet(), clock=self.clock)
        self.traffic = Traffic(
            self.store, cast(Programs, self.programs), clock=self.clock, half_life_s=HALF_LIFE_S
        )

    async def meet(self, *sizes: int, calls: int = 10, client: str = "a") -> None:
        for size in sizes:
            self.traffic.note(client, "", PROGRAM.id, f"s0={size}", calls)
        await self.traffic.fold()

    def weights(self) -> Mapping[Dims, float]:
        return {met.dims: met.weight for met in self.traffic.met("", KERNEL)}

    def rows(self) -> list[TrafficRow]:
        def read(reading: Reading) -> list[TrafficRow]:
            return list(reading.where(TrafficRow, kernel=KERNEL))

        return self.store.read_now(read)


def test_a_call_counts_half_after_a_half_life() -> None:
    assert decayed(8.0, HALF_LIFE_S, half_life_s=HALF_LIFE_S) == pytest.approx(4.0)
    assert decayed(8.0, 0.0, half_life_s=HALF_LIFE_S) == 8.0
    assert decayed(8.0, -100.0, half_life_s=HALF_LIFE_S) == 8.0
    assert decayed(8.0, 1e9, half_life_s=HALF_LIFE_S) == 0.0


def test_counts_add_to_what_is_left_of_those_before() -> None:
    histogram = Histogram(half_life_s=HALF_LIFE_S)
    histogram.add(("f", (16,)), 8.0, program="p", sizes="s0=16", now_s=0.0)
    histogram.add(("f", (16,)), 1.0, program="q", sizes="s0=16", now_s=HALF_LIFE_S)
    (met,) = histogram.hottest(HALF_LIFE_S)
    assert met.weight == pytest.approx(5.0)
    assert (met.program, met.first_at_s, met.at_s) == ("q", 0.0, HALF_LIFE_S)


def test_the_least_weight_goes_where_there_is_no_room() -> None:
    histogram = Histogram(half_life_s=HALF_LIFE_S, limit=2)
    for size, calls in ((16, 5.0), (32, 2.0), (64, 9.0)):
        histogram.add(("f", (size,)), calls, program="p", sizes="", now_s=0.0)
    assert [met.dims for met in histogram.hottest(0.0)] == [(64,), (16,)]
    changed, dropped = histogram.take()
    assert [met.dims for met in changed] == [(16,), (64,)]
    assert dropped == [("f", (32,))]
    assert histogram.take() == ([], [])


def test_new_traffic_wins_over_old_where_there_is_no_room() -> None:
    histogram = Histogram(half_life_s=HALF_LIFE_S, limit=2)
    for size in (16, 32):
        histogram.add(("f", (size,)), 100.0, program="p", sizes="", now_s=0.0)
    histogram.add(("f", (4096,)), 1.0, program="p", sizes="", now_s=0.0)
    assert (4096,) not in [met.dims for met in histogram.hottest(0.0)]
    later = 10 * HALF_LIFE_S
    histogram.add(("f", (4096,)), 1.0, program="p", sizes="", now_s=later)
    assert histogram.hottest(later)[0].dims == (4096,)


def test_what_could_not_be_written_is_taken_again() -> None:
    histogram = Histogram(half_life_s=HALF_LIFE_S, limit=1)
    histogram.add(("f", (16,)), 1.0, program="p", sizes="", now_s=0.0)
    histogram.add(("f", (32,)), 2.0, program="p", sizes="", now_s=0.0)
    taken = histogram.take()
    histogram.give_back(*taken)
    assert histogram.take() == taken


def test_traffic_is_counted_for_each_kernel_of_a_program(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        await kept.meet(16, 16, 64)
        assert {kernel for _, kernel in kept.traffic.kernels()} == {
            kernel_of(PROGRAM, 0),
            kernel_of(PROGRAM, 1),
        }
        assert kept.weights() == {(16,): 20.0, (64,): 10.0}
        assert kept.traffic.sizes() == 4
        # The same sizes again: nothing is lowered or evaluated anew.
        asked = kept.programs.asked
        await kept.meet(16, 64)
        assert kept.programs.asked == asked
        await kept.store.close()

    asyncio.run(scenario())


def test_no_client_counts_for_more_than_its_share(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        kept.traffic.note("loud", "", PROGRAM.id, "s0=16", 3_000_000)
        kept.traffic.note("loud", "", PROGRAM.id, "s0=32", 1_000_000)
        kept.traffic.note("quiet", "", PROGRAM.id, "s0=64", 7)
        await kept.traffic.fold()
        assert kept.weights() == {
            (16,): pytest.approx(0.75 * CLIENT_CALLS),
            (32,): pytest.approx(0.25 * CLIENT_CALLS),
            (64,): 7.0,
        }
        await kept.store.close()

    asyncio.run(scenario())


def test_a_program_that_nobody_lowered_has_no_traffic(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        kept.traffic.note("a", "", "0" * 64, "s0=16", 5)
        await kept.traffic.flush()
        assert kept.traffic.kernels() == ()
        await kept.store.close()

    asyncio.run(scenario())


def test_traffic_outlives_the_daemon_up_to_the_last_write(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = Kept(tmp_path)
        await first.store.start()
        await first.meet(16, 64, calls=40)
        await first.traffic.flush()
        await first.meet(4096)
        # Killed here: what was counted since the write is lost, nothing else.
        await first.store.close()
        second = Kept(tmp_path)
        second.clock.now_s = first.clock.now_s + HALF_LIFE_S
        await second.store.start()
        await second.traffic.load()
        assert second.weights() == {(16,): pytest.approx(20.0), (64,): pytest.approx(20.0)}
        (met, _) = second.traffic.met("", KERNEL)
        assert (met.program, met.sizes, met.first_at_s) == (PROGRAM.id, "s0=16", 1000.0)
        await second.store.close()

    asyncio.run(scenario())


def test_what_faded_while_no_daemon_ran_is_not_taken_up(tmp_path: Path) -> None:
    """Or the first calls after a night would be all that is known, and known for long."""

    async def scenario() -> None:
        first = Kept(tmp_path)
        await first.store.start()
        await first.meet(16, 64, calls=40)
        await first.traffic.flush()
        await first.store.close()
        second = Kept(tmp_path)
        second.clock.now_s = first.clock.now_s + 48 * HALF_LIFE_S
        await second.store.start()
        await second.traffic.load()
        assert second.traffic.kernels() == ()
        await second.meet(16)
        await second.traffic.flush()
        assert {met.first_at_s for met in second.traffic.met("", KERNEL)} == {second.clock.now_s}
        rows = second.store.read_now(lambda reading: list(reading.where(TrafficRow)))
        assert {row.dims for row in rows} == {"16"}
        await second.store.close()

    asyncio.run(scenario())


def test_what_is_dropped_and_what_fades_leaves_the_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        await kept.meet(*range(2, 2 + SIZES_LIMIT))
        await kept.traffic.flush()
        assert len(kept.rows()) == SIZES_LIMIT
        await kept.meet(4000, calls=1000)
        await kept.traffic.flush()
        assert len(kept.rows()) == SIZES_LIMIT
        assert "4000" in {row.dims for row in kept.rows()}
        # Until 10 calls are less than what is as good as none.
        while decayed(10.0, kept.clock.now_s - 1000.0, half_life_s=HALF_LIFE_S) >= FORGOTTEN:
            kept.clock.now_s += HALF_LIFE_S
        await kept.traffic.flush()
        assert [row.dims for row in kept.rows()] == ["4000"]
        kept.clock.now_s += 100 * HALF_LIFE_S
        await kept.traffic.flush()
        assert kept.rows() == []
        assert kept.traffic.kernels() == ()
        await kept.store.close()

    asyncio.run(scenario())


def test_the_number_of_kernels_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        await kept.meet(16)
        await kept.traffic.flush()
        monkeypatch.setattr(traffic, "KERNELS_LIMIT", 1)
        await kept.meet(16)
        await kept.traffic.flush()
        assert len(kept.traffic.kernels()) == 1

        def count(reading: Reading) -> int:
            return reading.count(TrafficRow)

        assert kept.store.read_now(count) == 1
        await kept.store.close()

    asyncio.run(scenario())


def test_of_a_kernel_that_had_to_go_and_is_met_again_nothing_is_left_from_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both Kernels of the Program are met in turn, and there is room for one."""
    monkeypatch.setattr(traffic, "KERNELS_LIMIT", 1)

    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        for size in (16, 32, 64):
            await kept.meet(size)
            await kept.traffic.flush()
            rows = kept.store.read_now(lambda reading: list(reading.where(TrafficRow)))
            assert [row.dims for row in rows] == [str(size)]
        await kept.store.close()

    asyncio.run(scenario())


def test_on_a_full_disk_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        await kept.meet(16)

        async def full(work: object) -> None:
            raise OSError("full")

        with monkeypatch.context() as patched:
            patched.setattr(kept.store, "write", full)
            with pytest.raises(OSError, match="full"):
                await kept.traffic.flush()
        await kept.traffic.flush()
        assert [row.dims for row in kept.rows()] == ["16"]
        await kept.store.close()

    asyncio.run(scenario())


def test_a_damaged_row_is_passed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()

        def damage(tx: Writing) -> None:
            tx.put(TrafficRow("", KERNEL, "f", "1x", PROGRAM.id, "s0=1", 1.0, 0.0, 1000.0))
            tx.put(TrafficRow("", KERNEL, "f", "8", PROGRAM.id, "s0=8", 1.0, 0.0, 1000.0))

        await kept.store.write(damage)
        await kept.traffic.load()
        assert list(kept.weights()) == [(8,)]
        await kept.store.close()

    asyncio.run(scenario())


def test_what_was_met_by_a_clock_that_was_ahead_fades_from_now_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        ahead_s = kept.clock.now_s + 1e8
        row = TrafficRow("", KERNEL, "f", "8", PROGRAM.id, "s0=8", 16.0, ahead_s, ahead_s)
        await kept.store.write(lambda tx: tx.put(row))
        await kept.traffic.load()
        kept.clock.now_s += HALF_LIFE_S
        assert kept.weights() == {(8,): pytest.approx(8.0)}
        (met,) = kept.traffic.met("", KERNEL)
        assert met.first_at_s <= kept.clock.now_s
        await kept.store.close()

    asyncio.run(scenario())


def test_hints_are_used_by_the_sizes_nearest_to_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        await kept.meet(15, 17, 1000, calls=5)
        (step, *_) = {met.fallback for met in kept.traffic.met("", KERNEL)}
        made = table(*(row((size,), {0: 1}, step=step) for size in (16, 64, 2048)))
        assert kept.traffic.uses(made) == {(16,): 0.0, (64,): 0.0, (2048,): 0.0}

        of_kernel = replace(made, kernel=KERNEL)
        assert kept.traffic.uses(of_kernel) == {(16,): 10.0, (64,): 0.0, (2048,): 5.0}
        assert kept.traffic.uses(replace(of_kernel, hints=())) == {}
        # Where another Fallback was timed, none of these calls is answered.
        others = (row((16,), {0: 1}), *of_kernel.hints[1:])
        of_others = kept.traffic.uses(replace(of_kernel, hints=others))
        assert of_others == {(16,): 0.0, (64,): 10.0, (2048,): 5.0}
        await kept.store.close()

    asyncio.run(scenario())


def test_what_was_met_before_the_clock_was_set_back_fades_like_the_rest(tmp_path: Path) -> None:
    """As where a machine started in the wrong year."""

    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        right_s = kept.clock.now_s
        kept.clock.now_s = right_s + 1e8
        await kept.meet(16, 64)
        await kept.traffic.flush()
        kept.clock.now_s = right_s
        await kept.meet(64, 1024)
        await kept.traffic.flush()
        assert {met.first_at_s for met in kept.traffic.met("", KERNEL)} == {right_s}
        kept.clock.now_s += HALF_LIFE_S
        assert kept.weights() == {(16,): 5.0, (64,): 10.0, (1024,): 5.0}
        assert kept.traffic.heat("", {"kernel": KERNEL, "dims": [64]}) == 4
        kept.clock.now_s += 20 * HALF_LIFE_S
        await kept.traffic.flush()
        assert kept.weights() == {}
        await kept.store.close()

    asyncio.run(scenario())


def test_heat_is_in_octaves_of_calls_in_the_bucket(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        await kept.meet(15, 17, calls=5)

        def heat(*dims: int, kernel: str = KERNEL) -> int:
            return kept.traffic.heat("", {"kernel": kernel, "dims": list(dims)})

        assert heat(16) == 4
        assert heat(64) == heat(16, kernel="0" * 64) == 0
        assert kept.traffic.heat("", {"program": "no hint"}) == 0
        await kept.store.close()

    asyncio.run(scenario())


def test_heat_is_known_without_a_look_at_every_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that waits is ordered by it every few seconds."""
    monkeypatch.setattr(Histogram, "hottest", None)

    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        await kept.meet(15, 17, calls=5)
        kept.clock.now_s += HALF_LIFE_S
        assert kept.traffic.heat("", {"kernel": KERNEL, "dims": [16]}) == 3
        await kept.store.close()

    asyncio.run(scenario())


def test_the_calls_of_a_bucket_are_those_of_its_sizes() -> None:
    """However they came, faded or were crowded out."""
    drawn, now_s = Random(5), 0.0
    histogram = Histogram(half_life_s=HALF_LIFE_S, limit=12)
    histogram.load(Met("f", (9,), 4.0, now_s, now_s, "p", "s0=9"))
    for number in range(600):
        now_s += drawn.choice([0.0, 1.0, HALF_LIFE_S / 4])
        site = (drawn.choice("fg"), (drawn.randrange(1, 40),))
        histogram.add(site, float(drawn.randrange(1, 9)), program="p", sizes="", now_s=now_s)
        if number % 50 == 49:
            now_s += 9 * HALF_LIFE_S
            histogram.fade(now_s)
        met = histogram.hottest(now_s)
        for wanted in ((size,) for size in (1, 2, 4, 8, 16, 32, 64)):
            calls = sum(each.weight for each in met if bucket(each.dims) == wanted)
            assert histogram.calls_in(wanted, now_s) == pytest.approx(calls, abs=1e-9)


def test_thousands_of_new_sizes_do_not_crowd_each_other_out_one_by_one(tmp_path: Path) -> None:
    """Each that does costs a look at all that stay: the daemon was busy for minutes with that."""

    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        await kept.meet(4, calls=50)
        for size in range(8, 8 + 4 * SIZES_LIMIT):
            kept.traffic.note("b", "", PROGRAM.id, f"s0={size}", 1 + size % 2)
        await kept.traffic.fold()
        assert len(kept.weights()) == SIZES_LIMIT
        assert min(kept.weights().values()) == 2.0
        changed, dropped = kept.traffic._kernels["", KERNEL].take()
        assert (len(changed), len(dropped)) == (SIZES_LIMIT, 1)
        await kept.store.close()

    asyncio.run(scenario())


def test_a_client_is_counted_for_so_many_sizes_between_two_folds(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        for size in (*range(2, 12 + GATHERED_LIMIT), 2):
            kept.traffic.note("a", "", PROGRAM.id, f"s0={size}", 1)
        (gathered,) = kept.traffic._gathered.values()
        assert len(gathered) == GATHERED_LIMIT
        assert gathered["", PROGRAM.id, "s0=2"] == 2
        await kept.store.close()

    asyncio.run(scenario())


def test_what_is_being_written_when_the_daemon_stops_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.store.start()
        await kept.meet(16)
        kept.traffic.note("a", "", PROGRAM.id, "s0=32", 10)
        async with asyncio.timeout(LIMIT_S):
            await cancelled_in_the_queue(kept.store, kept.traffic.flush())
        await kept.traffic.flush()
        assert sorted(row.dims for row in kept.rows()) == ["16", "32"]
        await kept.store.close()

    asyncio.run(scenario())
