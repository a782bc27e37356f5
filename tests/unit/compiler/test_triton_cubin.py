"""Every op and reduction compiles to a cubin, on a machine without a GPU."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.compiler.kernels import KERNELS

from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.generated import Generated
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.legality import check_kernel
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_daemon.workers import cubin
from nearhint_daemon.workers.cubin import compile_cubin, read_flags
from nearhint_daemon.workers.errors import (
    CapabilityUnknown,
    CompileFailed,
    CompilerKilled,
    DiskFull,
    KernelOversized,
)
from nearhint_daemon.workers.libdevice import Libdevice
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CudaLaunch, NullArgument
from nearhint_rules.guard import Divisible
from nearhint_rules.target import CudaDevice, Target

pytest.importorskip("triton")

POINTWISE = "cuda.pointwise x=128 warps=2 index=32 aligned=1 divisible=0"
LOOPED = "cuda.looped x=1 r=1024 warps=4 index=64 aligned=0 divisible=0"
ELF = b"\x7fELF"
DTYPES = (*ir.FLOATS, *ir.INTEGERS, ir.BOOL)


def target(capability: int) -> Target:
    return Target(CudaDevice("a GPU", capability, 132, 80 << 30, "580", 700), ("triton 3.7.1",))


def all_ops(dtype: str, capability: int) -> ir.Kernel:
    """One pointwise kernel with every op that takes `dtype`, and every cast from it."""
    p0 = ex.symbol("p0")
    names = [name for name, rule in ir.OPS.items() if dtype in rule.operands and name != "cast"]
    # The older one has no instruction for it.
    casts = [
        kind for kind in (*DTYPES, *ir.LOW_PRECISION) if (kind, capability) != ("f8e4m3fn", 80)
    ]
    params = [ir.Param("in", dtype)] * 3 + [ir.Param("in", "bool"), ir.Param("scalar", dtype)]
    body: list[ir.BodyNode] = [ir.Load(place, p0) for place in range(4)]
    body += [ir.Scalar(4), ir.Const(dtype, 1)]
    results: list[tuple[int, str]] = [(4, dtype), (5, dtype)]
    for name in names:
        rule = ir.OPS[name]
        result = "bool" if rule.result == "bool" else dtype
        operands = (3, 0, 1) if name == "where" else (0, 1, 2)[: rule.arity]
        results.append((len(body), result))
        body.append(ir.Op(name, result, operands))
    for kind in casts:
        results.append((len(body), kind))
        body.append(ir.Op("cast", kind, (0,)))
    for value, kind in results:
        body.append(ir.Store(len(params), p0, value))
        params.append(ir.Param("out", kind))
    k0 = ex.symbol("k0")
    return check_kernel(ir.Kernel(("k0",), (k0,), (), tuple(params), tuple(body)))


def all_reductions(dtype: str) -> ir.Kernel:
    """One row kernel with every reduction in `dtype`."""
    k0, k1, p0, r0 = map(ex.symbol, ("k0", "k1", "p0", "r0"))
    params = [ir.Param("in", dtype)]
    body: list[ir.BodyNode] = [ir.Load(0, ex.add(ex.mul(p0, k1), r0))]
    kinds = [kind for kind, allowed in ir.REDUCTIONS.items() if dtype in allowed]
    body += [ir.Reduce(kind, dtype, 0) for kind in kinds]
    for place in range(1, len(kinds) + 1):
        body.append(ir.Store(place, p0, place))
        params.append(ir.Param("out", dtype))
    return check_kernel(ir.Kernel(("k0", "k1"), (k0,), (k1,), tuple(params), tuple(body)))


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_op_compiles(dtype: str, capability: int, tmp_path: Path) -> None:
    generated = generate(all_ops(dtype, capability), parse_schedule(POINTWISE), target(capability))
    built = compile_cubin(
        generated, target(capability), scratch=tmp_path, libdevice=Libdevice(tmp_path)
    )
    assert built.binary.startswith(ELF)
    assert isinstance(built.launch, CudaLaunch)
    assert built.launch.capability == capability


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_reduction_compiles(dtype: str, capability: int, tmp_path: Path) -> None:
    generated = generate(all_reductions(dtype), parse_schedule(LOOPED), target(capability))
    assert compile_cubin(generated, target(capability), scratch=tmp_path).binary.startswith(ELF)


@pytest.mark.parametrize("capability", [20, 900])
def test_a_capability_that_there_is_not_is_refused_and_ends_no_process(
    capability: int, tmp_path: Path
) -> None:
    """LLVM would abort: it selects no instruction for a shuffle there."""
    generated = generate(all_reductions("f32"), parse_schedule(LOOPED), target(capability))
    with pytest.raises(CapabilityUnknown, match=f"no such compute capability as {capability}"):
        compile_cubin(generated, target(capability), scratch=tmp_path)


PROMISES = "index=32 aligned=0 divisible=0"


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("row_argmax_f32", f"cuda.persistent x=1 r=1024 warps=4 {PROMISES}"),
        ("column_argmin_bf16", f"cuda.looped x=64 r=16 warps=4 {PROMISES}"),
        ("arg_over_two_loops_i32", f"cuda.split x=1 r=512 splits=6 warps=4 {PROMISES}"),
        ("row_cumsum_f32", f"cuda.persistent x=1 r=1024 warps=4 {PROMISES}"),
        ("column_cumprod_i64", f"cuda.looped x=4 r=128 warps=4 {PROMISES}"),
        ("softmax_f32", f"cuda.split x=1 r=1024 splits=16 warps=4 {PROMISES}"),
        ("layer_norm_dynamic_f32", f"cuda.split x=2 r=512 splits=7 warps=4 {PROMISES}"),
        ("layer_norm_dynamic_f32", f"cuda.looped x=2 r=512 warps=4 {PROMISES}"),
        ("transpose_batched_bf16", f"cuda.tiled z=2 y=32 x=32 cuts=3 warps=4 {PROMISES}"),
        ("sum_outer_inner_f32", f"cuda.looped x=16 r=64 warps=4 {PROMISES}"),
    ],
)
def test_every_family_compiles(name: str, schedule: str, tmp_path: Path) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    generated = generate(kernel, parse_schedule(schedule), target(90))
    assert compile_cubin(generated, target(90), scratch=tmp_path).binary.startswith(ELF)


EIGHT_BITS: dict[str, ir.Kernel] = {
    name: replace(kernel, params=(ir.Param("in", dtype), *kernel.params[1:]))
    for dtype in ("f8e4m3fn", "f8e5m2")
    for name, kernel in {
        f"dequantised {dtype}": parse_kernel((KERNELS / "dequantised_f8e4m3fn.ir").read_text()),
        f"turned norm {dtype}": parse_kernel((KERNELS / "turned_rms_norm_bf16.ir").read_text()),
        f"transposed {dtype}": parse_kernel((KERNELS / "transpose_batched_bf16.ir").read_text()),
        f"column mean {dtype}": parse_kernel((KERNELS / "column_mean_bf16.ir").read_text()),
    }.items()
}


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_masked_loads_of_eight_bit_floats_compile(name: str, tmp_path: Path) -> None:
    kernel = EIGHT_BITS[name]
    found = {each.family: each for each in reversed(candidates(kernel, target(90)))}
    for schedule in found.values():
        generated = generate(kernel, schedule, target(90))
        assert ", other=0.0" in generated.source
        assert compile_cubin(generated, target(90), scratch=tmp_path).binary.startswith(ELF)


ANY_LENGTH = "index=32 aligned=1 divisible=0"


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("softmax_f16", f"cuda.persistent x=1 r=1024 warps=4 {ANY_LENGTH} words=1"),
        ("softmax_f16", f"cuda.persistent x=2 r=1024 warps=4 {ANY_LENGTH} words=1"),
        ("softmax_f16", f"cuda.looped x=1 r=1024 warps=4 {ANY_LENGTH} group=8 words=1"),
        ("softmax_f16", f"cuda.split x=1 r=1024 splits=8 warps=4 {ANY_LENGTH} group=8 words=1"),
        ("softmax_mask_f16", f"cuda.looped x=1 r=1024 warps=4 {ANY_LENGTH} group=8 words=1"),
        ("layer_norm_dynamic_f32", f"cuda.looped x=1 r=1024 warps=4 {ANY_LENGTH} group=4 words=1"),
        ("row_argmax_f32", f"cuda.looped x=1 r=1024 warps=4 {ANY_LENGTH} words=1"),
        ("row_cumsum_f32", f"cuda.persistent x=1 r=1024 warps=4 {ANY_LENGTH} words=1"),
        (
            "layer_norm_dynamic_f32",
            f"cuda.persistent x=1 r=1024 warps=4 {ANY_LENGTH} words=1 turns=4",
        ),
        ("plane_norm_bf16", f"cuda.persistent x=1 r=8192 warps=8 {ANY_LENGTH} words=1 r1=1024"),
        (
            "plane_norm_bf16",
            f"cuda.looped x=1 r=4096 warps=16 {ANY_LENGTH} group=8 unroll=2 words=1 r1=512",
        ),
        ("sum_outer_inner_f32", f"cuda.looped x=2 r=2048 warps=8 {ANY_LENGTH} words=1 r1=256"),
    ],
)
def test_rows_of_any_length_are_moved_in_vectors_under_no_promise_about_sizes(
    name: str, schedule: str, tmp_path: Path
) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    generated = generate(kernel, parse_schedule(schedule), target(90))
    assert not [fact for fact in generated.guard.facts if isinstance(fact, Divisible)]
    ptx = ptx_of(generated, tmp_path)
    row_loads, row_stores = (
        {node.param for node in kernel.body if isinstance(node, kind) and "p0" in str(node.index)}
        & {node.param for node in kernel.body if isinstance(node, kind) and "r0" in str(node.index)}
        for kind in (ir.Load, ir.Store)
    )
    assert len(re.findall(r"ld\.global\S*\.v[24]\.b32", ptx)) >= len(row_loads)
    assert len(re.findall(r"st\.global\S*\.v4\.b32", ptx)) >= len(row_stores)


PROMISED = "index=32 aligned=1 divisible=2"


@pytest.mark.parametrize(
    "schedule",
    [
        f"cuda.looped x=64 r=32 warps=8 {PROMISED} ahead=4",
        f"cuda.split x=32 r=64 splits=9 warps=8 {PROMISED} ahead=4",
        f"cuda.looped x=16 r=64 warps=8 {PROMISES} ahead=3",
    ],
)
def test_steps_ahead_are_copied_without_registers(schedule: str, tmp_path: Path) -> None:
    kernel = parse_kernel((KERNELS / "column_sum_f32.ir").read_text())
    parsed = parse_schedule(schedule)
    generated = generate(kernel, parsed, target(90))
    ptx = ptx_of(generated, tmp_path)
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global", ptx)
    assert len(copies) >= parsed["ahead"]
    built = compile_cubin(generated, target(90), scratch=tmp_path)
    assert isinstance(built.launch, CudaLaunch)
    block_bytes = 4 * parsed["x"] * parsed["r"]
    assert built.launch.shared_bytes >= (parsed["ahead"] - 1) * block_bytes


@pytest.mark.parametrize("length", ["k1", "100"])
def test_rows_of_half_words_are_moved_in_vectors_of_them(length: str, tmp_path: Path) -> None:
    """Promised to be multiples of half a word, and of one such length, with nothing promised."""
    text = (KERNELS / "layer_norm_dynamic_bf16.ir").read_text()
    rest = "divisible=2 multiple=4"
    if length != "k1":
        text = text.replace("(symbols k0 k1)", "(symbols k0)").replace("k1", length)
        rest = "divisible=0"
    schedule = f"cuda.persistent x=16 r=128 warps=4 index=32 aligned=1 {rest}"
    ptx = ptx_of(generate(parse_kernel(text), parse_schedule(schedule), target(90)), tmp_path)
    assert re.search(r"ld\.global\S*\.v2\.b32", ptx)
    assert re.search(r"st\.global\S*\.v2\.b32", ptx)
    assert not re.search(r"st\.global\S*\.b16", ptx)


def test_blocks_of_one_length_are_stored_in_vectors_whatever_the_sizes_are(tmp_path: Path) -> None:
    kernel = parse_kernel((KERNELS / "transposed_block_scale_f8e4m3fn.ir").read_text())
    default, *others, last = candidates(kernel, target(90), {"k0": 1009, "k1": 125})
    assert {each["aligned"] for each in (default, *others)} == {1}
    assert last["aligned"] == 0
    generated = generate(kernel, default, target(90))
    assert not [fact for fact in generated.guard.facts if isinstance(fact, Divisible)]
    ptx = ptx_of(generated, tmp_path)
    assert len(re.findall(r"st\.global\S*\.v4\.b32", ptx)) >= 1
    # What is left in single bytes or words: the scales, and what is read along columns.
    assert len(re.findall(r"st\.global\S*\.b8", ptx)) == 0


def test_a_warp_that_has_all_rows_of_its_columns_waits_for_no_other(tmp_path: Path) -> None:
    kernel = parse_kernel((KERNELS / "column_sum_f32.ir").read_text())
    found = candidates(kernel, target(90), {"k0": 8, "k1": 131_072})
    alone = [each for each in found if each["warps"] == 1]
    assert {each.family for each in alone} == {"cuda.persistent", "cuda.looped"}
    for schedule in alone:
        ptx = ptx_of(generate(kernel, schedule, target(90)), tmp_path)
        assert re.search(r"ld\.global\S*\.v4\.b32", ptx)
        assert "bar.sync" not in ptx


@pytest.mark.parametrize("divisible", [0, 1])
def test_rows_of_tiles_are_whole_in_few_threads_and_computed_once(
    divisible: int, tmp_path: Path
) -> None:
    """What is done once a row, and between threads, is less than with the reduction's axis where
    this Triton gives it threads first.
    """
    kernel = parse_kernel((KERNELS / "transposed_block_scale_f8e4m3fn.ir").read_text())
    here = replace(target(90), toolchain=(f"triton {version('triton')}",))
    offered = candidates(kernel, here, {"k0": 1024, "k1": 128})
    tiles = [each for each in offered if each.family == "cuda.tiled_persistent"]
    (is_spread,) = {each.get("spread", 0) for each in tiles}
    tile = f"z=1 y=64 x=4 r=32 cuts=1 warps=4 index=32 aligned=1 divisible={divisible}"
    chosen, other = (
        ptx_of(
            generate(
                kernel, parse_schedule(f"cuda.tiled_persistent {tile} spread={spread}"), target(90)
            ),
            tmp_path,
        )
        for spread in (is_spread, 1 - is_spread)
    )
    divisions, exchanges, loads = (
        [len(re.findall(pattern, ptx)) for ptx in (chosen, other)]
        for pattern in (r"\bdiv\.", r"\b(?:shfl|bar)\.sync", r"\bld\.global")
    )
    assert divisions[0] < divisions[1]
    assert exchanges[0] < exchanges[1]
    assert loads[0] == loads[1]


@pytest.mark.parametrize(
    ("toolchain", "is_spread"),
    [("triton 3.6.0", 0), ("triton 3.7.1", 1), ("triton 4.0", 1), ("cc 12.2.0", 0)],
)
def test_rows_of_tiles_are_spread_for_a_triton_that_begins_at_the_last_axis(
    toolchain: str, is_spread: int
) -> None:
    kernel = parse_kernel((KERNELS / "transposed_block_scale_f8e4m3fn.ir").read_text())
    there = replace(target(90), toolchain=("ptxas 12.8", toolchain))
    offered = candidates(kernel, there, {"k0": 1009, "k1": 125})
    tiles = [each for each in offered if each.family == "cuda.tiled_persistent"]
    assert {each.get("spread", 0) for each in tiles} == {is_spread}


@pytest.mark.parametrize(
    ("name", "cuts"), [("transpose_add_f32", 1), ("transpose_batched_bf16", 2)]
)
def test_tiles_of_any_size_move_their_rows_in_vectors(name: str, cuts: int, tmp_path: Path) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    text = f"cuda.tiled z=1 y=32 x=128 cuts={cuts} warps=8 {ANY_LENGTH} order=1 words=1"
    generated = generate(kernel, parse_schedule(text), target(90))
    assert not [fact for fact in generated.guard.facts if isinstance(fact, Divisible)]
    ptx = ptx_of(generated, tmp_path)
    assert re.search(r"st\.global\S*\.v4\.b32", ptx)
    assert "bar.sync" not in ptx  # nothing is exchanged between threads


def test_both_parts_of_a_join_are_one_vector_where_sizes_are_promised(tmp_path: Path) -> None:
    kernel = parse_kernel((KERNELS / "rotary_joined_f16.ir").read_text())
    text = "cuda.tiled z=1 y=1 x=1024 cuts=1 warps=4 index=32 aligned=1 divisible=6 order=1"
    ptx = ptx_of(generate(kernel, parse_schedule(text), target(90)), tmp_path)
    assert len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)) == 4
    assert not re.search(r"ld\.global\S*\.b16", ptx)


def test_units_of_rows_of_a_known_length_are_vectors(tmp_path: Path) -> None:
    kernel = parse_kernel((KERNELS / "rotary_of_12_bf16.ir").read_text())
    text = "cuda.pointwise x=512 warps=4 index=32 aligned=1 divisible=0 unit=4 whole=1"
    ptx = ptx_of(generate(kernel, parse_schedule(text), target(90)), tmp_path)
    # What is rotated begins anywhere within six: of it two elements are one load.
    assert len(re.findall(r"ld\.global\S*\.v2\.b32", ptx)) == 6
    assert not re.search(r"ld\.global\S*\.b16", ptx)


def test_what_rows_of_a_known_length_have_once_is_of_one_shape(tmp_path: Path) -> None:
    kernel = parse_kernel((KERNELS / "scaled_rows_of_12_bf16.ir").read_text())
    text = "cuda.pointwise x=512 warps=4 index=32 aligned=1 divisible=0 unit=4 whole=1"
    source = generate(kernel, parse_schedule(text), target(90))
    assert "tl.broadcast_to(tl.load(a0 + p0), [X // 4, 4])" in source.source
    ptx_of(source, tmp_path)


def ptx_of(generated: Generated, scratch: Path) -> str:
    """What Triton hands to ptxas."""
    compiled = cubin._compile(generated, 90, scratch)
    return str(compiled.asm["ptx"])


def softmax() -> ir.Kernel:
    return parse_kernel((KERNELS / "softmax_f16.ir").read_text())


def test_equal_source_gives_equal_bytes_wherever_it_is_compiled(tmp_path: Path) -> None:
    generated = generate(softmax(), parse_schedule(LOOPED), target(90))
    folders = [tmp_path / "one", tmp_path / "a_longer_name"]
    for folder in folders:
        folder.mkdir()
    first, second = (compile_cubin(generated, target(90), scratch=folder) for folder in folders)
    assert first.binary == second.binary
    assert str(tmp_path).encode() not in first.binary
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


def test_the_launch_is_completed_by_what_the_toolchain_decided(tmp_path: Path) -> None:
    generated = generate(softmax(), parse_schedule(LOOPED), target(90))
    launch = compile_cubin(generated, target(90), scratch=tmp_path).launch
    assert isinstance(launch, CudaLaunch)
    assert isinstance(generated.launch, CudaLaunch)
    own = generated.launch.arguments
    assert launch.arguments[: len(own)] == own
    hidden = launch.arguments[len(own) :]
    assert hidden
    assert set(hidden) == {NullArgument()}
    assert launch.shared_bytes > 0
    assert launch.entry.encode() in compile_cubin(generated, target(90), scratch=tmp_path).binary


def test_the_default_of_short_rows_in_tiles_is_little_code(tmp_path: Path) -> None:
    """What it takes to compile goes with that: 54 KiB took 1.4 s, and the bar is 0.4 s."""
    given = parse_kernel((KERNELS / "transposed_block_scale_f8e4m3fn.ir").read_text())
    default, *_ = candidates(given, target(90), {"k0": 1009, "k1": 125})
    built = compile_cubin(generate(given, default, target(90)), target(90), scratch=tmp_path)
    assert len(built.binary) < 24 << 10


def test_a_kernel_that_spills_is_refused(tmp_path: Path) -> None:
    crowded = "cuda.pointwise x=2048 warps=1 index=32 aligned=1 divisible=0"
    kernel = parse_kernel((KERNELS / "int_division.ir").read_text())
    generated = generate(kernel, parse_schedule(crowded), target(90))
    with pytest.raises(KernelOversized, match="spill"):
        compile_cubin(generated, target(90), scratch=tmp_path)


def test_source_that_triton_refuses_is_a_typed_error(tmp_path: Path) -> None:
    generated = generate(softmax(), parse_schedule(LOOPED), target(90))
    broken = type(generated)(
        generated.language,
        generated.source.replace("tl.load", "tl.no_such_function"),
        generated.launch,
        generated.guard,
        generated.flags,
    )
    with pytest.raises(CompileFailed, match="no_such_function"):
        compile_cubin(broken, target(90), scratch=tmp_path)


def test_flags_are_read_back() -> None:
    generated = generate(softmax(), parse_schedule(LOOPED), target(90))
    flags = read_flags(generated.flags)
    assert list(flags.signature) == ["a0", "a1", "k0", "k1"]
    assert flags.signature["a0"] == "*fp16"
    assert flags.constants == {"X": 1, "R": 1024}
    assert flags.divisible == {}
    assert flags.options == {"num_warps": 4}


def test_flags_say_of_what_an_argument_is_a_multiple() -> None:
    assert read_flags(["divisible:0=16", "divisible:3=8"]).divisible == {0: 16, 3: 8}


def test_a_full_disk_is_no_failure_of_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "kernel.py")

    monkeypatch.setattr(cubin, "_compile", write)
    kernel = parse_kernel((KERNELS / "add_f32.ir").read_text())
    generated = generate(kernel, parse_schedule(POINTWISE), target(90))
    with pytest.raises(DiskFull, match="No space left"):
        compile_cubin(generated, target(90), scratch=tmp_path)


def test_an_assembler_that_the_system_kills_is_no_failure_of_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "ptxas"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    ptxas = SimpleNamespace(path=str(killed), version="12.8")
    monkeypatch.setattr("triton.backends.nvidia.compiler.get_ptxas", lambda arch: ptxas)
    monkeypatch.setattr("triton.backends.nvidia.compiler.get_ptxas_version", lambda arch: "12.8")
    kernel = parse_kernel((KERNELS / "add_f32.ir").read_text())
    generated = generate(kernel, parse_schedule(POINTWISE), target(90))
    with pytest.raises(CompilerKilled, match="ptxas"):
        compile_cubin(generated, target(90), scratch=tmp_path)
