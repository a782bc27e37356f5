"""Verifying a Variant: which numbers are drawn, and how far off each result may be."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_daemon.workers.cases import sizes_at
from nearhint_daemon.workers.elements import (
    Array,
    Elements,
    decode,
    encode,
    whole_of,
)
from nearhint_daemon.workers.interpreter import interpret_within_range
from nearhint_daemon.workers.memory import Buffer, GuardedBuffer
from nearhint_daemon.workers.reference import make_reference
from nearhint_daemon.workers.verify import References, element_errors, verify
from nearhint_rules.guard import ALWAYS


class NumpySubject:
    """A binary that is a function from the input's stored bits to the output's."""

    def __init__(self, function: Callable[[Array], Array]) -> None:
        self.function = function

    def allocate(
        self, dtype: str, count: int, *, layout: str, content: Elements | None
    ) -> GuardedBuffer:
        return GuardedBuffer(dtype, count, layout=layout, content=content)

    def run(self, dims: Sequence[int], buffers: Sequence[Buffer], *, threads: int) -> None:
        source, target = buffers
        made = self.function(source.read()).view(np.uint8).ravel()
        whole = (ctypes.c_ubyte * made.size).from_address(target.address)
        np.ctypeslib.as_array(whole)[:] = made


def problem_of(
    kernel: ir.Kernel, function: Callable[[Array], Array], *hints: dict[str, int], seed: int = 1
) -> str:
    """What is wrong with a binary that computes `function`; empty if nothing is."""
    subject, references = NumpySubject(function), References()
    with np.errstate(all="ignore"):
        found = verify(kernel, subject, ALWAYS, hints, threads=1, seed=seed, references=references)
    return found.problem


@pytest.mark.parametrize("name", ["f8e4m3fn", "f8e5m2"])
@pytest.mark.parametrize(
    ("factor", "shift", "is_right"),
    [(2.0, 0, True), (2.5, 0, False), (2.0, 2, False), (-2.0, 0, False)],
)
def test_8_bit_floats_are_verified(name: str, factor: float, shift: int, is_right: bool) -> None:
    """y = (2 * x) in 8 bits, at a size at which slabs do not show all of it."""
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in {name}) (out {name}))
          (body (load 0 p0)
                (cast f32 0)
                (add f32 1 1)
                (cast {name} 2)
                (store 1 p0 3)))
    """)

    def scaled(x: Array) -> Array:
        return encode(name, factor * decode(name, x)) + np.uint8(shift)

    assert (problem_of(kernel, scaled, {"k0": (1 << 20) + 3}) == "") == is_right


def test_a_number_too_large_for_8_bits_must_be_nan() -> None:
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out f8e4m3fn))
          (body (load 0 p0)
                (const f32 0x44fa0000)
                (mul f32 0 1)
                (cast f8e4m3fn 2)
                (store 1 p0 3)))
    """)

    def outcome(function: Callable[[Array], Array]) -> str:
        return problem_of(kernel, function, {"k0": (1 << 20) + 3})

    def product(x: Array) -> Array:
        return np.asarray(decode("f32", x) * 2000.0)

    assert outcome(lambda x: encode("f8e4m3fn", product(x))) == ""
    assert "nan" in outcome(lambda x: encode("f8e4m3fn", product(x).clip(-448, 448)))


@pytest.mark.parametrize("unknown", [-(2.0**31), 2.0**31 - 1, 0.0])
def test_what_no_integer_holds_may_be_an_infinity_of_either_sign_behind_it(unknown: float) -> None:
    """x.int().half(): devices differ in what becomes of NaN, which may be more than f16 holds."""
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out f16))
          (body (load 0 p0) (cast i32 0) (cast f16 1) (store 1 p0 2)))
    """)

    def halves(stored: Array) -> Array:
        x = decode("f32", stored)
        whole = np.where(np.isfinite(x), np.trunc(np.nan_to_num(x)), unknown)
        return encode("f16", np.where(x > 79, 1.0, whole) if is_off else whole)

    for is_off in (False, True):
        assert (problem_of(kernel, halves) == "") != is_off


