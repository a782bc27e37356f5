"""Runs generated Triton source in Triton's interpreter: python triton_interpreter.py FOLDER.

A program of its own, because the interpreter replaces parts of `triton.language` for good. FOLDER
holds cases: NAME.py (the source), NAME.json (entry, grid, arguments) and NAME.npz (storages as
bytes), whose outputs are written to NAME.out.npz. libdevice and instructions cannot be interpreted,
so numpy stands in for them here, and the real ones are tested on a GPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
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
    log1p = staticmethod(from_numpy(np.log1p))
    fmod = staticmethod(from_numpy(np.fmod))
    tanh = staticmethod(from_numpy(np.tanh))


class Cuda:
    """Stages that run one after the other have nothing to wait for."""

    gdc_wait = staticmethod(lambda: None)
    gdc_launch_dependents = staticmethod(lambda: None)


tl.extra.__dict__["cuda"] = Cuda

INSTRUCTIONS = {
    "ex2.approx.ftz.f32": from_numpy(np.exp2),
    **dict.fromkeys(("mov.b32", "mov.b64"), from_numpy(np.copy)),
}


def inline_asm_elementwise(
    asm: str, constraints: str, args: list[Any], *_: Any, **more: Any
) -> Any:
    """One instruction, by its name."""
    return INSTRUCTIONS[asm.split()[0]](*args)


tl.__dict__["inline_asm_elementwise"] = inline_asm_elementwise


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
