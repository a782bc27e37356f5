"""The jobs of tuning: their kinds, keys and payloads.

A key says what is to be known, not who asked: the same work has the same key however it came about.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearhint_daemon.jobs import JobSpec
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.tables import TableKey
from nearhint_daemon.tuning.budgets import without_budget
from nearhint_daemon.tuning.efforts import Effort
from nearhint_rules.canonical import identity
from nearhint_rules.hints import bucket
from nearhint_rules.ladder import distance
from nearhint_rules.metrics import Dims

TUNE = {1: "tune1", 2: "tune2"}
CROSS = "cross"
CROSS_STAGE = 3
REFINE = "refine"
REFINE_STAGE = 4
PROBE = "probe"
PROBE_STAGE = 1
"""A contest of a few, whose binaries are there: soon over, and good for many calls."""
WHY = "why"
"""In a job's payload: why its sizes are searched though nobody named them, and they alone."""
LADDER = "on the ladder over the ranges"
NEARS = "nears"
"""In a `cross` job's payload: hints with the sizes of the Fallback's symbols that each is near."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A hint that is wanted of a Kernel on a Target, beside a Fallback.

    `near` are sizes of the Fallback's symbols close to which the hint is; `why` says who wants it,
    unless it is a caller.
    """

    table_key: TableKey
    fallback: str
    dims: Dims
    near: Mapping[str, int]
    threads: int
    effort: Effort = Effort.FULL
    why: str = ""

    @property
    def payload(self) -> dict[str, Any]:
        """What the handler of a job gets."""
        why = {WHY: self.why} if self.why else {}
        return {
            "kernel": self.table_key[1],
            "target": self.table_key[2],
            "fallback": self.fallback,
            "dims": list(self.dims),
            "near": dict(self.near),
            "threads": self.threads,
            "effort": int(self.effort),
            **why,
        }


def wished_jobs(
    wishes: Iterable[Wish],
    *,
    version: str,
    priority: int,
    client: str,
    hints_of: Callable[[TableKey], Collection[Dims]] = lambda _: (),
) -> list[JobSpec]:
    """The jobs that tune these hints, each once, and after them those that cross what was found.

    `hints_of` are hints that a Table has already, and that are to be crossed with the new ones.
    """
    specs: dict[str, JobSpec] = {}
    together: dict[tuple[TableKey, str], list[Wish]] = {}
    for wish in wishes:
        together.setdefault((wish.table_key, wish.fallback), []).append(wish)
        for spec in hint_jobs(wish, version=version, priority=priority, client=client):
            specs[spec.key] = spec
    for (table_key, _), wanted in together.items():
        crossing = cross_job(
            wanted,
            hints_of(table_key),
            version=version,
            priority=priority,
            client=client,
        )
        if crossing is not None:
            specs[crossing.key] = crossing
    return list(specs.values())


def hint_jobs(wish: Wish, *, version: str, priority: int, client: str) -> tuple[JobSpec, ...]:
    """The jobs that bring a hint to T1, and, if the effort is worth it, then to T2 and T3.

    A quick search is one job: it has few more Variants than T1, and times them together.
    """
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
    if wish.effort == Effort.NONE:
        return (first,)
    if wish.effort == Effort.QUICK:
        return (job(2, ""),)
    second = job(2, first.key)
    if wish.effort < Effort.MAX:
        return first, second
    third = refine_job(wish, version=version, priority=priority, client=client, requires=second.key)
    return first, second, third


def asked_again(row: JobRow, *, priority: int) -> JobSpec:
    """The job that an ended one was, for nobody's request and within no budget."""
    return JobSpec(
        key=row.key,
        kind=row.kind,
        lane=row.lane,
        payload=without_budget(json.loads(row.payload)),
        namespace=row.namespace,
        requires=row.requires,
        priority=priority,
        stage=row.stage,
    )


def refine_job(wish: Wish, *, version: str, priority: int, client: str, requires: str) -> JobSpec:
    """The job that walks from a hint's winner to T3, in a lane of its own: it may take long."""
    namespace, _, target = wish.table_key
    dims = "x".join(map(str, wish.dims))
    return JobSpec(
        key=f"{REFINE}/{'/'.join(wish.table_key)}/{dims}/{wish.fallback}/{version}",
        kind=REFINE,
        lane=f"{REFINE}/{target}",
        payload=wish.payload,
        namespace=namespace,
        requires=requires,
        priority=priority,
        stage=REFINE_STAGE,
        client=client,
    )


def probe_job(wishes: Sequence[Wish], *, version: str, priority: int) -> JobSpec:
    """The job that times what may be best at sizes that calls have, beside one Fallback.

    It may be asked for again: a probe goes where it is not used, and where new Variants came.
    """
    first = wishes[0]
    namespace, _, target = first.table_key
    sizes = sorted("x".join(map(str, wish.dims)) for wish in wishes)
    digest = identity("nearhint.probes.v1", tuple(sizes))
    points = [{"dims": list(wish.dims), "near": dict(wish.near)} for wish in wishes]
    return JobSpec(
        key=f"{PROBE}/{'/'.join(first.table_key)}/{digest[:16]}/{first.fallback}/{version}",
        kind=PROBE,
        lane=f"{PROBE}/{target}",
        payload={**first.payload, "points": points},
        namespace=namespace,
        priority=priority,
        stage=PROBE_STAGE,
        is_repeatable=True,
    )