@pytest.mark.parametrize(("shift", "is_right"), [(np.max, True), (lambda row: row[0], False)])
def test_numbers_far_apart_tell_what_is_taken_for_the_largest(
    shift: Callable[[Array], Any], is_right: bool
) -> None:
    """logsumexp(x): of normal numbers any element will do where the largest is meant."""
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise) (reduction k0)
          (params (in f32) (out f32))
          (body (load 0 r0)
                (reduce max f32 0)
                (sub f32 0 1)
                (exp f32 2)
                (reduce sum f32 3)
                (log f32 4)
                (add f32 5 1)
                (store 1 0 6)))
    """)

    def logsumexp(row: Array) -> Array:
        base = shift(row)
        return np.asarray([np.log(np.exp(row - base).sum()) + base], np.float32)

    problem = problem_of(kernel, logsumexp, {"k0": 40})
    assert (problem == "") == is_right
    assert is_right or "numbers far apart" in problem


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("sqrt", np.sqrt),
        ("rsqrt", lambda x: np.float32(1) / np.sqrt(x)),
        ("reciprocal", lambda x: np.float32(1) / x),
    ],
)
def test_a_root_has_the_error_of_the_sum_that_it_is_of(
    name: str, function: Callable[[Array], Array]
) -> None:
    """A norm whose epsilon is drawn, too, may take the root of next to nothing."""
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (in f32) (out f32))
          (body (load 0 p0)
                (mul f32 0 0)
                (load 1 p0)
                (mul f32 2 2)
                (sub f32 1 3)
                ({name} f32 4)
                (store 2 p0 5)))
    """)
    made = make_reference(kernel, sizes_at(kernel, {"k0": 200_000}), seed=(1,))
    x, y = (whole_of(each).astype(np.float32) for each in made.inputs if each is not None)
    ((expected,),) = made.slabs
    with np.errstate(invalid="ignore", divide="ignore"):
        found = function(x * x - y * y)
    errors = element_errors("f32", found, expected)
    told = element_errors("f32", found * np.float32(1.0001), expected)
    assert errors.max() <= 1
    assert np.mean(told > 1) > 0.3


@pytest.mark.parametrize(
    ("name", "function"), [("fmod", np.fmod), ("mod", np.remainder)], ids=["fmod", "mod"]
)
@pytest.mark.parametrize(
    ("factor", "is_right"), [(1.0, True), (1 + 2e-6, False)], ids=["right", "wrong"]
)
def test_a_rest_has_the_error_of_what_is_divided(
    name: str, function: Callable[[Array, Array], Array], factor: float, is_right: bool
) -> None:
    """Next to nothing is left of some of what is computed; a few digits of it are lost there."""
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out f32))
          (body (load 0 p0)
                (const f32 0x42c80000)
                (mul f32 0 1)
                (const f32 0x3e99999a)
                ({name} f32 2 3)
                (store 1 p0 4)))
    """)

    def rest(x: Array) -> Array:
        hundred, divisor = np.float32(100 * factor), np.full(1, 0.3, np.float32)
        return encode("f32", function(x.astype(np.float32) * hundred, divisor))

    for seed in range(6):
        problem = problem_of(kernel, rest, {"k0": 5000}, seed=seed)
        assert (problem == "") == is_right, problem


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (1.01, False)])
def test_a_rest_of_what_is_rounded_is_that_of_what_it_was_rounded_to(
    factor: float, is_right: bool
) -> None:
    """Three times x leaves nothing, or nearly all of x where its f16 is a little less."""
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f16) (out f16))
          (body (load 0 p0)
                (cast f32 0)
                (const f32 0x40400000)
                (mul f32 1 2)
                (cast f16 3)
                (cast f32 4)
                (fmod f32 5 1)
                (cast f16 6)
                (store 1 p0 7)))
    """)

    def rest(elements: Array) -> Array:
        x = decode("f16", elements).astype(np.float32)
        rounded = (x * 3).astype(np.float16).astype(np.float32)
        return encode("f16", np.fmod(rounded, x * np.float32(factor)).astype(np.float64))

    problem = problem_of(kernel, rest, {"k0": 300})
    assert (problem == "") == is_right, problem


