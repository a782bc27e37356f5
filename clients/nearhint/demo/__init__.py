"""The demo: a real model on real sentences against a daemon of its own, from cold to restarted.

    report = run(DemoOptions(), tell=print)  # phase by phase; minutes; progress goes to stderr
    as_json(report)                          # all of it, for scripts

May import: nearhint, torch, sentence-transformers and the model's package (the extra `demo`), on
first use. The daemon is a process like any other: it is started by its command.
"""

from __future__ import annotations

from nearhint.demo.options import DemoOptions
from nearhint.demo.phases import run
from nearhint.demo.report import DemoReport, Row, as_json

__all__ = ["DemoOptions", "DemoReport", "Row", "as_json", "run"]
