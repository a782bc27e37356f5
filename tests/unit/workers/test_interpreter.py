"""The float64 interpreter against torch and against hand-computed answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_daemon.workers.interpreter import Casts, SpaceTooLargeError, interpret
from nearhint_daemon.workers.reference_ops import OPERATIONS, constant_value, erf
from nearhint_daemon.workers.tolerance import (
    FACTOR,
    PRECISIONS,
    ROUNDINGS,
    arithmetic_of,
    errors_in_tolerances,
    tolerances,
)
from nearhint_rules import expr as ex

P0, R0, K0 = ex.symbol("p0"), ex.symbol("r0"), ex.symbol("k0")
ROW = ex.add(ex.mul(38, P0), R0)


def softmax_kernel() -> ir.Kernel:
    return ir.Kernel(
        symbols=("k0",),
        pointwise=(K0,),
        reduction=(ex.Int(38),),
        params=(ir.Param("in", "f32"), ir.Param("out", "f32"), ir.Param("out", "f32")),
        body=(
            ir.Load(0, ROW),
            ir.Reduce("max", "f32", 0),
            ir.Op("sub", "f32", (0, 1)),
            ir.Op("exp", "f32", (2,)),
            ir.Reduce("sum", "f32", 3),
            ir.Op("div", "f32", (3, 4)),
            ir.Store(1, ROW, 5),
            ir.Store(2, P0, 1),
        ),
    )


def test_every_op_of_the_ir_has_a_row() -> None:
    assert set(OPERATIONS) | {"cast"} == set(ir.OPS)


def test_softmax_with_a_per_row_output_matches_numpy() -> None:
    x = np.random.default_rng(0).normal(size=5 * 38).astype(np.float32)
    probabilities, maxima = interpret(softmax_kernel(), {"k0": 5}, [x])
    rows = x.reshape(5, 38).astype(np.float64)
    wanted = np.exp(rows - rows.max(1, keepdims=True))
    wanted /= wanted.sum(1, keepdims=True)
    written = np.full(x.size, np.nan)
    written[probabilities.indices] = probabilities.values
    np.testing.assert_allclose(written, wanted.ravel(), rtol=1e-14)
    assert maxima.indices.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(maxima.values, rows.max(1))


def test_a_nan_reaches_its_own_row_and_no_other() -> None:
    x = np.zeros(2 * 38, np.float32)
    x[3] = np.nan
    probabilities, maxima = interpret(softmax_kernel(), {"k0": 2}, [x])
    assert np.isnan(probabilities.values[:38]).all()
    assert not np.isnan(probabilities.values[38:]).any()
    assert np.isnan(maxima.values).tolist() == [True, False]


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_what_follows_a_sum_near_zero_is_judged_against_its_terms_too(name: str) -> None:
    kernel = ir.Kernel(
        ("k0",),
        (K0,),
        (),
        (ir.Param("in", "f32"), ir.Param("in", "f32"), ir.Param("out", "f32")),
        (
            ir.Load(0, P0),
            ir.Load(1, P0),
            ir.Op("add", "f32", (0, 1)),
            ir.Op(name, "f32", (2,)),
            ir.Store(2, P0, 3),
        ),
    )
    terms = np.array([1.0, 1.0, 20.0], np.float32), np.array([-0.9999, -1.0, 20.0], np.float32)
    (found,) = interpret(kernel, {"k0": 3}, list(terms))
    near, at, far = found.magnitudes.tolist()
    assert 0.9 < near < 1.2  # the result itself is 1e-4
    assert at == 1.0
    assert far == 1.0


def test_a_quotient_is_judged_by_the_terms_of_a_divisor_that_cancelled() -> None:
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (in f32) (out f32))
          (body (load 0 p0) (load 1 p0) (add f32 0 1) (div f32 0 2) (store 2 p0 3)))
    """)
    terms = np.array([1.0, 1.0], np.float32), np.array([-0.75, 1.0], np.float32)
    (found,) = interpret(kernel, {"k0": 2}, list(terms))
    assert found.values.tolist() == [4.0, 0.5]
    assert found.magnitudes.tolist() == [16.0, 0.5]