def test_a_rest_has_the_error_of_its_divisor_for_each_time_that_it_fits() -> None:
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (in f32) (out f32))
          (body (load 0 p0)
                (load 1 p0)
                (exp f32 1)
                (fmod f32 0 2)
                (store 2 p0 3)))
    """)
    made = make_reference(kernel, sizes_at(kernel, {"k0": 200_000}), seed=(1,))
    x, y = (whole_of(each).astype(np.float32) for each in made.inputs if each is not None)
    ((expected,),) = made.slabs
    errors = element_errors("f32", np.fmod(x, np.exp(y)), expected)
    told = element_errors("f32", np.fmod(x, np.exp(y) * np.float32(1.0001)), expected)
    assert np.mean(errors > 1) < 1e-4  # next to a whole quotient a digit more is one less
    assert np.mean((told > 1)[np.abs(x) > np.exp(y)]) > 0.9


@pytest.mark.parametrize("length", [300, 20_011])
def test_products_have_one_answer_in_whatever_order_they_are_made(length: int) -> None:
    """Of factors far from 1 those of many are 0 in f32, and with an infinity NaN, or infinite."""
    kernel = parse_kernel("""
        (kernel (symbols k0 k1) (pointwise k0) (reduction k1)
          (params (in f32) (out f32))
          (body (load 0 (+ (* k1 p0) r0))
                (reduce prod f32 0)
                (store 1 p0 1)))
    """)
    sizes = sizes_at(kernel, {"k0": 2, "k1": length})
    numbers = 0
    for seed in range(20):
        reference = make_reference(
            kernel, sizes, seed=(seed,), draw="special" if seed else "normal"
        )
        (stored, _), ((expected,),) = reference.inputs, reference.slabs
        assert stored is not None
        factors = decode("f32", whole_of(stored)).astype(np.float32).reshape(2, length)
        for each in (factors, factors[:, ::-1]):
            with np.errstate(invalid="ignore"):
                found = np.multiply.accumulate(each, axis=1, dtype=np.float32)[:, -1]
            assert element_errors("f32", found, expected).max() <= 1
        numbers += int(np.isfinite(expected.values).sum())
    assert numbers >= 2


@pytest.mark.parametrize("kind", ["sum", "prod"])
def test_terms_that_leave_the_range_in_some_order_are_told(kind: str) -> None:
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction 3)
          (params (in f32) (out f32))
          (body (load 0 (+ (* 3 p0) r0))
                (reduce {kind} f32 0)
                (store 1 p0 1)))
    """)
    rows = np.array([[3e38, 3e38, -3e38], [1e-30, 1e-30, 1e30], [1, 2, 3], [np.inf, 1, 2]])
    (found,) = interpret_within_range(kernel, {"k0": 4}, [rows.ravel(), np.zeros(0)])
    beyond = {"sum": [True, False, False, False], "prod": [True, True, False, False]}
    assert np.isnan(found.values).tolist() == beyond[kind]


ROUNDED_EXPONENTS = parse_kernel("""
    (kernel (symbols k0) (pointwise) (reduction k0)
      (params (in bf16) (out bf16))
      (body (load 0 r0)
            (cast f32 0)
            (const f32 0x3f99999a)
            (mul f32 1 2)
            (cast bf16 3)
            (cast f32 4)
            (reduce max f32 5)
            (sub f32 5 6)
            (exp f32 7)
            (reduce sum f32 8)
            (div f32 8 9)
            (cast bf16 10)
            (store 1 r0 11)))
""")
"""softmax(1.2 * x), the product rounded to bf16: near 1000, a difference of two is off by 8."""


def softmax_of_rounded(elements: Array, *, digits: int = 8, largest: Any = np.max) -> Array:
    products = (decode("bf16", elements).astype(np.float32) * np.float32(1.2)).astype(np.float64)
    mantissas, exponents = np.frexp(products)
    rounded = np.ldexp(np.round(np.ldexp(mantissas, digits)), exponents - digits)
    powers = np.exp((rounded - largest(rounded)).astype(np.float32))
    return encode("bf16", (powers / powers.sum(dtype=np.float32)).astype(np.float64))


