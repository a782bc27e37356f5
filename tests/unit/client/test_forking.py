"""What a fork waits for."""

from __future__ import annotations

import threading
from pathlib import Path

from nearhint._forking import wait_for_grpc_to_end


def thread(tasks: Path, number: int, name: str) -> Path:
    """A thread as the kernel lists it."""
    task = tasks / str(number)
    task.mkdir(parents=True)
    (task / "comm").write_text(f"{name}\n", encoding="utf-8")
    return task


def test_a_process_without_threads_of_grpc_forks_at_once(tmp_path: Path) -> None:
    thread(tmp_path, 1, "python")
    assert wait_for_grpc_to_end(timeout_s=0, tasks=tmp_path)


def test_a_thread_that_stays_is_waited_for_no_longer_than_was_said(tmp_path: Path) -> None:
    thread(tmp_path, 1, "python")
    thread(tmp_path, 2, "event_engine")
    assert not wait_for_grpc_to_end(timeout_s=0.01, tasks=tmp_path)


def test_threads_that_end_meanwhile_are_waited_for(tmp_path: Path) -> None:
    names = [thread(tmp_path, number, "grpc_shutdown") / "comm" for number in range(3)]

    def end() -> None:
        for name in names:
            name.unlink()

    timer = threading.Timer(0.05, end)
    timer.start()
    assert wait_for_grpc_to_end(timeout_s=20, tasks=tmp_path)
    assert not any(name.exists() for name in names)
    timer.join()


def test_where_the_kernel_lists_no_threads_nothing_is_waited_for(tmp_path: Path) -> None:
    assert wait_for_grpc_to_end(timeout_s=20, tasks=tmp_path / "absent")