@pytest.mark.parametrize(
    ("nodes", "result", "values"),
    [
        ("(reduce min i32 1)", "i32", 3),
        ("(reduce prod i32 1)", "i32", 3),
        ("(arg max i32 1 r0)", "i64", 3),
        ("(const i32 0x7) (lt bool 1 2) (reduce any bool 3)", "bool", 5),
        ("(const i32 0x7) (lt bool 1 2) (where i32 3 1 2) (reduce max i32 4)", "i32", 6),
        ("(cast i64 1) (gather 1 0 1 5 2) (reduce max i32 3)", "i32", 5),
        ("(scan prod i32 1) (reduce max i32 2)", "i32", 4),
    ],
)
def test_what_is_made_of_an_integer_that_may_be_any_may_be_anything(
    nodes: str, result: str, values: int
) -> None:
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction 2)
          (params (in f32) (in i32) (out {result}))
          (body (load 0 (+ (* 2 p0) r0)) (cast i32 0) {nodes} (store 2 p0 {values - 1})))
    """)
    rows = np.array([[1.0, math.nan], [-math.inf, 2.0], [3e9, 2.0], [1.0, 2.0]], np.float32)
    (found,) = interpret(kernel, {"k0": 4}, [rows.ravel(), np.arange(5, dtype=np.int32)])
    assert np.isinf(found.magnitudes).tolist() == [True, True, True, False]


def test_a_comparison_of_what_may_be_flushed_may_be_either_and_choose_either() -> None:
    """softmax(x) > 0: of 200 less than the largest, exp is 0 in f32, and 1e-87 in f64."""
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out bool) (out f32) (out f32) (out bool))
          (body (load 0 p0) (exp f32 0) (const f32 0x0) (gt bool 1 2) (store 1 p0 3)
            (const f32 0x40000000) (where f32 3 5 2) (store 2 p0 6) (where f32 3 1 1)
            (store 3 p0 8) (gt bool 0 2) (store 4 p0 10)))
    """)
    x = np.array([-200.0, -2.0], np.float32)
    positive, chosen, same, given = interpret(kernel, {"k0": 2}, [x])
    assert positive.magnitudes.tolist() == [math.inf, 1.0]
    arithmetic = arithmetic_of(kernel, terms=1)
    assert chosen.magnitudes[0] * arithmetic.relative == pytest.approx(2.0)
    assert chosen.magnitudes[1] == 2.0
    assert same.magnitudes[0] < 1e-30
    assert given.magnitudes.tolist() == [0.0, 0.0]


def test_no_infinity_is_zero() -> None:
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out bool))
          (body (load 0 p0) (cast bool 0) (store 1 p0 1)))
    """)
    (found,) = interpret(kernel, {"k0": 2}, [np.array([math.inf, 0.0], np.float32)])
    assert found.magnitudes.tolist() == [1.0, 0.0]


def test_a_quotient_of_what_may_be_any_integer_may_be_any_number() -> None:
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out f32))
          (body (load 0 p0) (cast i64 0) (cast f32 1) (const f32 0x40000000) (div f32 2 3)
            (store 1 p0 4)))
    """)
    (found,) = interpret(kernel, {"k0": 3}, [np.array([math.nan, math.inf, 6.5], np.float32)])
    assert found.magnitudes.tolist() == [math.inf, math.inf, 3.25]


def test_each_operation_rounds_where_that_is_asked() -> None:
    """log(16) is a little more in f32, where log(2) over it is a quarter all the same."""
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out i64))
          (body (load 0 p0) (log f32 0) (const f32 0x40317218) (div f32 1 2) (const f32 0x41000000)
            (mul f32 3 4) (cast i64 5) (store 1 p0 6)))
    """)
    given = [np.array([2.0, 4.0, 15.0], np.float32)]
    (exact,) = interpret(kernel, {"k0": 3}, given, casts=Casts.ROUND_GIVEN)
    (each,) = interpret(kernel, {"k0": 3}, given, casts=Casts.ROUND_EACH)
    assert exact.values.tolist() == [1, 3, 7]
    assert each.values.tolist() == [2, 4, 7]


@pytest.mark.parametrize(
    ("name", "rounded"),
    [("f8e4m3fn", [2.5, 7.0]), ("f8e5m2", [2.5, 7.0]), ("bf16", [2.4375, 6.8125])],
)
def test_what_was_computed_keeps_the_bits_that_its_dtype_has(
    name: str, rounded: list[float]
) -> None:
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out f32))
          (body (load 0 p0) (add f32 0 0) (cast {name} 1) (cast f32 2) (store 1 p0 3)))
    """)
    given = [np.array([1.22, 3.405], np.float32)]
    (exact,) = interpret(kernel, {"k0": 2}, given, casts=Casts.ROUND_GIVEN)
    (each,) = interpret(kernel, {"k0": 2}, given, casts=Casts.ROUND_EACH)
    assert exact.values.tolist() == pytest.approx([2.44, 6.81])
    assert each.values.tolist() == rounded


