"""Points: only sizes that calls can have, that fit the memory, and at which there is a choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.rules.tables import row, table, variant

from nearhint_daemon.errors import HintTooLarge, InvalidRequest, NoVariant
from nearhint_daemon.regret.regret_points import Ground, usual_fallback
from nearhint_daemon.store.rows import KernelRow
from nearhint_proto import convert
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.guard import Divisible
from nearhint_rules.plan import Fallback
from nearhint_rules.program import Node, Program, Ref, Symbol, TensorType
from nearhint_rules.table import Table

S0, S1 = ex.symbol("s0"), ex.symbol("s1")
TENSOR = TensorType("f32", (S0, S1), (S1, ex.ONE))
PROGRAM = Program(
    (Symbol("s0", 2, 512), Symbol("s1", 1, None)),
    (TENSOR,),
    (Node("aten.relu.default", (Ref(0),), (), (0,), (TENSOR,)),),
    (1,),
)


def fallback(*dims: Expr) -> Fallback:
    return Fallback(PROGRAM, "1" * 64, dims, (0,), (1,))


def kernel(symbols: int, read: Expr) -> KernelRow:
    names = " ".join(f"k{number}" for number in range(symbols))
    moved = convert.expr_to_proto(read).SerializeToString()
    return KernelRow("", "1" * 64, "", "relu", names, moved, moved, 0.0)


def ground(of: Fallback, *hints: tuple[int, ...], limit_bytes: int = 2**40) -> Ground:
    each = table(*(row(hint, {0: 900}, step=of.id) for hint in hints))
    return Ground(kernel(len(of.dims), ex.symbol("k0")), each, of, limit_bytes)


def guarded(each: Table) -> Table:
    return replace(each, variants=(variant(0, Divisible(ex.symbol("k0"), 16)),))


def test_sizes_of_symbols_are_found_for_sizes_of_the_kernel() -> None:
    of = fallback(S0, S1)
    points = ground(of, (16, 64), (256, 1024)).drawn(100, 5)
    assert len(points) == 100
    for point in points:
        assert point.dims == (point.sizes["s0"], point.sizes["s1"])
        assert 4 <= point.dims[0] <= 512
        assert 16 <= point.dims[1] <= 4096


def test_sizes_that_depend_on_each_other_are_taken_as_calls_have_them() -> None:
    of = fallback(ex.mul(S0, S1), ex.mul(2, S1))
    points = ground(of, (1024, 64), (65536, 512)).drawn(60, 5)
    assert len({point.dims for point in points}) == len(points) >= 40
    for point in points:
        assert point.dims == (point.sizes["s0"] * point.sizes["s1"], 2 * point.sizes["s1"])
        assert 2 <= point.sizes["s0"] <= 512
        assert 256 <= point.dims[0] <= 262144
        assert 16 <= point.dims[1] <= 2048


def test_sizes_beyond_the_memory_are_not_drawn() -> None:
    points = ground(fallback(S0, S1), (64, 64), limit_bytes=200).drawn(30, 1)
    assert points
    assert all(2 * point.dims[0] <= 200 for point in points)


def test_sizes_that_no_variant_takes_are_not_drawn() -> None:
    whole = ground(fallback(S0, S1), (64, 64))
    points = replace(whole, table=guarded(whole.table)).drawn(10, 1)
    assert points
    assert all(point.dims[0] % 16 == 0 for point in points)


def test_given_sizes_are_taken_as_they_are_hints_included() -> None:
    here = ground(fallback(S0, ex.mul(2, S1)), (64, 64))
    assert here.at({"k0": 100, "k1": 38}, field="at[0]").sizes == {"s0": 100, "s1": 19}
    assert here.at({"k0": 64, "k1": 64}, field="at[0]").dims == (64, 64)


@pytest.mark.parametrize("size", [32, 63, 2 * 1009, 511 * 3])
def test_given_sizes_that_are_a_product_are_met_exactly(size: int) -> None:
    point = ground(fallback(ex.mul(S0, S1)), (64,)).at({"k0": size}, field="at[0]")
    assert point.dims == (size,) == (point.sizes["s0"] * point.sizes["s1"],)


def test_sizes_near_those_that_no_call_has_are_told_as_they_are_typed() -> None:
    here = ground(fallback(ex.mul(S0, ex.mul(2, S1))), (64,))
    with pytest.raises(InvalidRequest, match="near them: k0=1024"):
        here.at({"k0": 1009}, field="at[0]")


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"k0": 100}, "k1"),
        ({"k0": 100, "k1": 0}, "k1"),
        ({"k0": 100, "k1": 38, "k2": 1}, "no symbol k2"),
        ({"k0": 100, "k1": 37}, "no call was found that has these sizes"),
        ({"k0": 513, "k1": 38}, "no call was found that has these sizes"),
    ],
)
def test_given_sizes_that_no_call_has_are_refused(sizes: dict[str, int], problem: str) -> None:
    here = ground(fallback(S0, ex.mul(2, S1)), (64, 64))
    with pytest.raises(InvalidRequest, match=problem) as caught:
        here.at(sizes, field="at[3]")
    assert caught.value.field == "at[3]"


def test_given_sizes_beyond_the_memory_are_refused() -> None:
    with pytest.raises(HintTooLarge, match="k0=128,k1=8 would take"):
        ground(fallback(S0, S1), (64, 64), limit_bytes=200).at({"k0": 128, "k1": 8}, field="at[0]")


def test_given_sizes_that_no_variant_takes_are_refused() -> None:
    here = ground(fallback(S0, S1), (64, 64))
    with pytest.raises(InvalidRequest, match="no Variant"):
        replace(here, table=guarded(here.table)).at({"k0": 100, "k1": 8}, field="at[0]")


def test_the_fallback_with_most_complete_hints_is_the_usual_one() -> None:
    each = table(
        row((16,), {0: 900}, step="b" * 64),
        row((64,), {0: 900}, step="a" * 64),
        row((256,), {0: 900}, step="b" * 64),
        row((1024,), {1: 900}, step="a" * 64),
    )
    assert usual_fallback(each) == "b" * 64
    assert usual_fallback(replace(each, hints=each.hints[:2])) == "a" * 64
    with pytest.raises(NoVariant):
        usual_fallback(replace(each, hints=each.hints[3:]))
