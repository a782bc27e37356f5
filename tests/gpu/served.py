"""Functions that a real daemon serves on GPUs, and how a test has them tuned."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import nearhint
from nearhint import session
from nearhint.demo.daemon import DemoDaemon
from nearhint_torch.runner import watch

WIDTH = 96
ROWS = (5, 40, 300)
OTHER_ROWS = 33
"""Of a bucket that was tuned, and not itself a hint."""
SETTLE_S = 120.0
FIRST = "cuda:0"

Tensor = torch.Tensor
Function = Callable[..., Any]


def block(x: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """Two launches with a matrix product between them."""
    hidden = torch.nn.functional.gelu(x + bias) @ weight
    return torch.nn.functional.layer_norm(hidden + x, (WIDTH,))


@contextmanager
def serving(directory: Path, **environment: str) -> Generator[DemoDaemon, None, None]:
    """A daemon with a short budget for measuring, in `environment`."""
    directory.mkdir(exist_ok=True)
    found = DemoDaemon(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARHINT_MEASURE_BUDGET_S", "0.2")
        for name, value in environment.items():
            patch.setenv(name, value)
        found.start()
    try:
        yield found
    finally:
        found.stop()


@contextmanager
def client_of(daemon: DemoDaemon, cache: Path) -> Generator[None, None, None]:
    """This process is a client of the daemon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARHINT_ADDRESS", daemon.address)
        patch.setenv("NEARHINT_CACHE_DIR", str(cache))
        torch.compiler.reset()
        yield
        session.shutdown()
        torch.compiler.reset()


def random(*sizes: int, device: str = FIRST) -> Tensor:
    """Normal numbers on a device."""
    return torch.randn(*sizes, device=device)


def tuned(
    function: Function, *others: Tensor, dynamic: tuple[str, ...] = ("x",), device: str = FIRST
) -> Function:
    """`function` as a kernel, at T2 at all of `ROWS`; `others` are its fixed arguments."""
    kernel: Function = nearhint.kernel(function, dynamic={name: {0: "rows"} for name in dynamic})
    for rows in ROWS:
        kernel(*(random(rows, WIDTH, device=device) for _ in dynamic), *others)
    settled()
    return kernel


def settled() -> None:
    """All that this process has used is at T2."""
    report = nearhint.settle(timeout_s=SETTLE_S)
    assert report.settled, report
    assert report.at_t0 == {}, report


def captured(kernel: Function, *arguments: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of one call, at T2, on the current device; and where it leaves its result."""
    graph = torch.cuda.CUDAGraph()
    # Libraries such as cuBLAS make their workspaces before capture, on the stream of the capture.
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        block(*arguments)
    torch.cuda.synchronize()
    with watch() as reports, torch.cuda.graph(graph, stream=stream):
        out = kernel(*arguments)
    assert [report.tiers for report in reports] == [(0, 0, 2)]
    return graph, out


def close(got: Tensor, expected: Tensor) -> bool:
    """Whether these are the same but for roundings of f32."""
    return torch.allclose(got, expected, rtol=1e-4, atol=1e-4)
