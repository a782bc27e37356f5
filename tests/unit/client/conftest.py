"""A fake daemon, a cache and an environment for each test; and no thread left over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.client.cli_cases import with_a_kernel

from nearhint import config, session
from nearhint.testing import FakeDaemon

DEADLINE_S = 60.0
"""Later than anything happens on a machine that is very busy."""

Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NEARHINT_ADDRESS", "NEARHINT_DISABLE", "NEARHINT_TRUSTED_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NEARHINT_CACHE_DIR", str(tmp_path / "cache"))
    session.counters.__init__()  # type: ignore[misc]
    yield
    session.shutdown()
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("nearhint")]
    for thread in ours:  # what has let go of gRPC has yet to return
        thread.join(DEADLINE_S)
    assert [thread.name for thread in ours if thread.is_alive()] == []


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path) as running:
        yield running


@pytest.fixture
def explained(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon that knows one Kernel, with a Table."""
    return with_a_kernel(daemon)


@pytest.fixture
def eventually() -> Eventually:
    """Waits until a condition holds, looking each 5 ms; for what has no event to wait on."""
    pause = threading.Event()

    def wait(condition: Callable[[], object]) -> None:
        for _ in range(int(DEADLINE_S / 0.005)):
            if condition():
                return
            pause.wait(0.005)
        raise AssertionError("did not happen in time")

    return wait


class LoadedBytes:
    """What the fake loader makes of an Artifact."""

    def __init__(self, binary: bytes) -> None:
        self.binary = binary


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Loads nothing for real; the binaries that would have been, in order."""
    from nearhint import launchers

    seen: list[bytes] = []

    def load(binary: bytes, launch: object, *, sha256: str, device_index: int = 0) -> LoadedBytes:
        del launch, sha256, device_index
        seen.append(binary)
        return LoadedBytes(binary)

    monkeypatch.setattr(launchers, "load", load)
    return seen


@pytest.fixture
def comes_back_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reconnects within 50 ms instead of seconds."""
    read = config.from_environment

    def impatient() -> config.Config:
        return replace(read(), retry_spread_s=0.05)

    monkeypatch.setattr(config, "from_environment", impatient)
