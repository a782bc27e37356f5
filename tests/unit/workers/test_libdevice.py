"""The functions of libdevice apart: what they serve, and that code stays what it is."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest

from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.generated import Generated
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_daemon.workers import libdevice
from nearhint_daemon.workers.cubin import compile_cubin
from nearhint_daemon.workers.libdevice import Libdevice
from nearhint_rules.target import CudaDevice, Target

pytest.importorskip("triton")

KERNELS = Path(__file__).parents[2] / "kernels"
POINTWISE = "cuda.pointwise x=128 warps=2 index=32 aligned=1 divisible=0"
LOOPED = "cuda.looped x=1 r=256 warps=2 index=32 aligned=1 divisible=0"
TARGET = Target(CudaDevice("a GPU", 90, 132, 80 << 30, "580", 700), ("triton 3.7.1",))
INSTRUCTION_BYTES, MOVE, PADDING = 16, 0x202, 0x918
FLOATING = {0x08, 0x09, 0x0B, 0x20, 0x21, 0x23, 0x28, 0x29, 0x2B}
"""Low bytes of choices, comparisons, products and sums, and of what approximates functions."""


def source(name: str, schedule: str) -> Generated:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text(encoding="ascii"))
    return generate(kernel, parse_schedule(schedule), TARGET)


def instructions(cubin: bytes) -> bytes:
    """The section of an ELF file of 64 bits that holds the kernel's code."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQ", cubin, table + size * each) for each in range(count)]
    for name, _, _, _, offset, length in heads:
        if cubin.startswith(b".text.", heads[names][4] + name):
            return cubin[offset : offset + length]
    raise AssertionError("no code")


def both(name: str, schedule: str, folder: Path) -> tuple[bytes, bytes]:
    """The code with the functions apart, and with the whole library."""
    few, generated = Libdevice(folder), source(name, schedule)
    assert few.options(generated)
    apart = compile_cubin(generated, TARGET, scratch=folder, libdevice=few)
    whole = compile_cubin(generated, TARGET, scratch=folder)
    return instructions(apart.binary), instructions(whole.binary)


def operations(code: bytes) -> Counter[int]:
    """How often each operation of sm_90 is there, but for moves of registers and padding."""
    found = Counter(
        int.from_bytes(code[place : place + 2], "little") & 0xFFF
        for place in range(0, len(code), INSTRUCTION_BYTES)
    )
    return Counter({code: count for code, count in found.items() if code not in (MOVE, PADDING)})


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("gelu_erf_f32", POINTWISE),
        ("gelu_tanh_f16", POINTWISE),
        ("softmax_f16", LOOPED),
        ("rms_norm_bf16", LOOPED),
        ("rotary_joined_f16", POINTWISE),
        ("plane_norm_bf16", LOOPED),
        ("group_norm_bf16", LOOPED),
        ("layer_norm_f16", LOOPED),
    ],
)
def test_functions_read_apart_change_no_instruction(
    name: str, schedule: str, tmp_path: Path
) -> None:
    apart, whole = both(name, schedule, tmp_path)
    assert apart == whole


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("float_division", POINTWISE), ("normalised_cumsum_bf16", LOOPED), ("softmax_f32", LOOPED)],
)
def test_functions_read_apart_are_the_same_operations_at_most_in_another_order(
    name: str, schedule: str, tmp_path: Path
) -> None:
    apart, whole = both(name, schedule, tmp_path)
    assert len(apart) == len(whole)
    assert operations(apart) == operations(whole)


@pytest.mark.parametrize("name", ["layer_norm_f32", "log_softmax_f32", "entropy_bf16"])
def test_functions_read_apart_compute_the_same_of_floats(name: str, tmp_path: Path) -> None:
    """Where something else is first, places are added up in other ways."""
    apart, whole = (operations(each) for each in both(name, LOOPED, tmp_path))
    assert set(apart) | set(whole) > {0x221, 0x223}
    for code in {*apart, *whole}:
        assert apart[code] == whole[code] or code & 0xFF not in FLOATING


def test_what_the_functions_ask_about_denormals_is_answered_in_the_text(tmp_path: Path) -> None:
    options = Libdevice(tmp_path).options(source("gelu_erf_f32", POINTWISE))
    text = Path(options["extern_libs"]["libdevice"]).read_text(encoding="ascii")
    assert "define float @__nv_expf" in text
    assert "call i32 @__nvvm_reflect" not in text


def test_places_are_divided_by_what_is_in_the_part() -> None:
    for name, schedule in (("rotary_joined_f16", POINTWISE), ("plane_norm_bf16", LOOPED)):
        assert "tl.umulhi(" in source(name, schedule).source


def test_functions_are_taken_apart_once(tmp_path: Path) -> None:
    few = Libdevice(tmp_path)
    assert list(tmp_path.iterdir()) == []
    first, second = (few.options(source(name, POINTWISE)) for name in ("add_f32", "gelu_erf_f32"))
    assert first == second
    assert len(list(tmp_path.glob("libdevice-*/libdevice.ll"))) == 1


def test_double_precision_takes_the_whole_library(tmp_path: Path) -> None:
    few = Libdevice(tmp_path)
    assert few.options(source("tanh_f64", POINTWISE)) == {}
    assert few.options(source("row_prod_f64", LOOPED)) == {}


def test_a_call_of_another_function_takes_the_whole_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libdevice, "ARGUMENTS", {"erf": 1})
    assert Libdevice(tmp_path).options(source("softmax_f32", LOOPED)) == {}


def test_without_the_names_that_link_it_the_whole_library_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triton._C.libtriton.llvm.link_extern_libs", None)
    assert Libdevice(tmp_path).options(source("gelu_erf_f32", POINTWISE)) == {}
