"""Kernels with sizes that are constants: what Variants are that need a size to be one.

A dimension that a Program calls dynamic may be the same in all calls: colours, coordinates. Where
it is known, a loop over it has so many points, and can be written out (`analysis.written_out`). The
Kernel keeps its symbols, and so its arguments; a Guard sees to it that the sizes are these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nearhint_compiler.analysis.written_out import POINTS, written_out
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.legality import check_kernel
from nearhint_rules import expr as ex
from nearhint_rules.expr import Int, Sym


def with_sizes(kernel: ir.Kernel, sizes: Mapping[str, int]) -> ir.Kernel:
    """`kernel` where its symbols in `sizes` are these sizes, with the symbols that it had.

    >>> from nearhint_compiler.ir.text import parse_kernel, print_kernel
    >>> print(print_kernel(with_sizes(parse_kernel('''(kernel (symbols k0 k1) (pointwise k0 k1)
    ...     (reduction) (params (in f32) (out f32)) (body (load 0 p1)
    ...     (store 1 (+ (* k1 p0) p1) 0)))'''), {"k1": 3})))
    (kernel (symbols k0 k1)
      (pointwise k0 3)
      (reduction)
      (params (in f32) (out f32))
      (body
        (load 0 p1)
        (store 1 (+ (* 3 p0) p1) 0)))
    <BLANKLINE>
    """
    if not sizes:
        return kernel
    known: dict[str, ex.Expr] = {name: Int(size) for name, size in sizes.items()}
    body: list[ir.BodyNode] = []
    for node in kernel.body:
        if isinstance(node, ir.Indexed):
            node = replace(node, index=ex.substitute(node.index, known))
        if isinstance(node, ir.Placed):
            stride, size = (ex.substitute(each, known) for each in (node.stride, node.size))
            node = replace(node, stride=stride, size=size)
        body.append(node)
    return check_kernel(
        replace(
            kernel,
            pointwise=tuple(ex.substitute(extent, known) for extent in kernel.pointwise),
            reduction=tuple(ex.substitute(extent, known) for extent in kernel.reduction),
            body=tuple(body),
        )
    )


@dataclass(frozen=True, slots=True)
class Written:
    """A Kernel written out, and the symbols that have to be constants for it: which ones."""

    kernel: ir.Kernel
    sizes: Mapping[str, int]

    @property
    def options(self) -> Mapping[str, int]:
        """What a Schedule has that says so."""
        return {"written": 1, **self.sizes}


def written_at(kernel: ir.Kernel, dims: Mapping[str, int]) -> Written | None:
    """`kernel` written out where its last loops have few points at `dims`.

    Without sizes that have to be constants, if that leaves the same. None where nothing is shared.
    """
    sizes = _few_points(kernel, dims) if dims else {}
    found = written_out(with_sizes(kernel, sizes)) if sizes else None
    if found is not None:
        return Written(found, sizes)
    always = written_out(kernel)
    return None if always is None else Written(always, {})


def _few_points(kernel: ir.Kernel, dims: Mapping[str, int]) -> dict[str, int]:
    """The symbols that are the lengths of last loops, where these have few points.

    Of the points, one loop stays.
    """
    found: dict[str, int] = {}
    for space in (kernel.pointwise[1:], kernel.reduction):
        points = 1
        for extent in reversed(space):
            points *= ex.evaluate(extent, dims)
            if points > POINTS:
                break
            if isinstance(extent, Sym):
                found[extent.name] = dims[extent.name]
    return found
