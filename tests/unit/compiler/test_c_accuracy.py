"""The elementary functions of the generated C, in units in the last place of the exact value.

Samples every 1021st of all f32 bit patterns, and each pattern around the places where the methods
change. The bars: exp, sin and cos within 2 ulp, tanh and erf within 4, and what lowering composes
within what an f32's last place and half of it hide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.compiler.frontend.building import S0, Builder, tensor
from tests.unit.compiler.native import (
    MACHINE,
    PORTABLE,
    Array,
    Native,
    compile_kernel,
    target,
)

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import lower
from nearhint_compiler.schedule import parse_schedule
from nearhint_rules import expr as ex

LEVELS = {"machine": MACHINE, "portable": PORTABLE}
F64_LEVELS = {**LEVELS, "avx2": target(("avx2", "f16c", "fma"))}
STEP = 1021
AROUND = (2**-126, 1e-4, 0.0625, 0.3, 0.5, 0.625, 0.92, 1.0, 2.0, 3.8325066, 4.0, 9.0, 10.0, 17.3,
          64.0, 87.33, 88.72, 88.8, 89.41599, 103.9, 104.0,
          1.5707964, 3.1415927, 32768.0, 1048576.0)  # fmt: skip

Exact = Callable[[Array], Array]
_erf: Any = np.frompyfunc(math.erf, 1, 1)
_lgamma: Any = np.frompyfunc(math.lgamma, 1, 1)


def erf(x: Array) -> Array:
    found: Array = _erf(x).astype(np.float64)
    return found


FUNCTIONS: Mapping[str, tuple[Exact, float]] = {
    "exp": (np.exp, 2.0),
    "tanh": (np.tanh, 4.0),
    "erf": (erf, 4.0),
    "sin": (np.sin, 2.0),
    "cos": (np.cos, 2.0),
    "tan": (np.tan, 1.3),
}
"""By op: the function in f64, and the greatest error allowed in ulp."""


@cache
def arguments() -> Array:
    spread = np.arange(0, 1 << 32, STEP, dtype=np.uint64).astype(np.uint32)
    places = np.array(AROUND, np.float32).view(np.uint32)
    near = (places[:, None] + np.arange(-300, 300, dtype=np.int64)).astype(np.uint32).ravel()
    bits = np.concatenate([spread, near, near | np.uint32(1 << 31)])
    values = bits.view(np.float32)
    return np.ascontiguousarray(values[np.isfinite(values)])


def errors_in_ulp(got: Array, exact: Array) -> Array:
    """|got - exact| over the distance of the f32 numbers at `exact`; denormals have the least."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        _, exponent = np.frexp(np.where(np.isfinite(exact), exact, 1.0))
        unit = np.ldexp(1.0, np.maximum(exponent - 24, -149))
        error = np.abs(got.astype(np.float64) - exact) / unit
    # Where the exact value rounds to infinity, infinity is right.
    return np.where(np.isinf(rounded) & (got == rounded), 0.0, error)


def compiled(op: str, level: str, lanes: int, folder: Path, *, dtype: str = "f32") -> Native:
    index, arity = ex.symbol("p0"), ir.OPS[op].arity
    places = tuple(range(arity))
    params = (*[ir.Param("in", dtype)] * arity, ir.Param("out", dtype))
    body: list[ir.BodyNode] = [ir.Load(place, index) for place in places]
    body += [ir.Op(op, dtype, places), ir.Store(arity, index, arity)]
    kernel = ir.Kernel(("k0",), (ex.symbol("k0"),), (), params, tuple(body))
    schedule = parse_schedule(f"cpu.pointwise axis=0 lanes={lanes} unroll=1 block=64")
    return compile_kernel(kernel, schedule, folder, at=F64_LEVELS[level])


@cache
def exact_values(op: str) -> Array:
    """Of all `arguments`: the same whatever computes them."""
    with np.errstate(all="ignore"):
        return FUNCTIONS[op][0](arguments().astype(np.float64))


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_elementary_functions_are_accurate(op: str, level: str, lanes: int, tmp_path: Path) -> None:
    bar = FUNCTIONS[op][1]
    x = arguments()
    got = np.zeros_like(x)
    compiled(op, level, lanes, tmp_path).run((x.size,), [x, got])
    errors = errors_in_ulp(got, exact_values(op))
    worst = int(np.argmax(errors))
    assert not np.isnan(got).any()
    assert errors[worst] <= bar, f"{op}({x[worst]!r}) = {got[worst]!r}, off by {errors[worst]:.2f}"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_infinities_nan_and_the_sign_of_zero_are_as_in_the_library(
    op: str, level: str, tmp_path: Path
) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    got = np.zeros_like(x)
    compiled(op, level, 8, tmp_path).run((x.size,), [x, got])
    with np.errstate(invalid="ignore"):
        expected = FUNCTIONS[op][0](x.astype(np.float64)).astype(np.float32)
    assert np.array_equal(got, expected, equal_nan=True)
    assert (np.signbit(got) == np.signbit(expected))[~np.isnan(expected)].all()


