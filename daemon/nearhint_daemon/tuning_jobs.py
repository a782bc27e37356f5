"""The jobs of tuning: their kinds, keys and payloads.

A key says what is to be known, not who asked: the same work has the same key however it came about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nearhint_daemon.jobs import JobSpec
from nearhint_daemon.tables import TableKey
from nearhint_daemon.tuner import TUNE
from nearhint_rules.metrics import Dims


@dataclass(frozen=True, slots=True)
class Wish:
    """A hint that is wanted of a Kernel on a Target, beside a Fallback.

    `near` are sizes of the Fallback's symbols close to which the hint is.
    """

    table_key: TableKey
    fallback: str
    dims: Dims
    near: Mapping[str, int]
    threads: int

    @property
    def payload(self) -> dict[str, Any]:
        """What the handler of a job gets."""
        return {
            "kernel": self.table_key[1],
            "target": self.table_key[2],
            "fallback": self.fallback,
            "dims": list(self.dims),
            "near": dict(self.near),
            "threads": self.threads,
        }


def hint_jobs(wish: Wish, *, version: str, priority: int, client: str) -> tuple[JobSpec, ...]:
    """The jobs that bring a hint to T1 and then to T2."""
    namespace, _, target = wish.table_key

    def job(stage: int, requires: str) -> JobSpec:
        return JobSpec(
            key=hint_key(wish, stage, version=version),
            kind=TUNE[stage],
            lane=target,
            payload=wish.payload,
            namespace=namespace,
            requires=requires,
            priority=priority,
            stage=stage,
            client=client,
        )

    first = job(1, "")
    return first, job(2, first.key)


def hint_key(wish: Wish, stage: int, *, version: str) -> str:
    """The key of the job that brings a hint to a tier."""
    dims = "x".join(map(str, wish.dims))
    return f"{TUNE[stage]}/{'/'.join(wish.table_key)}/{dims}/{wish.fallback}/{version}"
