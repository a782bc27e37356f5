"""Pairs of reduces that one walk computes, and how often generated code reads a long row."""

from __future__ import annotations

import re

import pytest
from tests.unit.compiler.kernels import KERNELS, TARGET, kernel_of

from nearhint_compiler.analysis.online import Online, online_pairs, walk_levels
from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule

LOOPED = "cuda.looped x=1 r=1024 warps=4 index=32 aligned=0 divisible=0"
PERSISTENT = "cuda.persistent x=1 r=1024 warps=4 index=32 aligned=0 divisible=0"


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("softmax_f32", (Online("softmax", 1, 4, 0),)),
        ("max_and_sum_f32", (Online("softmax", 1, 4, 0),)),
        ("logsumexp_f32", (Online("shifted_softmax", 1, 7, 0),)),
        ("layer_norm_dynamic_f32", (Online("variance", 3, 9, 0),)),
        ("rms_norm_bf16", ()),
        ("row_sum_f32", ()),
    ],
)
def test_softmax_and_variance_are_found(name: str, pairs: tuple[Online, ...]) -> None:
    assert online_pairs(kernel_of(name)) == pairs


def test_a_pair_is_complete_after_one_walk() -> None:
    kernel = kernel_of("softmax_f32")
    assert max(ir.levels(kernel)) == 2
    assert max(walk_levels(kernel, online_pairs(kernel))) == 1


def test_a_sum_of_squares_about_another_number_than_the_mean_is_no_variance() -> None:
    """The mean of twice as many elements."""
    text = (KERNELS / "layer_norm_dynamic_f32.ir").read_text()
    assert online_pairs(parse_kernel(text.replace("(iota k1)", "(iota (* 2 k1))"))) == ()


@pytest.mark.parametrize(
    ("name", "walks"),
    [
        ("softmax_f32", 2),
        ("log_softmax_f32", 2),
        ("logsumexp_f32", 1),
        ("layer_norm_dynamic_f32", 2),
        ("mean_variance_f32", 1),
        ("residual_rms_norm_bf16", 2),
        ("row_argmax_f32", 1),
        ("row_cumsum_f32", 1),
    ],
)
def test_a_long_row_is_read_no_more_often_than_it_must(name: str, walks: int) -> None:
    source = generate(kernel_of(name), parse_schedule(LOOPED), TARGET).source
    assert source.count("for roffset in") + source.count("for rback in") == walks


def test_a_second_walk_begins_where_the_first_ended() -> None:
    source = generate(kernel_of("softmax_f32"), parse_schedule(LOOPED), TARGET).source
    assert source.index("for roffset in") < source.index("roffset = rlast - ")


def test_a_walk_with_a_running_total_goes_forwards() -> None:
    source = generate(kernel_of("normalised_cumsum_bf16"), parse_schedule(LOOPED), TARGET).source
    assert source.count("for roffset in") == 3
    assert "for rback in" not in source


@pytest.mark.parametrize("name", ["softmax_f32", "layer_norm_dynamic_f32", "row_cumsum_f32"])
def test_a_row_in_registers_is_read_once(name: str) -> None:
    source = generate(kernel_of(name), parse_schedule(PERSISTENT), TARGET).source
    assert "for r" not in source
    assert source.count("tl.load(a0") == 1


@pytest.mark.parametrize(("name", "suffix"), [("softmax_f32", "_exact"), ("softmax_f16", "")])
def test_a_sum_that_f32_would_show_has_terms_without_a_bias(name: str, suffix: str) -> None:
    """`exp` is off to one side, which a sum of a long row keeps."""
    source = generate(kernel_of(name), parse_schedule(f"{LOOPED} group=4"), TARGET).source
    helpers = set(re.findall(r"def (_\w+)", source))
    names = {"_exp_below", "_online_softmax_group"}
    assert helpers & {*names, *(f"{each}_exact" for each in names)} == {
        f"{each}{suffix}" for each in names
    }
    assert ("_exp_term" in helpers) == bool(suffix)
    assert ("= _exp_flushed(" in source) == (not suffix)
