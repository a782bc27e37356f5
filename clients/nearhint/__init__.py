"""nearhint: tunes kernels for deployed models per shape, and tells which one to run."""

from __future__ import annotations

__version__ = "0.1.0"