@pytest.mark.parametrize("seed", range(6))
def test_powers_of_rounded_exponents_are_off_by_powers(seed: int) -> None:
    """Numbers far apart, as DeBERTa's masked softmax has them in bf16."""
    assert problem_of(ROUNDED_EXPONENTS, softmax_of_rounded, {"k0": 300}, seed=seed) == ""


@pytest.mark.parametrize("wrong", [{"digits": 5}, {"largest": lambda row: row[0]}])
def test_what_is_rounded_more_or_not_shifted_is_wrong(wrong: dict[str, Any]) -> None:
    assert problem_of(ROUNDED_EXPONENTS, partial(softmax_of_rounded, **wrong), {"k0": 300})


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize(("name", "least"), [("f16", 2.0**-14), ("f8e4m3fn", 2.0**-6)])
def test_small_numbers_lose_digits_on_their_way_through_few_bits(
    name: str, least: float, is_flushed: bool
) -> None:
    """x / 1024 in few bits, times 1024: below the smallest normal number there are fewer yet."""
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out f32))
          (body (load 0 p0)
                (const f32 0x3a800000)
                (mul f32 0 1)
                (cast {name} 2)
                (cast f32 3)
                (const f32 0x44800000)
                (mul f32 4 5)
                (store 1 p0 6)))
    """)

    def through(x: Array) -> Array:
        small = decode(name, encode(name, decode("f32", x) / 1024))
        return encode("f32", np.where(is_flushed & (np.abs(small) < least), 0.0, small) * 1024)

    assert (problem_of(kernel, through, {"k0": 20_000}) == "") != is_flushed


@pytest.mark.parametrize("name", ["f16", "f8e4m3fn", "f8e5m2"])
@pytest.mark.parametrize("is_lost", [True, False])
def test_what_few_bits_lose_of_a_number_may_be_all_of_it(name: str, is_lost: bool) -> None:
    """(1e-9 * x) in few bits, times another x: of infinity it is NaN, for there is nothing left."""
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out f32))
          (body (load 0 p0)
                (const f32 0x3089705f)
                (mul f32 0 1)
                (cast {name} 2)
                (cast f32 3)
                (load 0 (+ (* -1 p0) k0 -1))
                (mul f32 4 5)
                (store 1 p0 6)))
    """)

    def through(stored: Array) -> Array:
        x = decode("f32", stored)
        small = x * np.float32(1e-9)
        few = decode(name, encode(name, small if is_lost else x))
        return encode("f32", few * x[::-1])

    assert (problem_of(kernel, through) == "") == is_lost


@pytest.mark.parametrize("is_wrong", [False, True])
def test_what_cancels_may_be_zero_and_make_nan_of_an_infinity(is_wrong: bool) -> None:
    """(1 + x - 1) of a small x, times another: in f32 nothing is left of 1e-9 beside 1."""
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out f32))
          (body (load 0 p0)
                (const f32 0x3089705f)
                (mul f32 0 1)
                (const f32 0x3f800000)
                (add f32 2 3)
                (sub f32 4 3)
                (load 0 (+ (* -1 p0) k0 -1))
                (mul f32 5 6)
                (store 1 p0 7)))
    """)

    def left(stored: Array) -> Array:
        x = decode("f32", stored).astype(np.float32)
        small = np.float32(1) + x * np.float32(1e-9) - np.float32(1)
        return encode("f32", (x if is_wrong else small) * x[::-1])

    assert (problem_of(kernel, left) == "") != is_wrong


@pytest.mark.parametrize("is_wrong", [False, True])
def test_the_least_numbers_may_become_zero_on_their_way(is_wrong: bool) -> None:
    """log of (1e-6 * x) in bf16: of the smallest x, as some cases have it, nothing is left."""
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out f32))
          (body (load 0 p0)
                (const f32 0x358637bd)
                (mul f32 0 1)
                (cast bf16 2)
                (cast f32 3)
                (log f32 4)
                (store 1 p0 5)))
    """)

    def logarithms(stored: Array) -> Array:
        few = decode("bf16", encode("bf16", decode("f32", stored) * np.float32(1e-6)))
        return encode("f32", np.log(np.where(few > 1e-7, 0.0, few) if is_wrong else few))

    assert (problem_of(kernel, logarithms, {"k0": 5000}) == "") != is_wrong


