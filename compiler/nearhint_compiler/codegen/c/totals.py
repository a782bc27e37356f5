"""Accumulators of the reduces of a walk.

They are `t{position}_{copy}`, and of an `arg` also the place of its value, `at_t{position}_{copy}`;
with lanes along a row, those are two scalars. Within a run of the innermost
loop from `begin` on there may be others in front of them, `s{position}_{copy}`: see `run_steps`.

Sums of floats go through those, so that no chain of additions is long: a lane adds `SUM_CHAIN`
terms before it adds their sum to the total. With c vectors of l lanes, a row of n numbers has a
longest chain of about 64 + n / (64 c l) additions, a column of n numbers one of 64 + n / 64;
eager's cascade has a few hundred. Where a row has several loops and the innermost is v vectors,
fewer than c, and walked n times, the chain is 64 v + n / (64 c); where it has more, at least n.

Sums in i64 of few bits go through them in 32 bits, twice as many a register as of 64: `NARROW_RUN`
terms leave room for the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.codegen.c import arg as c_arg
from nearhint_compiler.codegen.c.body import Body, Part
from nearhint_compiler.codegen.c.convert import cast
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.ir import nodes as ir

SUM_CHAIN = 64
NARROW_RUN = 1 << 10
"""Steps of a run that adds in 32 bits what has `TERM_BITS`, up to 32 of it a step and lane."""


def reduce_nodes(body: Body, positions: Sequence[int]) -> list[tuple[int, ir.Reducing]]:
    """The reduces and args at `positions`."""
    nodes = ((position, body.kernel.body[position]) for position in positions)
    return [(position, node) for position, node in nodes if isinstance(node, ir.Reducing)]


def totals_of(body: Body, position: int, copies: int) -> range:
    """The copies of a reduce's totals, where what it reduces has `copies`."""
    is_arg = isinstance(body.kernel.body[position], ir.Arg)
    return range(1 if is_arg and body.lane.startswith("r") else copies)


def total_types(body: Body, node: ir.Reducing) -> tuple[str, str]:
    """The C types of a total and, of an `arg`, of its place ("" of others)."""
    if isinstance(node, ir.Arg):
        return c_arg.total_types(body, node)
    return f"v{node.dtype}", ""


def is_narrow(body: Body, node: ir.Reducing) -> bool:
    """Whether a run adds the reduce's terms in 32 bits."""
    return node.operand in body.terms


def run_steps(body: Body, reduces: Sequence[int]) -> int:
    """The most steps of the innermost loop between `begin` and `end_run`; 0 for no runs at all."""
    nodes = [node for _, node in reduce_nodes(body, reduces)]
    if any(isinstance(n, ir.Reduce) and n.kind == "sum" and n.dtype in ir.FLOATS for n in nodes):
        return SUM_CHAIN
    if any(is_narrow(body, node) for node in nodes):
        return NARROW_RUN
    has_runs = any(isinstance(n, ir.Arg) and c_arg.in_runs(body, n) for n in nodes)
    return c_arg.RUN_LIMIT if has_runs else 0


def has_places(body: Body, reduces: Sequence[int]) -> bool:
    """Whether a run has to begin anew for the tail of a row, too."""
    return any(isinstance(node, ir.Arg) for _, node in reduce_nodes(body, reduces))


def declare_totals(writer: Writer, body: Body, reduces: Sequence[int], copies: int) -> None:
    """Accumulators at the neutral element."""
    for position, node in reduce_nodes(body, reduces):
        totals = totals_of(body, position, copies)
        if isinstance(node, ir.Arg):
            c_arg.declare_total(writer, body, position, node, len(totals))
        else:
            names = [f"t{position}_{copy}" for copy in totals]
            _declare(writer, f"v{node.dtype}", names, body.identity(node))


def declare_run(writer: Writer, body: Body, reduces: Sequence[int], copies: int) -> None:
    """What a run accumulates into."""
    for position, node in reduce_nodes(body, reduces):
        names = [f"s{position}_{copy}" for copy in range(copies)]
        if is_narrow(body, node):
            _declare(writer, "vi32", names, "{0}")
        elif isinstance(node, ir.Reduce):
            _declare(writer, f"v{node.dtype}", names, body.identity(node))
        elif c_arg.in_runs(body, node):
            _declare(writer, f"v{node.dtype}", names, body.identity(node))
            _declare(writer, "vi32", [f"at_{name}" for name in names], "{0}")


def _declare(writer: Writer, vector: str, names: Sequence[str], start: str) -> None:
    writer.line(f"{vector} {', '.join(f'{name} = {start}' for name in names)};")


