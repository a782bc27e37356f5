"""Members of points, loaded as one in flat blocks (`analysis.members`).

A thread loads words of all members of its points, and takes them apart in registers: the tile has
an axis of members, which is halved, even ones from odd ones, until each is alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nearhint_compiler.analysis.members import Members
from nearhint_compiler.codegen.triton.block import Block


def member_lines(block: Block, group: Members, names: Mapping[int, str], zero: str) -> list[str]:
    """The lines that load a group of a block; `names` are of the members that are wanted."""
    width, loaded = len(group.places), f"each{group.first}"
    mask, options = block.element_mask, ""
    if mask or group.stride != width:
        points = "pid * X + tl.arange(0, X)[:, None]"
        at = f"({points}) * {group.stride} + tl.arange(0, {width})[None, :]"
        options = f", tl.reshape({mask}, [X])[:, None], other={zero}" if mask else ""
    else:
        # One run of elements, so that a thread's vector may be the members of several points.
        loaded = f"run{group.first}"
        at = f"pid * (X * {width}) + tl.arange(0, X * {width})"
    base = f" + {group.base}" if group.base else ""
    whole = [names.get(each, f"{loaded}_{each}") for each in range(width)]
    shape = block.element_shape.strip("[]")
    load = f"{loaded} = tl.load(a{group.param} + ({at}{base}){options})"
    return [load, *_apart(loaded, whole, shape)]


def _apart(text: str, names: Sequence[str], points: str) -> list[str]:
    """The lines that take apart what has an axis of so many members behind those of points."""
    if len(names) == 2:
        return [f"{', '.join(names)} = tl.split(tl.reshape({text}, [{points}, 2]))"]
    halves = f"{text}e", f"{text}o"
    return [
        f"{', '.join(halves)} = tl.split(tl.reshape({text}, [{points}, {len(names) // 2}, 2]))",
        *(line for at, half in enumerate(halves) for line in _apart(half, names[at::2], points)),
    ]
