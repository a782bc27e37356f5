"""Flat blocks in units (`analysis.units`): the lines that place them, and their indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nearhint_compiler.analysis.units import along_row
from nearhint_compiler.codegen.triton.row import unflatten
from nearhint_compiler.codegen.triton.text import index_text, zero_text
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.guard import AtMost, Fact

BEYOND = "beyond"
"""The points of a unit that lie in its second row."""
OVER = "over"
"""The units with such points."""
BEGUN = "begun"
"""The place in its row at which a unit begins."""


@dataclass(frozen=True, slots=True)
class Units:
    """Units of `lanes` points of a kernel's flat index, whose rows are multiples of `multiple`."""

    kernel: ir.Kernel
    lanes: int
    multiple: int

    @property
    def are_in_rows(self) -> bool:
        """Whether each unit lies in one row, at whatever sizes."""
        return self.multiple >= self.lanes

    @property
    def loops(self) -> Mapping[str, ex.Expr]:
        """The extents of the loops by their variables, the outermost first."""
        return {f"p{number}": extent for number, extent in enumerate(self.kernel.pointwise)}

    def lines(self) -> list[str]:
        """Where points lie: their unit's place is divided, and the next row's by a carry."""
        *outer, last = self.loops
        length = index_text(self.loops[last])
        lines = [
            f"x = pid * X + tl.arange(0, X // {self.lanes})[:, None] * {self.lanes}",
            *unflatten("x", self.loops),
        ]
        if self.multiple > 1:
            # What Triton cannot see behind the division: where rows are whole multiples, so are
            # the places in them at which units begin.
            lines.append(f"{last} = tl.multiple_of({last}, [{self.multiple}, {self.multiple}])")
        lane = f"lane = tl.arange(0, {self.lanes})[None, :]"
        if self.are_in_rows:
            return [*lines, lane, f"{last} = {last} + lane", "x = x + lane"]
        step = "1"
        for place, name in reversed([*enumerate(outer)]):
            lines.append(f"e{name} = {name} + {step}")
            if place:
                extent = index_text(self.loops[name])
                lines += [
                    f"e{name}over = e{name} == {extent}",
                    f"e{name} = tl.where(e{name}over, 0, e{name})",
                ]
                step = f"e{name}over.to(tl.int32)"
        lines += [lane, f"e{last} = {last} + lane"]
        if self.has_pointers:
            # A unit begins in its first row: of that point nothing is chosen.
            beyond = f"(lane > 0) & (lane >= {length} - {last})"
            over = f"{last} > {index_text(ex.sub(self.kernel.pointwise[-1], self.lanes))}"
            lines += [f"{BEGUN} = {last}", f"{BEYOND} = {beyond}", f"{OVER} = {over}"]
        else:
            lines.append(f"{BEYOND} = e{last} >= {length}")
        return [
            *lines,
            f"{last} = tl.where({BEYOND}, e{last} - {length}, e{last})",
            "x = x + lane",
        ]

    @property
    def has_pointers(self) -> bool:
        """Whether loads choose between pointers: no, where some units are in one row by promise,
        and so in vectors, which Triton sees in indices alone.
        """
        return self.multiple == 1

    def text(self, index: ex.Expr) -> str:
        """`index` as Triton source; raises `InvalidSchedule` where it is not affine in the row."""
        step, first, second = self._rows(index)
        if first == second or self.are_in_rows:
            return index_text(index)
        row = f"tl.where({BEYOND}, {index_text(second)}, {index_text(first)})"
        along = ex.mul(step, ex.symbol(f"e{[*self.loops][-1]}"))
        return row if along == ex.ZERO else f"({row} + {index_text(along)})"

    def pointer(self, base: str, index: ex.Expr) -> str:
        """A pointer from `base` on; raises `InvalidSchedule` as `text` does.

        Of units in rows of any length each point takes the pointer to its row, and a constant is
        left to add, which is part of a load: an index would be widened and scaled for each.
        """
        step, first, second = self._rows(index)
        if first == second:
            return f"{base} + {self.text(index)}"
        begun = ex.mul(step, ex.symbol(BEGUN))
        rows = [f"{base} + {index_text(ex.add(row, begun))}" for row in (second, first)]
        chosen = f"tl.where({BEYOND}, {rows[0]}, {rows[1]})"
        along = ex.mul(step, ex.symbol("lane"))
        return chosen if along == ex.ZERO else f"{chosen} + {index_text(along)}"

    def once(self, param: int, index: ex.Expr) -> str:
        """What a row has once, read for both rows of a unit, or its one; nothing where it has more.

        All points of the block are there, and so is the row of those beyond the first one.
        """
        step, first, second = self._rows(index)
        if first == second or step != ex.ZERO:
            return ""
        if self.are_in_rows:
            shape = f"[X // {self.lanes}, {self.lanes}]"
            return f"tl.broadcast_to(tl.load(a{param} + {index_text(first)}), {shape})"
        if not self.has_pointers:
            return ""
        zero = zero_text(self.kernel.params[param].dtype)
        loads = (
            f"tl.load(a{param} + {index_text(second)}, {OVER}, other={zero})",
            f"tl.load(a{param} + {index_text(first)})",
        )
        return f"tl.where({BEYOND}, {', '.join(loads)})"

    def _rows(self, index: ex.Expr) -> tuple[ex.Expr, ex.Expr, ex.Expr]:
        """How far `index` moves with a step, and what it is at the beginnings of both rows, each as
        many steps before as there are from the first one's beginning; equal where rows are alike.
        """
        found = along_row(self.kernel, index)
        if found is None:
            raise InvalidSchedule("units of an index that is not affine in the innermost loop")
        step, first = found
        names = {name for name in self.loops if name in ex.symbols_of(first)}
        if not names:
            return step, first, first
        second = ex.substitute(first, {name: ex.symbol(f"e{name}") for name in names})
        return step, first, ex.sub(second, ex.mul(step, self.kernel.pointwise[-1]))

    def facts(self) -> tuple[Fact, ...]:
        """The Guard that no unit is longer than a row; raises `InvalidSchedule` if each is."""
        beyond = ex.sub(self.lanes, self.kernel.pointwise[-1])
        if not isinstance(beyond, ex.Int):
            return (AtMost(beyond, 0),)
        if beyond.value > 0:
            raise InvalidSchedule("units longer than a row")
        return ()
