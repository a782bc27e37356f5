"""A daemon as a process: its lock, its socket, its end, and what is left after SIGKILL."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.integration.daemon_in_process import Client
from tests.integration.daemon_process import (
    ROOT,
    SOURCES,
    START_LIMIT_S,
    DaemonProcess,
    daemon_in,
)
from tests.integration.fake_workers import chain
from tests.integration.waiting import until

from nearhint.connection import Connection
from nearhint.counters import Counters
from nearhint.demo.daemon import DemoDaemon
from nearhint.errors import DaemonUnreachable
from nearhint_daemon.exit_codes import ExitCode
from nearhint_daemon.lifecycle import DESCRIPTORS
from nearhint_daemon.store import database
from nearhint_proto.v1 import admin_service_pb2, operation_service_pb2, table_service_pb2

DONE = operation_service_pb2.OPERATION_STATE_DONE


def test_second_daemon_leaves_and_names_the_first(tmp_path: Path) -> None:
    with daemon_in(tmp_path) as first:
        first.start()
        inode = (tmp_path / "run" / "s").stat().st_ino
        second = subprocess.run(
            [*first.command()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / s) for s in SOURCES)},
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert second.returncode == ExitCode.REFUSED
        assert f"pid {first.pid}" in second.stderr.decode()
        assert (tmp_path / "run" / "s").stat().st_ino == inode
        assert first.status().state == "serving"


def test_of_two_daemons_started_at_once_on_one_socket_one_serves(tmp_path: Path) -> None:
    elsewhere = ("--state-dir", str(tmp_path / "elsewhere"))
    with daemon_in(tmp_path) as one, daemon_in(tmp_path, flags=elsewhere) as other:
        for daemon in (one, other):
            daemon.process = daemon.popen()
        asyncio.run(until(lambda: _has_ended(one) or _has_ended(other)))
        ended, served = (one, other) if _has_ended(one) else (other, one)
        assert ended.terminate() == ExitCode.REFUSED
        problem = f"{tmp_path / 'run' / 's'} is in use by the nearhintd with pid {served.pid}"
        assert problem in ended.log.read_text()
        served.wait_until_it_serves()
        assert served.terminate() == ExitCode.OK


def _has_ended(daemon: DaemonProcess) -> bool:
    assert daemon.process is not None
    return daemon.process.poll() is not None


def test_the_lock_and_the_socket_of_a_killed_daemon_are_taken_over(tmp_path: Path) -> None:
    with daemon_in(tmp_path) as daemon:
        daemon.start()
        daemon.kill()
        assert (tmp_path / "run" / "s").exists()
        daemon.start()
        assert daemon.terminate() == ExitCode.OK
        assert not (tmp_path / "run" / "s").exists()


def test_directories_and_socket_have_tight_modes(tmp_path: Path) -> None:
    with daemon_in(tmp_path) as daemon:
        daemon.start()
        assert stat.S_IMODE(daemon.state_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o750
        assert stat.S_IMODE((tmp_path / "run" / "s").stat().st_mode) == 0o660


def test_what_was_acknowledged_survives_sigkill_and_is_not_done_again(tmp_path: Path) -> None:
    async def tune(daemon: DaemonProcess) -> None:
        async with grpc.aio.insecure_channel(daemon.address) as channel:
            client = Client(channel)
            registered = await client.register(chain(3))
            operation = await client.tuned(registered, 16, 64, 256)
            assert operation.state == DONE

    with daemon_in(tmp_path) as daemon:
        daemon.start()
        asyncio.run(tune(daemon))
        before = daemon.status()
        daemon.kill()
        daemon.start()
        after = daemon.status()
        for name in ("programs", "kernels", "variants", "measurements", "artifacts"):
            assert getattr(after, name) == getattr(before, name) > 0
        asyncio.run(tune(daemon))
        assert daemon.status().compiles_run == 0


def test_sigkill_at_any_time_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """P1: what a client was told is there after the kill, and work goes on where it was."""
    seed = 20261121
    chance = random.Random(seed)
    program = chain(4)

    async def watch(daemon: DaemonProcess, generations: dict[str, int]) -> None:
        async with grpc.aio.insecure_channel(daemon.address) as channel:
            client = Client(channel)
            registered = await client.register(program)
            operation = await client.ensure(registered, 16, 64, 256, 1024)
            killer = threading.Timer(chance.uniform(0.02, 0.2), daemon.kill)
            killer.start()
            try:
                while operation.state != DONE:
                    for table in await client.tables_of(registered):
                        generations[table.kernel] = table.generation
                    operation = await client.ensure(registered, 16, 64, 256, 1024)
            finally:
                killer.join()

    with daemon_in(tmp_path, environment={"FAKE_DELAY_S": "0.002"}) as daemon:
        for _ in range(4):
            daemon.start()
            seen: dict[str, int] = {}
            with suppress(grpc.aio.AioRpcError):  # it was killed in the middle of a call
                asyncio.run(watch(daemon, seen))
            daemon.start()
            after = asyncio.run(_generations(daemon, program))
            for kernel, generation in seen.items():
                assert after[kernel] >= generation, f"seed {seed}: {kernel}"
            daemon.kill()


async def _generations(daemon: DaemonProcess, program: object) -> dict[str, int]:
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        client = Client(channel)
        registered = await client.register(program)  # type: ignore[arg-type]
        return {table.kernel: table.generation for table in await client.tables_of(registered)}


def test_sigterm_ends_calls_in_flight_and_gives_jobs_back(tmp_path: Path) -> None:
    async def scenario(daemon: DaemonProcess) -> str:
        async with grpc.aio.insecure_channel(daemon.address) as channel:
            client = Client(channel)
            registered = await client.register(chain(2))
            await client.ensure(registered, 64)
            os.kill(daemon.pid, signal.SIGTERM)
            # The stubs for types know Check alone.
            health: Any = health_pb2_grpc.HealthStub(channel)
            answers: list[int] = []
            async for answer in health.Watch(health_pb2.HealthCheckRequest(), timeout=10):
                answers.append(answer.status)
                if answer.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                    break
            assert answers[-1] == health_pb2.HealthCheckResponse.NOT_SERVING
            return registered.program_id

    with daemon_in(
        tmp_path, flags=("--drain-delay-s", "1"), environment={"FAKE_DELAY_S": "0.3"}
    ) as daemon:
        daemon.start()
        asyncio.run(scenario(daemon))
        assert daemon.process is not None
        assert daemon.process.wait(timeout=20) == ExitCode.OK
        daemon.environment = {}
        daemon.start()

        async def finish() -> None:
            async with grpc.aio.insecure_channel(daemon.address) as channel:
                client = Client(channel)
                registered = await client.register(chain(2))
                assert (await client.tuned(registered, 64)).state == DONE

        asyncio.run(finish())


def test_a_daemon_that_leaves_does_not_wait_for_those_who_watch_its_tables(tmp_path: Path) -> None:
    """Each client watches for as long as it runs: every restart took `drain_timeout_s`."""

    async def scenario(daemon: DaemonProcess) -> None:
        async with grpc.aio.insecure_channel(daemon.address) as channel:
            client = Client(channel)
            registered = await client.register(chain(2))
            request = table_service_pb2.WatchTablesRequest(target_id=registered.target_id)
            watch = client.tables.WatchTables(request, timeout=60)
            assert await watch.read() is not grpc.aio.EOF
            os.kill(daemon.pid, signal.SIGTERM)
            with suppress(grpc.aio.AioRpcError):  # its socket may be gone before the stream's end
                assert await watch.read() is grpc.aio.EOF

    with daemon_in(tmp_path, flags=("--drain-timeout-s", "600")) as daemon:
        daemon.start()
        asyncio.run(scenario(daemon))
        assert daemon.process is not None
        assert daemon.process.wait(timeout=30) == ExitCode.OK


@contextmanager
def hanging_up(disposition: signal.Handlers) -> Generator[None]:
    """What children do when their terminal closes, whatever whoever runs the tests does."""
    before = signal.signal(signal.SIGHUP, disposition)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_closes_drains_it_unless_it_is_to_outlive_that(tmp_path: Path) -> None:
    with daemon_in(tmp_path) as daemon:
        with hanging_up(signal.SIG_DFL):
            daemon.start()
        os.kill(daemon.pid, signal.SIGHUP)
        assert daemon.process is not None
        assert daemon.process.wait(timeout=20) == ExitCode.OK
        assert not (tmp_path / "run" / "s").exists()
        with hanging_up(signal.SIG_IGN):  # as `nohup` does
            daemon.start()
        os.kill(daemon.pid, signal.SIGHUP)
        assert daemon.status().state == "serving"


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_daemon_that_nobody_can_reach_any_more_ends_and_says_so(
    tmp_path: Path, what: str
) -> None:
    """Else it runs on as if all were well, and every new process has no daemon."""
    path = tmp_path / "run" / "s"
    with daemon_in(tmp_path) as daemon:
        daemon.start()
        path.unlink()
        if what == "replaced":
            path.touch()
        assert daemon.process is not None
        assert daemon.process.wait(timeout=30) == ExitCode.FAILED, daemon.log.read_text()
        assert "socket_lost" in daemon.log.read_text()
        assert not (daemon.state_dir / f"{database.FILE_NAME}-wal").exists(), "it drained"
        assert path.exists() == (what == "replaced")
        path.unlink(missing_ok=True)
        daemon.start()
        assert daemon.terminate() == ExitCode.OK


def test_what_cannot_be_removed_at_the_end_keeps_nothing_from_being_closed(tmp_path: Path) -> None:
    """As where a failing disk has been mounted read-only since, or a folder was replaced."""
    with daemon_in(tmp_path, flags=("--metrics-port", "0")) as daemon:
        daemon.start()
        address = daemon.state_dir / "metrics_address"
        address.unlink()
        address.mkdir()
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "run").write_text("no folder")
        assert daemon.terminate() == ExitCode.OK, daemon.log.read_text()
        assert "Traceback" not in daemon.log.read_text()
        assert not (daemon.state_dir / f"{database.FILE_NAME}-wal").exists()
        # Nor does the next one need what is left.
        (tmp_path / "run").unlink()
        daemon.start()
        assert daemon.terminate() == ExitCode.OK, daemon.log.read_text()


@pytest.mark.parametrize("name", ["a b%20c#d?e", os.fsdecode(b"no UTF-8 \xff")])
def test_a_socket_may_lie_where_names_have_signs_of_an_address(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    address = f"unix:{folder}/run/s"
    with daemon_in(folder) as daemon:
        daemon.process = daemon.popen()
        settings = {"trusted_uids": frozenset[int](), "counters": Counters(), "version": "0"}
        deadline_s = time.monotonic() + START_LIMIT_S
        while True:
            assert daemon.process.poll() is None, daemon.log.read_text()
            try:
                with closing(Connection(address, **settings)) as connection:  # type: ignore[arg-type]
                    assert connection.hello().daemon_id
                    break
            except DaemonUnreachable:  # nothing there, or bound and not listening yet
                assert time.monotonic() < deadline_s
        assert daemon.terminate() == ExitCode.OK


def test_the_demos_daemon_may_measure_whatever_the_environment_says_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARHINT_DEVICE_POLICY", "idle")
    daemon = DemoDaemon(tmp_path)
    try:
        daemon.start()
        policies = {device.policy for device in daemon.status().devices}
    finally:
        daemon.stop()
    assert policies == {admin_service_pb2.DEVICE_POLICY_ALWAYS}


def test_a_low_soft_limit_of_descriptors_does_not_limit_clients(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with daemon_in(tmp_path) as daemon:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            daemon.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        now, _ = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        assert now == (DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS))


def test_a_database_damaged_meanwhile_is_told_and_moved_aside_at_the_next_start(
    tmp_path: Path,
) -> None:
    async def tune(daemon: DaemonProcess, *sizes: int) -> int:
        async with grpc.aio.insecure_channel(daemon.address) as channel:
            client = Client(channel)
            return (await client.tuned(await client.register(chain(3)), *sizes)).state

    with daemon_in(tmp_path) as daemon:
        daemon.start()
        assert asyncio.run(tune(daemon, 16, 64, 256)) == DONE
        assert daemon.terminate() == ExitCode.OK
        daemon.start()
        with (daemon.state_dir / "nearhint.db").open("r+b") as file:
            file.truncate(3 * 4096)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            asyncio.run(tune(daemon, 1024))
        assert caught.value.code() is grpc.StatusCode.DATA_LOSS
        (problem,) = daemon.status().problems
        assert "start the daemon again" in problem
        assert daemon.terminate() == ExitCode.OK
        assert "Traceback" not in daemon.log.read_text()
        daemon.start()
        (problem,) = daemon.status().problems
        assert "it was moved to corrupt-" in problem
        assert asyncio.run(tune(daemon, 16)) == DONE


def test_a_second_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    with daemon_in(tmp_path, flags=("--drain-delay-s", "60")) as daemon:
        daemon.start()
        os.kill(daemon.pid, signal.SIGTERM)
        while daemon.status().state != "draining":
            pass
        assert daemon.terminate() == ExitCode.INTERRUPTED


def test_metrics_and_probes_answer_on_a_free_port(tmp_path: Path) -> None:
    with daemon_in(tmp_path, flags=("--metrics-port", "0")) as daemon:
        daemon.start()
        address = (daemon.state_dir / "metrics_address").read_text().strip()
        assert daemon.status().metrics_address == address
        found = {
            path: urllib.request.urlopen(f"http://{address}{path}", timeout=10).read().decode()
            for path in ("/metrics", "/livez", "/readyz", "/version")
        }
        assert "nearhint_build_info{" in found["/metrics"]
        assert found["/readyz"] == "serving\n"
        assert '"daemon_id"' in found["/version"]
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{address}/../state", timeout=10)
        assert caught.value.code == 404


def test_the_daemon_never_loads_torch_triton_numpy_or_sympy() -> None:
    script = (
        "import sys, nearhint_daemon.lifecycle, nearhint_daemon.cli\n"
        "print([n for n in ('torch', 'triton', 'numpy', 'sympy') if n in sys.modules])"
    )
    path = os.pathsep.join(str(ROOT / source) for source in SOURCES)
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert answer.stdout.decode().strip() == "[]"
