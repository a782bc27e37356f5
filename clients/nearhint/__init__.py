"""nearhint: tunes kernels for deployed models per shape, and tells which one to run.

    nearhint.settle(timeout_s=60)     wait until what this process uses is tuned (never in serving)
    nearhint.status()                 for readiness probes
    nearhint.kernel(fn, dynamic=...)  one function instead of a model; needs nearhint[torch]

May import: nearhint_rules, nearhint_proto, grpc (in `nearhint.connection` alone), protobuf; click
and rich in the command line; torch in `nearhint.demo`. Names are loaded on first use, so that the
daemon's workers can use `nearhint.launchers` without gRPC.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from nearhint import version

if TYPE_CHECKING:
    from nearhint.readiness import SettleReport, Status, settle, status

__version__ = version.VERSION

# gRPC's core writes a line to stderr whenever a daemon goes away. It reads this when it is
# imported; who has set it, or has imported gRPC before, keeps what they have.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__all__ = ["SettleReport", "Status", "__version__", "kernel", "settle", "status"]

_READINESS = frozenset({"SettleReport", "Status", "settle", "status"})


def kernel(fn: Any, **options: Any) -> Any:
    """One function, compiled as `torch.compile(fn, backend="nearhint")` would compile a model.

    See `nearhint_torch.kernel` for the options; raises `nearhint.errors.MissingExtra` without it.
    """
    return load_torch("nearhint.kernel").kernel(fn, **options)


def load_torch(what: str) -> Any:
    """The package `nearhint_torch`; raises `MissingExtra` in the name of `what` without torch."""
    from nearhint import extras

    return extras.load("nearhint_torch", what=what, extra="torch")


def __getattr__(name: str) -> Any:
    if name not in _READINESS:
        raise AttributeError(f"module 'nearhint' has no attribute {name!r}")
    value = getattr(importlib.import_module("nearhint.readiness"), name)
    globals()[name] = value
    return value
