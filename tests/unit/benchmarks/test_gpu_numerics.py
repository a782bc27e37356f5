"""Errors in units in the last place; outputs between guard bands."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.benchmarks import sweep_functions as of
from tests.benchmarks.compiled_call import Call
from tests.benchmarks.gpu_numerics import (
    GuardedMemory,
    as_tuple,
    closeness,
    in_float64,
    ulp_error,
    written,
)
from tests.benchmarks.gpu_sweep_cases import SWEEPS
from tests.benchmarks.sweeps import Sweep
from torch import Tensor

from nearhint_torch import launching
from nearhint_torch.adapter import EmptyMaker

CPU = torch.device("cpu")


def test_rounding_once_is_half_a_unit_at_most() -> None:
    exact = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn):
        error = ulp_error(exact.to(dtype), exact)
        assert 0.0 < error <= 0.5 + 1e-6


def test_the_next_number_is_one_unit_away() -> None:
    exact = torch.tensor([1.0, 1.5, 1.75], dtype=torch.float64)
    got = torch.tensor([1.0, 1.5, 1.75 + 2**-7], dtype=torch.bfloat16)
    assert ulp_error(got, exact) == 1.0


def test_what_is_near_zero_is_held_to_the_scale_of_the_rest() -> None:
    exact = torch.tensor([1.0, 1.0, 1.0, 1e-9], dtype=torch.float64)
    got = exact.float() + torch.tensor([0.0, 0.0, 0.0, 2**-25])
    assert ulp_error(got, exact) < 1.0


def test_a_sum_is_held_to_the_magnitudes_of_its_terms() -> None:
    exact, terms = torch.tensor([1e-3]).double(), torch.tensor([2.0]).double()
    got = exact.float() + 2**-23
    assert ulp_error(got, exact) > 1000.0
    assert closeness(got, exact, terms).ulp == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("sweep", [each for each in SWEEPS if each.magnitudes is not None])
def test_magnitudes_are_no_less_than_what_is_summed(sweep: Sweep) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = sweep.layout(*(5, 3, 7)[: len(sweep.compiled_at)])
    wide = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    assert sweep.magnitudes is not None
    outputs, scales = as_tuple(sweep.function(*wide)), as_tuple(sweep.magnitudes(*wide))
    for output, scale in zip(outputs, scales, strict=True):
        assert output.shape == scale.shape
        assert bool((scale >= output.abs()).all())


@pytest.mark.parametrize(
    ("got", "exact", "error"),
    [
        (math.nan, math.nan, 0.0),
        (math.inf, math.inf, 0.0),
        (math.nan, 1.0, math.inf),
        (1.0, math.nan, math.inf),
        (math.inf, 1.0, math.inf),
        (math.inf, -math.inf, math.inf),
    ],
)
def test_what_is_not_finite_must_be_equal(got: float, exact: float, error: float) -> None:
    assert ulp_error(torch.tensor([1.0, got]), torch.tensor([1.0, exact]).double()) == error


def test_outputs_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes"):
        ulp_error(torch.zeros(2), torch.zeros(3))


def test_integers_must_be_equal_beside_floats() -> None:
    exact = torch.ones(2, dtype=torch.float64), torch.tensor([1, 2])
    right, wrong = torch.tensor([1, 2]), torch.tensor([1, 3])
    assert closeness((torch.ones(2), right), exact).are_integers_equal
    found = closeness((torch.ones(2), wrong), exact)
    assert (found.ulp, found.are_integers_equal) == (0.0, False)
    rounded = torch.tensor([1.0, 2.0]), torch.tensor([1, 4])
    assert closeness((torch.ones(2), wrong), rounded, rounding=1).are_integers_equal
    assert not closeness((torch.ones(2), right), rounded, rounding=1).are_integers_equal


def test_functions_of_the_sweeps_stay_in_float64() -> None:
    x = torch.randn(4, 64, dtype=torch.float64)
    weight = torch.randn(64, dtype=torch.float64)
    for outputs in (of.rms_norm_residual(x, x, weight), (of.column_sum(x),), (of.softmax(x),)):
        assert {output.dtype for output in outputs} == {torch.float64}


def test_mx_quantisation_loses_an_eighth_of_a_blocks_largest_at_most() -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    elements, exponents = of.mx_quantise(x)
    scales = torch.exp2(exponents.double() - of.EXPONENT_BIAS).repeat_interleave(of.BLOCK, -1)
    error = (elements.double() * scales - x.double()).abs()
    largest = torch.unflatten(x.double().abs(), -1, (-1, of.BLOCK)).amax(-1)
    # What is above 448 of its scale is clamped, from less than 512.
    assert bool((error <= largest.repeat_interleave(of.BLOCK, -1) / 8).all())
    assert float(error.max()) > 0.0
    exact = of.mx_quantise(*in_float64([x]))
    assert torch.equal(elements.double(), exact[0].double())
    assert torch.equal(exponents, exact[1])


def empty_like_runner(memory: GuardedMemory) -> Tensor:
    return memory.maker(CPU)((2, 3), (3, 1), torch.float32)


def test_guarded_outputs_are_poisoned_and_aligned() -> None:
    memory = GuardedMemory(0xFF)
    output = empty_like_runner(memory)
    assert output.isnan().all()
    assert output.data_ptr() % 16 == 0
    output.fill_(1.0)
    assert memory.are_bands_intact()


@pytest.mark.parametrize("offset", [-1, 6])
def test_a_write_beside_an_output_is_seen(offset: int) -> None:
    memory = GuardedMemory(0xFF)
    output = empty_like_runner(memory)
    beside = output.as_strided((1,), (1,), output.storage_offset() + offset)
    beside.fill_(0.0)
    assert not memory.are_bands_intact()


def test_strided_and_empty_outputs_are_guarded_too() -> None:
    memory = GuardedMemory(0x5A)
    make = memory.maker(CPU)
    assert make((2, 3), (1, 2), torch.bfloat16).stride() == (1, 2)
    assert make((0, 3), (3, 1), torch.int64).numel() == 0
    assert memory.are_bands_intact()


def runner(fill: Callable[[Tensor], object]) -> tuple[list[Call], Callable[[], Tensor]]:
    """A graph that makes its output as the real one does, and has it filled."""
    graph = SimpleNamespace(_memory=("kept", {}))

    def call() -> Tensor:
        assert graph._memory[:2] == (None, {}), "resolved anew, with the guarded memory"
        make: EmptyMaker = vars(launching)["empty_maker"](CPU)
        output = make((4,), (1,), torch.float32)
        fill(output)
        return output

    return [cast(Call, SimpleNamespace(graph=graph))], call


def test_what_is_written_whole_passes_and_the_graph_keeps_what_it_knew() -> None:
    calls, call = runner(lambda output: output.fill_(2.0))
    found = written(calls, call)
    assert (found.guarded, found.is_complete, found.are_bands_intact) == (1, True, True)
    graph: Any = calls[0].graph
    assert graph._memory == ("kept", {})


def test_an_element_that_is_not_written_is_seen() -> None:
    calls, call = runner(lambda output: output[:3].fill_(2.0))
    assert not written(calls, call).is_complete


def test_sums_in_any_order_are_written_whole_if_their_numbers_are_near() -> None:
    sums = iter([1.0, 1.0 + 1e-6, 1.0 - 1e-6] * 2)
    calls, call = runner(lambda output: output.fill_(next(sums)))
    assert written(calls, call).is_complete
    calls, call = runner(lambda output: output[:3].fill_(next(sums)))
    assert not written(calls, call).is_complete
