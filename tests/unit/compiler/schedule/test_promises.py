"""Which sizes a schedule promises to be multiples, and of what."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.schedule import candidates
from nearhint_rules.guard import Divisible


@pytest.mark.parametrize(
    ("name", "promised"),
    [
        ("bias_relu_dynamic_f32", {"k1"}),  # rows of k1 elements: so their number does not matter
        ("softmax_f32", {"k1"}),
        ("arg_over_two_loops_i32", {"k2"}),
        ("transpose_add_f32", {"k0", "k1"}),  # contiguous along each in some access
        ("add_f32", set()),  # flat: full blocks have no mask whose end would matter
        ("transposed_block_scale_f8e4m3fn", {"k0"}),  # its scales are a 32nd of what is moved
        ("layer_norm_f32", set()),  # its rows have one length, a multiple of 16
    ],
)
def test_no_more_sizes_are_promised_than_vectors_need(name: str, promised: set[str]) -> None:
    kernel = kernel_of(name)
    found = {
        symbol
        for schedule in candidates(kernel, TARGET, dict.fromkeys(kernel.symbols, 1024))
        for number, symbol in enumerate(kernel.symbols)
        if dict(schedule.options)["divisible"] >> number & 1
    }
    assert found == promised


@pytest.mark.parametrize(
    ("name", "multiple"),
    [
        ("transpose_add_f32", 4),
        ("swapped_heads_bf16", 8),
        ("softmax_f32", 4),
    ],
)
def test_sizes_are_promised_to_fill_words(name: str, multiple: int) -> None:
    kernel = kernel_of(name)
    for size, is_promised in ((48 + multiple, True), (48 + multiple // 2, False)):
        found = {
            fact.by
            for schedule in candidates(kernel, TARGET, dict.fromkeys(kernel.symbols, size))
            if not schedule.get("unit", 0)
            for fact in generate(kernel, schedule, TARGET).guard.facts
            if isinstance(fact, Divisible)
        }
        assert found == ({multiple} if is_promised else set())
