"""8-bit floats as torch has them: values, rounding, casts, poison, inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearhint_compiler.ir.text import parse_kernel
from nearhint_daemon.workers.elements import (
    DRAWN_ELEMENTS,
    Repeated,
    Stored,
    decode,
    encode,
    random_elements,
    whole_of,
)
from nearhint_daemon.workers.interpreter import interpret
from nearhint_daemon.workers.reference_ops import constant_value
from nearhint_daemon.workers.tolerance import PRECISIONS

NAMES = {"f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
CODES = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("name", NAMES)
def test_each_code_is_the_number_that_torch_says(name: str) -> None:
    wanted = torch.from_numpy(CODES.copy()).view(NAMES[name]).double().numpy()
    np.testing.assert_array_equal(decode(name, CODES), wanted)
    found = np.array([constant_value(name, code) for code in range(256)])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_rounded_as_torch_does(name: str) -> None:
    """Halfway cases above all, and their neighbours in f32."""
    largest = PRECISIONS[name].largest
    numbers = np.unique(np.abs(decode(name, CODES)))
    numbers = numbers[np.isfinite(numbers)].astype(np.float32)
    halfway = (numbers[:-1] + numbers[1:]) / 2
    close = [np.nextafter(halfway, np.float32(side)) for side in (-1, largest)]
    drawn = np.random.default_rng(0).normal(0, largest / 9, 1000).astype(np.float32)
    values = np.concatenate((numbers, halfway, *close, drawn))
    values = np.concatenate((values, -values)).astype(np.float32)
    wanted = torch.from_numpy(values).to(NAMES[name]).view(torch.uint8).numpy()
    np.testing.assert_array_equal(encode(name, values), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_and_least_numbers_are_the_last_and_first_codes(name: str) -> None:
    numbers = decode(name, CODES[:128])
    assert np.nanmax(numbers[np.isfinite(numbers)]) == PRECISIONS[name].largest
    assert numbers[1] == PRECISIONS[name].least
    one = int(np.flatnonzero(numbers == 1.0)[0])
    assert numbers[one + 1] - 1.0 == PRECISIONS[name].unit


def test_what_is_too_large_becomes_nan_or_infinity() -> None:
    large = np.array([464.0, 464.1, -480.0, np.inf])
    np.testing.assert_array_equal(
        decode("f8e4m3fn", encode("f8e4m3fn", large)), [448, np.nan, np.nan, np.nan]
    )
    wide = np.array([61439.0, 61440.0, -1e9, np.inf])
    np.testing.assert_array_equal(
        decode("f8e5m2", encode("f8e5m2", wide)), [57344, np.inf, -np.inf, np.inf]
    )


def test_the_interpreter_makes_nan_where_a_cast_overflows_and_rounds_nothing() -> None:
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction)
          (params (in f32) (out f8e4m3fn) (out f8e5m2))
          (body (load 0 p0)
                (cast f8e4m3fn 0)
                (cast f8e5m2 0)
                (store 1 p0 1)
                (store 2 p0 2)))
    """)
    values = np.array([1.01, 464.0, 465.0, -1e6])
    narrow, wide = interpret(kernel, {"k0": 4}, [values])
    np.testing.assert_array_equal(narrow.values, [1.01, 464.0, np.nan, np.nan])
    np.testing.assert_array_equal(wide.values, values)


@pytest.mark.parametrize("dtype", ["bf16", "f32", "i64", "bool"])
def test_more_elements_than_are_drawn_repeat_them(dtype: str) -> None:
    count = 2 * DRAWN_ELEMENTS + 7
    found = random_elements(dtype, count, np.random.default_rng(5), whole="any")
    drawn = random_elements(dtype, DRAWN_ELEMENTS, np.random.default_rng(5), whole="any")
    assert isinstance(found, Repeated)
    assert isinstance(drawn, np.ndarray)
    assert (found.size, found.dtype, found.nbytes) == (count, drawn.dtype, drawn.nbytes)
    wanted = np.resize(drawn, count)
    np.testing.assert_array_equal(whole_of(found), wanted)
    where = np.array([[0, DRAWN_ELEMENTS - 1], [DRAWN_ELEMENTS, count - 1]])
    np.testing.assert_array_equal(found[where], wanted[where])
    filled = np.empty(count, drawn.dtype)
    found.fill(filled)
    np.testing.assert_array_equal(filled, wanted)


def test_a_repetition_is_decoded_where_it_is_read() -> None:
    drawn = encode("bf16", np.arange(5.0))
    stored, where = Stored("bf16", Repeated(drawn, 13)), np.array([[0, 4], [5, 12]])
    assert stored.size == 13
    np.testing.assert_array_equal(stored[where], [[0, 4], [0, 2]])


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8e4m3fn", "i32"])
def test_a_storage_is_decoded_where_it_is_read(dtype: str) -> None:
    elements = whole_of(random_elements(dtype, 40, np.random.default_rng(1), whole="any"))
    stored, where = Stored(dtype, elements), np.array([[3, 39], [0, 3]])
    np.testing.assert_array_equal(stored[where], decode(dtype, elements)[where])
    assert stored.size == 40


def test_the_interpreter_reads_a_storage_and_refuses_what_is_outside() -> None:
    text = """(kernel (symbols k0) (pointwise k0) (reduction)
      (params (in bf16) (out f32)) (body (load 0 p0) (cast f32 0) (store 1 p0 1)))"""
    kernel = parse_kernel(text)
    elements = whole_of(random_elements("bf16", 9, np.random.default_rng(1), whole="any"))
    (output,) = interpret(kernel, {"k0": 9}, [Stored("bf16", elements), np.zeros(0)])
    np.testing.assert_array_equal(output.values, decode("bf16", elements))
    with pytest.raises(IndexError):
        interpret(kernel, {"k0": 10}, [Stored("bf16", elements), np.zeros(0)])