COMPOSED: Mapping[str, tuple[Exact, float]] = {
    "atan": (np.arctan, 1.3),
    "asin": (np.arcsin, 1.3),
    "acos": (np.arccos, 1.3),
    "sinh": (np.sinh, 1.3),
    "cosh": (np.cosh, 1.3),
    "acosh": (np.arccosh, 1.45),
    "log10": (np.log10, 1.3),
    "tan": (np.tan, 1.3),
}
"""By op of torch: the function in f64, and the greatest error allowed in ulp."""
COMPOSED_OF_TWO: Mapping[str, tuple[Callable[[Array, Array], Array], float]] = {
    "atan2": (np.arctan2, 1.5),
    "hypot": (np.hypot, 1.25),
}


def lowered(op: str, arity: int, level: str, lanes: int, folder: Path) -> Native:
    """The kernel of an op that lowering writes out in others."""
    builder = Builder()
    operands = [builder.input(S0) for _ in range(arity)]
    program = builder.program(builder.call(f"aten.{op}.default", *operands, out=tensor(S0)))
    (found,) = lower(program, target_kind="cpu").kernels
    schedule = parse_schedule(f"cpu.pointwise axis=0 lanes={lanes} unroll=1 block=64")
    return compile_kernel(found.kernel, schedule, folder, at=F64_LEVELS[level])


def assert_within(bar: float, got: Array, exact: Array, *operands: Array) -> None:
    """NaN where `exact` is, infinite where it rounds to infinity, and no further off than `bar`."""
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    errors = np.where(np.isnan(exact) | (got == exact), 0.0, errors_in_ulp(got, exact))
    worst = int(np.argmax(errors))
    at = [float(each[worst]) for each in operands]
    assert errors[worst] <= bar, f"of {at}: {got[worst]!r}, off by {errors[worst]:.2f}"


WIDTHS_OF_LEVELS = [("machine", 16), ("avx2", 8), ("portable", 4)]


@pytest.mark.parametrize(("level", "lanes"), WIDTHS_OF_LEVELS)
@pytest.mark.parametrize("op", COMPOSED)
def test_composed_functions_are_accurate(op: str, level: str, lanes: int, tmp_path: Path) -> None:
    exact_of, bar = COMPOSED[op]
    random = np.random.default_rng(0)
    drawn = [random.uniform(-size, size, 100_000) for size in (1.0, 4.0, 20.0)]
    above = 1 + np.exp2(random.uniform(-23, 5, 100_000))
    x = np.concatenate([arguments(), np.concatenate([*drawn, above]).astype(np.float32)])
    got = np.zeros_like(x)
    lowered(op, 1, level, lanes, tmp_path).run((x.size,), [x, got])
    with np.errstate(all="ignore"):
        exact = exact_of(x.astype(np.float64))
    assert_within(bar, got, exact, x)


@cache
def lgamma_arguments() -> Array:
    random = np.random.default_rng(0)
    drawn = np.concatenate([random.uniform(-size, size, 50_000) for size in (1.0, 4.0, 40.0)])
    x = np.concatenate([arguments()[::4], drawn.astype(np.float32), np.arange(-9, 9)])
    return x.astype(np.float32)


@cache
def lgamma_values() -> Array:
    """Of all `lgamma_arguments`, and of one more than their sizes."""
    x = lgamma_arguments().astype(np.float64)
    return np.stack([lgamma(x), lgamma(1 + np.abs(x))])


def lgamma(x: Array) -> Array:
    """That of whole numbers below 1 is infinite."""
    is_pole = (x <= 0) & (x == np.floor(x))
    with np.errstate(over="ignore"):
        found: Array = _lgamma(np.where(is_pole, 1.0, x)).astype(np.float64)
    return np.where(is_pole, np.inf, found)