def hint_key(wish: Wish, stage: int, *, version: str) -> str:
    """The key of the job that brings a hint to a tier; for T2 each effort has its own."""
    dims = "x".join(map(str, wish.dims))
    tail = f"{'/'.join(wish.table_key)}/{dims}/{wish.fallback}/{version}"
    is_usual = stage == 1 or wish.effort == Effort.FULL
    return f"{TUNE[stage]}/{tail}" + ("" if is_usual else f"/{wish.effort.text}")


def cross_job(
    wanted: Sequence[Wish],
    others: Collection[Dims],
    *,
    version: str,
    priority: int,
    client: str,
) -> JobSpec | None:
    """The job that measures the best of each of a Table's hints at its neighbours.

    These are `wanted`, beside one Fallback, and `others`. None for one hint, and where the least of
    the efforts is not worth it. It has a lane of its own: it waits for the searches of its Table,
    which must not wait for it.
    """
    wish = min(wanted, key=lambda wish: wish.effort)
    namespace, _, target = wish.table_key
    buckets = sorted({bucket(dims) for dims in (*others, *(each.dims for each in wanted))})
    if len(buckets) < 2 or wish.effort < Effort.FULL:
        return None
    digest = identity("nearhint.hints.v1", tuple("x".join(map(str, each)) for each in buckets))
    prefix = cross_prefix(wish.table_key)
    return JobSpec(
        key=f"{prefix}{digest[:16]}/{wish.fallback}/{version}/{wish.effort.text}",
        kind=CROSS,
        lane=f"{CROSS}/{target}",
        payload={
            **wish.payload,
            NEARS: [[list(each.dims), dict(each.near)] for each in wanted],
        },
        namespace=namespace,
        priority=priority,
        stage=CROSS_STAGE,
        client=client,
    )


def near_of(payload: Mapping[str, Any], dims: Dims) -> Mapping[str, int]:
    """The sizes of a Fallback's symbols from which a job looks for those that give `dims`.

    Where it is about several hints: those near the hint that is nearest.
    """
    nears = payload.get(NEARS) or [[payload["dims"], payload["near"]]]
    nearest: Mapping[str, int] = min(nears, key=lambda each: distance(dims, each[0]))[1]
    return nearest


def cross_prefix(key: TableKey) -> str:
    """How the keys of a Table's `cross` jobs start."""
    return f"{CROSS}/{'/'.join(key)}/"


def search_prefixes(key: TableKey) -> tuple[str, ...]:
    """How the keys of the jobs start that bring a Table's hints to T1, T2 and T3."""
    return tuple(f"{kind}/{'/'.join(key)}/" for kind in (*TUNE.values(), REFINE))


def searches_of(key: TableKey, dims: Dims) -> tuple[str, ...]:
    """How the keys of the jobs start that bring one hint, or its bucket's, to T2."""
    both = dict.fromkeys((dims, bucket(dims)))
    return tuple(f"{TUNE[2]}/{'/'.join(key)}/{'x'.join(map(str, each))}/" for each in both)


def tune_prefixes(key: TableKey) -> tuple[str, ...]:
    """How the keys of the jobs start that bring a Table's hints to T1 and T2."""
    return tuple(f"{kind}/{'/'.join(key)}/" for kind in TUNE.values())


def tunes_of(key: TableKey, hints: Iterable[Dims]) -> list[str]:
    """How the keys of the jobs start that bring these hints, or their buckets', to T1 and T2."""
    return _at_hints(tune_prefixes(key), hints)


def hint_prefixes(
    key: TableKey, hints: Iterable[Dims], *, staying: Collection[Dims] = ()
) -> list[str]:
    """How the keys of all jobs start whose results go with these hints.

    A bucket's do not go where it is one of the hints that are `staying`.
    """
    return [*_at_hints(search_prefixes(key), hints, staying=staying), cross_prefix(key)]


def fallback_prefixes(
    key: TableKey, dims: Dims, fallbacks: Iterable[str], *, staying: Collection[Dims] = ()
) -> list[str]:
    """How the keys of the jobs start that tune one hint, or its bucket's, beside Fallbacks.

    Not its bucket's where that is one of the hints that are `staying`.
    """
    at_hint = _at_hints(search_prefixes(key), [dims], staying=staying)
    return [f"{prefix}{fallback}/" for fallback in fallbacks for prefix in at_hint]


def _at_hints(
    prefixes: Iterable[str], hints: Iterable[Dims], *, staying: Collection[Dims] = ()
) -> list[str]:
    return [
        f"{prefix}{'x'.join(map(str, each))}/"
        for dims in sorted(hints)
        for each in sorted({dims, bucket(dims)}.difference(staying))
        for prefix in prefixes
    ]
