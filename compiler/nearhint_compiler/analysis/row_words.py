"""Rows that are read in whole words of memory, wherever they begin and however long they are.

A vector load wants 16 bytes that begin at a multiple of 16. A row that begins or ends elsewhere has
whole words inside, and fewer elements than a word before and behind them: its edges. This analysis
finds the accesses whose element r of a row lies at `base + r`, for one base: then all of them have
their whole words at the same r, and their edges, too. Addresses are multiples of 16 bytes plus the
index, which is a Guard; nothing is asked of sizes.

A plane is such a row for each element of the loops around the innermost one, with words and edges
of its own: its base has those loops' variables.

What all rows share, as weights, or some of them, as a mask or a scale of an image, begins elsewhere
in a word than a row does. So element r of it is not where that of the row is in its word, but as
many elements on as the two beginnings differ by (`codegen.triton.phases`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nearhint_compiler.analysis.affine import Loops, affine
from nearhint_compiler.analysis.branches import branches
from nearhint_compiler.analysis.loops import reduction_loops
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES

WORD_BYTES = 16
PHASED = {8: (2, 4), 4: (4,)}
"""Bytes of elements of which two words are loaded in place of elements, by the lanes of a row's
words. Shares of a copy's speed so, and by elements (tests/benchmarks/gpu_schedules.py, on an H100):
layer norms of 1334 rows of 25 911 in bf16 67 µs and 77; with weights in f32 of 1883 of 17 001 0.69
and 0.53, of 753 of 42 443 0.55 and 0.42. Of four lanes rows in registers alone gain: of 1777 of
9001 in f32 0.95 and 0.89, of 753 of 21 255 0.80 and 0.69; walked, of 1201 of 13 333, 0.64 and 0.72.
"""
WALKED_LANES = 8
"""Lanes of words from which on what walks share is read so."""
TILE_ROW = "y"
"""The position along the first axis of a tile, as a symbol."""


@dataclass(frozen=True, slots=True)
class RowWords:
    """`base` is the index of a row's first element, `lanes` how many elements a word has.

    They are those of the narrowest dtype of two bytes or more. `indices` are those of the accesses
    at `base` and an element's number, `shared` those of loads from other bases that are read in as
    many lanes, where that is `PHASED`.
    """

    base: ex.Expr
    lanes: int
    indices: frozenset[ex.Expr]
    shared: frozenset[ex.Expr] = frozenset()

    @property
    def is_phased(self) -> bool:
        """Whether what rows share is read in words as well, wherever a row's are."""
        return bool(self.shared) and self.lanes >= WALKED_LANES

    def parted(self, parts: int) -> RowWords:
        """Words of so many parts of as many bytes; what rows share is read alone then.

        >>> RowWords(ex.ZERO, 8, frozenset()).parted(2).lanes
        4
        """
        lanes = self.lanes // parts
        return self if parts == 1 else replace(self, lanes=lanes, shared=frozenset())


def row_words(kernel: ir.Kernel) -> RowWords | None:
    """The words of the rows where most bytes are; None if no row has edges, or none is in order.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> found = row_words(parse_kernel('''(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
    ...     (params (in bf16) (out f32)) (body (load 0 (+ (* k1 p0) r0)) (cast f32 0)
    ...     (reduce sum f32 1) (store 1 p0 2)))'''))
    >>> (ex.to_text(found.base), found.lanes) if found else None
    ('(* k1 p0)', 8)
    """
    loops = reduction_loops(kernel)
    found = _words(kernel, {}, loops)
    if found is None or found.lanes not in PHASED or found.base == ex.ZERO:
        return found
    stored = {node.index for node in kernel.body if isinstance(node, ir.Store)}
    shared = {
        index
        for base, index, size in _along(kernel, {}, loops)
        if base != found.base and size in PHASED[found.lanes] and index not in stored
    }
    return replace(found, shared=frozenset(shared))


def base_of(kernel: ir.Kernel, index: ex.Expr) -> ex.Expr:
    """The index of the first element of a row that runs along the reduction."""
    return ex.substitute(index, dict.fromkeys(reduction_loops(kernel), ex.ZERO))


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
    return _words(kernel, {}, dict([list(reduction_loops(kernel).items())[-1]]))