def test_a_sine_is_judged_against_a_sum_that_cancelled_and_else_by_itself() -> None:
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (in f32) (out f32) (out f32))
          (body (load 0 p0) (load 1 p0) (add f32 0 1) (sin f32 2) (store 2 p0 3)
            (sin f32 0) (store 3 p0 5)))
    """)
    terms = np.array([100.0, 3.0], np.float32), np.array([-99.999, 0.14159265], np.float32)
    summed, alone = interpret(kernel, {"k0": 2}, list(terms))
    near_zero, at_half_a_turn = summed.magnitudes.tolist()
    assert near_zero == pytest.approx(100.0)  # the result is 1e-3
    assert at_half_a_turn < 3.2
    assert alone.magnitudes.tolist() == pytest.approx(np.abs(np.sin(terms[0])).tolist())


def test_a_sine_of_a_product_is_judged_by_the_products_rounding() -> None:
    """An f32 angle of 1000 is right to 6e-5, whatever its sine is."""
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in i64) (in f32) (out f32) (out f32))
          (body (load 0 p0) (cast f32 0) (load 1 p0) (mul f32 1 2) (cos f32 3) (store 2 p0 4)
            (cos f32 1) (store 3 p0 6)))
    """)
    places, steps = np.array([2000, 1000]), np.array([np.pi / 4, 1.0], np.float32)
    product, alone = interpret(kernel, {"k0": 2}, [places, steps])
    at_its_top, on_its_slope = product.magnitudes.tolist()
    assert at_its_top == pytest.approx(1.0, abs=0.1)
    assert on_its_slope == pytest.approx(1000 * np.abs(np.sin(1000.0)))
    assert alone.magnitudes.tolist() == pytest.approx(np.abs(np.cos([2000.0, 1000.0])).tolist())


def test_an_exponential_is_judged_by_the_roundings_of_a_large_exponent() -> None:
    """A sum of terms near 100 is right to 2^-18, and so is the exponential of it, relatively."""
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (in f32) (out f32) (out f32))
          (body (load 0 p0) (load 1 p0) (sub f32 0 1) (exp f32 2) (store 2 p0 3)
            (exp f32 1) (store 3 p0 5)))
    """)
    terms = np.array([20.0, 4.0], np.float32), np.array([96.0, 3.0], np.float32)
    computed, given = interpret(kernel, {"k0": 2}, list(terms))
    far, near = (computed.magnitudes / computed.values).tolist()
    arithmetic = arithmetic_of(kernel, terms=1)
    error = 96.0 * arithmetic.few(0)
    assert far * arithmetic.relative == pytest.approx(np.expm1(error))
    assert far == pytest.approx(96.0 * ROUNDINGS / FACTOR, rel=error)
    assert near == 1.0
    assert (given.magnitudes / given.values).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("exponent", "roundings"),
    [
        ("(cast bf16 2) (cast f32 3)", 1),
        # Both of a difference, and the larger of what is chosen from.
        ("(cast bf16 2) (cast f32 3) (mul f32 1 1) (cast bf16 5) (cast f32 6) (sub f32 4 7)", 2),
        ("(cast bf16 2) (cast f32 3) (mul f32 1 1) (cast bf16 5) (cast f32 6) (max f32 4 7)", 1),
        # What is given is rounded in the reference, too.
        ("(cast bf16 0) (cast f32 3) (add f32 2 2)", 0),
    ],
)
def test_an_exponential_is_off_by_a_power_of_what_was_rounded(
    exponent: str, roundings: int
) -> None:
    last = 2 + exponent.count("(")
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out bf16))
          (body (load 0 p0) (const f32 0x40000000) (mul f32 0 1) {exponent} (exp f32 {last})
            (cast bf16 {last + 1}) (cast f32 {last + 2}) (cast bf16 {last + 3})
            (store 1 p0 {last + 4})))
    """)
    (found,) = interpret(kernel, {"k0": 1}, [np.array([150.0], np.float32)])
    arithmetic = arithmetic_of(kernel, terms=1)
    terms = 600.0 if "(add" in exponent else 300.0
    error = terms * arithmetic.few(roundings)
    assert arithmetic.few(roundings) - arithmetic.few(0) == pytest.approx(roundings * 2.0**-8)
    assert arithmetic.few(1000) <= arithmetic.relative
    least = found.values * arithmetic.relative
    allowed = found.magnitudes * arithmetic.relative
    assert allowed == pytest.approx(max(float(found.values[0] * np.expm1(error)), least[0]))


