"""Sweeps: one function at many sizes, captured and compiled once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from tests.benchmarks.cpu_cases import Case, Shape
from torch import Tensor

from nearhint_torch.adapter import mark_dynamic

Sizes: TypeAlias = tuple[int, ...]
"""What a sweep varies; the first is its number of rows."""

SHORT_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def none_beside(*_: int) -> Sizes:
    """Of a sweep whose tensors have the sizes that vary."""
    return ()


@dataclass(frozen=True, slots=True)
class Sweep:
    """A torch function, its arguments' shapes as a function of sizes, and the sizes.

    `compiled_at` are the sizes of the first call, which is never timed: all different, so that no
    two are taken for one symbol, and none of them 1. `kind` tells apart the parts of a sweep.
    `unit` is the length of a block of a row, where the function counts blocks. `magnitudes` are
    what the terms of the outputs sum to without their signs, where the outputs are sums.
    `rounding` is how far integers may be from those in float64, where floats are rounded to them.
    Of what is `read_in_part`, as a table is, nobody says how many bytes have to move. `beside` are
    sizes of tensors that torch keeps beside those that vary: sums of these, multiples, constants.
    """

    name: str
    function: Callable[..., Tensor | tuple[Tensor, ...]]
    layout: Callable[..., tuple[Shape, ...]]
    compiled_at: Sizes
    sizes: tuple[Sizes, ...]
    dtype: torch.dtype = torch.float32
    prepare: Callable[[list[Tensor]], list[Tensor]] = list
    kind: str = ""
    unit: int = 0
    magnitudes: Callable[..., Tensor | tuple[Tensor, ...]] | None = None
    rounding: int = 0
    read_in_part: bool = False
    beside: Callable[..., Sizes] = none_beside

    @property
    def title(self) -> str:
        """Name, dtype and kind."""
        return " ".join(filter(None, (self.name, SHORT_NAMES[self.dtype], self.kind)))

    def at_most(self, count: int) -> Sweep:
        """The sweep at the first `count` of its sizes; 0: at all of them."""
        return replace(self, sizes=self.sizes[: count or None])

    def case(self, sizes: Sizes) -> Case:
        """The function at some sizes."""
        name = f"{self.name} {SHORT_NAMES[self.dtype]} {'x'.join(map(str, sizes))}"
        return Case(name, self.function, self.layout(*sizes), self.dtype, self.prepare)

    def cases(self) -> tuple[Case, ...]:
        """The function at each of the sizes."""
        return tuple(map(self.case, self.sizes))

    def bindable(self, sizes: Sizes) -> Sizes:
        """What calls may be bound to."""
        return (*sizes, *self.beside(*sizes))

    def row_dimensions(self) -> tuple[tuple[int, ...], ...]:
        """For each argument, the dimensions that are as long as there are rows."""
        rows, *others = self.compiled_at
        shapes = zip(self.layout(rows, *others), self.layout(rows + 1, *others), strict=True)
        return tuple(
            tuple(place for place, size in enumerate(shape) if size != longer[place])
            for shape, longer in shapes
        )


def rows_alone(sweep: Sweep) -> tuple[Sweep, ...]:
    """The same sizes, apart by everything but the rows: what is captured for rows of one kind."""
    kinds = dict.fromkeys(sizes[1:] for sizes in sweep.sizes)
    return tuple(
        replace(
            sweep,
            kind=f"[{'x'.join(map(str, kind))}]",
            compiled_at=(sweep.compiled_at[0], *kind),
            sizes=tuple(sizes for sizes in sweep.sizes if sizes[1:] == kind),
        )
        for kind in kinds
    )


def starts_of(sweep: Sweep, first: Sizes) -> list[Sizes]:
    """The sizes of the calls that are captured, the first and, where they are met, one row and one
    block a row: torch keeps a size of 1 apart.
    """
    met = {ones_of(sweep, sizes) for sizes in sweep.sizes}
    starts = {
        (True, False): (1, *first[1:]),
        (False, True): (*first[:-1], sweep.unit),
        (True, True): (1, *first[1:-1], sweep.unit),
    }
    return [first, *(sizes for ones, sizes in starts.items() if ones in met and sizes != first)]


def ones_of(sweep: Sweep, sizes: Sizes) -> tuple[bool, bool]:
    """Whether there is one row, and one block a row."""
    return sizes[0] == 1, sizes[-1] == sweep.unit


def axes_of(bound: Sequence[int], sizes: Sizes) -> tuple[int, ...]:
    """Which of `sizes` each value that a capture at these sizes is bound to is.

    Raises `ValueError` for a value that is none of them, or several.

    >>> axes_of([96, 40], (40, 96))
    (1, 0)
    """
    for value in bound:
        if sizes.count(value) != 1:
            raise ValueError(f"{value} is not one of {sizes}, or several")
    return tuple(sizes.index(value) for value in bound)


def bound_at(axes: Sequence[int], sizes: Sizes) -> list[int]:
    """What a capture is bound to at other sizes."""
    return [sizes[axis] for axis in axes]


def marked(sweep: Sweep, arguments: Sequence[Tensor], mode: str) -> list[Tensor]:
    """The arguments as the dynamic contenders get them: the same memory; in mode b, rows marked.

    A mark stays with a tensor object, and the static contender must not see it.
    """
    found = [tensor.detach() for tensor in arguments]
    if mode == "b":
        for tensor, dimensions in zip(found, sweep.row_dimensions(), strict=True):
            for dimension in dimensions:
                mark_dynamic(tensor, dimension)
    return found


def is_chosen(title: str, patterns: Sequence[str]) -> bool:
    """Whether a title contains one of the patterns, or there is none.

    A pattern after `=` is a whole title, or all of one but the kind.

    >>> is_chosen("softmax bf16", ["soft", "argmax"]), is_chosen("softmax bf16", ["rms"])
    (True, False)
    >>> is_chosen("log_softmax bf16", ["=softmax bf16"])
    False
    >>> is_chosen("softmax bf16 [37]", ["=softmax bf16"])
    True
    """
    names = (title, title.partition(" [")[0])
    return not patterns or any(
        pattern[1:] in names if pattern.startswith("=") else pattern in title
        for pattern in patterns
    )
