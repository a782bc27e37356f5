"""Schedules of scanned columns on CUDA whose chunks wait for those before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nearhint_compiler.schedule.cuda_facts import Facts
from nearhint_compiler.schedule.schedule import Schedule

CHAINS = ((64, 16, 8, 16, 128), (64, 8, 4, 16, 128), (128, 8, 8, 16, 128), (64, 8, 4, 24, 168))
"""(columns, runs, warps, rows a run, registers) of chunks of scanned columns."""
ODD_CHAINS = ((128, 8, 8, 16, 128), (64, 8, 4, 16, 128), (64, 8, 4, 8, 96))
"""The same of single elements, of which wider rows are more whole lines."""
CHAINS_TOGETHER = ((128, 4, 4, 28, 168), (64, 8, 4, 16, 128), (128, 8, 8, 16, 128))
"""The same of chunks that are together, of which small ones are not too many."""
CHUNKS_SEEN, LEAST_CHUNKS = 8, 2
"""How many of them a program looks at at once, and how many there are at least."""
CHUNKS_TOGETHER = 8
"""How many chunks are together where a chain of single ones were too long."""
CHAIN_BYTES = 1 << 18
"""What a chunk of all columns moves at least, for the chain of chunks to be no longer than what
they move takes: of 300 columns it was not (70 microseconds, 88 in stages), of 97 twice as long."""


def chained_columns(facts: Facts) -> Iterator[Schedule]:
    """Scans whose chunks are held and wait for those before them; where these are many, together.

    What is together comes without a promise, too: few columns are seldom what a hint's sizes are.
    """
    if not facts.is_chained:
        return
    if _keeps_up(facts, CHAINS_TOGETHER[0], CHUNKS_TOGETHER) and not _keeps_up(
        facts, ODD_CHAINS[0]
    ):
        for shape in CHAINS_TOGETHER:
            for each in _chunks(facts, shape):
                yield facts.schedule("chained", **each, together=CHUNKS_TOGETHER)
    for shape in CHAINS if facts.has_vectors else ODD_CHAINS:
        for each in _chunks(facts, shape):
            yield facts.schedule("chained", divisible=facts.divisible, **each)


def _chunks(facts: Facts, shape: tuple[int, int, int, int, int]) -> Iterator[dict[str, int]]:
    x, runs, warps, rows, registers = shape
    # Values, totals and words of 64 bits are of two registers each, and each scan has its own.
    rows = max(1, rows // (facts.scans**2 * (4 if facts.itemsize > 4 else 1)))
    if facts.length >= LEAST_CHUNKS * runs * rows:
        blocks = {"x": x, "r": runs, "warps": warps, "registers": registers, "unroll": rows}
        yield {**blocks, "back": CHUNKS_SEEN}


def is_long_chain(facts: Facts) -> bool:
    """Whether a chain of chunks is no longer than what they move takes."""
    together = _keeps_up(facts, CHAINS_TOGETHER[0], CHUNKS_TOGETHER)
    return facts.is_chained and (together or _keeps_up(facts, ODD_CHAINS[0]))


def _keeps_up(facts: Facts, shape: Sequence[int], together: int = 1) -> bool:
    _, runs, _, rows, _ = shape
    row_bytes = facts.moved_bytes // facts.length
    return row_bytes * runs * rows * together >= CHAIN_BYTES