def write_here(writer: Writer, body: Body, reduces: Sequence[int], variable: str) -> None:
    """The offset of `variable` from the start of the run, if an `arg` wants it."""
    if any(
        isinstance(node, ir.Arg) and c_arg.in_runs(body, node)
        for _, node in reduce_nodes(body, reduces)
    ):
        splat = body.prelude.use("splat", "i32")
        writer.line(f"const vi32 here = {splat}((int32_t)({variable} - begin));")


def accumulate(
    writer: Writer, body: Body, reduces: Sequence[int], part: Part, *, prefix: str = "t"
) -> None:
    """Combines the operands of `reduces` into accumulators; lanes beyond a tail do not.

    `prefix` is "s" in a run and "t" elsewhere.
    """
    for position, node in reduce_nodes(body, reduces):
        if isinstance(node, ir.Arg) and not c_arg.in_runs(body, node):
            c_arg.compare_each(writer, body, position, node, part)
            continue
        values = [operand(body, node, part, copy, prefix) for copy in range(part.copies)]
        if isinstance(node, ir.Arg):
            c_arg.seek(writer, body, position, node, values)
            continue
        for copy, value in enumerate(values):
            total = f"{prefix}{position}_{copy}"
            writer.line(f"{total} = {body.combine(node, total, value)};")


def operand(body: Body, node: ir.Reducing, part: Part, copy: int, prefix: str) -> str:
    """A copy of a reduce's operand, the neutral element in lanes beyond a tail.

    `prefix` is that of the accumulator.
    """
    value, dtype, neutral = body.name(node.operand, copy), node.dtype, body.identity(node)
    if is_narrow(body, node):
        (term,) = ir.operands_of(body.kernel.body[node.operand])
        if prefix == "s":
            dtype, neutral = "i32", "(vi32){0}"
        value = cast(body.name(term, copy), body.dtypes[term], dtype, body.prelude)
    if not part.counts[copy]:
        return value
    return f"{body.prelude.use('keep_n', dtype)}({part.counts[copy]}, {value}, {neutral})"


def end_run(writer: Writer, body: Body, reduces: Sequence[int], copies: int) -> None:
    """Combines what a run accumulated into the totals."""
    for position, node in reduce_nodes(body, reduces):
        if isinstance(node, ir.Reduce):
            for copy in range(copies):
                left, right = f"t{position}_{copy}", f"s{position}_{copy}"
                if is_narrow(body, node):
                    right = cast(right, "i32", node.dtype, body.prelude)
                writer.line(f"{left} = {body.combine(node, left, right)};")
        elif c_arg.in_runs(body, node):
            c_arg.end_run(writer, body, position, node, copies)


def across(writer: Writer, body: Body, reduces: Sequence[int], copies: int) -> None:
    """The reduces' values: accumulators combined pairwise, then over lanes."""
    for position, node in reduce_nodes(body, reduces):
        if isinstance(node, ir.Arg):
            splat = body.prelude.use("splat", "i64")
            writer.line(f"const vi64 v{position} = {splat}(at_t{position}_0);")
            continue
        total = combined(body, node, [f"t{position}_{copy}" for copy in range(copies)])
        function = body.prelude.use(f"across_{node.kind}", node.dtype)
        writer.line(f"const v{node.dtype} v{position} = {function}({total});")


def combined(body: Body, node: ir.Reduce, totals: Sequence[str]) -> str:
    """Vectors of a reduce's operands combined pairwise, as a C expression."""
    parts = list(totals)
    while len(parts) > 1:
        pairs = [parts[start : start + 2] for start in range(0, len(parts), 2)]
        parts = [
            f"({body.combine(node, pair[0], pair[1])})" if len(pair) == 2 else pair[0]
            for pair in pairs
        ]
    return parts[0]


def finish_columns(writer: Writer, body: Body, reduces: Sequence[int], part: Part) -> None:
    """From totals to the reduces' values, one a lane."""
    for position, node in reduce_nodes(body, reduces):
        for copy in range(body.copies(position, part)):
            total = f"t{position}_{copy}"
            source = f"at_{total}" if isinstance(node, ir.Arg) else total
            vector = f"v{body.dtypes[position]}"
            writer.line(f"const {vector} {body.name(position, copy)} = {source};")


def combine_totals(writer: Writer, body: Body, position: int, copy: int, *, source: str) -> None:
    """Combines into a total the one at `source`, which has {} for the total's name."""
    node = body.kernel.body[position]
    total = f"t{position}_{copy}"
    if isinstance(node, ir.Arg):
        theirs = source.format(total), source.format(f"at_{total}")
        writer.line(c_arg.decision(body, position, copy, *theirs))
    elif isinstance(node, ir.Reduce):
        writer.line(f"{total} = {body.combine(node, total, source.format(total))};")
