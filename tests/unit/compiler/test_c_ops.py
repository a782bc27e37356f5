"""Every op of the IR at every dtype that it takes, in C, against the float64 interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import KERNELS
from tests.unit.compiler.native import (
    MACHINE,
    PORTABLE,
    Array,
    check,
    compile_kernel,
    encode,
    machine_features,
    target,
)

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES
from nearhint_rules.target import Target

LEVELS = {"machine": MACHINE, "portable": PORTABLE}
WITHOUT_BF16 = target([name for name in machine_features() if name != "avx512_bf16"])
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 0.5, 1.5, 2.5, -2.5,
           1e30, -1e30, 127.0, -3.0]  # fmt: skip


def kernel_of(dtype: str, names: list[str]) -> ir.Kernel:
    """All ops of `names` on three inputs of `dtype` and a condition, each to its own output."""
    index = ex.symbol("p0")
    params = [ir.Param("in", dtype)] * 3 + [ir.Param("in", "bool")]
    body: list[ir.BodyNode] = [ir.Load(place, index) for place in range(4)]
    for name in names:
        rule = ir.OPS[name]
        operands = (3, 0, 1) if name == "where" else (0, 1, 2)[: rule.arity]
        result = "bool" if rule.result == "bool" else dtype
        body.append(ir.Op(name, result, operands))
        body.append(ir.Store(len(params), index, len(body) - 1))
        params.append(ir.Param("out", result))
    return ir.Kernel(("k0",), (ex.symbol("k0"),), (), tuple(params), tuple(body))


def values_of(dtype: str, count: int, seed: int) -> Array:
    """Random values with the awkward ones in front, in an order that depends on the seed."""
    random = np.random.default_rng(seed)
    if dtype in ir.FLOATS:
        drawn = np.concatenate([random.permutation(SPECIAL), random.normal(0, 3, count)])[:count]
        return encode(dtype, drawn)
    if dtype == "bool":
        return random.integers(0, 2, count).astype(np.uint8)
    low, high = (0, 256) if dtype == "u8" else (-100, 100)
    return encode(dtype, random.integers(low, high, count))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [*ir.FLOATS, *ir.INTEGERS, "bool"])
def test_every_op_agrees_with_the_interpreter(dtype: str, level: str, tmp_path: Path) -> None:
    names = [name for name, rule in ir.OPS.items() if dtype in rule.operands and name != "cast"]
    kernel = kernel_of(dtype, names)
    schedule = candidates(kernel, LEVELS[level])[0]
    native = compile_kernel(kernel, schedule, tmp_path, at=LEVELS[level])
    for count in (1, 67):
        inputs = [values_of(dtype, count, seed) for seed in range(3)]
        for divisor in inputs[1:]:
            if dtype in ir.INTEGERS:
                divisor[divisor == 0] = 7
        check(native, (count,), [*inputs, values_of("bool", count, 9)])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("source", DTYPES)
def test_every_cast_agrees_with_the_interpreter(source: str, level: str, tmp_path: Path) -> None:
    index = ex.symbol("p0")
    body: list[ir.BodyNode] = [ir.Load(0, index)]
    params = [ir.Param("in", source)]
    for result in DTYPES:
        body.append(ir.Op("cast", result, (0,)))
        body.append(ir.Store(len(params), index, len(body) - 1))
        params.append(ir.Param("out", result))
    kernel = ir.Kernel(("k0",), (ex.symbol("k0"),), (), tuple(params), tuple(body))
    schedule = candidates(kernel, LEVELS[level])[0]
    native = compile_kernel(kernel, schedule, tmp_path, at=LEVELS[level])
    random = np.random.default_rng(0)
    low = 0 if source in ("u8", "bool") else -100
    values = random.integers(low, 2 if source == "bool" else 120, 67).astype(np.float64)
    if source not in (*ir.INTEGERS, "bool"):
        values = np.abs(values + random.choice([0.0, 0.25, -0.5], 67))
    check(native, (67,), [encode(source, values)])


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("level", [*LEVELS, "avx512"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_floats_round_to_nearest_even_and_keep_nan(
    dtype: str, level: str, lanes: int, tmp_path: Path
) -> None:
    index = ex.symbol("p0")
    params = (ir.Param("in", "f32"), ir.Param("out", dtype), ir.Param("out", "f32"))
    body = (
        ir.Load(0, index),
        ir.Op("cast", dtype, (0,)),
        ir.Op("cast", "f32", (1,)),
        ir.Store(1, index, 1),
        ir.Store(2, index, 2),
    )
    kernel = ir.Kernel(("k0",), (ex.symbol("k0"),), (), params, body)
    schedule = parse_schedule(f"cpu.pointwise axis=0 lanes={lanes} unroll=2 block=1024")
    at = {**LEVELS, "avx512": WITHOUT_BF16}[level]
    native = compile_kernel(kernel, schedule, tmp_path, at=at)
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    near_half = random.integers(0x33000000, 0x48000000, 1 << 16, dtype=np.uint64)
    ties = (near_half & 0xFFFFF000).astype(np.uint32)
    denormal = random.integers(0, 0x00800000, 1 << 12, dtype=np.uint64).astype(np.uint32)
    small = np.concatenate([denormal, denormal | 0x80000000])
    given = np.concatenate([bits, near_half.astype(np.uint32), ties, ties | 0x80000000, small])
    values = np.concatenate([given.view(np.float32), np.array(SPECIAL, np.float32)])
    got = np.zeros(values.size, np.uint16)
    rounded = np.zeros(values.size, np.float32)
    native.run((values.size,), [values, got, rounded])
    with np.errstate(all="ignore"):
        if dtype == "f16":
            want = values.astype(np.float16).view(np.uint16)
            nan = np.isnan(got.view(np.float16))
        else:
            wide = values.view(np.uint32).astype(np.uint64)
            want = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
            nan = (got & 0x7FFF) > 0x7F80
    same = (
        got.view(np.float16) if dtype == "f16" else (got.astype(np.uint32) << 16).view(np.float32)
    )
    assert np.array_equal(rounded, same.astype(np.float32), equal_nan=True)
    assert (nan == np.isnan(values)).all()
    assert (got == want)[~nan].all()


def test_a_half_float_comes_back_from_every_bit_pattern(tmp_path: Path) -> None:
    index = ex.symbol("p0")
    kernel = ir.Kernel(
        ("k0",), (ex.symbol("k0"),), (), (ir.Param("in", "f16"), ir.Param("out", "f32")),
        (ir.Load(0, index), ir.Op("cast", "f32", (0,)), ir.Store(1, index, 1)),
    )  # fmt: skip
    patterns = np.arange(1 << 16, dtype=np.uint16)
    want = patterns.view(np.float16).astype(np.float32)
    for at in LEVELS.values():
        native = compile_kernel(kernel, candidates(kernel, at)[0], tmp_path, at=at)
        got = np.zeros(patterns.size, np.float32)
        native.run((patterns.size,), [patterns, got])
        assert np.array_equal(got, want, equal_nan=True)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_remainder_of_nothing_has_the_sign_of_what_is_divided(dtype: str, tmp_path: Path) -> None:
    """As torch.remainder leaves it."""
    kernel = kernel_of(dtype, ["mod"])
    native = compile_kernel(kernel, candidates(kernel, MACHINE)[0], tmp_path)
    left, right = (encode(dtype, np.array(each)) for each in ([-3.0, 3.0, -0.0, -4.0], [3.0] * 4))
    got = np.zeros_like(left)
    native.run((4,), [left, right, right, np.zeros(4, np.uint8), got])
    assert got.tolist() == [0.0, 0.0, 0.0, 2.0]
    assert np.signbit(got).tolist() == [True, False, True, False]


@pytest.mark.parametrize("dtype", ir.INTEGERS)
def test_integer_division_never_signals(dtype: str, tmp_path: Path) -> None:
    kernel = kernel_of(dtype, ["floordiv", "truncdiv", "mod", "fmod"])
    native = compile_kernel(kernel, candidates(kernel, MACHINE)[0], tmp_path)
    edges = np.iinfo(encode(dtype, np.zeros(1)).dtype)
    left = encode(dtype, np.array([edges.min, edges.max, edges.min, 0, 5], dtype=object))
    right = encode(dtype, np.array([-1 if edges.min else 1, 0, 0, 0, 3], dtype=object))
    outputs = [np.zeros_like(left) for _ in range(4)]
    native.run((5,), [left, right, left, np.zeros(5, np.uint8), *outputs])
    assert [int(output[4]) for output in outputs] == [1, 1, 2, 2]


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@pytest.mark.parametrize("at", [MACHINE, PORTABLE], ids=["machine", "portable"])
def test_any_number_of_lanes_works_on_any_machine(lanes: int, at: Target, tmp_path: Path) -> None:
    kernel = kernel_of("f32", ["add", "max", "floor", "sqrt", "exp", "lt", "where"])
    schedule = parse_schedule(f"cpu.pointwise axis=0 lanes={lanes} unroll=2 block=64")
    native = compile_kernel(kernel, schedule, tmp_path, at=at)
    for count in (1, lanes, 2 * lanes + 1, 150):
        inputs = [values_of("f32", count, seed) for seed in range(3)]
        check(native, (count,), [*inputs, values_of("bool", count, 9)])


@pytest.mark.parametrize("at", [MACHINE, PORTABLE], ids=["machine", "portable"])
def test_integers_are_divided_by_a_size_with_eager_s_signs(at: Target, tmp_path: Path) -> None:
    kernel = parse_kernel((KERNELS / "quotients_by_size_i64.ir").read_text())
    native = compile_kernel(kernel, candidates(kernel, at)[0], tmp_path, at=at)
    for count, divisor in ((1, 1), (37, 7), (150, 64)):
        check(native, (count, divisor), [values_of("i64", count, 1)])
