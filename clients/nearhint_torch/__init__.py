"""The torch.compile backend: capture a Program, run a Plan.

    torch.compile(model, backend="nearhint", dynamic=True)

`compile_ahead` is the same, with what was traced kept in a folder for other processes. Any model
runs: what has no kernel runs as the model's own nodes. Inference only; with gradients required the
original graph runs. May import: torch, nearhint, nearhint_rules, the standard library.
"""

from __future__ import annotations

from nearhint_torch.ahead import CompiledAhead, compile_ahead
from nearhint_torch.backend import capture_only, nearhint
from nearhint_torch.kernel import kernel
from nearhint_torch.report import Report
from nearhint_torch.runner import watch
from nearhint_torch.workload import WarmUp

__all__ = [
    "CompiledAhead",
    "Report",
    "WarmUp",
    "capture_only",
    "compile_ahead",
    "kernel",
    "nearhint",
    "watch",
]
