"""Guarded memory: layouts, poison, patterns and pages that cannot be touched."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nearhint_daemon.workers.elements import FLOATS, STORAGE, Repeated, decode, encode
from nearhint_daemon.workers.memory import (
    ALIGNMENT_BYTES,
    LAYOUTS,
    PAGE_BYTES,
    SPARE_BYTES,
    GuardedBuffer,
    poison_byte,
)


def poke(address: int) -> None:
    ctypes.c_ubyte.from_address(address).value = 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", list(STORAGE))
@pytest.mark.parametrize("count", [1, 3, 1000, 5000])
def test_an_output_starts_as_poison_and_its_surroundings_are_watched(
    layout: str, dtype: str, count: int
) -> None:
    buffer = GuardedBuffer(dtype, count, layout=layout, content=None)
    size = count * np.dtype(STORAGE[dtype]).itemsize
    try:
        found = buffer.read()
        assert found.size == count
        assert (found.view(np.uint8) == poison_byte(dtype)).all()
        if dtype in FLOATS and size > count:
            # All bits set are what a GPU makes of the negative of its NaN.
            assert not (found.view(np.uint8) == 0xFF).any()
        elif dtype in FLOATS:
            assert np.isnan(decode(dtype, found)).all()
        offset = buffer.address % ALIGNMENT_BYTES
        match layout:
            case "aligned":
                assert offset == 0
            case "shifted":
                assert offset == np.dtype(STORAGE[dtype]).itemsize
            case _:
                assert (buffer.address + size) % PAGE_BYTES == 0
        assert buffer.is_intact()
        poke(buffer.address)
        assert buffer.is_intact()
        poke(buffer.address - 1)
        assert not buffer.is_intact()
    finally:
        buffer.close()
        buffer.close()


@pytest.mark.parametrize("layout", ["aligned", "shifted"])
def test_one_byte_behind_the_end_is_noticed(layout: str) -> None:
    buffer = GuardedBuffer("f32", 10, layout=layout, content=None)
    poke(buffer.address + 40)
    assert not buffer.is_intact()
    buffer.close()


FAULT = """
import ctypes, numpy as np
from nearhint_daemon.workers.memory import GuardedBuffer
buffer = GuardedBuffer("f32", 10, layout="{layout}", content={content})
cell = ctypes.c_ubyte.from_address(buffer.address + {offset})
print("reached", flush=True)
{action}
"""


@pytest.mark.parametrize(
    ("layout", "content", "offset", "action"),
    [
        ("flush", "None", 40, "cell.value"),
        ("aligned", "None", PAGE_BYTES, "cell.value"),
        ("aligned", "None", -PAGE_BYTES, "cell.value = 1"),
        # The rest of a mapping of 4 pages, of which an element and what surrounds it take 3.
        ("aligned", "None", 2 * PAGE_BYTES, "cell.value = 1"),
        ("flush", "np.zeros(10, np.float32)", PAGE_BYTES + 40, "cell.value"),
        ("aligned", "np.zeros(10, np.float32)", 0, "cell.value = 1"),
    ],
)
def test_what_must_not_be_touched_is_a_fault(
    layout: str, content: str, offset: int, action: str
) -> None:
    script = FAULT.format(layout=layout, content=content, offset=offset, action=action)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.stdout == "reached\n"
    assert done.returncode == -11


def test_an_input_holds_its_content() -> None:
    content = np.arange(7, dtype=np.int16)
    buffer = GuardedBuffer("i16", 7, layout="shifted", content=content)
    assert buffer.read().tolist() == content.tolist()
    buffer.close()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bool", "bf16", "f32", "i64"])
def test_an_input_that_repeats_is_filled_and_read_where_it_is_asked(
    dtype: str, layout: str
) -> None:
    drawn = np.arange(7).astype(STORAGE[dtype])
    buffer = GuardedBuffer(dtype, 19, layout=layout, content=Repeated(drawn, 19))
    indices = np.array([18, 0, 7, 6])
    np.testing.assert_array_equal(buffer.read(), np.resize(drawn, 19))
    np.testing.assert_array_equal(buffer.read_at(indices), buffer.read()[indices])
    assert buffer.is_intact()
    buffer.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_that_was_given_back_is_used_again_and_is_as_if_it_were_new(layout: str) -> None:
    first = GuardedBuffer("i32", 5000, layout=layout, content=np.ones(5000, np.int32))
    address = first.address
    first.close()
    again = GuardedBuffer("i32", 4990, layout=layout, content=None)
    try:
        assert abs(again.address - address) < PAGE_BYTES
        assert (again.read().view(np.uint8) == poison_byte("i32")).all()
        assert again.is_intact()
        poke(again.address)
        poke(again.address - 1)
        assert not again.is_intact()
    finally:
        again.close()


def test_more_memory_than_is_kept_is_given_to_the_system() -> None:
    buffer = GuardedBuffer("i64", SPARE_BYTES // 8, layout="aligned", content=None)
    address = buffer.address
    assert _is_mapped(address)
    buffer.close()
    assert not _is_mapped(address)


def _is_mapped(address: int) -> bool:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    ranges = (line.partition(" ")[0].split("-") for line in maps.splitlines())
    return any(int(low, 16) <= address < int(high, 16) for low, high in ranges)


PAGES = """
import resource
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from nearhint_daemon.workers.memory import keep_heap

def fill_and_free():
    for _ in range(20):
        made = [np.ones(1 << 18) for _ in range(6)]
        del made

keep_heap()
with ThreadPoolExecutor(1) as pool:
    pool.submit(fill_and_free).result()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pool.submit(fill_and_free).result()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_arrays_that_were_freed_are_no_new_pages_of_the_system() -> None:
    command = [sys.executable, "-c", PAGES]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert int(done.stdout) < 20 * 6 * (8 << 18) // PAGE_BYTES // 10


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal(10_000) * np.exp2(
        np.random.default_rng(1).integers(-130, 120, 10_000)
    )
    values = np.concatenate([values, [0.0, -0.0, np.inf, -np.inf, 1.00390625, 1.01171875, 3.4e38]])
    found = decode("bf16", encode("bf16", values))
    wanted = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16).double().numpy()
    np.testing.assert_array_equal(found, wanted)
    assert np.isnan(decode("bf16", encode("bf16", np.array([np.nan])))).all()
