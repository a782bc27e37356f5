"""The functions of libdevice apart: what they serve, and that no byte of a binary changes."""

from __future__ import annotations

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


def source(name: str, schedule: str) -> Generated:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text(encoding="ascii"))
    return generate(kernel, parse_schedule(schedule), TARGET)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("gelu_erf_f32", POINTWISE),
        ("float_division", POINTWISE),
        ("softmax_f32", LOOPED),
        ("layer_norm_f32", LOOPED),
        ("rotary_joined_f16", POINTWISE),
        ("plane_norm_bf16", LOOPED),
    ],
)
def test_functions_read_apart_change_no_byte(name: str, schedule: str, tmp_path: Path) -> None:
    few, generated = Libdevice(tmp_path), source(name, schedule)
    assert few.options(generated)
    apart = compile_cubin(generated, TARGET, scratch=tmp_path, libdevice=few)
    assert apart.binary == compile_cubin(generated, TARGET, scratch=tmp_path).binary


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