def tile_words(kernel: ir.Kernel, cuts: int) -> RowWords | None:
    """The words of a pointwise tile's rows, in which its last axis runs; None as for `row_words`.

    The tile has two axes, cut behind the loop of the one bit of `cuts`. `base` is in terms of
    `TILE_ROW`, the position along the first. None where the tile is stored along both axes: in
    words that took twice as long as in elements, and of bytes Triton 3.6 stores some wrong
    (tests/benchmarks/gpu_schedules.py on an H200).

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> found = tile_words(parse_kernel('''(kernel (symbols k0 k1) (pointwise k0 k1) (reduction)
    ...     (params (in f32) (out f32)) (body (load 0 (+ (* k0 p1) p0))
    ...     (store 1 (+ (* k1 p0) p1) 0)))'''), 1)
    >>> (ex.to_text(found.base), found.lanes) if found else None
    ('(* k1 y)', 4)
    """
    loops = [(f"p{number}", extent) for number, extent in enumerate(kernel.pointwise)]
    place = cuts.bit_length()
    if kernel.reduction or cuts.bit_count() != 1 or place >= len(loops):
        return None
    words = _words(kernel, dict(loops[:place]), dict(loops[place:]))
    if words is None or _is_stored_both_ways(kernel, words):
        return None
    return words


def _is_stored_both_ways(kernel: ir.Kernel, words: RowWords) -> bool:
    ways = {node.index in words.indices for node in kernel.body if isinstance(node, ir.Store)}
    return len(ways) > 1


def _words(kernel: ir.Kernel, outer: Loops, inner: Loops) -> RowWords | None:
    """The words along the loops `inner`; bases are in terms of the flat axis `outer`, if any."""
    sizes: dict[ex.Expr, list[int]] = {}
    indices: dict[ex.Expr, set[ex.Expr]] = {}
    for base, index, size in _along(kernel, outer, inner):
        sizes.setdefault(base, []).append(size)
        indices.setdefault(base, set()).add(index)
    # Of several, that of a row of its own: what rows share, all or some, is in a cache.
    ranked = sorted(sizes, key=lambda base: (_row_variables(base), sum(sizes[base])))
    if not ranked:
        return None
    base = ranked[-1]
    # Bytes beside wider elements are read half a word at a time.
    lanes = WORD_BYTES // min((size for size in sizes[base] if size > 1), default=1)
    if _is_whole(inner, base, lanes):
        return None
    return RowWords(base, lanes, frozenset(indices[base]))


def has_whole_rows(kernel: ir.Kernel) -> bool:
    """Whether some access along the rows is in whole words alone, whatever the sizes are.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> has_whole_rows(parse_kernel('''(kernel (symbols k0) (pointwise k0) (reduction 32)
    ...     (params (in f32) (out f32)) (body (load 0 (+ (* k0 r0) p0)) (reduce max f32 0)
    ...     (div f32 0 1) (store 1 (+ (* 32 p0) r0) 2)))'''))
    True
    """
    loops = reduction_loops(kernel)
    found = _along(kernel, {}, loops)
    return any(_is_whole(loops, base, WORD_BYTES // size) for base, _, size in found)


def _along(kernel: ir.Kernel, outer: Loops, inner: Loops) -> Iterator[tuple[ex.Expr, ex.Expr, int]]:
    """The accesses whose element i along `inner` is number i from a base: base, index, element
    size.
    """
    if not inner:
        return
    guarded = branches(kernel)
    for position, node in enumerate(kernel.body):
        # The first element of a branch that is not taken may lie before all storage.
        if not isinstance(node, ir.Load | ir.Store) or position in guarded:
            continue
        found = affine(node.index, [outer, inner] if outer else [inner])
        if found is None or found.strides[-1] != ex.ONE:
            continue
        start = ex.mul(found.strides[0], ex.symbol(TILE_ROW)) if outer else ex.ZERO
        size = DTYPES[kernel.params[node.param].dtype]
        yield ex.add(found.offset, start), node.index, size


def _is_whole(loops: Loops, base: ex.Expr, lanes: int) -> bool:
    return _is_multiple(base, lanes) and _is_multiple(ex.product(loops.values()), lanes)


def _row_variables(base: ex.Expr) -> int:
    return sum(name[0] in ("p", TILE_ROW) for name in ex.symbols_of(base))


def _is_multiple(size: ex.Expr, number: int) -> bool:
    return ex.mod(size, number) == ex.ZERO
