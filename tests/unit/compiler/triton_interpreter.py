"""Runs generated Triton source in Triton's interpreter: python triton_interpreter.py FOLDER.

A program of its own, because the interpreter replaces parts of `triton.language` for good. FOLDER
holds cases: NAME.py (the source), NAME.json (entry, grid, arguments) and NAME.npz (storages as
bytes), whose outputs are written to NAME.out.npz. libdevice and instructions cannot be interpreted,
so numpy stands in for them here, and the real ones are tested on a GPU. A case that reads or writes
outside of its storages fails.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

TORCH_DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
    "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}


def from_numpy(function: Callable[..., Any]) -> Callable[..., tl.tensor]:
    def call(*operands: tl.tensor) -> tl.tensor:
        arrays = [operand.handle.data for operand in operands]
        result = np.asarray(function(*arrays), arrays[0].dtype)
        largest: Any = max(operands, key=lambda operand: operand.handle.data.size)
        return tl.tensor(TensorHandle(result, largest.handle.dtype), largest.type)

    return call


class Libdevice:
    pow = staticmethod(from_numpy(np.power))
    trunc = staticmethod(from_numpy(np.trunc))
    nearbyint = staticmethod(from_numpy(np.rint))
    exp = staticmethod(from_numpy(np.exp))
    expm1 = staticmethod(from_numpy(np.expm1))
    log10 = staticmethod(from_numpy(np.log10))
    tan = staticmethod(from_numpy(np.tan))
    log1p = staticmethod(from_numpy(np.log1p))
    fmod = staticmethod(from_numpy(np.fmod))
    tanh = staticmethod(from_numpy(np.tanh))


class Cuda:
    """Stages that run one after the other have nothing to wait for."""

    gdc_wait = staticmethod(lambda: None)
    gdc_launch_dependents = staticmethod(lambda: None)


tl.extra.__dict__["cuda"] = Cuda


def in_phase(word: Any, following: Any, phase: Any, *, lanes: int) -> Any:
    """As many elements of each word and the one behind it as it has, from number `phase` on."""
    shape = np.broadcast_shapes(word.shape, phase.shape)
    both = np.stack([np.broadcast_to(each, shape) for each in (word, following)], axis=-1)
    words = both.reshape(*shape[:-1], -1, lanes, 2).swapaxes(-1, -2)
    words = words.reshape(*shape[:-1], -1, 2 * lanes)
    places = np.broadcast_to(phase, shape).reshape(*shape[:-1], -1, lanes) + np.arange(lanes)
    return np.take_along_axis(words, places, axis=-1).reshape(shape)


def widened(pairs: Any, *_: Any) -> Any:
    """The bits of the f32 that bf16 are, of which numpy knows those alone."""
    bits = (pairs.handle.data.astype(np.uint32) << 16).view(np.int32)
    return tl.tensor(TensorHandle(bits, tl.int32), tl.block_type(tl.int32, pairs.shape))


INSTRUCTIONS = {
    "shl.b32": widened,
    "xor.b32": lambda pairs, _: pairs,
    "ex2.approx.ftz.f32": from_numpy(np.exp2),
    **dict.fromkeys(("mov.b32", "mov.b64"), from_numpy(np.copy)),
}
"""Of instructions by their names; a block of several declares registers first."""


def inline_asm_elementwise(
    asm: str, constraints: str, args: list[Any], *_: Any, pack: int, **more: Any
) -> Any:
    """One instruction, by its name, or the block of them that there is."""
    name = asm.strip("{ ").split()[0]
    if name == ".reg":
        return from_numpy(partial(in_phase, lanes=pack))(*args)
    return INSTRUCTIONS[name](*args)


tl.__dict__["inline_asm_elementwise"] = inline_asm_elementwise


class Memory:
    """What the interpreter reads and writes by, for these storages alone."""

    def __init__(self, inner: Any, tensors: list[torch.Tensor]) -> None:
        self._inner = inner
        bounds = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in tensors)
        self._starts, self._ends = np.array(bounds, np.uint64).reshape(-1, 2).T

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._check(pointers, mask, np.dtype(dtype).itemsize)
        return self._inner.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, values: Any, mask: Any) -> Any:
        self._check(pointers, mask, values.dtype.itemsize)
        return self._inner.store(pointers, values, mask)

    def atomic_rmw(self, op: Any, pointers: Any, values: Any, mask: Any, order: Any) -> Any:
        """Without what a broadcast does not repeat in memory, where the inner one reads it."""
        self._check(pointers, mask, values.dtype.itemsize)
        given = map(np.ascontiguousarray, (pointers, values, mask))
        return self._inner.atomic_rmw(op, *given, order)

    def _check(self, pointers: Any, mask: Any, size: int) -> None:
        used = pointers[np.broadcast_to(mask, pointers.shape).astype(bool)].astype(np.uint64)
        places = np.searchsorted(self._starts, used, side="right").astype(np.int64) - 1
        is_within = (places >= 0) & (used + np.uint64(size) <= self._ends[places])
        if not is_within.all():
            raise IndexError(f"{(~is_within).sum()} elements of {used.size} are in no storage")


MEMORY = interpreter.__dict__["_interpreter"]


def run(folder: Path, name: str) -> None:
    case = json.loads((folder / f"{name}.json").read_text())
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__dict__["libdevice"] = Libdevice
    stored = np.load(folder / f"{name}.npz")
    tensors = {
        key: torch.frombuffer(bytearray(stored[key].tobytes()), dtype=TORCH_DTYPES[dtype])
        for key, dtype in case["storages"].items()
    }
    interpreter.__dict__["_interpreter"] = Memory(MEMORY, list(tensors.values()))
    arguments = [tensors.get(value, value) for value in case["arguments"]]
    for stage in range(case["stages"]):
        given = [stage if argument == "stage" else argument for argument in arguments]
        getattr(module, case["entry"])[tuple(case["grid"])](*given, **case["constants"])
    written = {
        key: tensor.view(torch.uint8).numpy() for key, tensor in tensors.items() if key[0] == "o"
    }
    np.savez(folder / f"{name}.out.npz", allow_pickle=False, **written)


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        with np.errstate(all="ignore"):
            run(path.parent, path.stem)
