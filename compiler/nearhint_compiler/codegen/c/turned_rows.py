"""Rows of what is turned round in registers, used as vectors: of squares, of strips, of lines."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.codegen.c.asking import opaque
from nearhint_compiler.codegen.c.body import UNIFORM, Body, Part
from nearhint_compiler.codegen.c.halves import write_widened
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.primitive import ELEMENTS
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.turn import PAIR
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

_FEW = 8
"""Nodes of a loop of which there is a copy for each row of a square, which stays in registers."""
_UNROLL = 4

RowOf = Callable[[int, int, str], str]
"""Where row l of a load is, of one of its copies and a dtype, in C."""


@dataclass(frozen=True, slots=True)
class Turned:
    """How a row of what is turned consists of `copies` vectors.

    `pairs` are the names, but for the load's, of the pairs of vectors that it consists of, if it
    does: stores of what is only moved take them whole. `widens` is whether everything else does,
    too (`halves.py`).
    """

    copies: int
    name: RowOf
    pairs: tuple[str, ...] = ()
    widens: bool = False


def _one_square(position: int, copy: int, dtype: str) -> str:
    del copy, dtype
    return f"square{position}[l]"


def _one_pair(position: int, copy: int, dtype: str) -> str:
    return f"half{copy}_{dtype}(square{position}[l])"


SQUARES: Mapping[int, Turned] = {1: Turned(1, _one_square), PAIR: Turned(PAIR, _one_pair, ("",))}
"""One square, and two of them in as many registers."""


def moved_whole(body: Body, turned: Sequence[int]) -> dict[int, int]:
    """The stores of what is turned and nothing else, and the load of each."""
    return {
        position: node.value
        for position, node in enumerate(body.kernel.body)
        if isinstance(node, ir.Store)
        and node.value in turned
        and body.dtypes[node.value] == body.kernel.params[node.param].dtype
        and access(node.index, body.lane).is_contiguous
    }


def may_repeat(body: Body, sides: Mapping[str, int]) -> str:
    """Whether what is done may be done again, and loops are as long as `sides`.

    What is read where it is written may be the same memory, and must be read before.
    """
    facts = [f"n{name} >= {side}" for name, side in sides.items()]
    stores = [node for node in body.kernel.body if isinstance(node, ir.Store)]
    facts += [
        f"(const void *)in{load.param} != out{store.param}"
        for load in body.kernel.body
        if isinstance(load, ir.Load)
        for store in stores
        if load.index == store.index
    ]
    return " && ".join(dict.fromkeys(facts))


@contextmanager
def whole_or_moved_back(
    writer: Writer, body: Body, across: str, *, tall: int, wide: int, down_first: bool
) -> Generator[None]:
    """The loops over blocks of `tall` rows, from `at` on, of `wide` elements along the lanes.

    Whole ones come first, then the last of each side, which is moved back (`may_repeat`). They go
    across first where `down_first`, along the lanes elsewhere.
    """
    lane = body.lane
    for name, side in ((across, tall), (lane, wide)):
        begin, end = f"begin_{name}", f"end_{name}"
        left = f"({end} - {begin}) % {side}"
        writer.line(f"const int64_t left_{name} = {left}, last_{name} = {end} - {side};")
        writer.line(f"const int64_t from_{name}[2] = {{{begin}, last_{name}}};")
        writer.line(
            f"const int64_t to_{name}[2] ="
            f" {{{end} - left_{name}, last_{name} + (left_{name} > 0)}};"
        )
    along = (
        f"for (int64_t {lane} = from_{lane}[n / 2]; {lane} < to_{lane}[n / 2]; {lane} += {wide})"
    )
    down = f"for (int64_t at = from_{across}[n % 2]; at < to_{across}[n % 2]; at += {tall})"
    outer, inner = (along, down) if down_first else (down, along)
    writer.line("#pragma GCC unroll 1")
    with writer.block("for (int n = 0; n < 4; n++)"), writer.block(outer), writer.block(inner):
        yield


def declare_first(writer: Writer, body: Body, position: int, base: Mapping[str, Expr]) -> str:
    """Declares where a square begins and how far its rows are apart; returns its dtype."""
    node = body.kernel.body[position]
    assert isinstance(node, ir.Load)
    dtype = "u8" if body.dtypes[position] == "bool" else body.dtypes[position]
    first = to_c(ex.substitute(node.index, base))
    pitch = access(node.index, body.lane).stride
    assert pitch is not None
    writer.line(f"const {ELEMENTS[dtype]} *first{position} = in{node.param} + {first};")
    writer.line(f"const int64_t pitch{position} = {to_c(pitch)};")
    return dtype


@contextmanager
def _pointed(
    writer: Writer, body: Body, across: str, turned: Sequence[int], rest: Sequence[int]
) -> Generator[Mapping[str, str]]:
    """Pointers to rows of what lies along the lanes, each with how far the next row is.

    Else there is an address to be multiplied out for each row.
    """
    pitches: dict[str, str] = {}
    for position in rest:
        node = body.kernel.body[position]
        if position in turned or not isinstance(node, ir.Load | ir.Store):
            continue
        pitch = access(node.index, across).stride
        if pitch is None or not access(node.index, body.lane).is_contiguous:
            continue
        element = ELEMENTS[body.kernel.params[node.param].dtype]
        kind = f"{element} *" if isinstance(node, ir.Store) else f"const {element} *"
        name = f"out{node.param}" if isinstance(node, ir.Store) else f"in{node.param}"
        writer.line(f"{kind}row{position} = {name} + {to_c(node.index)};")
        body.places[position] = f"row{position}"
        pitches[f"row{position}"] = to_c(pitch)
    yield pitches
    body.places.clear()


def write_turned_rows(
    writer: Writer,
    body: Body,
    across: str,
    turned: Sequence[int],
    rest: Sequence[int],
    what: Turned,
    *,
    tall: int,
) -> None:
    """The loop over `tall` rows of what is turned."""
    with _pointed(writer, body, across, turned, rest) as pitches:
        whole = moved_whole(body, turned) if what.pairs else {}
        moved = {place: load for place, load in whole.items() if f"row{place}" in pitches}
        write_rows(
            writer,
            body,
            across,
            turned,
            rest,
            Part.full(what.copies),
            pitches=pitches,
            row=what.name,
            tall=tall,
            moved=moved,
            pairs=what.pairs,
            widens=what.widens,
        )


def write_rows(
    writer: Writer,
    body: Body,
    across: str,
    turned: Sequence[int],
    rest: Sequence[int],
    part: Part,
    *,
    row: RowOf,
    pitches: Mapping[str, str] = MappingProxyType({}),
    tall: int = 0,
    moved: Mapping[int, int] = MappingProxyType({}),
    pairs: Sequence[str] = (),
    widens: bool = False,
) -> None:
    """The loop over the rows of squares; `pitches` are of pointers that go from row to row.

    `row` is where row l of what is turned is, in C; whole squares have `tall` rows, or as many as
    there are lanes. `moved` are stores of `pairs` that nothing is done with, and the load of each.
    """
    tall = tall or body.lanes
    for position in turned:
        for copy in range(part.copies):
            value = row(position, copy, body.dtypes[position])
            if body.dtypes[position] == "bool":
                value = f"{body.prelude.use('to_i32', 'u8')}({value}) != 0"
            body.values[position, copy] = value
    indexed = any(
        isinstance(node := body.kernel.body[position], ir.Indexed)
        and across in ex.symbols_of(node.index)
        for position in rest
        if position not in turned and f"row{position}" not in pitches
    )
    is_whole = not any(part.counts)
    unroll = 1 if not is_whole else tall if len(rest) <= _FEW else _UNROLL
    writer.line(f"#pragma GCC unroll {unroll}")
    with writer.block(f"for (int l = 0; l < {tall if is_whole else 'height'}; l++)"):
        body.write(writer, [p for p in rest if not body.in_lanes(p)], UNIFORM)
        in_lanes = [p for p in rest if body.in_lanes(p) and p not in moved]
        if widens:
            write_widened(writer, body, in_lanes, part, turned, pairs)
        else:
            body.write(writer, in_lanes, part)
        for store, load in moved.items():
            for number, pair in enumerate(pairs):
                further = f" + {number * PAIR * body.lanes}" if number else ""
                place, vector = f"row{store}{further}", f"square{load}{pair}[l]"
                writer.line(f"store_pair_{body.dtypes[load]}({place}, {vector});")
        steps = {name: f"{name} += {pitch};" for name, pitch in pitches.items()}
        if indexed:
            steps[across] = f"{across}++;"
        for name, step in steps.items():
            writer.line(step)
            writer.line(opaque(name))
    body.values.clear()
