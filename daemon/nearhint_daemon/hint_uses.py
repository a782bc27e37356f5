"""How much each hint of a Kernel is used, as clients reported it."""

from __future__ import annotations

from collections import Counter

from nearhint_daemon.programs import Programs, dims_at
from nearhint_daemon.store import Store, queries
from nearhint_rules.errors import RulesError
from nearhint_rules.hints import bucket


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
    """Calls of a Kernel by the bucket of its sizes."""
    rows = await store.read(lambda reading: queries.usage_of_kernel(reading, namespace, kernel))
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
                calls[bucket(dims_at(step, sizes))] += row.calls
            except RulesError:
                continue
    return calls
