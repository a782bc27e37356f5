"""Sizes of a Program as text, `s0=8,s1=16`: how usage and traffic keep them."""

from __future__ import annotations

from collections.abc import Mapping


def parse_sizes(text: str) -> dict[str, int]:
    """`s0=8,s1=16` as a mapping."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {name: int(value) for name, _, value in pairs}


def print_sizes(sizes: Mapping[str, int]) -> str:
    """A mapping as `s0=8,s1=16`."""
    return ",".join(f"{name}={value}" for name, value in sorted(sizes.items()))
