"""What the chunks of a chain leave for those behind them, and how each finds what is before it.

A chunk leaves its total as soon as it has it, and once it knows what is before it, what all up to
it come to. It looks at those before it, a few at once, until one of them has all that was before,
and adds the totals of those between, in order. The order is that of a single walk over the chunks,
whichever of them it starts from: so the same input gives the same bits, however long anyone waited.

Value and state are one word of 64 bits, which no reader sees in parts; a value of 64 bits is two
such words, each with the state. Programs take their chunks in the order in which they begin, by a
ticket, the first chunks of all rows first: so whoever is waited for has begun, and no order of
dispatch is relied on. The words are zeroed by a launch before.

Where a chain is long for what its chunks move, several chunks in a row are `together`: each adds
the totals of those of its own before it, and what comes before all of them is looked for behind
them, as of one chunk: the last of them leaves what all come to. That order is fixed, too.

The method is the decoupled look-back of Merrill and Garland, Single-pass Parallel Prefix Scan,
NVIDIA technical report NVR-2016-002; that the sum does not depend on where it starts is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.chains import words_of
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.ops import combine_name
from nearhint_compiler.codegen.triton.stages import Staged
from nearhint_compiler.codegen.triton.text import TRITON_TYPES, neutral_text
from nearhint_compiler.ir import nodes as ir
from nearhint_rules.program import DTYPES

TOTAL, WHOLE = 1, 2
"""The states of a word: the total of its chunk, and that of all up to it; 0 before."""


@dataclass(frozen=True, slots=True)
class Links:
    """A chain of `chunks` chunks for each of `rows` rows, in `blocks` blocks of rows: the texts.

    `place` are the lines that make the loop variables of block `pid` of rows, and what else is
    known of `chunk`. A program looks at `back` chunks at once with `lanes` lanes, one or more for
    each thread and each row. With several chunks `together` those of its own are looked at first,
    and `back` times as many behind.
    """

    rows: str
    chunks: str
    blocks: str
    place: Sequence[str]
    back: int
    lanes: int
    together: int = 1


def linked(
    block: Block,
    scans: Mapping[int, ir.Scan],
    links: Links,
    *,
    held: Sequence[str],
    stored: Sequence[str],
    row_stores: Sequence[str],
) -> Staged:
    """A kernel whose programs have a chunk of the `scans` each, by their nodes.

    The lines `held` leave what a chunk comes to as `total{node}`; those of `stored` have what comes
    before it as `carry{node}`. The `row_stores` are once a row.
    """
    chain = _chain(block, scans, links)
    behind = chain.behind_own() if links.together > 1 else chain.behind()
    lines = [
        f"rows = {links.rows}",
        f"chunks = {links.chunks}",
        f"blocks = {links.blocks}",
        "if stage == 0:",
        "    chunk = program // blocks",
        "    pid = program % blocks",
        *indented(links.place),
        *indented(chain.zeroed()),
        "    if program == 0:",
        f"        tl.store({chain.ticket}, tl.zeros([], tl.int64))",
        "else:",
        f'    ticket = tl.atomic_add({chain.ticket}, 1, sem="relaxed").to(program.dtype)',
        "    chunk = ticket // blocks",
        "    pid = ticket % blocks",
        *indented(links.place),
        *indented(held),
        *indented(behind),
        *indented(stored),
        *(["    if chunk == 0:", *indented(row_stores, 2)] if row_stores else []),
    ]
    return Staged(tuple(lines), ("i64",) * chain.count, 2)


@dataclass(frozen=True, slots=True)
class _Chain:
    """The `scans` of a chain by their nodes, and in which arrays of the workspace each has `words`.

    Where several chunks go together, what all of them come to lies behind the words of all chunks.
    """

    block: Block
    scans: Mapping[int, ir.Scan]
    links: Links
    words: Mapping[int, Sequence[int]]

    @property
    def count(self) -> int:
        """How many arrays of words there are."""
        return sum(map(len, self.words.values()))

    @property
    def ticket(self) -> str:
        """Where the next ticket is: behind all words."""
        together = self.links.together
        several = "chunks" if together == 1 else f"(chunks + chunks // {together})"
        return f"w0 + {several} * rows"

    @property
    def _mask(self) -> str:
        return f", {self.block.row_mask}" if self.block.row_mask else ""

    def zeroed(self) -> list[str]:
        """What makes the words of a chunk zero."""
        together = self.links.together
        zeroed = self._zeros("chunk")
        if together > 1:
            last = f"chunk % {together} == {together - 1}"
            behind = self._zeros(f"(chunks + chunk // {together})")
            zeroed += [f"if {last}:", *indented(behind)]
        return zeroed

    def _zeros(self, at: str) -> list[str]:
        shape = self.block.row_shape
        return [
            f"tl.store(w{array} + ({at} * rows + x), tl.zeros({shape}, tl.int64){self._mask})"
            for array in range(self.count)
        ]

    def behind(self) -> list[str]:
        """A chunk leaves its total, finds what is before it, and leaves the total of both."""
        return [
            f"state = tl.where(chunk == 0, {WHOLE}, {TOTAL}).to(tl.int64) << 32",
            *self._left("chunk"),
            *self._started(),
            *self._looking(),
            *self._waited(Chunks("chunk", self.links.back)),
            "if chunk > 0:",
            *indented(self._whole()),
            f"    state = tl.full([], {WHOLE}, tl.int64) << 32",
            *indented(self._left("chunk")),
        ]

    def behind_own(self) -> list[str]:
        """The same of one of several that go together: those of its own before it are first."""
        together = self.links.together
        return [
            f"state = tl.full([], {TOTAL}, tl.int64) << 32",
            *self._left("chunk"),
            *self._started(),
            *self._looking(),
            f"team = chunk // {together}",
            f"place = chunk % {together}",
            *self._waited_for_own(),
            *(f"own{p} = carry{p}" for p in self.scans),
            *self._whole(),
            f"if place == {together - 1}:",
            f"    state = tl.where(team == 0, {WHOLE}, {TOTAL}).to(tl.int64) << 32",
            *indented(self._left("(chunks + team)")),
            *self._started(),
            *self._waited(Chunks("team", self.links.back, "chunks + ")),
            f"if (place == {together - 1}) & (team > 0):",
            *indented(self._whole()),
            f"    state = tl.full([], {WHOLE}, tl.int64) << 32",
            *indented(self._left("(chunks + team)")),
            *(
                f"carry{p} = {combine_name(node.kind, node.dtype)}(carry{p}, own{p})"
                for p, node in self.scans.items()
            ),
        ]

    def _left(self, at: str) -> list[str]:
        """The totals, left in the words at a place with the variable `state`."""
        return [
            f'tl.atomic_xchg(w{array} + ({at} * rows + x), {word}{self._mask}, sem="relaxed")'
            for p, node in self.scans.items()
            for array, word in zip(self.words[p], _packed(f"total{p}", node.dtype), strict=True)
        ]

    def _whole(self) -> list[str]:
        """The totals, with what comes before them."""
        return [
            f"total{p} = {combine_name(node.kind, node.dtype)}(carry{p}, total{p})"
            for p, node in self.scans.items()
        ]

    def _started(self) -> list[str]:
        """Nothing yet of what comes before."""
        shape = f"[{self.links.lanes}]"
        return [f"carry{p} = {full(shape, node)}" for p, node in self.scans.items()]

    def _looking(self) -> list[str]:
        """Which column a lane looks at, if it does."""
        columns = self.block.axes[0]
        return [
            f"look = tl.arange(0, {self.links.lanes})",
            f"lookx = pid * {columns} + look % {columns}",
            f"looks = (look < {columns}) & (lookx < rows)",
        ]

    def _waited(self, chunks: Chunks) -> list[str]:
        """Looks at chunks until it is known what comes before."""
        lanes = self.links.lanes
        looks = [
            line
            for p, node in self.scans.items()
            for line in _look(p, node, self.words[p], chunks, lanes=lanes)
        ]
        return self._until_known(f"{chunks.name} == 0", looks)

    def _waited_for_own(self) -> list[str]:
        """The same of those of its own."""
        lanes, together = self.links.lanes, self.links.together
        looks = [
            line
            for p, node in self.scans.items()
            for line in _look_at_own(p, node, self.words[p], together, lanes=lanes)
        ]
        return self._until_known("place == 0", looks)

    def _until_known(self, is_first: str, looks: Sequence[str]) -> list[str]:
        lanes = self.links.lanes
        return [
            f"known = ({is_first}).to(tl.int32)",
            "while known == 0:",
            *indented(looks),
            f"    known = {_all_known(list(self.scans))}",
            *(
                line
                for p, node in self.scans.items()
                for line in _told(self.block, p, node, lanes=lanes)
            ),
        ]


def _chain(block: Block, scans: Mapping[int, ir.Scan], links: Links) -> _Chain:
    words, count = dict[int, list[int]](), 0
    for p, node in scans.items():
        words[p] = [count + number for number in range(words_of(node.dtype))]
        count += len(words[p])
    return _Chain(block, scans, links, words)


def full(shape: str, node: ir.Scan) -> str:
    """What changes nothing, in `shape`."""
    dtype = TRITON_TYPES[node.dtype].name
    return f"tl.full({shape}, {neutral_text(node.kind, node.dtype)}, {dtype})"


def _packed(value: str, dtype: str) -> list[str]:
    """The words of a value, each with the variable `state`."""
    if words_of(dtype) == 1:
        return [f"(({value}.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF) | state)"]
    bits = f"{value}.to(tl.int64, bitcast=True)"
    return [f"(({bits} & 0xFFFFFFFF) | state)", f"((({bits} >> 32) & 0xFFFFFFFF) | state)"]


@dataclass(frozen=True, slots=True)
class Chunks:
    """What a program looks at: `back` of them, before that whose number is the variable `name`, and
    the text of what comes before their numbers in a workspace.
    """

    name: str
    back: int
    behind: str = ""


def _words(
    p: int, node: ir.Scan, arrays: Sequence[int], chunks: Chunks, least: str
) -> tuple[list[str], list[tuple[int, str, str]]]:
    """The lines that load the words of chunks, from the farthest on, and the number, the state and
    the value of each. Those before chunk `least` are not there."""
    dtype, lines = TRITON_TYPES[node.dtype].name, list[str]()
    found: list[tuple[int, str, str]] = []
    for number in range(chunks.back, 0, -1):
        names = [f"word{p}_{number}_{place}" for place in range(len(arrays))]
        at = f"({chunks.behind}{chunks.name} - {number}) * rows + lookx"
        lines += [
            f"{name} = tl.load(w{array} + ({at}), "
            f"looks & ({least} >= {number}), other=0, volatile=True)"
            for name, array in zip(names, arrays, strict=True)
        ]
        state = f"({names[0]} >> 32).to(tl.int32)"
        bits = f"{names[0]}.to(tl.int32).to({dtype}, bitcast=True)"
        if len(names) > 1:
            # One of two words may be newer.
            state = f"tl.where({names[0]} >> 32 == {names[1]} >> 32, {state}, 0)"
            bits = f"(({names[0]} & 0xFFFFFFFF) | ({names[1]} << 32)).to({dtype}, bitcast=True)"
        found.append((number, state, bits))
    return lines, found


def _look_at_own(
    p: int, node: ir.Scan, arrays: Sequence[int], together: int, *, lanes: int
) -> list[str]:
    """What those of its own before a chunk come to, if all have left it."""
    combine = combine_name(node.kind, node.dtype)
    loads, words = _words(p, node, arrays, Chunks("chunk", together - 1), "place")
    lines = [
        f"carry{p} = {full(f'[{lanes}]', node)}",
        f"known{p} = tl.full([{lanes}], 1, tl.int32)",
        *loads,
    ]
    for number, state, bits in words:
        lines += [
            f"carry{p} = tl.where(place >= {number}, {combine}(carry{p}, {bits}), carry{p})",
            f"known{p} = tl.where((place >= {number}) & ({state} == 0), 0, known{p})",
        ]
    return lines


def _look(p: int, node: ir.Scan, arrays: Sequence[int], chunks: Chunks, *, lanes: int) -> list[str]:
    """What is before the chunk by what those before it have left, from the farthest on.

    Of the lanes of a column the first one looks alone, and others are told by `_told`: what several
    threads read of a word need not be the same.
    """
    combine = combine_name(node.kind, node.dtype)
    loads, words = _words(p, node, arrays, chunks, chunks.name)
    lines = [
        f"carry{p} = {full(f'[{lanes}]', node)}",
        f"known{p} = tl.zeros([{lanes}], tl.int32)",
        *loads,
    ]
    for _, state, bits in words:
        lines += [
            f"state{p} = {state}",
            f"value{p} = {bits}",
            f"carry{p} = tl.where(state{p} == {WHOLE}, value{p}, {combine}(carry{p}, value{p}))",
            f"whole{p} = (state{p} == {WHOLE}).to(tl.int32)",
            f"known{p} = tl.where(state{p} == {TOTAL}, known{p}, whole{p})",
        ]
    return lines


def _all_known(scans: Sequence[int]) -> str:
    known = f"known{scans[0]}"
    for p in scans[1:]:
        known = f"tl.minimum({known}, known{p})"
    return f"tl.min(tl.where(looks, {known}, 1), 0)"


def _told(block: Block, p: int, node: ir.Scan, *, lanes: int) -> list[str]:
    """What the first lanes have found, bit by bit, for all."""
    dtype, width = TRITON_TYPES[node.dtype].name, f"tl.int{8 * DTYPES[node.dtype]}"
    bits = f"tl.where(looks, carry{p}.to({width}, bitcast=True), 0)"
    columns = block.axes[0]
    found = f"tl.reduce(tl.reshape({bits}, [{lanes} // {columns}, {columns}]), 0, _combine_sum)"
    return [f"carry{p} = tl.expand_dims({found}.to({dtype}, bitcast=True), {block.reduced_axis})"]


def indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    """Lines one or more levels further in."""
    return [f"{'    ' * depth}{line}" for line in lines]
