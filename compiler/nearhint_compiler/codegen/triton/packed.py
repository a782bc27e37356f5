"""Rows of narrow elements in registers as they were read, widened anew for each of their uses.

Two elements of two bytes are one register, and two once they are widened. A row that is held wide
from its first reduction to its last store has half the length, or half the warps to hide what it
waits for. So each reduction, and what is stored, widens the row's pieces again, one after the
other. A compiler that saw that these are the same numbers would hold them wide all the same: before
they are widened, they are changed by bits of which it does not know that there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.runs import run_of
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.edges import Edges
from nearhint_compiler.codegen.triton.registers import brought_together
from nearhint_compiler.codegen.triton.text import neutral_text
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir

NARROW = ("bf16", "f16")
"""What a register has two of, and is computed in f32."""
NOTHING = "nothing"
"""The variable that is zero, whatever a compiler knows: the least of a size and zero."""


def packed(kernel: ir.Kernel, block: Block) -> list[str]:
    """The body of a kernel whose rows are held so; raises `InvalidSchedule` where none may be:
    in pieces, in no order, with narrow elements of their own.
    """
    bodies = [Body(kernel, each) for each in (block, *block.pieces)]
    row = _Held.of(bodies[0])
    is_other = any(isinstance(node, ir.Scan | ir.Arg | ir.Gather) for node in kernel.body)
    if not (block.pieces and row.narrow and kernel.symbols) or is_other or block.is_early:
        raise InvalidSchedule("rows that are held as they were read, of others")
    body, stores = bodies[0], bodies[0].element_stores
    varying = [p for p, varies in enumerate(body.varies) if varies]
    edges = Edges(kernel, block) if block.edges else None
    lines = [f"{NOTHING} = tl.minimum({kernel.symbols[0]}, 0).to(tl.int32)"]
    lines += [*edges.first(), *edges.loads(varying)] if edges else []
    for each in bodies:
        lines += [*each.block.element_header, *(line for p in row.own for line in each.lines(p))]
    uses = 0
    for position, node in enumerate(kernel.body):
        if isinstance(node, ir.Reduce):
            uses += 1
            lines += _reduced(row, bodies, position, node, edges, use=uses)
        elif body.varies[position]:
            lines += edges.rest([position]) if edges and not isinstance(node, ir.Store) else []
        elif not isinstance(node, ir.Store):
            lines += body.lines(position)
    lines += [line for each in bodies for line in row.anew(each, stores, use=uses + 1)]
    lines += edges.rest(stores) if edges else []
    return [*lines, *(line for p in body.row_stores for line in body.lines(p))]


@dataclass(frozen=True, slots=True)
class _Held:
    """The loads of a row's `own` elements, which stay as they are, and the `narrow` among them."""

    own: tuple[int, ...]
    narrow: tuple[int, ...]

    @classmethod
    def of(cls, body: Body) -> _Held:
        """What is held of a row of `body`."""
        kernel, dtypes = body.kernel, ir.dtypes_of(body.kernel)

        def is_own(place: int, node: ir.BodyNode) -> bool:
            # What neighbours share is little, and may be read once for them.
            is_load = isinstance(node, ir.Load) and not run_of(kernel, node.index)
            return is_load and body.is_independent(place) and not body.is_shared(place)

        varying = [p for p, varies in enumerate(body.varies) if varies]
        own = [p for p in varying if is_own(p, kernel.body[p])]
        return cls(tuple(own), tuple(p for p in own if dtypes[p] in NARROW))

    def anew(self, body: Body, roots: Sequence[int], *, use: int) -> list[str]:
        """The lines of a piece that compute `roots` from what is held, for use number `use`."""
        dtypes, lines = ir.dtypes_of(body.kernel), list[str]()
        for place in body.needed(roots):
            match body.kernel.body[place]:
                case ir.Op("cast", "f32", (operand,)) if operand in self.narrow:
                    bits = f"tl.full({body.block.element_shape}, 0, tl.int32) + {NOTHING} * {use}"
                    pairs = body.full(operand)
                    lines.append(f"{body.name(place)} = _wide_{dtypes[operand]}({pairs}, {bits})")
                case _ if place not in self.own:
                    lines += body.lines(place)
                case _:
                    continue
        return lines


def _reduced(
    row: _Held,
    bodies: Sequence[Body],
    position: int,
    node: ir.Reduce,
    edges: Edges | None,
    *,
    use: int,
) -> list[str]:
    """The lines of a reduction, which is stepped with one piece of the row after the other."""
    neutral, name = neutral_text(node.kind, node.dtype), f"acc{position}"
    lines: list[str] = []
    for number, each in enumerate(bodies):
        first = each.operand(node.operand, neutral, node.dtype)
        lines += row.anew(each, [node.operand], use=use)
        lines.append(f"{name} = {each.stepped(name, node) if number else first}")
    return [*lines, *brought_together(bodies[0], position, node, edges)]
