"""Teams of programs that hold long rows: for which rows of a hint's bucket they have room."""

from __future__ import annotations

import math

import pytest
from tests.unit.compiler.kernels import KERNELS, TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_rules.guard import size_facts_hold

ROWS = 512


RMS_NORM = parse_kernel(
    (KERNELS / "residual_rms_norm_bf16.ir")
    .read_text()
    .replace("(symbols k0)", "(symbols k0 k1)")
    .replace("4096", "k1")
)


def teams(kernel: ir.Kernel, length: int) -> list[Schedule]:
    """Those in words, which may hold rows of any length up to their bound."""
    dims = dict(zip(kernel.symbols, (ROWS, length), strict=True))
    return [
        each
        for each in candidates(kernel, TARGET, dims)
        if each.family == "cuda.cooperative" and each.get("words", 0) and not each.get("walks", 0)
    ]


def holds(kernel: ir.Kernel, team: Schedule, length: int) -> bool:
    """Whether a team may run at rows of a length, by the Guard of what is generated for it."""
    guard = generate(kernel, team, TARGET).guard
    return size_facts_hold(guard, dict(zip(kernel.symbols, (ROWS, length), strict=True)))


@pytest.mark.parametrize("name", ["softmax_f32", "log_softmax_f32", "layer_norm_dynamic_f32"])
@pytest.mark.parametrize("length", [32_768, 65_536, 131_072])
def test_one_team_has_room_for_the_longest_rows_of_its_hints_bucket(name: str, length: int) -> None:
    longest = math.isqrt(2 * length * length)
    kernel = kernel_of(name)
    found = teams(kernel, length)
    roomy = [each for each in found if holds(kernel, each, longest)]
    assert len(roomy) == 1
    assert len(found) > 1
    assert all(holds(kernel, each, length - 7) for each in found)


def test_narrow_rows_have_room_where_programs_keep_their_weights() -> None:
    found = [each for each in teams(RMS_NORM, 65_536) if each.get("weights", 0)]
    assert [holds(RMS_NORM, each, 92_681) for each in found].count(True) == 1
    # Softmaxes of narrow rows are walked faster than they are held.
    softmax = kernel_of("softmax_f16")
    assert not [each for each in teams(softmax, 65_536) if holds(softmax, each, 92_681)]


def test_programs_of_few_warps_have_narrow_rows_ahead() -> None:
    kernel = kernel_of("softmax_f16")
    found = teams(kernel, 107_182)
    assert [(each["r"], each["warps"], each.get("ahead", 1)) for each in found] == [
        (4096, 4, 2),
        (4096, 4, 2),
        (8192, 8, 2),
    ]
    assert all(generate(kernel, each, TARGET).source for each in found)
    # Beyond what so many programs hold there are those of more warps.
    assert [each["r"] for each in teams(kernel, 150_001)] == [8192]
