"""Acts: what operators did to Kernels, kept with who, when and why, and how they read.

An act is written in the transaction of what it did. Its number is the store's change, which is the
generation of the Table where the act published one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearhint_daemon.store import Writing, queries
from nearhint_daemon.store.rows import ActRow
from nearhint_daemon.tables import TableKey

DETAIL_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Act:
    """`kind` is "pin", "unpin", "rollback", "quarantine" or "release".

    `subject` is a Variant's identity (empty: the Fallback), or a generation.
    """

    kind: str
    subject: str
    detail: str
    actor: str


def record(tx: Writing, key: TableKey, acts: Sequence[Act], *, seq: int, at_s: float) -> None:
    """Keeps acts; the first has the number `seq`, each other one a change of its own."""
    namespace, kernel, target = key
    for position, act in enumerate(acts):
        queries.record_act(
            tx,
            ActRow(
                seq=tx.next_seq() if position else seq,
                namespace=namespace,
                actor=act.actor,
                at_s=at_s,
                kind=act.kind,
                kernel=kernel,
                target=target,
                subject=act.subject,
                detail=act.detail[:DETAIL_LIMIT],
            ),
        )


def place(symbols: Sequence[str], dims: Sequence[int]) -> str:
    """Where a pin holds, in words.

    >>> place(("k0", "k1"), (64, 1024)), place(("k0", "k1"), ())
    ('at k0=64,k1=1024', 'everywhere')
    """
    if not dims:
        return "everywhere"
    return "at " + ",".join(f"{name}={dim}" for name, dim in zip(symbols, dims, strict=True))