@pytest.mark.parametrize(("level", "lanes"), WIDTHS_OF_LEVELS)
def test_the_logarithm_of_gamma_is_accurate(level: str, lanes: int, tmp_path: Path) -> None:
    x = lgamma_arguments()
    got = np.zeros_like(x)
    lowered("lgamma", 1, level, lanes, tmp_path).run((x.size,), [x, got])
    exact, of_sizes = lgamma_values()
    is_above = x >= 0
    assert_within(4.5, got[is_above], exact[is_above], x[is_above])
    # Below zero it is a difference, of what is as large as its larger part.
    below = got[~is_above]
    away = np.abs(below - exact[~is_above])
    parts = np.maximum(np.abs(of_sizes[~is_above]), np.abs(exact[~is_above]))
    unit = 2.0**-23 * np.maximum(parts, 1.0)
    is_same = below == exact[~is_above].astype(np.float32)
    assert (is_same | (away <= 4.0 * unit)).all()


def test_the_logarithm_of_gamma_is_eagers_where_it_is_special(tmp_path: Path) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, 2.0, -3.0, -1e-38, 4e36], np.float32)
    got = np.zeros_like(x)
    lowered("lgamma", 1, "machine", 4, tmp_path).run((x.size,), [x, got])
    expected = torch.lgamma(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, expected, rtol=3e-7)


@cache
def couples() -> tuple[Array, Array]:
    """Of all sizes each, of nearly one size, and plain numbers; of all signs."""
    random, count = np.random.default_rng(0), 100_000

    def spread(low: int, high: int) -> Array:
        return np.ldexp(random.uniform(0.5, 1, count), random.integers(low, high, count))

    size = spread(-148, 129)
    pairs = (
        (spread(-148, 129), spread(-148, 129)),
        (size, size * np.exp2(random.uniform(-12, 12, count))),
        (random.normal(0, 1, count), random.normal(0, 1, count)),
    )
    x, y = (np.concatenate(each) for each in zip(*pairs, strict=True))
    signs = random.choice((-1, 1), (2, x.size))
    with np.errstate(over="ignore"):
        return (x * signs[0]).astype(np.float32), (y * signs[1]).astype(np.float32)


@pytest.mark.parametrize(("level", "lanes"), WIDTHS_OF_LEVELS)
@pytest.mark.parametrize("op", COMPOSED_OF_TWO)
def test_composed_functions_of_two_are_accurate(
    op: str, level: str, lanes: int, tmp_path: Path
) -> None:
    exact_of, bar = COMPOSED_OF_TWO[op]
    x, y = couples()
    got = np.zeros_like(x)
    lowered(op, 2, level, lanes, tmp_path).run((x.size,), [x, y, got])
    assert_within(bar, got, exact_of(x.astype(np.float64), y.astype(np.float64)), x, y)


F64_FUNCTIONS: Mapping[str, tuple[Exact, float]] = {
    "exp": (np.exp, 1.0),
    "exp2": (np.exp2, 1.5),
    "expm1": (np.expm1, 2.0),
    "log": (np.log, 1.0),
    "log2": (np.log2, 1.0),
    "log10": (np.log10, 1.75),
    "log1p": (np.log1p, 1.0),
    "tanh": (np.tanh, 2.5),
    "sin": (np.sin, 1.0),
    "cos": (np.cos, 1.0),
    "tan": (np.tan, 2.5),
}
"""By op: the function for any float, and the greatest error allowed in ulp."""
POSITIVE = ("log", "log2", "log10")
F64_AROUND = (
    2.0**-1022,
    1e-8,
    0.34657359,
    0.54930614,
    0.70710678,
    1.0,
    1.03972077,
    1.41421356,
    2.0,
    22.0,
    1570796.32679,
    1e6,
    1022.0,
    708.39,
    709.78,
    745.13,
)


@cache
def f64_arguments() -> Array:
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 64, 40_000, dtype=np.uint64)
    drawn = np.concatenate([bits.view(np.float64), random.normal(0, 100, 40_000)])
    spread = [random.normal(0, size, 20_000) for size in (1, 1e-3)]
    turns = random.integers(1, 600_000, 20_000) * (np.pi / 2)
    near = np.array(F64_AROUND)[:, None] * (1 + np.arange(-200, 200) * 2.0**-52)
    values = np.concatenate([drawn, *spread, turns, near.ravel(), -near.ravel(), [5e-324, -5e-324]])
    return np.ascontiguousarray(values[np.isfinite(values)])


