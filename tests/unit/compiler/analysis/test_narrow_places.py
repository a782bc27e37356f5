"""Places in 32 bits: what else is computed from the same values stays as it was."""

from __future__ import annotations

from nearhint_compiler.analysis.narrow_places import places_alone, with_narrow_places
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel

WRAPPED = """(kernel (symbols k0 k1 k2) (pointwise k0 k1) (reduction)
    (params (in i64) (in f32) (out f32) (out i64))
    (body (load 0 p0) (const i64 0x0) (lt bool 0 1) (iota k2) (add i64 0 3) (where i64 2 4 0)
    (gather 1 p1 k1 k2 5) (store 2 (+ (* k1 p0) p1) 6){more}))"""


def narrowed(more: str = "") -> ir.Kernel:
    text = WRAPPED.replace("{more}", more)
    return with_narrow_places(parse_kernel(text if more else text.replace(" (out i64)", "")))


def test_what_only_names_places_is_in_32_bits_from_where_it_is_loaded() -> None:
    kernel = narrowed()
    dtypes = ir.dtypes_of(kernel)
    wide = [place for place, dtype in enumerate(dtypes) if dtype == "i64"]
    assert {type(kernel.body[place]) for place in wide} == {ir.Load, ir.Iota}
    (gather,) = [node for node in kernel.body if isinstance(node, ir.Gather)]
    assert dtypes[gather.place] == "i32"


def test_what_is_used_as_it_is_stays_as_wide_as_it_is() -> None:
    kernel = narrowed(" (add i64 5 5) (store 3 p0 8)")
    dtypes = ir.dtypes_of(kernel)
    (stored,) = [n.value for n in kernel.body if isinstance(n, ir.Store) and n.param == 3]
    assert dtypes[stored] == "i64"
    assert all(dtypes[each] == "i64" for each in ir.operands_of(kernel.body[stored]))
    (gather,) = [node for node in kernel.body if isinstance(node, ir.Gather)]
    named = kernel.body[gather.place]
    assert isinstance(named, ir.Op)
    assert named.name == "cast"
    assert dtypes[named.operands[0]] == "i64"


def test_a_kernel_without_places_is_what_it_was() -> None:
    kernel = parse_kernel(
        "(kernel (symbols k0) (pointwise k0) (reduction) (params (in i64) (out i64))"
        " (body (load 0 p0) (add i64 0 0) (store 1 p0 1)))"
    )
    assert with_narrow_places(kernel) is kernel
    assert places_alone(kernel) == frozenset()
