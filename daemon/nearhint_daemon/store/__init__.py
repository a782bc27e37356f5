"""Everything durable: rows in SQLite, binaries in content-addressed files.

May import: sqlite-utils (here alone), nearhint_rules, nearhint_daemon.errors.
"""

from __future__ import annotations

from nearhint_daemon.store.store import Observer, Store
from nearhint_daemon.store.transactions import Reading, Writing
from nearhint_daemon.store.writer import Batch

__all__ = ["Batch", "Observer", "Reading", "Store", "Writing"]
