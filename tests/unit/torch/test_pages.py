"""Large outputs on a CPU ask for huge pages, and are tensors like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nearhint_torch import pages
from nearhint_torch.adapter import empty_maker
from nearhint_torch.pages import FRESH_BYTES, ask_for_huge_pages, large_empty

CPU = torch.device("cpu")
SHAPE = (FRESH_BYTES // 4 // 1024 + 1, 1024)
SIZE_BYTES = SHAPE[0] * SHAPE[1] * 4


@pytest.fixture(autouse=True)
def left_to_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "is_left_to_processes", lambda: True)


def huge_pages_of(tensor: torch.Tensor) -> bool:
    """Whether the memory in the middle of a tensor is marked: flag `hg` of its mapping."""
    middle = tensor.data_ptr() + tensor.nbytes // 2
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if name == "VmFlags:" and inside:
            return "hg" in rest
        if not name.endswith(":"):
            start, end = (int(part, 16) for part in name.split("-"))
            inside = start <= middle < end
    raise AssertionError("the tensor is not mapped")


@pytest.mark.skipif(not pages._POLICY.exists(), reason="this system has no huge pages")
def test_a_large_output_is_marked_and_keeps_what_is_written() -> None:
    make = large_empty(empty_maker(CPU), SIZE_BYTES, CPU)
    tensor = make(SHAPE, (SHAPE[1], 1), torch.float32)
    assert (tensor.shape, tensor.stride()) == (SHAPE, (SHAPE[1], 1))
    assert huge_pages_of(tensor)
    tensor.fill_(3.0)
    assert tensor.sum(dtype=torch.float64) == 3.0 * tensor.numel()


def test_what_the_allocator_uses_again_is_left_as_it_is() -> None:
    empty = empty_maker(CPU)
    assert large_empty(empty, FRESH_BYTES - 1, CPU) is empty


def test_other_devices_and_other_systems_are_left_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = empty_maker(CPU)
    assert large_empty(empty, SIZE_BYTES, torch.device("cuda")) is empty
    monkeypatch.setattr(pages, "is_left_to_processes", lambda: False)
    assert large_empty(empty, SIZE_BYTES, CPU) is empty


def test_less_than_a_page_is_not_asked_for() -> None:
    tensor = torch.zeros(16)
    assert not ask_for_huge_pages(tensor.data_ptr(), tensor.nbytes)
