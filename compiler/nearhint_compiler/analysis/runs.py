"""Runs: neighbours along a row that read the same.

What does not vary along a row's innermost loops, such as a weight of each channel where a row is
the planes of several, is the same for all elements of these loops, one behind the other.
"""

from __future__ import annotations

from nearhint_compiler.analysis.loops import reduction_loops
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex


def run_of(kernel: ir.Kernel, index: ex.Expr) -> ex.Expr | None:
    """How many neighbours along a row read the same at `index`; None where all differ, or none.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> kernel = parse_kernel('''(kernel (symbols k0 k1 k2) (pointwise k0) (reduction k1 k2)
    ...     (params (in f32) (in f32) (out f32)) (body (load 0 (+ (* k1 k2 p0) (* k2 r0) r1))
    ...     (load 1 r0) (mul f32 0 1) (reduce sum f32 2) (store 2 p0 3)))''')
    >>> [ex.to_text(run) for node in kernel.body if isinstance(node, ir.Load)
    ...     for run in [run_of(kernel, node.index)] if run]
    ['k2']
    """
    used = [
        number
        for number, name in enumerate(reduction_loops(kernel))
        if name in ex.symbols_of(index)
    ]
    if not used or used[-1] == len(kernel.reduction) - 1:
        return None
    return ex.product(kernel.reduction[used[-1] + 1 :])


def runs_of(kernel: ir.Kernel) -> tuple[ex.Expr, ...]:
    """The runs of all loads of `kernel`, each once."""
    found = (run_of(kernel, node.index) for node in kernel.body if isinstance(node, ir.Load))
    return tuple(dict.fromkeys(run for run in found if run is not None))


def within_run(kernel: ir.Kernel, run: ex.Expr) -> ex.Expr:
    """Which element of its run an element is, by the loops' variables."""
    place: ex.Expr = ex.ZERO
    size: ex.Expr = ex.ONE
    for name, extent in reversed(reduction_loops(kernel).items()):
        if size == run:
            break
        place = ex.add(place, ex.mul(size, ex.symbol(name)))
        size = ex.mul(size, extent)
    return place
