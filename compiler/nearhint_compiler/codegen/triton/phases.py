"""What rows in words share, as weights, in words as well: two that are next to each other, shifted.

A row begins anywhere in a word, what all rows share with one, and what some of them share, as the
scale of an image, anywhere again. So the elements beside a word of the row are the last of one word
and the first of the next: as many of the one are left out as it has before them, the phase. Element
by element they are eight loads, or four, each of them of as many lines of a cache as a word's: here
they are two, and a few selections.

Nothing behind what a row shares is read: of its last word, if it is not whole, the row has the
elements among its edges. Triton hands the elements of a word to one statement of assembly as they
are next to each other in a thread. That they are is checked when a kernel is compiled
(`nearhint_daemon.workers.packed`).
"""

from __future__ import annotations

from collections.abc import Mapping

from nearhint_compiler.analysis.row_words import RowWords, base_of
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.options import PERSISTENT
from nearhint_compiler.codegen.triton.text import index_text, zero_text
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES

WARP = 32
"""Threads of a warp."""
REGISTER_BYTES = 4
"""Of what a register holds."""


def has_phases(words: RowWords, schedule: Schedule) -> bool:
    """Whether what a row shares is read in words: blocks have whole words for each thread, and
    lanes for edges that are longer.

    Few lanes are no more than elements take where all is loaded at once, or next to what a walk
    waits for.
    """
    is_held = schedule.family == PERSISTENT and not schedule.get("early", 0)
    if not (words.is_phased or is_held):
        return False
    threads = WARP * schedule["warps"]
    has_words = schedule["x"] * schedule["r"] >= threads * words.lanes
    return has_words and schedule["r"] >= 4 * words.lanes**2 and not schedule.get("r1", 0)


def phased(kernel: ir.Kernel, block: Block, param: int, index: ex.Expr, beyond: str = "") -> str:
    """What is loaded at an index in two words; nothing if `block` has it otherwise.

    Lanes beyond the row are 0 or else `beyond`.
    """
    lane, dtype = block.phased.get(index, ""), kernel.params[param].dtype
    name = _name(block.word, DTYPES[dtype])
    if not lane or name not in IN_PHASE:
        return ""
    base, mask = base_of(kernel, index), block.mask_of(index)
    begin = block.text(base) if base != ex.ZERO else ""
    place = f"tl.broadcast_to({lane}, {block.element_shape})"
    other = beyond or zero_text(dtype)
    phase = block.head
    if begin:
        phase = f"(({begin} + {block.head}) % {block.word})"
        first = f"({begin} + {block.head}) // {block.word} * {block.word}"
        lane, place = f"{first} + {lane}", f"({first} + {place})"
    behind = f"({lane} + {block.word} < {_end(kernel, begin, block.word)})"
    word = f"tl.load(a{param} + {place}, {mask}, other={other})"
    following = f"tl.load(a{param} + ({place} + {block.word}), {mask} & {behind}, other={other})"
    return f"{name}({word}, {following}, {phase}.to(tl.int32))"


def word_ends(
    kernel: ir.Kernel, words: RowWords, renamed: Mapping[str, ex.Expr] | None = None
) -> list[str]:
    """Where a row is at the ends of the whole words of all that is read in phase with it, as texts
    in terms of its loops, or of those they are `renamed` to.
    """
    loads = [node.index for node in kernel.body if isinstance(node, ir.Load)]
    found: list[str] = []
    for base in dict.fromkeys(base_of(kernel, each) for each in loads if each in words.shared):
        begin = index_text(ex.substitute(base, renamed or {})) if base != ex.ZERO else ""
        end = _end(kernel, begin, words.lanes)
        found.append(f"{end} - {begin}" if begin else end)
    return found


def _end(kernel: ir.Kernel, begin: str, lanes: int) -> str:
    """The end of the whole words of a row's elements from an index on; without one, from 0."""
    length = index_text(ex.product(kernel.reduction))
    return f"{f'({begin} + {length})' if begin else length} // {lanes} * {lanes}"


def _shifted(lanes: int, size: int) -> str:
    """As many elements as a word has from a number on, of those of two words behind each other.

    The registers of both words come behind those of what is found, and the number behind them.
    Half of the words' registers are left out if the number is that large, and so on; where two
    elements share a register, what remains is to shift by one.
    """
    count, is_shared = lanes * size // REGISTER_BYTES, size < REGISTER_BYTES
    found = [f"${place}" for place in range(count, 3 * count)]
    lines = ["{ .reg .pred far; .reg .b32 by;"]
    by, bit, level = count // 2, lanes // 2, 0
    while by:
        many = count + by - 1 + is_shared
        lines.append(f".reg .b32 t{level}_<{many}>;")
        lines.append(f"and.b32 by, ${3 * count}, {bit}; setp.ne.u32 far, by, 0;")
        names = [f"t{level}_{n}" for n in range(many)]
        lines += [
            f"selp.b32 {name}, {found[n + by]}, {found[n]}, far;" for n, name in enumerate(names)
        ]
        found, by, bit, level = names, by // 2, bit // 2, level + 1
    if is_shared:
        lines.append(f"and.b32 by, ${3 * count}, 1; shl.b32 by, by, 4;")
        lines += [f"shf.r.wrap.b32 ${n}, {found[n]}, {found[n + 1]}, by;" for n in range(count)]
    else:
        lines += [f"mov.b32 ${n}, {found[n]};" for n in range(count)]
    return " ".join([*lines, "}"])


def _name(lanes: int, size: int) -> str:
    return f"_in_phase_{lanes}x{size}"


def _function(lanes: int, size: int) -> tuple[str, ...]:
    """The lines of the function for words of so many elements of so many bytes."""
    count = lanes * size // REGISTER_BYTES
    constraints = ",".join(["=r"] * count + ["r"] * (2 * count + lanes))
    bits = f"tl.int{8 * size}"
    return (
        f"def {_name(lanes, size)}(word, following, phase):",
        "    found = tl.inline_asm_elementwise(",
        f'        "{_shifted(lanes, size)}",',
        f'        "{constraints}",',
        f"        [word.to({bits}, bitcast=True), following.to({bits}, bitcast=True), phase],",
        f"        {bits}, is_pure=True, pack={lanes},",
        "    )",
        "    return found.to(word.dtype, bitcast=True)",
    )


IN_PHASE = {_name(*each): _function(*each) for each in ((8, 2), (8, 4), (4, 4))}
"""The functions that kernels call, by name: of words of so many elements of so many bytes.

Of other words what rows share is read element by element.
"""
