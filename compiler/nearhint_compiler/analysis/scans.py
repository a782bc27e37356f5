"""What is made of scans."""

from __future__ import annotations

from nearhint_compiler.ir import nodes as ir


def scans_in(kernel: ir.Kernel) -> int:
    """How many things are scanned."""
    return sum(isinstance(node, ir.Scan) for node in kernel.body)


def has_scans(kernel: ir.Kernel) -> bool:
    """Whether anything is scanned."""
    return scans_in(kernel) > 0


def scans_come_last(kernel: ir.Kernel) -> bool:
    """Whether nothing that is reduced or scanned is made of what was scanned before.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> both = '''(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
    ...     (params (in f32) (out f32)) (body (load 0 (+ (* k1 p0) r0)) (scan sum f32 0)
    ...     (reduce max f32 {}) (sub f32 1 2) (store 1 (+ (* k1 p0) r0) 3)))'''
    >>> [scans_come_last(parse_kernel(both.format(place))) for place in (0, 1)]
    [True, False]
    """
    scanned: set[int] = set()
    for place, node in enumerate(kernel.body):
        if not scanned.isdisjoint(ir.operands_of(node)):
            if isinstance(node, ir.Reduce | ir.Arg | ir.Scan):
                return False
            scanned.add(place)
        elif isinstance(node, ir.Scan):
            scanned.add(place)
    return True
