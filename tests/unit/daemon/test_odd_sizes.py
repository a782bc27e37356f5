"""Sizes beside a hint that a Program's own sizes really give, where little divides them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from nearhint_daemon.store.rows import KernelRow
from nearhint_daemon.tuning.tasks import OddSizes, reach
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.metrics import Dims
from nearhint_rules.plan import Fallback
from nearhint_rules.program import Program, Symbol

S0, S1 = ex.symbol("s0"), ex.symbol("s1")
RANGES = {"s0": (16, 4096), "s1": (64, 8192)}


def odd_sizes(*dims: Expr, near: Mapping[str, int], **ranges: tuple[int, int]) -> OddSizes:
    """For a Kernel k0, k1, ... whose sizes are these of its Fallback's symbols."""
    symbols = tuple(Symbol(name, low, high) for name, (low, high) in (RANGES | ranges).items())
    names = " ".join(f"k{number}" for number in range(len(dims)))
    kernel = KernelRow("", "1" * 64, "", "", names, b"", b"", 0.0)
    program = Program(symbols, (), (), ())
    return OddSizes(kernel, Fallback(program, kernel.id, dims, (), ()), lambda _: near)


@pytest.mark.parametrize(
    ("dims", "hint", "names", "expected"),
    [
        ((S0, S1), (256, 512), {"k1"}, (256, 503)),
        ((S0, S1), (256, 512), {"k0", "k1"}, (251, 503)),
        ((S0, S1), (256, 64), {"k1"}, (256, 65)),  # what is below is outside the range
        ((ex.mul(S0, S1),), (16384,), {"k0"}, (16315,)),  # 251 times 65
        ((S0, ex.mul(2, S1), S1), (256, 160, 80), {"k1"}, (256, 158, 79)),
        ((S0, S1), (256, 511), {"k1"}, (256, 511)),  # is odd
    ],
)
def test_what_makes_sizes_is_odd_beside_a_hint(
    dims: tuple[Expr, ...], hint: Dims, names: set[str], expected: Dims
) -> None:
    odd = odd_sizes(*dims, near={"s0": 256, "s1": 512})
    assert odd(hint, names) == expected
    sizes = odd.near[expected]
    assert tuple(ex.evaluate(expr, sizes) for expr in dims) == expected


@pytest.mark.parametrize(
    ("near", "most", "hint", "expected"),
    [
        ((4, 8, 131_072), 64, (131_072, 32), (129_023, 33)),  # 3 times 11, not 3 times 7
        ((4, 8, 131_072), 8, (131_072, 32), (129_023, 21)),
        ((131_072, 4, 32), 64, (32, 524_288), (31, 516_093)),  # 172 031 times 3
    ],
)
def test_what_small_sizes_lose_as_odd_ones_a_larger_one_beside_them_makes_up_for(
    near: tuple[int, int, int], most: int, hint: Dims, expected: Dims
) -> None:
    columns = ex.symbol("s2")
    odd = odd_sizes(
        columns,
        ex.mul(S0, S1),
        near=dict(zip(("s0", "s1", "s2"), near, strict=True)),
        s0=(2, 200_000),
        s1=(2, most),
        s2=(2, 200_000),
    )
    assert odd(hint, {"k0", "k1"}) == expected


def test_sizes_that_cannot_be_had_or_moved_have_none_beside_them() -> None:
    assert odd_sizes(S0, S1, near={})((8, 64), {"k1"}) is None
    assert odd_sizes(S0, S1, near={}, s1=(64, 64))((16, 64), {"k1"}) is None


def test_sizes_beside_a_hint_are_found_again_from_a_call_s() -> None:
    """As idle time refines a companion of 32 that is 3 times 11: near are sizes that were asked."""
    dims = (S1, ex.mul(S0, ex.symbol("s2")))
    odd = odd_sizes(
        *dims, near={"s0": 4, "s2": 8, "s1": 131_072}, s0=(2, 64), s1=(2, 1 << 20), s2=(3, 64)
    )
    found = odd((131_072, 32), {"k0", "k1"})
    assert found is not None
    fallback = Fallback(Program(odd._fallback.program.symbols, (), (), ()), "1" * 64, dims, (), ())
    sizes, reached = reach(fallback, {"s0": 5, "s1": 1000, "s2": 7}, found)
    assert reached == found
    assert sizes["s0"] * sizes["s2"] == 33