@pytest.mark.parametrize("columns", [37, 400])
@pytest.mark.parametrize("is_wrong", [False, True])
def test_what_is_too_large_on_the_way_is_no_mistake_and_what_a_bound_holds_is_known(
    columns: int, is_wrong: bool
) -> None:
    """exp(s) * min(exp(-s), 1e4) + x with sums s of up to some hundred: powers pass f32 and f64."""
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction {columns})
          (params (in f32) (out f32))
          (body (load 0 (+ (* {columns} p0) r0))
                (const f32 0x42480000)
                (mul f32 0 1)
                (scan sum f32 2)
                (exp f32 3)
                (neg f32 3)
                (exp f32 5)
                (const f32 0x461c4000)
                (min f32 6 7)
                (mul f32 4 8)
                (add f32 0 9)
                (store 1 (+ (* {columns} p0) r0) 10)))
    """)

    def bounded(stored: Array) -> Array:
        x = decode("f32", stored).astype(np.float32).reshape(-1, columns)
        total = np.cumsum(x * np.float32(50), axis=1, dtype=np.float32)
        power = np.exp(total) * np.minimum(np.exp(-total), np.float32(1e4))
        # Where the bound holds and the power is next to nothing, x is left.
        off = np.where(total < -60, np.float32(1e-3), 0) if is_wrong else np.float32(0)
        return encode("f32", x * (1 + off) + power)

    assert (problem_of(kernel, bounded, {"k0": 40}) == "") != is_wrong


@pytest.mark.parametrize("bits", [0x3F801062, 0x3F80C49C])
@pytest.mark.parametrize("lost", [0.0, 0.2])
def test_what_rounding_moves_across_zero_has_the_root_that_eager_has(
    bits: int, lost: float
) -> None:
    """Of a product in few bits less 1.0005, or 1.006: 1.0012 becomes 1, and 1.0055 is 1.0078."""
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in bf16) (out f32))
          (body (load 0 p0)
                (cast f32 0)
                (const f32 0x3f8ccccd)
                (mul f32 1 2)
                (cast bf16 3)
                (cast f32 4)
                (const f32 {bits:#x})
                (sub f32 5 6)
                (sqrt f32 7)
                (store 1 p0 8)))
    """)

    def root(x: Array) -> Array:
        """NaN also for what is less than `lost`."""
        product = encode("bf16", np.float32(1.1) * decode("bf16", x).astype(np.float32))
        found = np.sqrt(decode("bf16", product).astype(np.float32) - np.uint32(bits).view("f4"))
        return np.where(found < lost, np.float32(np.nan), found)

    assert (problem_of(kernel, root, {"k0": 1 << 16}) == "") == (lost == 0.0)


@pytest.mark.parametrize("name", ["bf16", "f8e4m3fn"])
@pytest.mark.parametrize("factor", [1.1, 1.2])
def test_what_rounding_moves_across_a_limit_is_compared_as_eager_does(
    name: str, factor: float
) -> None:
    """2.0 if the rounded product is more than 1.001, else x: with another factor that is wrong."""
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in bf16) (out f32))
          (body (load 0 p0)
                (cast f32 0)
                (const f32 0x3f8ccccd)
                (mul f32 1 2)
                (cast {name} 3)
                (cast f32 4)
                (const f32 0x3f8020c5)
                (gt bool 5 6)
                (const f32 0x40000000)
                (where f32 7 8 1)
                (store 1 p0 9)))
    """)

    def limited(x: Array) -> Array:
        given = decode("bf16", x).astype(np.float32)
        product = decode(name, encode(name, np.float32(factor) * given))
        return np.where(product > 1.001, np.float32(2.0), given)

    assert (problem_of(kernel, limited, {"k0": 1 << 16}) == "") == (factor == 1.1)
