"""What is offered for a GPU, which no machine without one can run: of any Kernel at any sizes.

A default serves every size, and so does the last candidate, where the default needs anything. All
that is offered can be generated.
"""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, reject
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.property.kernels import kernels
from tests.property.test_variants import CORPUS, lowered_kernels
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.choice import MAX_LIMIT
from nearhint_compiler.schedule.cuda import candidates
from nearhint_daemon.workers.cases import sizes_at
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.guard import Divisible
from nearhint_rules.target import CudaDevice, Target

SIZES = st.sampled_from((1, 2, 3, 7, 8, 16, 33, 64, 100, 1000, 1024, 4096, 10_007, 65_536, 100_000))
SMALL = Target(CudaDevice("NVIDIA T4", 80, 40, 16 << 30, "580", 700), ("triton 3.7.1",))


def assert_space_is_sound(kernel: ir.Kernel, target: Target, dims: Mapping[str, int]) -> None:
    found = candidates(kernel, target, dims)
    default, last = (generate(kernel, each, target).guard for each in (found[0], found[-1]))
    assert not any(isinstance(fact, Divisible) for fact in default.facts)
    assert not default.facts or not last.facts


def test_columns_of_a_scan_that_are_more_than_programs_share_have_a_variant_for_all_sizes() -> None:
    for name in ("column_cumsum_f32", "column_cumprod_i64"):
        assert_space_is_sound(kernel_of(name), TARGET, {"k0": 100_000, "k1": 16_384})


@examples(80)
@given(st.one_of(kernels(), kernels(), lowered_kernels(), st.sampled_from(CORPUS)), st.data())
def test_any_kernel_has_a_default_and_a_variant_for_all_sizes(
    kernel: ir.Kernel, data: st.DataObject
) -> None:
    dims = {name: data.draw(SIZES, label=name) for name in kernel.symbols}
    try:
        sizes_at(kernel, dims)
    except InvalidExpression:
        reject()
    target = data.draw(st.sampled_from((TARGET, SMALL)))
    assert_space_is_sound(kernel, target, dims)
    space = candidates(kernel, target, dims, limit=MAX_LIMIT)
    assert generate(kernel, data.draw(st.sampled_from(space)), target).source
