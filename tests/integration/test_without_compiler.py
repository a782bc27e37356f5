"""A machine without a C compiler: the daemon says so when it starts, and models run at T0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.daemon_process import DaemonProcess, daemon_in

import nearhint
from nearhint import session
from nearhint_torch.runner import watch

SETTLE_S = 60.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    (tmp_path / "bin").mkdir()
    with daemon_in(
        tmp_path,
        module="nearhint_daemon",
        verb=("serve",),
        flags=("--devices", "cpu"),
        environment={"PATH": str(tmp_path / "bin")},
    ) as process:
        process.start()
        yield process


def shifted_tanh(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).tanh()


def test_the_daemon_says_so_at_start_and_a_model_runs_at_t0(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARHINT_ADDRESS", daemon.address)
    monkeypatch.setenv("NEARHINT_CACHE_DIR", str(daemon.folder / "cache"))
    torch.compiler.reset()
    compiled: Any = torch.compile(shifted_tanh, backend="nearhint", dynamic=True)
    try:
        with torch.no_grad(), watch() as reports:
            for rows in (3, 8):
                x = torch.randn(rows, 4)
                assert torch.equal(compiled(x), shifted_tanh(x))
        report = nearhint.settle(timeout_s=SETTLE_S)
    finally:
        session.shutdown()
        torch.compiler.reset()
    assert report.settled, report
    assert list(report.at_t0.values()) == ["toolchain_missing"]
    assert [each.reason for each in reports] == ["no_plan"] * 2
    assert any("no C compiler" in problem for problem in daemon.status().problems)
    assert "toolchain_missing" in daemon.log.read_text()
    assert daemon.status().compiles_run == 0
