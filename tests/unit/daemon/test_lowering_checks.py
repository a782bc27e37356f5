"""Whether a lowering is right is asked once, and a failure of another's asking is no answer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest
from tests.integration.fake_workers import CPU
from tests.unit.daemon.stores import KERNEL, LIMIT_S, Seen, with_store

from nearhint_daemon.errors import BudgetSpent
from nearhint_daemon.operating.quarantine import Quarantine
from nearhint_daemon.store import Store
from nearhint_daemon.store.rows import FallbackRow
from nearhint_daemon.tuning.lowering_checks import LoweringChecks
from nearhint_daemon.tuning.tasks import Task
from nearhint_daemon.workshop import Workshop
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.target import Target

TASK = Task(
    kernel=KERNEL,
    target=Target(CPU, ("cc 12.2.0",)),
    fallback=FallbackRow("", "f" * 64, KERNEL.id, b"", "", ""),
    sizes={},
    dims=(8, 8),
    threads=1,
    order=(1, 1),
    stage=1,
)


def test_who_comes_as_another_s_check_ends_for_its_budget_has_one_of_their_own(
    tmp_path: Path,
) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        late: list[asyncio.Task[None]] = []

        class Workers:
            async def check_lowering(self, *_: object, **__: object) -> pb.Verdict:
                if late:
                    return pb.Verdict(is_ok=True)
                # Its turn is before that of what takes this check off the list.
                late.append(asyncio.create_task(checks.require(TASK)))
                raise BudgetSpent("not for this one")

        quarantine = Quarantine(store, tmp_path / "quarantine", clock=time.time)
        checks = LoweringChecks(store, cast("Workshop", cast(Any, Workers())), quarantine)
        with pytest.raises(BudgetSpent):
            await checks.require(TASK)
        async with asyncio.timeout(LIMIT_S):
            await late[0]

    with_store(tmp_path, scenario)