@pytest.mark.parametrize(("name", "base"), [("log", 0.0), ("log2", 0.0), ("log1p", 1.0)])
def test_a_logarithm_near_zero_is_judged_by_the_roundings_of_what_it_is_of(
    name: str, base: float
) -> None:
    """A mean that is nearly 1 is right to 1e-7, and so is its logarithm, small as that is."""
    kernel = parse_kernel(f"""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (in f32) (out f32) (out f32))
          (body (load 0 p0) (load 1 p0) (add f32 0 1) ({name} f32 2) (store 2 p0 3)
            ({name} f32 1) (store 3 p0 5)))
    """)
    ones = np.array([1.0, 1.0], np.float32) - np.float32(base)
    terms = ones + np.float32(6.0), np.array([-5.999, 1e6], np.float32)
    computed, _ = interpret(kernel, {"k0": 2}, list(terms))
    near, far = computed.magnitudes.tolist()
    assert near == pytest.approx(abs(terms[0][0]) * ROUNDINGS / FACTOR, rel=0.01)
    assert far == computed.values[1]
    _, given = interpret(kernel, {"k0": 2}, [terms[0], ones + np.float32(1.001)])
    assert given.magnitudes.tolist() == given.values.tolist()


def test_casts_round_what_a_kernel_is_given_where_binaries_are_judged() -> None:
    """A comparison with a rounded number is exact; what was computed before is not rounded."""
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f16) (scalar f64) (out bool) (out f32))
          (body (load 0 p0) (cast f32 0) (scalar 1) (cast f32 2) (cast f16 3) (cast f32 4)
            (eq bool 1 5) (store 2 p0 6) (mul f32 1 5) (cast bf16 8) (cast f32 9) (store 3 p0 10)))
    """)
    x = np.array([0.1, 0.2], np.float16)
    given = [x, np.array(0.1)]
    equal, product = interpret(kernel, {"k0": 2}, given, casts=Casts.ROUND_GIVEN)
    assert equal.values.tolist() == [True, False]
    assert product.values.tolist() == [float(each) * float(x[0]) for each in x]
    assert not interpret(kernel, {"k0": 2}, given)[0].values.any()


def test_distances_between_places_round_as_what_is_given() -> None:
    """As ALiBi has them in bf16: 257 places are 256, and 40 times that is no 40 times 257."""
    kernel = parse_kernel(
        "(kernel (symbols k0) (pointwise k0) (reduction) (params (in bf16) (out f32))"
        " (body (iota p0) (iota 0) (sub i64 1 0) (abs i64 2) (cast f32 3) (cast bf16 4)"
        " (cast f32 5) (load 0 0) (cast f32 7) (mul f32 6 8) (store 1 p0 9)))"
    )
    given = [np.array([40.0])]
    (exact,) = interpret(kernel, {"k0": 260}, given)
    (rounded,) = interpret(kernel, {"k0": 260}, given, casts=Casts.ROUND_GIVEN)
    assert exact.values[255:260].tolist() == [10200.0, 10240.0, 10280.0, 10320.0, 10360.0]
    assert rounded.values[255:260].tolist() == [10200.0, 10240.0, 10240.0, 10320.0, 10400.0]


def test_what_is_below_the_smallest_normal_number_may_be_zero_for_what_multiplies_it() -> None:
    """As eager's silu: sigmoid(-90) is 0 in f32, -90 times the true one is -7e-38."""
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out f32))
          (body (load 0 p0) (sigmoid f32 0) (mul f32 0 1) (store 1 p0 2)))
    """)
    x = np.array([-90.0, -80.0], np.float32)
    (found,) = interpret(kernel, {"k0": 2}, [x])
    precision, arithmetic = PRECISIONS["f32"], arithmetic_of(kernel, terms=1)
    allowed = tolerances(found.values, found.magnitudes, output=precision, arithmetic=arithmetic)
    assert allowed[0] > np.abs(found.values[0]) > precision.least
    assert allowed[1] < 1e-4 * np.abs(found.values[1])


def test_a_sum_is_judged_against_the_magnitude_of_its_terms() -> None:
    kernel = ir.Kernel(
        ("k0",),
        (),
        (K0,),
        (ir.Param("in", "f32"), ir.Param("out", "f32")),
        (ir.Load(0, R0), ir.Reduce("sum", "f32", 0), ir.Store(1, ex.ZERO, 1)),
    )
    (total,) = interpret(kernel, {"k0": 4}, [np.array([1e8, -1e8, 1.0, -1.0], np.float32)])
    assert total.values.tolist() == [0.0]
    assert total.magnitudes.tolist() == [2e8 + 2]


def test_a_load_outside_its_storage_is_an_error() -> None:
    with pytest.raises(IndexError, match="parameter 0"):
        interpret(softmax_kernel(), {"k0": 5}, [np.zeros(5 * 38 - 1, np.float32)])


def test_a_space_past_the_limit_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(SpaceTooLargeError):
        interpret(softmax_kernel(), {"k0": 1 << 40}, [np.zeros(1, np.float32)])


@pytest.mark.parametrize(
    ("dtype", "bits", "value"),
    [
        ("f32", 0x3F800000, 1.0),
        ("f64", 0x8000000000000000, -0.0),
        ("bf16", 0x3FC0, 1.5),
        ("f16", 0x3E00, 1.5),
        ("i8", 0xFF, -1),
        ("i64", 0xFFFFFFFFFFFFFFFE, -2),
        ("u8", 0xFF, 255),
        ("bool", 1, True),
    ],
)
def test_constants_are_read_from_their_bits(dtype: str, bits: int, value: float) -> None:
    found = constant_value(dtype, bits)
    assert found == value
    assert math.copysign(1.0, found) == math.copysign(1.0, value)


def test_floor_modulus_and_truncated_division_follow_torch() -> None:
    torch = pytest.importorskip("torch")
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    left = np.array([7, -7, 7, -7, 0, least, least, least, most, 7, least, 1], np.int64)
    right = np.array([2, 2, -2, -2, 3, 7, -7, 1, -7, least, least, -2], np.int64)
    a, b = torch.from_numpy(left), torch.from_numpy(right)
    pairs = {
        "floordiv": torch.div(a, b, rounding_mode="floor"),
        "truncdiv": torch.div(a, b, rounding_mode="trunc"),
        "mod": torch.remainder(a, b),
        "fmod": torch.fmod(a, b),
    }
    for name, wanted in pairs.items():
        np.testing.assert_array_equal(OPERATIONS[name](left, right), wanted.numpy(), name)


def test_a_remainder_of_zero_has_the_sign_of_what_was_divided() -> None:
    torch = pytest.importorskip("torch")
    numbers = np.array([0.0, -0.0, 2.0, -2.0, 6.5, -6.5, 1e300, np.inf, -np.inf, np.nan])
    left, right = np.meshgrid(numbers, numbers)
    with np.errstate(invalid="ignore"):
        found = torch.from_numpy(OPERATIONS["mod"](left, right))
    wanted = torch.remainder(torch.from_numpy(left), torch.from_numpy(right))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    zeros = wanted == 0
    assert torch.equal(torch.signbit(found)[zeros], torch.signbit(wanted)[zeros])


def test_a_power_by_one_half_for_all_is_no_root() -> None:
    """As in C, where roots of what is not positive are others."""
    bases = np.array([-np.inf, -0.0])
    np.testing.assert_array_equal(OPERATIONS["pow"](bases, np.array([0.5])), [np.inf, 0.0])
    np.testing.assert_array_equal(OPERATIONS["pow"](bases[:1], np.array([0.5])), [np.inf])
    assert not np.signbit(OPERATIONS["pow"](bases, np.array([0.5]))).any()


@pytest.mark.parametrize(
    "other", [(math.nan, math.nan), (math.nan, 1.0), (9.0, 1.0), (math.inf, 2e9)]
)
def test_an_elements_error_does_not_hang_on_what_others_are(other: tuple[float, float]) -> None:
    right = [(1.0, 1.0), (1.5, 1.0), (0.0, -0.0), (-1.0, -1.25), (2.0, 1.0)]
    found = []
    for pairs in (right, [*right, other]):
        actual, reference = np.array(pairs).T
        errors = errors_in_tolerances(actual, reference, np.ones(len(pairs)), largest=1e9)
        found.append(list(errors[: len(right)]))
    assert found[0] == found[1] == [0, 0.5, 0, 0.25, 1]


TRUNCATED = parse_kernel("""
    (kernel (symbols k0) (pointwise k0) (reduction)
      (params (in f32) (out f32) (out f64))
      (body (load 0 p0)
            (const f32 0x3dcccccd)
            (truncdiv f32 0 1)
            (store 1 p0 2)
            (cast f64 0)
            (cast f64 1)
            (truncdiv f64 4 5)
            (store 2 p0 6)))
