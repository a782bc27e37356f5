"""How much each hint of a Kernel is used, as clients reported it."""

from __future__ import annotations

from collections import Counter

from nearhint_daemon.lowered import dims_at
from nearhint_daemon.programs import Programs
from nearhint_daemon.store import Store, queries
from nearhint_rules.errors import RulesError
from nearhint_rules.hints import bucket

CLIENT_WEIGHT = 1_000_000


def parse_sizes(text: str) -> dict[str, int]:
    """`s0=8,s1=16` as a mapping."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {name: int(value) for name, _, value in pairs}


def print_sizes(sizes: dict[str, int]) -> str:
    """A mapping as `s0=8,s1=16`."""
    return ",".join(f"{name}={value}" for name, value in sorted(sizes.items()))


async def calls_by_bucket(
    store: Store, programs: Programs, *, namespace: str, kernel: str, target_kind: str
) -> Counter[tuple[int, ...]]:
    """How much each bucket of a Kernel's sizes is used: calls, in shares of each client's.

    Each client has `CLIENT_WEIGHT` to give, however many calls it reports.
    """
    rows = await store.read(lambda reading: queries.usage_of_kernel(reading, namespace, kernel))
    by_client: Counter[str] = Counter()
    for row in rows:
        by_client[row.client_id] += row.calls
    calls: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        key = (namespace, row.program, target_kind)
        if programs.plan(key) is None:
            continue
        sizes = parse_sizes(row.sizes)
        for step in (await programs.lowered(key)).steps:
            if step.kernel != kernel:
                continue
            try:
                share = CLIENT_WEIGHT * row.calls // max(1, by_client[row.client_id])
                calls[bucket(dims_at(step, sizes))] += share
            except RulesError:
                continue
    return calls