@cache
def f64_values(op: str) -> tuple[Array, Array]:
    """Arguments that an op takes, and the exact values."""
    x = f64_arguments()
    x = np.abs(x) if op in POSITIVE else x[x > -1] if op == "log1p" else x
    with np.errstate(all="ignore"):
        return x, F64_FUNCTIONS[op][0](x.astype(np.longdouble))


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no number that is more exact")
@pytest.mark.parametrize("lanes", [4, 8])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", F64_FUNCTIONS)
def test_f64_functions_are_accurate(op: str, level: str, lanes: int, tmp_path: Path) -> None:
    bar = F64_FUNCTIONS[op][1]
    x, exact = f64_values(op)
    got = np.zeros_like(x)
    compiled(op, level, lanes, tmp_path, dtype="f64").run((x.size,), [x, got])
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float64)
        error = np.abs((got - exact) / np.spacing(np.abs(rounded)))
    error[np.isinf(rounded) & (got == rounded)] = 0
    worst = int(np.argmax(error))
    assert not np.isnan(error).any()
    assert error[worst] <= bar, f"{op}({x[worst]!r}) = {got[worst]!r}, off by {error[worst]:.2f}"


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("level", LEVELS)
def test_the_error_function_of_f64_is_accurate(level: str, lanes: int, tmp_path: Path) -> None:
    """The library's own is within one ulp."""
    x = np.concatenate([f64_arguments(), np.arange(-6.5, 6.5, 2.0**-10)])
    got = np.zeros_like(x)
    compiled("erf", level, lanes, tmp_path, dtype="f64").run((x.size,), [x, got])
    expected = erf(x)
    error = np.abs((got - expected) / np.spacing(np.abs(expected)))
    assert not np.isnan(error).any()
    assert error.max() <= 2.0, f"erf({x[np.argmax(error)]!r})"
    assert np.abs(got).max() <= 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", F64_FUNCTIONS)
def test_f64_functions_of_what_is_no_number_are_as_in_the_library(
    op: str, level: str, tmp_path: Path
) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, -1e-320])
    got = np.zeros_like(x)
    compiled(op, level, 8, tmp_path, dtype="f64").run((x.size,), [x, got])
    with np.errstate(all="ignore"):
        expected = F64_FUNCTIONS[op][0](x)
    assert np.array_equal(got, expected, equal_nan=True)
    assert (np.signbit(got) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("level", LEVELS)
def test_a_power_is_rounded_once(level: str, lanes: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = np.exp2(random.uniform(-149, 128, 60_000)).astype(np.float32)
    y = random.normal(0, 2, 60_000).astype(np.float32)
    x[::3] = random.uniform(0, 3, x[::3].size).astype(np.float32)
    y[::6] *= np.float32(100)
    x[1::6] = -x[1::6]
    y[1::6] = np.round(y[1::6] * 4)
    got = np.zeros_like(x)
    compiled("pow", level, lanes, tmp_path).run((x.size,), [x, y, got])
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    errors = errors_in_ulp(got, exact)
    errors[(exact == 0) & (got == 0)] = 0
    worst = int(np.argmax(errors))
    assert not np.isnan(got).any()
    assert errors[worst] <= 0.51, f"{x[worst]!r} ** {y[worst]!r} = {got[worst]!r}"


@pytest.mark.parametrize("level", LEVELS)
def test_powers_of_special_numbers_are_as_in_the_library(level: str, tmp_path: Path) -> None:
    special = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 16777215.0, 16777216.0, 3e38, 1e-40, np.inf]
    values = np.array([*special, *(-each for each in special), np.nan], np.float32)
    x, y = (np.ascontiguousarray(each.ravel()) for each in np.meshgrid(values, values))
    got = np.zeros_like(x)
    compiled("pow", level, 16, tmp_path).run((x.size,), [x, y, got])
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    assert np.array_equal(got, expected, equal_nan=True)
    is_number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(got)[is_number], np.signbit(expected)[is_number])


@cache
def f64_powers() -> tuple[Array, Array]:
    """Of all sizes, of what lies near 1 by exponents that bring it far off, and of those alike."""
    random = np.random.default_rng(0)
    count = 40_000
    near = np.ldexp(random.uniform(-1, 1, count), random.integers(-50, -3, count))
    pairs = (
        (np.exp(random.uniform(-20, 20, count)), random.uniform(-30, 30, count)),
        (
            np.ldexp(random.uniform(0.5, 1, count), random.integers(-1074, 1024, count)),
            random.uniform(-1.2, 1.2, count),
        ),
        (random.uniform(0.7, 1.4, count), random.uniform(-2000, 2000, count)),
        (1 + near, np.ldexp(random.uniform(-1, 1, count), random.integers(1, 60, count))),
        (-random.uniform(0, 5, count), np.round(random.normal(0, 50, count))),
    )
    x, y = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return x, y


