"""Memory of arenas: taken for what sizes need, and seldom where they grow by little."""

from __future__ import annotations

import torch

from nearhint_torch.arena import Arena, Layout, Placed

CPU = torch.device("cpu")


def layout(elements: int) -> Layout:
    """One tensor of half floats, in the only storage."""
    placed = Placed(0, 0, torch.float16, (elements,), (1,))
    return Layout({0: 2 * elements}, (placed,), (None,), (), ())


def test_a_tensor_that_grows_by_a_token_a_call_moves_seldom() -> None:
    arena = Arena(CPU)
    sizes = [32 * tokens for tokens in range(1, 4000)]
    held: list[int] = []
    for elements in sizes:
        (tensor,) = arena.slots(layout(elements))
        assert tensor.shape == (elements,)
        held.append(arena.size_bytes)
    assert len(set(held)) < 100, "of 3999 calls"
    for elements, size_bytes in zip(sizes, held, strict=True):
        assert size_bytes <= 2 * elements * 9 / 8 + 64, "hardly more than there has to be"


def test_what_a_large_tensor_takes_beyond_its_size_is_bounded() -> None:
    arena = Arena(CPU)
    for elements in (2**20, 2**26, 2**27):
        arena.slots(layout(elements))
        assert arena.size_bytes <= 2 * elements + 2**20 + 64


def test_sizes_that_do_not_grow_take_what_they_need() -> None:
    arena = Arena(CPU)
    for elements in (1000, 10, 999):
        arena.slots(layout(elements))
    assert arena.size_bytes == 2048
