"""Rows whose lengths are fixed and large, as all of an image: they are interpreted whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.unit.compiler.frontend.running import record

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import lower
from nearhint_daemon.workers import reference
from nearhint_daemon.workers.lowering_check import check_lowering
from nearhint_rules.plan import Fallback

IMAGE = (2048, 2050)


def sums_of_images() -> tuple[ir.Kernel, Fallback]:
    images = torch.ones(3, *IMAGE, dtype=torch.uint8)
    torch._dynamo.mark_dynamic(images, 0)
    found = record(lambda x: x.sum((1, 2)), images, dynamic=None)
    lowered = lower(found.captured.program, target_kind="cpu")
    (kernel,), (fallback,) = lowered.kernels, lowered.fallbacks
    return kernel.kernel, fallback


def test_all_of_an_image_is_a_row_whose_lowering_is_checked() -> None:
    kernel, fallback = sums_of_images()
    found = check_lowering(kernel, fallback, seed=1)
    assert found.problem == ""
    assert found.cases >= 2
    narrowed = tuple(
        ir.Reduce("max", node.dtype, node.operand) if isinstance(node, ir.Reduce) else node
        for node in kernel.body
    )
    assert "ATen says" in check_lowering(replace(kernel, body=narrowed), fallback, seed=1).problem


def test_a_row_that_no_memory_is_meant_for_is_said_to_be_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference, "ROW_LIMIT", 1 << 20)
    problem = check_lowering(*sums_of_images(), seed=1).problem
    assert problem.startswith("it could not be run: a row is too long to be interpreted")
