"""Exit statuses of workers that mean something; any other is a crash."""

from __future__ import annotations

ORPHANED = 3
"""Its parent was gone before it had started."""
RECYCLED = 4
"""It answered, and left because its memory may be damaged."""
