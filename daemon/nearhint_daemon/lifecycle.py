"""A daemon's life: directories, locks, store, workers, socket; then the way back, in order.

SIGTERM, SIGINT or SIGHUP drains: health says NOT_SERVING, watches of Tables are ended, other calls
in flight end, running jobs are given back to the durable queue. A second one ends the process at
once. A socket that somebody removed or replaced drains, too: who supervises the daemon starts it
again, with a new one.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST

from nearhint_daemon import directories, logs
from nearhint_daemon.config import Config
from nearhint_daemon.core import VERSION, Core, MakePools, Pools, compile_workers
from nearhint_daemon.devices import default_names
from nearhint_daemon.endpoint import Answer, Endpoint, as_json, text
from nearhint_daemon.errors import InvalidConfiguration, SocketLost, StoreError
from nearhint_daemon.exit_codes import ExitCode
from nearhint_daemon.metrics import Metrics
from nearhint_daemon.operating.quarantine import QUARANTINE, REJECTED
from nearhint_daemon.server import Server
from nearhint_daemon.store import database
from nearhint_daemon.store.artifacts import CORRUPT
from nearhint_daemon.store.store import ARTIFACTS
from nearhint_daemon.workers import scratch
from nearhint_daemon.workers.pool import BenchPool, CompilePool

METRICS_OFF = -1
DESCRIPTORS = 65_536
"""More than clients will ever need on one machine."""
SOCKET_LOOK_S = 5.0
METRICS_ADDRESS_NAME = "metrics_address"
LEFT_IN_STATE = (
    directories.LOCK_NAME,
    *(f"{database.FILE_NAME}{suffix}" for suffix in database.SUFFIXES),
    ARTIFACTS,
    *(f"{ARTIFACTS}/{name}" for name in (CORRUPT, "??")),
    QUARANTINE,
    REJECTED,
)
"""What a daemon finds in its state directory and goes on with; other things may be there."""


def make_pools(config: Config, metrics: Metrics) -> Pools:
    """The real workers: spawned processes."""
    return Pools(
        CompilePool(compile_workers(config), on_restart=metrics.worker_restarted),
        BenchPool(config.devices or default_names(), on_restart=metrics.worker_restarted),
    )


def serve(config: Config, *, make_pools: MakePools = make_pools) -> ExitCode:
    """Runs a daemon until it is told to stop; raises `DaemonError` where it cannot start.

    Raises `SocketLost` once it has stopped because nobody could reach it any more.
    """
    _allow_descriptors()
    socket_path = config.socket_path
    directories.prepare(config.state_dir, mode=directories.STATE_MODE)
    if directories.is_read_only(config.state_dir):
        raise StoreError(f"{config.state_dir} is on a file system that is mounted read-only")
    directories.own(config.state_dir, LEFT_IN_STATE)
    directories.prepare(socket_path.parent, mode=directories.SOCKET_DIRECTORY_MODE)
    with directories.state_lock(config.state_dir), directories.socket_lock(socket_path):
        directories.clear_stale_socket(socket_path)
        scratch.remove_abandoned()
        asyncio.run(_live(config, make_pools))
    return ExitCode.OK


def _allow_descriptors() -> None:
    """Each client holds one; the soft limit of 1024 that most systems start with is of few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _live(config: Config, make_pools: MakePools) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        is_nohup = number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN
        if not is_nohup:
            loop.add_signal_handler(number, _on_signal, stopping)
    try:
        core = Core(config, make_pools=make_pools)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{config.state_dir} cannot be used: {error}") from error
    server = Server(core, config.socket_path)
    endpoint = Endpoint(_routes(core))
    metrics_file = config.state_dir / METRICS_ADDRESS_NAME
    await core.start()
    try:
        _remove(metrics_file)
        if config.metrics_port != METRICS_OFF:
            core.metrics_address = await _listen(endpoint, config.metrics_port)
            try:
                _write(metrics_file, core.metrics_address)
            except OSError as error:  # a full disk is no reason not to serve what is there
                logs.warning("metrics_address_not_written", problem=str(error))
        await server.start()
        core.state = "serving"
        logs.info("serving", address=config.address, metrics=core.metrics_address, pid=os.getpid())
        is_told = await _until_told(stopping, server)
        core.state = "draining"
        logs.info("draining", in_flight_limit_s=config.drain_timeout_s)
        await server.announce_shutdown()
        await asyncio.sleep(config.drain_delay_s)
        core.tables.end_watches()  # by themselves they would not, and each client has one
        await server.stop(config.drain_timeout_s)
    finally:
        server.remove_socket()
        await endpoint.stop()
        _remove(metrics_file)
        await core.stop()
    logs.info("stopped")
    if not is_told:
        raise SocketLost(f"{config.socket_path} was removed or replaced")


async def _until_told(stopping: asyncio.Event, server: Server) -> bool:
    """Waits for a signal, or until the socket is lost; whether it was a signal."""
    while server.has_socket():
        with suppress(TimeoutError):
            async with asyncio.timeout(SOCKET_LOOK_S):
                await stopping.wait()
            return True
    logs.error("socket_lost")
    return False


def _on_signal(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        logs.warning("stopped_at_once")
        # Workers die with this process; what was acknowledged is on disk.
        os._exit(ExitCode.INTERRUPTED)
    stopping.set()


async def _listen(endpoint: Endpoint, port: int) -> str:
    try:
        return await endpoint.start(port)
    except OSError as error:
        raise InvalidConfiguration(
            f"metrics_port {port}: {error.strerror or error}", field="metrics_port"
        ) from None


def _remove(path: Path) -> None:
    """What cannot be removed, as on a disk that is read-only by now, is left."""
    with suppress(OSError):
        path.unlink()


def _write(path: Path, line: str) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_text(f"{line}\n", encoding="ascii")
    temporary.rename(path)


def _routes(core: Core) -> dict[str, Callable[[], Answer]]:
    def ready() -> Answer:
        is_ready = core.state == "serving"
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return text(status, core.state)

    return {
        "/metrics": lambda: Answer(HTTPStatus.OK, core.metrics.render(), CONTENT_TYPE_LATEST),
        "/livez": lambda: text(HTTPStatus.OK, "alive"),
        "/readyz": ready,
        "/version": lambda: as_json({"version": VERSION, "daemon_id": core.store.daemon_id}),
    }
