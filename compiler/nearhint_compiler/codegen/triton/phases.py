"""What rows in words share, as weights, in words as well: two that are next to each other, shifted.

A row begins anywhere in a word, what all rows share with one, and what some of them share, as the
scale of an image, anywhere again. So the elements beside a word of the row are the last of one word
and the first of the next: as many of the one are left out as it has before them, the phase. Element
by element they are eight loads, each of them of as many lines of a cache as a word's: here they are
two, and a few selections.

Nothing behind what a row shares is read: of its last word, if it is not whole, the row has the
elements among its edges. Triton hands the elements of a word to one statement of assembly as they
are next to each other in a thread. That they are is checked when a kernel is compiled
(`nearhint_daemon.workers.packed`).
"""

from __future__ import annotations

from collections.abc import Mapping

from nearhint_compiler.analysis.row_words import WORD_BYTES, RowWords, base_of
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.text import index_text, zero_text
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES

WARP = 32
"""Threads of a warp."""


def has_phases(words: RowWords, schedule: Schedule) -> bool:
    """Whether blocks have whole words for each thread, and lanes for edges that are longer."""
    threads = WARP * schedule["warps"]
    has_words = schedule["x"] * schedule["r"] >= threads * words.lanes
    return has_words and schedule["r"] >= 4 * words.lanes**2 and not schedule.get("r1", 0)


def phased(kernel: ir.Kernel, block: Block, param: int, index: ex.Expr) -> str:
    """What is loaded at an index in two words; nothing if `block` has it otherwise."""
    lane, dtype = block.phased.get(index, ""), kernel.params[param].dtype
    if not lane or DTYPES[dtype] * block.word != WORD_BYTES:
        return ""
    base, mask = base_of(kernel, index), block.mask_of(index)
    begin = block.text(base) if base != ex.ZERO else ""
    place, other = f"tl.broadcast_to({lane}, {block.element_shape})", zero_text(dtype)
    phase = block.head
    if begin:
        phase = f"(({begin} + {block.head}) % {block.word})"
        first = f"({begin} + {block.head}) // {block.word} * {block.word}"
        lane, place = f"{first} + {lane}", f"({first} + {place})"
    behind = f"({lane} + {block.word} < {_end(kernel, begin, block.word)})"
    word = f"tl.load(a{param} + {place}, {mask}, other={other})"
    following = f"tl.load(a{param} + ({place} + {block.word}), {mask} & {behind}, other={other})"
    return f"_in_phase({word}, {following}, {phase}.to(tl.int32))"


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


def _shifted() -> str:
    """Eight elements of two bytes from number $12 on, of 16 in registers $4 to $11."""
    words = [f"${place}" for place in range(4, 12)]
    lines = ["{ .reg .pred odd; .reg .b32 by, t<6>, u<5>;"]
    lines.append("and.b32 by, $12, 4; setp.ne.u32 odd, by, 0;")
    lines += [f"selp.b32 t{n}, {words[n + 2]}, {words[n]}, odd;" for n in range(6)]
    lines.append("and.b32 by, $12, 2; setp.ne.u32 odd, by, 0;")
    lines += [f"selp.b32 u{n}, t{n + 1}, t{n}, odd;" for n in range(5)]
    lines.append("and.b32 by, $12, 1; shl.b32 by, by, 4;")
    lines += [f"shf.r.wrap.b32 ${n}, u{n}, u{n + 1}, by;" for n in range(4)]
    return " ".join([*lines, "}"])


IN_PHASE = (
    "def _in_phase(word, following, phase):",
    "    return tl.inline_asm_elementwise(",
    f'        "{_shifted()}",',
    f'        "{",".join(["=r"] * 4 + ["r"] * 16)}", [word, following, phase], word.dtype,',
    "        is_pure=True, pack=8,",
    "    )",
)
"""The function that kernels call."""
