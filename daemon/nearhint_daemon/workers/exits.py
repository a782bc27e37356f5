"""Exit statuses of workers that mean something, any other is a crash; and the signals they heed."""

from __future__ import annotations

import signal

ORPHANED = 3
"""Its parent was gone before it had started."""
RECYCLED = 4
"""It answered, and left because its memory may be damaged."""
GIVE_WAY = signal.SIGUSR1
"""Somebody else wants the device: a job that can be done again is to end."""
TELL = signal.SIGUSR2
"""It is about to be killed: it writes the stacks of its threads into its log."""
