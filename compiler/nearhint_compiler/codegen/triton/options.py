"""The families of CUDA schedules and their options: what each means, and which go together.

Families (options in order; every block size is a power of two):

    cuda.pointwise   x            a flat block of x points
    cuda.tiled       z y x cuts   a tile of two or three axes (z 1 with two), each a run of loops
    cuda.persistent  x r          x rows a program, whole in registers
    cuda.looped      x r          x rows a program, r elements a step
    cuda.split       x r splits   the same, `splits` programs sharing a row, in stages; scans too
    cuda.cooperative x r splits teams
                     the parts of r elements of x rows in registers, a team of `splits` programs
                     for them and `teams` teams at a time (`codegen.triton.cooperative`)
    cuda.chained     x r           scans of x columns in chunks of r runs in registers, each after
                     those before it (`codegen.triton.chained`); `unroll` rows are a run. With
                     `tiles`, of x rows in chunks of so many tiles of r elements
                     (`codegen.triton.chained_rows`)
    cuda.scattered   x            flat blocks of x points of a scatter, and of its output
                     (`codegen.triton.scattered`)
    cuda.tiled_persistent, cuda.tiled_looped
                     z y x r cuts the rows in a tile as cuda.tiled has it

Bit i of `cuts` is set where an axis ends with loop p{i}. All have warps, index, aligned, divisible
and, as they may, spaced: 1 for the kernel as `analysis.respace` cuts its loops, under the Guard
that this needs; written: 1 for it with its last loops written out (`analysis.written_out`), and
with that k0, k1, ...: what a symbol of the kernel has to be, a constant (`analysis.fixed`), under a
Guard. `index` is 32 or 64, the width of index arithmetic; 32 brings Guards. `aligned` 1
promises 16-byte pointers, and bit i of `divisible` promises that symbol i is a multiple of what
`multiple` says, without it of 16, or of as many as reductions need (`analysis.multiples`): both
bring Guards, and make Triton load vectors. As they may, too:

    pieces   rows in registers, and parts of them that teams hold: so many blocks of r elements hold
             one, one behind the other; walks that read rows once: so many are a step, all loaded
             before any of them is used
    runs     rows of several loops: by how many neighbours what the innermost loops share is read at
             once, which is at most as many as are in any of its runs
    polls    teams: how often a program looks for the others before it gives up
    apart    split columns: the totals of all chunks, or of those before each, are brought together
             in a stage between, by programs of so many columns
    tiles    chains: so many tiles of r neighbouring elements are a chunk, and no runs
    back     chains: how many chunks before its own a program looks at at once
    together chains: so many chunks in a row leave what they come to together, too, and `back` is
             counted in as many
    registers
             a bound on those of a thread, so that a processor holds as many programs as wanted
    group    walks, and args in registers: by how many neighbours along the row an accumulator is
             stepped at once; those of a thread's vector for speed, and any for right
    unroll   walks: how many steps are written out, whose loads are under way together
    held     walks over flat rows that are walked twice: how many tiles, the last of the first
             walk, stay in registers for the second (`codegen.triton.held`)
    keep     walks: 1 where what all rows read alike is to stay in the first cache, from which the
             rows after read it again
    ahead    walks that store nothing, or go back over what was read: how many steps are under way
             at once, copied to shared memory without passing registers (`cp.async`). Teams that
             hold their rows, and turns: 2 where the next row is loaded, into registers, before the
             one at hand waits for its totals; walks that scan what they store: 2 where the next
             step is
    programs split rows: at most `splits` share one, fewer where rows are so many that all blocks of
             them together would be more than so many programs
    fold     split columns: so many rows are read, and stored, as one, and those that are no whole
             such row apart
    plane    folds of planes, each element of which is a column of its own: how many a plane has at
             most
    order    tiles: in which order programs go, so that what neighbours share is in a cache. 1:
             first along the axis that has fewer of them, whatever the sizes; n > 1: through bands
             of n blocks of the axis before the last, across each band first; -n: of the last axis
    whole    1 for flat blocks without a mask where they are full, whose vectors need no promise
             about sizes
    members  1 for flat blocks that load numbers which lie beside one another, of each point, at
             once (`codegen.triton.members`)
    unit     cuda.pointwise: so many neighbours are a unit, whose place is divided once
             (`analysis.units`); no row is shorter
    multiple what `divisible` promises sizes to be multiples of
    words    1 for rows in whole words, with their edges apart (`codegen.triton.edges`): vectors
             along rows of any length, no promise about sizes; with r1, along planes of any length;
             2 for halves of such words.
             Of teams all programs have a row's edges (`codegen.triton.team_edges`).
             Of cuda.tiled the rows are those along its last axis: each begins in the tile where its
             words do
    turns    rows in words: how many a program has one after the other, each as far from the next
             as a word has lanes, so that all begin alike and what they share is read once
    early    1 for rows in registers whose loads all come before the first reduction
    stream   1 for rows that are read once and take no place from others in a cache
    cached   what is read once and does not pass a cache: how many MiB of it there are at most
    reuse    1 for rows in registers whose shares of a sum are made of its terms (`analysis.shares`)
    anew     1 for rows in registers whose places are computed again for what is stored, so that
             less is held beside the elements
    packed   1 for rows in pieces whose narrow elements are held as they were read, and widened anew
             for each reduction and for what is stored (`codegen.triton.packed`)
    spread   rows in registers: 1 for blocks whose first axis is the reduction's, so that what comes
             behind it has threads first
    weights  1 for teams whose programs have what all rows read alike in registers, for all their
             rows; in words `teams` is a multiple of a word's lanes (`codegen.triton.kept`)
    walks    1 for teams that walk their parts, in any number of steps, and once more when they met
    r1       the r elements of a block are a tile of two axes, r1 of them along the innermost
             reduction loop (`codegen.triton.row`)
    block_pointers
             1 where some access can have one (`schedule.block_pointers`)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nearhint_compiler.codegen.triton.layout import BLOCK_LIMIT
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.schedule.cuda_facts import STREAMED
from nearhint_compiler.schedule.schedule import Schedule

PERSISTENT, LOOPED = "cuda.persistent", "cuda.looped"
IN_PIECES = (PERSISTENT, LOOPED, "cuda.split", "cuda.cooperative")
BLOCKS = ("x", "y", "z", "r", "r1")
WARPS = (1, 2, 4, 8, 16, 32)
GROUPS = (1, 2, 4, 8, 16)
WORDS = (1, 2)
FOLDS = (1, 2, 4, 8, 16, 32)
PLANES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
BAND_LIMIT = 4096
PIECES_LIMIT, HELD_LIMIT = 24, 8
AHEAD_LIMIT = 16
"""Steps of a walk that are under way at once, at most."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What no Schedule may be, and whether one is that."""

    problem: str
    is_broken_by: Callable[[Schedule], bool]


