"""Compiles generated C with the machine's compiler, runs it, and compares with the interpreter.

The OpenMP runtime is a stand-in that runs the threads one after another and counts its calls.
"""

from __future__ import annotations

import atexit
import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nearhint_compiler.codegen import Generated, generate
from nearhint_compiler.codegen.c.primitive import FEATURES
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.legality import check_kernel
from nearhint_compiler.schedule import Schedule
from nearhint_compiler.schedule.cpu_facts import register_bits
from nearhint_daemon.workers import elements
from nearhint_daemon.workers.interpreter import interpret
from nearhint_rules.artifact import CpuLaunch
from nearhint_rules.target import CpuDevice, Target

Array: TypeAlias = npt.NDArray[Any]
GUARD = 64
STORAGE: Mapping[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16,
    "f8e4m3fn": np.uint8, "f8e5m2": np.uint8,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8,
    "bool": np.uint8,
}  # fmt: skip
RELATIVE: Mapping[str, float] = {
    "f64": 1e-12, "f32": 4e-6, "f16": 2e-3, "bf16": 1.6e-2, "f8e4m3fn": 0.125, "f8e5m2": 0.25,
}  # fmt: skip

_STAND_IN = """
int stand_in_calls, stand_in_thread, stand_in_threads = 1;
int omp_get_thread_num(void) { return stand_in_thread; }
int omp_get_num_threads(void) { return stand_in_threads; }
void GOMP_parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags)
{
    stand_in_calls++;
    stand_in_threads = (int)threads;
    for (stand_in_thread = stand_in_threads - 1; stand_in_thread > 0; stand_in_thread--)
        function(data);
    function(data);
    stand_in_threads = 1;
}
"""


def machine_features() -> tuple[str, ...]:
    """The instruction sets of this machine that the emitter has a use for."""
    known = {feature for features in FEATURES.values() for feature in features}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return tuple(sorted(known & set(line.split())))
    return ()


def target(features: Sequence[str]) -> Target:
    """A CPU with these instruction sets."""
    return Target(CpuDevice("test", tuple(features), "glibc"), ("cc",))


def words_of(at: Target) -> int:
    """32-bit numbers in a register: as many lanes as a reduction may have."""
    return register_bits(at) // 32


