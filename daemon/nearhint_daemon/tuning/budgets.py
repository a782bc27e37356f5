"""Budgets: the devices' time that a request may take, over all of its jobs.

A job belongs to those who asked for it, and goes on while one of them has time left, or has no
limit; each of them pays for it. Spent budgets end the jobs that are not begun, and those under way
before their next contest. A job's payload names the budget that it came with, so that after a
restart what is left of the request has as much again, and no more.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from nearhint_daemon.errors import BudgetSpent
from nearhint_daemon.jobs import Handler, JobSpec
from nearhint_daemon.store.rows import JobRow

BUDGETS_LIMIT = 10_000
PAYLOAD_KEY = "budget"


@dataclass
class Budget:
    """Seconds of devices' time."""

    limit_s: float
    spent_s: float = 0.0

    @property
    def is_spent(self) -> bool:
        """Nothing is left."""
        return self.spent_s >= self.limit_s


@dataclass
class Account:
    """Who pays for a job; `is_free`: somebody without a limit wants it too."""

    owners: list[Budget] = field(default_factory=list)
    is_free: bool = False

    @property
    def is_spent(self) -> bool:
        """Nobody has time left for it."""
        return bool(self.owners) and not self.is_free and all(each.is_spent for each in self.owners)


_ACCOUNT: ContextVar[Account | None] = ContextVar("account", default=None)


def check() -> None:
    """Raises `BudgetSpent` where nobody has time left for the job that calls this."""
    account = _ACCOUNT.get()
    if account is not None and account.is_spent:
        raise BudgetSpent("the budget of devices' time was spent before this was begun")


def charge(seconds: float) -> None:
    """The job that calls this had a device for so long."""
    account = _ACCOUNT.get()
    for budget in account.owners if account is not None else ():
        budget.spent_s += seconds


def without_budget(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of a job that is wanted anew, and not within what a request had left for it."""
    return {name: value for name, value in payload.items() if name != PAYLOAD_KEY}


class Budgets:
    """All budgets of requests whose jobs are open."""

    def __init__(self) -> None:
        self._budgets: OrderedDict[str, Budget] = OrderedDict()
        self._accounts: dict[str, Account] = {}

    def open(
        self, specs: Sequence[JobSpec], *, budget_s: float | None, open_before: Collection[str]
    ) -> list[JobSpec]:
        """The jobs of one request, under one budget; None: no limit.

        `open_before` are the keys of those that others have asked for already.
        """
        if budget_s is None:
            for spec in specs:
                if spec.key in self._accounts:
                    self._accounts[spec.key].is_free = True
            return list(specs)
        name = str(uuid.uuid4())
        budget = self._budget(name, budget_s)
        for spec in specs:
            # Without an account, whoever asked before has no limit.
            if spec.key in self._accounts or spec.key not in open_before:
                self._accounts.setdefault(spec.key, Account()).owners.append(budget)
        named = {PAYLOAD_KEY: {"id": name, "limit_s": budget_s}}
        return [replace(spec, payload={**spec.payload, **named}) for spec in specs]

    def held(self, handler: Handler) -> Handler:
        """The handler, its jobs kept within their budgets."""

        async def hold(row: JobRow, payload: Mapping[str, Any]) -> None:
            token = _ACCOUNT.set(self._accounts.get(row.key))
            try:
                while True:
                    try:
                        check()
                        return await handler(row, payload)
                    except BudgetSpent:
                        check()  # somebody without a limit may have come meanwhile
            finally:
                _ACCOUNT.reset(token)

        return hold

    def take_over(self, row: JobRow) -> None:
        """A job was left by an earlier daemon: who asks for it from now on joins its budget."""
        kept = json.loads(row.payload).get(PAYLOAD_KEY)
        if kept is not None:
            self._accounts[row.key] = Account([self._budget(kept["id"], kept["limit_s"])])

    def forget(self, row: JobRow) -> None:
        """A job has ended."""
        self._accounts.pop(row.key, None)

    def keep_only(self, keys: Iterable[str], *, still_open: Collection[str]) -> None:
        """Of these jobs, the others had been done before, or were refused."""
        for key in keys:
            if key not in still_open:
                self._accounts.pop(key, None)

    def __len__(self) -> int:
        """How many jobs have an account."""
        return len(self._accounts)

    def _budget(self, name: str, limit_s: float) -> Budget:
        budget = self._budgets.setdefault(name, Budget(limit_s))
        self._budgets.move_to_end(name)
        if len(self._budgets) > BUDGETS_LIMIT:
            self._budgets.popitem(last=False)
        return budget
