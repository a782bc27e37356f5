"""Writes to a store and says on stdout what was acknowledged: killed by test_store_crashes."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from tests.unit.daemon.stores import MEASUREMENT, Seen

from nearhint_daemon.store import Store, queries

ROUNDS = 1


async def write(state_dir: Path) -> None:
    store = Store(state_dir, observer=Seen(), clock=time.time)
    await store.start()
    for number in range(ROUNDS):
        sha256 = await store.put_artifact(f"binary {number}".encode() * 1000)
        sys.stdout.write(f"artifact {sha256}\n")
        sys.stdout.flush()
        key = await store.write(lambda tx: queries.append_measurement(tx, MEASUREMENT))
        sys.stdout.write(f"measurement {key}\n")
        sys.stdout.flush()
    await store.close()


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
