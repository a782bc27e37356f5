"""A machine with two GPUs: each serves with its own binaries, and is measured on as it is set."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.gpu.served import (
    FIRST,
    OTHER_ROWS,
    ROWS,
    WIDTH,
    Function,
    Tensor,
    block,
    captured,
    client_of,
    close,
    random,
    serving,
    settled,
    tuned,
)

import nearhint
from nearhint.demo.daemon import DemoDaemon
from nearhint_proto.v1 import admin_service_pb2 as admin
from nearhint_torch.runner import watch

pytestmark = [pytest.mark.gpu(2), pytest.mark.timeout(240)]

SECOND = "cuda:1"
BUSY_S = 20.0
SERVED = [(0, 0, 2)] * (len(ROWS) + 1)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoDaemon]:
    with serving(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture
def client(daemon: DemoDaemon, tmp_path: Path) -> Iterator[None]:
    with client_of(daemon, tmp_path / "cache"):
        yield


def weights(device: str) -> tuple[Tensor, Tensor]:
    return random(WIDTH, device=device), random(WIDTH, WIDTH, device=device)


def tiers(kernel: Function, *others: Tensor, device: str) -> list[tuple[int, ...]]:
    """Of calls whose results are right, and where their arguments are."""
    with watch() as reports:
        for rows in (*ROWS, OTHER_ROWS):
            x = random(rows, WIDTH, device=device)
            got = kernel(x, *others)
            assert got.device == x.device
            assert close(got, block(x, *others))
    return [report.tiers for report in reports]


@contextmanager
def at_work(device: str) -> Generator[None, None, None]:
    """A device that another thread keeps busy."""
    ended = threading.Event()

    def work() -> None:
        x = random(4096, 4096, device=device)
        while not ended.is_set():
            for _ in range(50):
                x = torch.tanh(x @ x)
            torch.cuda.synchronize(device)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def measured_on(daemon_directory: Path) -> set[str]:
    """The devices that a daemon's measurements name."""
    path = daemon_directory / "state" / "nearhint.db"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as store:
        return {device for (device,) in store.execute("select distinct device from measurements")}


def test_a_function_on_the_second_device_is_served_there(client: None) -> None:
    others = weights(SECOND)
    kernel = tuned(block, *others, device=SECOND)
    assert torch.cuda.current_device() == 0
    held = torch.cuda.memory_allocated(FIRST)
    assert tiers(kernel, *others, device=SECOND) == SERVED
    assert torch.cuda.memory_allocated(FIRST) == held
    with torch.cuda.device(SECOND):
        assert tiers(kernel, *others, device=SECOND) == SERVED


def test_one_function_serves_both_devices(client: None) -> None:
    first, second = weights(FIRST), weights(SECOND)
    kernel = tuned(block, *first)
    for rows in ROWS:
        kernel(random(rows, WIDTH, device=SECOND), *second)
    settled()
    for _ in range(2):
        assert tiers(kernel, *first, device=FIRST) == SERVED
        assert tiers(kernel, *second, device=SECOND) == SERVED


def test_a_captured_graph_of_the_second_device_replays_on_new_inputs(client: None) -> None:
    others = weights(SECOND)
    kernel = tuned(block, *others, device=SECOND)
    x = random(OTHER_ROWS, WIDTH, device=SECOND)
    with torch.cuda.device(SECOND):
        graph, out = captured(kernel, x, *others)
        fresh = random(OTHER_ROWS, WIDTH, device=SECOND)
        x.copy_(fresh)
        graph.replay()
        torch.cuda.synchronize()
        assert close(out, block(fresh, *others))


def test_threads_serve_on_a_device_each(client: None) -> None:
    made = {device: weights(device) for device in (FIRST, SECOND)}
    kernels = {device: tuned(block, *others, device=device) for device, others in made.items()}
    failed: list[BaseException] = []

    def work(device: str) -> None:
        try:
            torch.cuda.set_device(device)
            for _ in range(20):
                tiers(kernels[device], *made[device], device=device)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(device,)) for device in (FIRST, SECOND) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_what_the_first_device_may_not_measure_the_second_does(tmp_path: Path) -> None:
    others = weights(FIRST)
    with serving(tmp_path) as daemon, client_of(daemon, tmp_path / "cache"):
        daemon.set_policy(FIRST, admin.DEVICE_POLICY_NEVER)
        kernel = tuned(block, *others)
        assert tiers(kernel, *others, device=FIRST) == SERVED
        assert daemon.finish()
    assert measured_on(tmp_path) == {SECOND}


@pytest.mark.parametrize("order", ["PCI_BUS_ID", "FASTEST_FIRST"])
def test_a_daemon_that_sees_the_second_device_alone_asks_whether_that_is_idle(
    order: str, tmp_path: Path
) -> None:
    others = weights(FIRST)
    kernel: Function = nearhint.kernel(block, dynamic={"x": {0: "rows"}})
    environment = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": order}
    with serving(tmp_path, **environment) as daemon, client_of(daemon, tmp_path / "cache"):
        daemon.set_policy(FIRST, admin.DEVICE_POLICY_IDLE)
        with at_work(SECOND):
            for rows in ROWS:
                kernel(random(rows, WIDTH), *others)
            assert not nearhint.settle(timeout_s=BUSY_S).settled
        with at_work(FIRST):
            settled()
        assert tiers(kernel, *others, device=FIRST) == SERVED
