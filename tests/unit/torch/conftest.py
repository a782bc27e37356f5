"""Compiles through the backend with a session that the test controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.unit.torch.fake_session import FakeSession

import nearhint_torch.serving as serving
from nearhint.session import Snapshot, shutdown
from nearhint_rules.program import Program

Install = Callable[[Callable[[Program], Any]], FakeSession]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """No test sees another's compiled code, or its session."""
    torch.compiler.reset()
    yield
    shutdown()
    torch.compiler.reset()


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Install:
    """`session(make_snapshot)` installs a session whose handles serve what that function makes."""

    def install(make_snapshot: Callable[[Program], Snapshot | None]) -> FakeSession:
        fake = FakeSession(make_snapshot)
        monkeypatch.setattr(serving, "session_for", lambda address, device, device_index: fake)
        return fake

    return install
