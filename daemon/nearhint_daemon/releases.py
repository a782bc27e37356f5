"""Releases: what was given up under another compiler version is tried again, once.

Plans, Variants and jobs have the version in their keys, so another version finds none of them. But
that a Kernel has no Variant is said by its Table, and that its lowering is wrong by its Fallback:
clients ask for neither again, though the reason may be an error of ours that is no more. So both
are taken back when a daemon starts with another version than the last one. What operators barred
stays barred, and what failed stays in quarantine, for people to read.

What versions before the last one made is forgotten then, but for Variants that Tables have: who
goes back by one version finds all that it had. What was searched where stays known: idle time
refines hints that nobody asks for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from nearhint_daemon import logs
from nearhint_daemon.errors import StoreReadOnly
from nearhint_daemon.programs import LOWER
from nearhint_daemon.store import Reading, Store, Writing, queries
from nearhint_daemon.store.rows import FallbackRow, MetaRow
from nearhint_daemon.tables import TableIndex
from nearhint_daemon.tuning.compiling import COMPILE
from nearhint_proto.v1 import types_pb2

GAVE_UP = "gave_up_by_version"
"""The fact about the store: the version whose failures it has."""

MADE_BY = (LOWER, COMPILE)
"""Kinds of jobs that make Plans and Variants, and would count as done though these are gone."""


async def try_again(store: Store, tables: TableIndex, *, compiler_version: str) -> None:
    """Takes back what another version gave up; where the disk takes no writes, the next start does.

    The version is noted last: whatever a kill leaves undone is done again.
    """

    def noted(reading: Reading) -> str:
        row = reading.get(MetaRow, GAVE_UP)
        return "" if row is None else row.value

    last = store.read_now(noted)
    if last == compiler_version:
        return
    if last:
        await _forget_all_but(store, tables, (last, compiler_version))
    with suppress(StoreReadOnly):
        given_up = [
            table
            for key in tables.without_hints()
            if (table := tables.newest(key)) is not None and table.reason and not table.variants
        ]
        for table in given_up:
            await tables.publish(replace(table, reason=""))

        def take_back(tx: Writing) -> int:
            wrong = list(tx.where(FallbackRow, verdict="wrong"))
            for row in wrong:
                tx.put(replace(row, verdict="", problem=""))
            tx.put(MetaRow(GAVE_UP, compiler_version))
            return len(wrong)

        lowerings = await store.write(take_back)
        if given_up or lowerings:
            logs.info("tried_again", kernels=len(given_up), lowerings=lowerings)


async def _forget_all_but(store: Store, tables: TableIndex, versions: Sequence[str]) -> None:
    served = [
        variant.id
        for key in tables.every_key()
        if (entry := tables.entry(key)) is not None
        for variant in types_pb2.Table.FromString(entry.message).variants
    ]
    with suppress(StoreReadOnly):
        rows = await store.write(
            lambda tx: queries.forget_versions(tx, kept=versions, served=served, kinds=MADE_BY)
        )
        if rows:
            logs.info("versions_forgotten", kept=" ".join(versions), rows=rows)
