"""What the GPU benchmarks of single kernels share: options, the device, the head of a report."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nearhint_daemon.workers import toolchain
from nearhint_rules.target import CudaDevice, Target


def parser_of(description: str) -> argparse.ArgumentParser:
    """With --json, --only, --budget-s and --compile-only."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="write the report to this file")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument(
        "--budget-s", type=float, default=math.inf, help="begin nothing after so many seconds"
    )
    parser.add_argument("--compile-only", action="store_true", help="run nothing: needs no GPU")
    return parser


def target_of(*, compile_only: bool) -> Target:
    """The first GPU; an H100 that there need not be, where nothing is run."""
    tools = toolchain.for_kind("cuda", toolchain.detect())
    if compile_only:
        return Target(CudaDevice("none", 90, 132, 80 << 30, "none", 0), tools)
    from nearhint.launchers.detect_cuda import cuda_device

    return Target(cuda_device(0), tools)


def head_of(command: str, target: Target) -> dict[str, Any]:
    """How, when and on what a report was made."""
    versions = (f"torch {torch.__version__}", f"python {platform.python_version()}")
    return {
        "command": command,
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "device": dataclasses.asdict(target.device),
        "versions": [*target.toolchain, *versions],
    }


def write(report: Mapping[str, Any], file: Path | None) -> None:
    """The report as JSON, if there is a file for it."""
    if file is not None:
        file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
