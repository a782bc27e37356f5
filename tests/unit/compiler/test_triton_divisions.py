"""Divisions of places by sizes become products with factors that the launch brings."""

from __future__ import annotations

import random

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.generated import Generated
from nearhint_compiler.codegen.triton.divisions import LARGEST_PLACE
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CudaLaunch, SizeArgument

FLAT = "cuda.pointwise x=256 warps=4"
REPEATED = """(kernel (symbols k0 k1 k2) (pointwise k0 k1 k2) (reduction)
    (params (in f32) (in f32) (out f32)) (body (load 0 (+ (* k2 p0) p2)) (load 1 (+ (* k2 p1) p2))
    (add f32 0 1) (store 2 (+ (* k1 k2 p0) (* k2 p1) p2) 2)))"""


def generated(name: str, schedule: str) -> Generated:
    text = REPEATED if name == "repeated" else None
    kernel = parse_kernel(text) if text else kernel_of(name)
    return generate(kernel, parse_schedule(schedule), TARGET)


def factors_of(found: Generated) -> list[ex.Expr]:
    assert isinstance(found.launch, CudaLaunch)
    sizes = [each.expr for each in found.launch.arguments if isinstance(each, SizeArgument)]
    return [size for size in sizes if isinstance(size, ex.FloorDiv)]


def divided(place: int, size: int, factor: int) -> tuple[int, int]:
    """The helpers' arithmetic in 32 bits: the quotient and the remainder."""
    wrapped = 1 << 32
    near = (2 * place % wrapped) * factor >> 32
    rest = place - near * size
    assert 0 <= rest < 2 * size
    return near + (rest >= size), min(rest % wrapped, (rest - size) % wrapped)


def test_a_product_with_the_factor_is_the_quotient_or_one_less_for_all_places_and_sizes() -> None:
    drawn = random.Random(7)
    sizes = [
        1,
        2,
        3,
        7,
        33,
        1021,
        1 << 15,
        (1 << 16) + 1,
        1 << 30,
        LARGEST_PLACE - 1,
        LARGEST_PLACE,
    ]
    sizes += [drawn.randrange(1, 1 << drawn.randrange(1, 32)) for _ in range(400)]
    for size in sizes:
        factor = LARGEST_PLACE // size
        ends = [size - 1, size, size + 1, 2 * size - 1, LARGEST_PLACE // size * size - 1]
        places = [0, 1, LARGEST_PLACE, LARGEST_PLACE - 1, LARGEST_PLACE // size * size, *ends]
        places += [drawn.randrange(LARGEST_PLACE + 1) for _ in range(50)]
        for place in places:
            if 0 <= place <= LARGEST_PLACE:
                assert divided(place, size, factor) == divmod(place, size)


def test_the_launch_brings_one_factor_for_each_size_that_is_divided_by() -> None:
    found = generated("repeated", f"{FLAT} index=32 aligned=1 divisible=0")
    assert [ex.evaluate(each, {"k0": 5, "k1": 7, "k2": 33}) for each in factors_of(found)] == [
        LARGEST_PLACE // 33,
        LARGEST_PLACE // 7,
    ]
    assert "by_k2, by_k1, X: tl.constexpr" in found.source
    empty: dict[str, int] = {"k0": 0, "k1": 0, "k2": 0}
    assert [ex.evaluate(each, empty) for each in factors_of(found)] == [LARGEST_PLACE] * 2


def test_what_several_loops_leave_takes_no_division_where_their_quotient_is_wanted() -> None:
    found = generated("repeated", f"{FLAT} index=32 aligned=1 divisible=0")
    assert "tl.load(a1 + (x - x_1 * (k1 * k2)), " in found.source
    other = generated("rotary_joined_f16", f"{FLAT} index=32 aligned=1 divisible=0")
    assert "(_remainder(x, (k0 * k1), by_k0_k1))" in other.source


@pytest.mark.parametrize(
    "options", ["index=64 aligned=0 divisible=0", "index=32 aligned=1 divisible=4"]
)
def test_promised_sizes_and_wide_indices_are_divided_by(options: str) -> None:
    """Triton follows divisions by sizes that are promised; factors have 32 bits."""
    found = generated("repeated", f"{FLAT} {options}")
    assert "p2 = x % k2" in found.source
    assert "by_k2" not in found.source


def test_rows_of_a_reduction_are_divided_and_elements_take_factors() -> None:
    found = generated(
        "plane_norm_bf16", "cuda.looped x=1 r=2048 warps=4 index=32 aligned=0 divisible=0"
    )
    assert "_remainder(r, k2, by_k2)" in found.source
    assert "_remainder(x, " not in found.source
