"""Bars in seconds that tests hold: as they are on a machine said to be quiet, else much wider.

Set NEARHINT_QUIET=1 where nothing else runs; what CI runs on is shared, and late for many reasons.
"""

from __future__ import annotations

import os

from nearhint_daemon.workers.process import STARVED_FACTOR

IS_QUIET = os.environ.get("NEARHINT_QUIET") == "1"
SLACK = 1 if IS_QUIET else 20
STRETCH = 1.0 if IS_QUIET else STARVED_FACTOR
"""By how much a worker's deadline may be late: where others run too, it counts what it can use."""
NOTICED_S = 0.2 * SLACK
"""From a worker's death to its being noticed."""
NEXT_JOB_S = 3.0 * SLACK
"""From there to the next job's answer, on a CPU."""
