"""Bars in seconds that tests hold: as they are on a machine said to be quiet, else much wider.

Set NEARHINT_QUIET=1 where nothing else runs; what CI runs on is shared, and late for many reasons.
"""

from __future__ import annotations

import os

SLACK = 1 if os.environ.get("NEARHINT_QUIET") == "1" else 20
NOTICED_S = 0.2 * SLACK
"""From a worker's death to its being noticed."""
NEXT_JOB_S = 3.0 * SLACK
"""From there to the next job's answer, on a CPU."""
VERIFIED_S = 0.1 * SLACK
"""A small kernel by a worker that runs."""
