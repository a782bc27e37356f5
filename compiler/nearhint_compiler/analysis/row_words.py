"""Rows that are read in whole words of memory, wherever they begin and however long they are.

A vector load wants 16 bytes that begin at a multiple of 16. A row that begins or ends elsewhere has
whole words inside, and fewer elements than a word before and behind them: its edges. This analysis
finds the accesses whose element r of a row lies at `base + r`, for one base: then all of them have
their whole words at the same r, and their edges, too. Addresses are multiples of 16 bytes plus the
index, which is a Guard; nothing is asked of sizes.

A plane is such a row for each element of the loops around the innermost one, with words and edges
of its own: its base has those loops' variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.affine import affine
from nearhint_compiler.analysis.branches import branches
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES

WORD_BYTES = 16


@dataclass(frozen=True, slots=True)
class RowWords:
    """`base` is the index of a row's first element, `lanes` how many elements a word has.

    They are those of the narrowest dtype of two bytes or more. `indices` are those of the accesses
    at `base` and an element's number.
    """

    base: ex.Expr
    lanes: int
    indices: frozenset[ex.Expr]


def row_words(kernel: ir.Kernel) -> RowWords | None:
    """The words of the rows where most bytes are; None if no row has edges, or none is in order.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> found = row_words(parse_kernel('''(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
    ...     (params (in bf16) (out f32)) (body (load 0 (+ (* k1 p0) r0)) (cast f32 0)
    ...     (reduce sum f32 1) (store 1 p0 2)))'''))
    >>> (ex.to_text(found.base), found.lanes) if found else None
    ('(* k1 p0)', 8)
    """
    return _words(kernel, [f"r{number}" for number in range(len(kernel.reduction))])


def plane_words(kernel: ir.Kernel) -> RowWords | None:
    """The words of what a row has along its innermost loop, where the row is no run of memory.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> found = plane_words(parse_kernel('''(kernel (symbols k0 k1 k2) (pointwise k1)
    ...     (reduction k0 k2) (params (in bf16) (out f32)) (body
    ...     (load 0 (+ (* k1 k2 r0) (* k2 p0) r1)) (cast f32 0) (reduce sum f32 1)
    ...     (store 1 p0 2)))'''))
    >>> (ex.to_text(found.base), found.lanes) if found else None
    ('(+ (* k1 k2 r0) (* k2 p0))', 8)
    """
    if len(kernel.reduction) < 2 or row_words(kernel) is not None:
        return None
    return _words(kernel, [f"r{len(kernel.reduction) - 1}"])


def _words(kernel: ir.Kernel, names: Sequence[str]) -> RowWords | None:
    """The words along these innermost reduction loops."""
    if not names:
        return None
    extents = kernel.reduction[-len(names) :]
    loops = dict(zip(names, extents, strict=True))
    guarded = branches(kernel)
    sizes: dict[ex.Expr, list[int]] = {}
    indices: dict[ex.Expr, set[ex.Expr]] = {}
    for position, node in enumerate(kernel.body):
        # The first element of a branch that is not taken may lie before all storage.
        if not isinstance(node, ir.Load | ir.Store) or position in guarded:
            continue
        found = affine(node.index, [loops])
        if found is not None and found.strides == (ex.ONE,):
            sizes.setdefault(found.offset, []).append(DTYPES[kernel.params[node.param].dtype])
            indices.setdefault(found.offset, set()).add(node.index)
    # Of several, that of a row of its own: what all rows share is in a cache.
    ranked = sorted(sizes, key=lambda base: (bool(_loops_of(base)), sum(sizes[base])))
    if not ranked:
        return None
    base = ranked[-1]
    # Bytes beside wider elements are read half a word at a time.
    lanes = WORD_BYTES // min((size for size in sizes[base] if size > 1), default=1)
    if _is_multiple(base, lanes) and _is_multiple(ex.product(extents), lanes):
        return None
    return RowWords(base, lanes, frozenset(indices[base]))


def _loops_of(index: ex.Expr) -> list[str]:
    return [name for name in ex.symbols_of(index) if name[0] == "p"]


def _is_multiple(size: ex.Expr, number: int) -> bool:
    return ex.mod(size, number) == ex.ZERO
