"""The demo: a real model on real sentences against a daemon of its own, from cold to restarted.

    report = run(DemoOptions())       # a minute or more; progress goes to stderr
    print(as_table(report))           # or as_json(report)

May import: nearhint, torch, sentence-transformers and the model's package (the extra `demo`), on
first use. The daemon is a process like any other: it is started by its command.
"""

from __future__ import annotations

from nearhint.demo.options import DemoOptions
from nearhint.demo.phases import run
from nearhint.demo.report import DemoReport, Row, as_json, as_table

__all__ = ["DemoOptions", "DemoReport", "Row", "as_json", "as_table", "run"]