MACHINE = target(machine_features())
PORTABLE = target(())
AVX2 = target(("avx2", "f16c", "fma"))
LEVELS = {"machine": MACHINE, "avx2": AVX2, "portable": PORTABLE}
WORDS = words_of(MACHINE)
WIDTHS = [
    ("machine", WORDS), ("machine", max(4, WORDS // 2)), ("avx2", 8), ("portable", 4),
    ("portable", 1),
]  # fmt: skip
"""Targets by name, and the lanes that each is tried with."""


@dataclass(frozen=True, slots=True)
class Native:
    """A compiled kernel. `calls` counts the calls of the OpenMP runtime so far."""

    kernel: ir.Kernel
    generated: Generated
    entry: Callable[..., None]
    library: ctypes.CDLL

    @property
    def calls(self) -> int:
        """Calls of GOMP_parallel."""
        return ctypes.c_int.in_dll(self.library, "stand_in_calls").value

    def run(self, dims: Sequence[int], arrays: Sequence[Array], *, threads: int = 1) -> None:
        """Calls the entry on the addresses of `arrays`."""
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        sizes = (ctypes.c_int64 * max(1, len(dims)))(*dims)
        self.entry(pointers, sizes, threads)


INTRINSICS = "#include <immintrin.h>\n"


@cache
def intrinsics(flags: tuple[str, ...]) -> Path:
    """A header of the intrinsics beside what `cc` made of it, for these flags: half a compile."""
    header = Path(tempfile.mkdtemp(dir=_folder())) / "intrinsics.h"
    header.write_text(INTRINSICS)
    subprocess.run(["cc", "-fPIC", "-Wall", *flags, str(header)], check=True, timeout=100)
    return header


def compile_kernel(
    kernel: ir.Kernel,
    schedule: Schedule,
    directory: Path,
    *,
    at: Target = MACHINE,
    options: Sequence[str] = (),
) -> Native:
    """Generates, compiles with all warnings as errors but "unused", and loads.

    `options` are the compiler's, beside those that the Schedule has.
    """
    generated = generate(check_kernel(kernel), schedule, at)
    assert isinstance(generated.launch, CpuLaunch)
    number = len(list(directory.iterdir()))
    (directory / f"k{number}.c").write_text(generated.source)
    # A copy: what is loaded again from the same file has the counts of before.
    shared = directory / f"k{number}.so"
    shutil.copyfile(_shared(generated.source, (*generated.flags, *options)), shared)
    library = ctypes.CDLL(str(shared))
    return Native(kernel, generated, library[generated.launch.entry], library)


@cache
def _folder() -> Path:
    """For what is compiled once a process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return folder


@cache
def _stand_in() -> Path:
    source, compiled = _folder() / "omp.c", _folder() / "omp.o"
    source.write_text(_STAND_IN)
    subprocess.run(["cc", "-O1", "-fPIC", "-c", source, "-o", compiled], check=True, timeout=100)
    return compiled


@lru_cache(maxsize=256)
def _shared(source: str, flags: tuple[str, ...]) -> Path:
    """The shared object of a source: several tests of a file may be about one."""
    assert shutil.which("cc"), "these tests need a C compiler"
    folder = Path(tempfile.mkdtemp(dir=_folder()))
    written, shared = folder / "kernel.c", folder / "kernel.so"
    written.write_text(source)
    known = ["-include", str(intrinsics(flags))] if INTRINSICS in source else []
    command = [
        "cc", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused", *known, str(written),
        str(_stand_in()), "-o", str(shared), *flags,
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=100)
    return shared


def encode(dtype: str, values: Array) -> Array:
    """`values` as the storage of an input of `dtype`."""
    if dtype.startswith("f8"):
        return elements.encode(dtype, values)
    if dtype == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        return np.ascontiguousarray((bits >> 16).astype(np.uint16))
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(values.astype(STORAGE[dtype]))


def decode(dtype: str, storage: Array) -> Array:
    """The values of a storage of `dtype`, as the interpreter takes them."""
    if dtype.startswith("f8"):
        return elements.decode(dtype, storage)
    if dtype == "bf16":
        return (storage.astype(np.uint32) << 16).view(np.float32)
    return storage.astype(np.bool_) if dtype == "bool" else storage


def check(
    native: Native,
    dims: Sequence[int],
    inputs: Sequence[Array],
    *,
    threads: int = 1,
    relative: Mapping[str, float] = RELATIVE,
) -> None:
    """Runs `native` on storages `inputs` into poisoned, guarded outputs, and compares."""
    kernel = native.kernel
    roles = [param for param in kernel.params if param.role != "out"]
    readable = [decode(param.dtype, array) for param, array in zip(roles, inputs, strict=True)]
    expected = interpret(kernel, dict(zip(kernel.symbols, dims, strict=True)), readable)
    outputs = [param.dtype for param in kernel.params if param.role == "out"]
    buffers: list[Array] = []
    for dtype, want in zip(outputs, expected, strict=True):
        size = int(want.indices.max()) + 1
        raw = np.full((size + 2 * GUARD) * np.dtype(STORAGE[dtype]).itemsize, 0xFF, np.uint8)
        buffers.append(raw.view(STORAGE[dtype]))
    native.run(dims, [*inputs, *(buffer[GUARD:-GUARD] for buffer in buffers)], threads=threads)
    for dtype, want, buffer in zip(outputs, expected, buffers, strict=True):
        untouched = np.ones(buffer.size, np.bool_)
        untouched[want.indices + GUARD] = False
        assert (buffer.view(np.uint8).reshape(buffer.size, -1)[untouched] == 0xFF).all()
        got = decode(dtype, buffer[GUARD:-GUARD][want.indices])
        compare(dtype, got, want.values, want.magnitudes, relative)


def compare(
    dtype: str, got: Array, want: Array, magnitudes: Array, relative: Mapping[str, float]
) -> None:
    """Integers are equal; floats are near, and special where they have to be."""
    if dtype not in relative:
        assert (got == want).all(), (got[got != want][:5], want[got != want][:5])
        return
    limit = {"f32": 3.4028235e38, "f16": 65504.0, "bf16": 3.39e38}.get(dtype, np.inf)
    wide = got.astype(np.float64)
    with np.errstate(all="ignore"):
        rounded = np.where(np.abs(want) > limit, np.sign(want) * np.inf, want)
        error = np.abs(wide - rounded)
        allowed = relative[dtype] * np.maximum(np.abs(want), magnitudes) + 1e-40
        special = ~np.isfinite(rounded)
        same = np.where(special, (wide == rounded) | (np.isnan(wide) & np.isnan(rounded)), True)
        near = special | (error <= allowed) | (np.abs(want) > limit * (1 - relative[dtype]))
    wrong = ~(same & near)
    assert not wrong.any(), (wide[wrong][:5], want[wrong][:5], np.flatnonzero(wrong)[:5])