""")


def test_a_quotient_in_f32_is_rounded_before_it_is_truncated_as_eager_does() -> None:
    torch = pytest.importorskip("torch")
    given = np.array([80.0, -1.5, 0.5, 0.49, 7.0], np.float32)
    eager = torch.div(torch.from_numpy(given), 0.1, rounding_mode="trunc").numpy()
    f32, f64 = interpret(TRUNCATED, {"k0": 5}, [given], casts=Casts.ROUND_GIVEN)
    assert list(f32.values) == list(eager) == [800, -15, 5, 4, 70]
    assert list(f64.values) == [799, -14, 4, 4, 69]
    exact, _ = interpret(TRUNCATED, {"k0": 5}, [given])
    assert list(exact.values) == list(f64.values)


ROWS_AND_PLACES = parse_kernel("""
    (kernel (symbols k0 k1) (pointwise k0) (reduction k1)
      (params (in f32) (out i64) (out f32))
      (body (load 0 (+ (* k1 p0) r0))
            (arg max f32 0 r0)
            (scan sum f32 0)
            (store 1 p0 1)
            (store 2 (+ (* k1 p0) r0) 2)))
""")


def test_an_arg_is_the_first_nan_or_the_first_of_equals() -> None:
    rows = [[1, 5, math.inf, math.nan, math.nan], [1, 7, 2, 7, 0]]
    places, _ = interpret(ROWS_AND_PLACES, {"k0": 2, "k1": 5}, [np.array(rows).ravel()])
    assert places.values.tolist() == [3, 1]


def test_a_scan_has_a_value_for_each_element_and_the_magnitude_of_what_it_has_added() -> None:
    rows = np.array([[1.0, -2.0, 3.0], [4.0, 5.0, 6.0]])
    _, sums = interpret(ROWS_AND_PLACES, {"k0": 2, "k1": 3}, [rows.ravel()])
    assert sums.values.tolist() == [1, -1, 2, 4, 9, 15]
    assert sums.magnitudes.tolist() == [1, 3, 6, 4, 9, 15]


def test_what_a_choice_leaves_has_no_part_in_its_magnitude() -> None:
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in bool) (in f32) (in f32) (out f32))
          (body (load 0 p0) (load 1 p0) (load 2 p0) (where f32 0 1 2) (store 3 p0 3)))
    """)
    chosen = np.array([True, False])
    (found,) = interpret(
        kernel, {"k0": 2}, [chosen, np.array([2.0, np.nan]), np.array([np.inf, -3.0])]
    )
    assert found.magnitudes.tolist() == [2, 3]


def test_erf_is_that_of_the_c_library() -> None:
    draw = np.random.default_rng(5)
    drawn = (
        draw.standard_normal(4000),
        draw.uniform(-7, 7, 4000),
        10.0 ** draw.uniform(-300, 1, 999),
    )
    special = [0.0, -0.0, 6.0, -6.0, 5.9999, np.inf, -np.inf, 5e-324]
    values = np.concatenate((*drawn, special))
    found, wanted = erf(values), np.array([math.erf(value) for value in values])
    np.testing.assert_array_max_ulp(found, wanted, maxulp=3)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(values))
    assert np.isnan(erf(np.array([np.nan]))).all()