@cache
def exact_powers() -> Array:
    x, y = f64_powers()
    with np.errstate(all="ignore"):
        found: Array = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    return found


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no number that is more exact")
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("level", F64_LEVELS)
def test_powers_of_f64_are_accurate(level: str, lanes: int, tmp_path: Path) -> None:
    x, y = f64_powers()
    got, exact = np.zeros_like(x), exact_powers()
    compiled("pow", level, lanes, tmp_path, dtype="f64").run((x.size,), [x, y, got])
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float64)
        error = np.abs((got - exact) / np.spacing(np.abs(rounded)))
    error[np.isinf(rounded) & (got == rounded)] = 0
    worst = int(np.argmax(error))
    assert not np.isnan(error).any()
    assert error[worst] <= 1.0, f"{x[worst]!r} ** {y[worst]!r} = {got[worst]!r}"


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("level", F64_LEVELS)
def test_powers_of_special_f64_numbers_are_as_in_the_library(
    level: str, lanes: int, tmp_path: Path
) -> None:
    large = [2.0**53 - 1, 2.0**53, 2.0**53 + 2, 1e15 + 0.5, 1e300]
    special = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 1074.0, 1075.0, *large, 5e-324, 1e-310, np.inf]
    values = np.array([*special, *(-each for each in special), np.nan])
    x, y = (np.ascontiguousarray(each.ravel()) for each in np.meshgrid(values, values))
    got = np.zeros_like(x)
    compiled("pow", level, lanes, tmp_path, dtype="f64").run((x.size,), [x, y, got])
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
        is_far = np.abs(got - expected) > np.spacing(np.abs(expected))
    is_plain = np.isfinite(expected) & (expected != 0)
    assert not (is_far & is_plain).any()
    assert np.array_equal(got[~is_plain], expected[~is_plain], equal_nan=True)
    is_number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(got)[is_number], np.signbit(expected)[is_number])


@cache
def dividends(dtype: str) -> tuple[Array, Array]:
    """Of all sizes, of quotients that are whole or nearly so, and special ones."""
    kind: type[np.floating[Any]] = np.float32 if dtype == "f32" else np.float64
    random, count, limits = np.random.default_rng(0), 20_000, np.finfo(kind)

    def spread() -> Array:
        exponents = random.integers(limits.minexp - limits.nmant, limits.maxexp, count)
        return np.ldexp(random.uniform(0.5, 1, count), exponents).astype(kind)

    special = np.array([0.0, 0.7, 1.0, 3.0, limits.tiny / 4, limits.max, np.inf, np.nan], kind)
    with np.errstate(all="ignore"):
        step = spread()
        near = (step * np.floor(np.exp2(random.uniform(0, 30, count)))).astype(kind)
        pairs = (
            (random.normal(0, 20, count), random.normal(0, 2, count)),
            (spread(), spread()),
            *((np.nextafter(near, kind(end)), step) for end in (0, np.inf)),
            (near, step),
            np.meshgrid(special, special),
        )
        x, y = (
            np.concatenate(list(map(np.ravel, each))).astype(kind)
            for each in zip(*pairs, strict=True)
        )
    signs = random.choice((-1, 1), (2, x.size)).astype(kind)
    return x * signs[0], y * signs[1]


@pytest.mark.parametrize("level", F64_LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("op", ["fmod", "mod"])
def test_remainders_are_exact(op: str, dtype: str, level: str, tmp_path: Path) -> None:
    x, y = dividends(dtype)
    got = np.zeros_like(x)
    compiled(op, level, 8, tmp_path, dtype=dtype).run((x.size,), [x, y, got])
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
        if op == "mod":
            turned = (expected != 0) & ((expected < 0) != (y < 0))
            expected = np.where(turned, expected + y, expected)
    assert np.array_equal(got, expected, equal_nan=True)
    is_number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(got)[is_number], np.signbit(expected)[is_number])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("op", ["fmod", "mod", "floordiv"])
def test_remainders_are_computed_in_vectors(op: str, dtype: str, tmp_path: Path) -> None:
    source = compiled(op, "avx2", 4, tmp_path, dtype=dtype).generated.source
    assert f"mad_{dtype}(" in source
