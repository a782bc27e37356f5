"""What neighbours along a row share, read once for all of them.

A weight of each channel is the same for all of a plane. In a row that is several planes, one
behind the other, elements next to each other have the same weight, or those of two planes where one
ends among them: so the lanes of a vector need two loads at most, of what their first and their last
have, and the places of these alone are divided by the planes' length.
"""

from __future__ import annotations

from nearhint_compiler.analysis.loops import reduction_loops
from nearhint_compiler.analysis.runs import run_of, runs_of, within_run
from nearhint_compiler.codegen.triton.block import Block, Together
from nearhint_compiler.codegen.triton.row import LAST, SHARING, unflatten
from nearhint_compiler.codegen.triton.text import index_text, zero_text
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.guard import AtMost, Fact


def runs_facts(kernel: ir.Kernel, schedule: Schedule) -> tuple[Fact, ...]:
    """The Guards under which no run is shorter than the neighbours that `schedule` has together;
    raises `InvalidSchedule` if one is."""
    lanes, facts = schedule.get("runs", 1), list[Fact]()
    for run in runs_of(kernel):
        if lanes > 1 and not isinstance(run, ex.Int):
            facts.append(AtMost(ex.floordiv(lanes - 1, run), 0))
        elif isinstance(run, ex.Int) and run.value < lanes:
            raise InvalidSchedule(f"runs of {run.value} that are shorter than {lanes} lanes")
    return tuple(facts)


def read_together(
    kernel: ir.Kernel, block: Block, together: Together, position: int, name: str
) -> list[str]:
    """The lines that load `name`, the load at `position`, once or twice for all neighbours that are
    `together`.

    What is wanted in f32 alone is so before it is laid beside each of them: one cast for all.
    """
    load = kernel.body[position]
    assert isinstance(load, ir.Load)
    wide = ".to(tl.float32)" if _is_widened(kernel, position) else ""
    run, lanes, axis = run_of(kernel, load.index), together.lanes, len(block.axes)
    assert run is not None
    rows, zero = block.rows_mask_of(load.index), zero_text(kernel.params[load.param].dtype)

    def loaded(prefix: str, mask: str) -> str:
        where = f"a{load.param} + {index_text(_renamed(kernel, load.index, prefix))}"
        masks = " & ".join(filter(None, (rows, mask)))
        value = f"tl.load({where}{f', {masks}, other={zero}' if masks else ''}){wide}"
        return f"tl.expand_dims({value}, {axis})"

    value, lines = loaded(together.first, together.first_mask), list[str]()
    multiple = {size: ex.mul(lanes, ex.symbol(size)) for size in together.promised}
    if ex.mod(ex.substitute(run, multiple), lanes) != ex.ZERO:
        place = index_text(_renamed(kernel, within_run(kernel, run), together.first))
        lines = [
            f"{name}_run = tl.expand_dims({place}, {axis}) + tl.arange(0, {lanes})",
            f"{name}_run = {name}_run < {index_text(run)}",
        ]
        value = f"tl.where({name}_run, {value}, {loaded(together.last, together.last_mask)})"
    whole = f"tl.broadcast_to({value}, {block.lanes_shape(lanes)})"
    return [*lines, f"{name} = tl.reshape({whole}, {block.element_shape})"]


def _is_widened(kernel: ir.Kernel, position: int) -> bool:
    """Whether nothing is made of a load of few digits but its f32."""
    load = kernel.body[position]
    assert isinstance(load, ir.Load)
    uses = [node for node in kernel.body if position in ir.operands_of(node)]
    return kernel.params[load.param].dtype in ir.LOW_PRECISION and all(
        isinstance(node, ir.Op) and (node.name, node.dtype) == ("cast", "f32") for node in uses
    )


def sharing_lines(kernel: ir.Kernel, place: str, *, number: int, lanes: int) -> list[str]:
    """The loops' variables of the first and of the last of neighbours, the first at `place`."""
    first, last = f"{SHARING}{number}", f"{LAST}{number}"
    lines: list[str] = []
    for prefix, text in ((first, place), (last, f"{first}r + {lanes - 1}")):
        loops = {f"{prefix}{name}": size for name, size in reduction_loops(kernel).items()}
        lines += [f"{prefix}r = {text}", *unflatten(f"{prefix}r", loops)]
    return lines


def _renamed(kernel: ir.Kernel, index: ex.Expr, prefix: str) -> ex.Expr:
    return ex.substitute(
        index, {name: ex.symbol(f"{prefix}{name}") for name in reduction_loops(kernel)}
    )