def _has(schedule: Schedule, option: str) -> bool:
    return option in dict(schedule.options)


def _is_whole(schedule: Schedule) -> bool:
    """Whether rows are neither tiles of planes nor one of several."""
    return not (schedule.get("r1", 0) or schedule.get("turns", 0))


def _has_tiles(schedule: Schedule) -> bool:
    """Whether a walk may hold some of its tiles."""
    is_walk = schedule.family == LOOPED and schedule.get("ahead", 1) == 1
    return is_walk and _is_whole(schedule) and not schedule.get("words", 0)


def _may_pass(schedule: Schedule) -> bool:
    """Whether what is read may pass a cache: in registers, or by loads of a walk."""
    is_loaded = schedule.family == PERSISTENT or schedule.get("ahead", 1) == 1
    return schedule.family in STREAMED and is_loaded


RULES = (
    Rule(
        "index or warps of",
        lambda each: each["index"] not in (32, 64) or each["warps"] not in WARPS,
    ),
    Rule("words of", lambda each: each.get("words", 0) not in (0, *WORDS)),
    Rule("group of", lambda each: each.get("group", 1) not in GROUPS),
    Rule("ahead of", lambda each: not 1 <= each.get("ahead", 1) <= AHEAD_LIMIT),
    Rule("order of", lambda each: abs(each.get("order", 0)) > BAND_LIMIT),
    Rule(
        "fold of",
        lambda each: (
            _has(each, "fold") and not (each["fold"] in FOLDS and each.family == "cuda.split")
        ),
    ),
    Rule(
        "plane of",
        lambda each: (
            _has(each, "plane") and not (each["plane"] in PLANES and each.get("fold", 1) > 1)
        ),
    ),
    Rule(
        "runs of",
        lambda each: each.get("runs", 1) not in GROUPS or each.get("runs", 1) > each.get("r", 1),
    ),
    Rule(
        "pieces of",
        lambda each: (
            _has(each, "pieces")
            and not (
                1 < each["pieces"] <= PIECES_LIMIT and each.family in IN_PIECES and _is_whole(each)
            )
        ),
    ),
    Rule(
        "tiles held of",
        lambda each: (
            _has(each, "held") and not (0 < each["held"] <= HELD_LIMIT and _has_tiles(each))
        ),
    ),
    Rule(
        "what rows share is kept of what is not walked:",
        lambda each: each.get("keep", 0) != 0 and each.family != LOOPED,
    ),
    Rule(
        "weights in registers of what no team holds:",
        lambda each: each.get("weights", 0) != 0 and each.family != "cuda.cooperative",
    ),
    Rule(
        "rows that are spread and not in registers:",
        lambda each: each.get("spread", 0) != 0 and not each.family.endswith("persistent"),
    ),
    Rule(
        "a row ahead of one that comes alone:",
        lambda each: (
            each.family == PERSISTENT and each.get("ahead", 1) > min(2, each.get("turns", 1))
        ),
    ),
    Rule(
        "turns, or a way of loading or keeping, of what is not in registers:",
        lambda each: (
            each.family != PERSISTENT
            and (
                each.get("turns", 1) > 1
                or any(each.get(name, 0) for name in ("early", "reuse", "anew", "packed"))
            )
        ),
    ),
    Rule(
        "copies, or what waits for others, that pass a cache:",
        lambda each: each.get("stream", 0) != 0 and not _may_pass(each),
    ),
    Rule(
        "members of points that are no flat block:",
        lambda each: each.get("members", 0) != 0 and each.family != "cuda.pointwise",
    ),
    Rule(
        "a group longer than the block:",
        lambda each: each.get("group", 1) > each.get("r", 1),
    ),
)
"""In the order in which they are looked at. What depends on the kernel, the families say."""


def check(schedule: Schedule) -> None:
    """Raises `InvalidSchedule` for options that no kernel can have together."""
    for name, value in schedule.options:
        if name in BLOCKS and (value < 1 or value & (value - 1) or value > BLOCK_LIMIT):
            raise InvalidSchedule(f"{name}={value} is no block size")
    for rule in RULES:
        if rule.is_broken_by(schedule):
            raise InvalidSchedule(f"{rule.problem} {schedule}")
