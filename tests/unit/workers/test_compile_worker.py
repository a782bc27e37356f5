"""The compile worker: toolchains, reproducible binaries, and failures that can be reproduced."""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.workers.building import (
    activation,
    default_source,
    hand_written,
    lowered,
    norm,
    target,
)

from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.c.primitive import AVX512, FEATURES
from nearhint_compiler.codegen.generated import Generated
from nearhint_compiler.ir.text import parse_kernel, print_kernel
from nearhint_compiler.schedule import parse_schedule
from nearhint_daemon.workers import cc, compile_worker, serve, toolchain
from nearhint_daemon.workers.cc import CcTimedOut, Headers, commands, compile_c
from nearhint_daemon.workers.compile_worker import compile_variant, handlers
from nearhint_daemon.workers.errors import (
    CcMissing,
    CompileFailed,
    CompilerKilled,
    DiskFull,
    ToolchainChanged,
)
from nearhint_daemon.workers.reproducer import for_compile
from nearhint_daemon.workers.serve import WorkerState
from nearhint_daemon.workers.starvation import Starvation
from nearhint_proto.convert import program_to_proto, size_hint_to_proto, target_to_proto
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.target import CpuDevice, CudaDevice, Target

H100 = Target(CudaDevice("H100", 90, 132, 80 << 30, "550", 700), ("triton 3.6.0",))
KERNELS = Path(__file__).parents[2] / "kernels"
Sizes = tuple[int, ...]
TIMEOUT_S = 0.05
LOOP = "for (int64_t i = 0; i < n; i++) y[i] = sqrtf(x[i]) * 2;"
HALF_OF_A_REGISTER = """(kernel (symbols k0)
  (pointwise k0)
  (reduction)
  (params (in f32) (out i32))
  (body
    (load 0 p0)
    (const f32 0x3f800000)
    (le bool 0 1)
    (const i64 0x1)
    (const i64 0x0)
    (where i64 2 3 4)
    (cast i32 5)
    (store 1 p0 6)))"""
"""A choice between words of 64 bits that is narrowed to half of them."""


def request(schedule: str = "", on: Target | None = None) -> pb.CompileVariant:
    kernel, _ = lowered(activation())
    asked = pb.ListSchedules(
        kernel_ir=print_kernel(kernel),
        target=target_to_proto(target()),
        hint=size_hint_to_proto({"k0": 64}),
    )
    first = compile_worker.list_schedules(asked).schedules[0]
    return pb.CompileVariant(
        kernel_ir=asked.kernel_ir,
        schedule=schedule or first,
        target=target_to_proto(on or target()),
    )


def held_best(name: str, hint: Sizes, *, near: Sizes | None = None, default: str = "") -> str:
    """What a worker holds best on an H100 for a Kernel of the tests; "" for its default."""
    return next(iter(all_held_best(name, hint, near=near, default=default)), "")


def all_held_best(
    name: str, hint: Sizes, *, near: Sizes | None = None, default: str = ""
) -> list[str]:
    """The same, and what is held best beside it."""
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    asked = pb.ChooseFirst(
        kernel_ir=print_kernel(kernel),
        target=target_to_proto(H100),
        hint=size_hint_to_proto(dict(zip(kernel.symbols, hint, strict=True))),
        near=size_hint_to_proto(dict(zip(kernel.symbols, near or (), strict=near is not None))),
    )
    listing = pb.ListSchedules(kernel_ir=asked.kernel_ir, target=asked.target, hint=asked.hint)
    asked.default = default or compile_worker.list_schedules(listing).schedules[0]
    return list(compile_worker.choose_first(asked).schedules)


@pytest.mark.parametrize("effort", ["quick", "full", "max"])
@pytest.mark.parametrize("capability", [80, 86, 89, 90])
def test_nothing_is_compiled_of_a_dtype_that_a_gpu_has_no_instructions_for(
    capability: int, effort: str
) -> None:
    """Triton refuses each Variant, after seconds."""
    device = CudaDevice("a GPU", capability, 108, 80 << 30, "550", 400)
    for name in ("dequantised_f8e4m3fn", "transposed_block_scale_f8e4m3fn"):
        kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
        asked = pb.ListSchedules(
            kernel_ir=print_kernel(kernel),
            target=target_to_proto(replace(H100, device=device)),
            hint=size_hint_to_proto(dict.fromkeys(kernel.symbols, 512)),
            effort=effort,
        )
        found = compile_worker.list_schedules(asked)
        assert bool(found.schedules) == (capability >= 89)
        asked.ClearField("hint")
        assert bool(compile_worker.list_schedules(asked).schedules) == (capability >= 89)


def test_nothing_is_first_where_the_default_is_held_best() -> None:
    assert held_best("add_bf16", (4096,)) == ""
    found = held_best("softmax_f32", (512, 1024))
    assert found.startswith("cuda.persistent")
    assert held_best("softmax_f32", (512, 1024), default=found) == ""


def test_beside_units_that_promise_are_those_for_odd_sizes_and_for_even_ones() -> None:
    found = [parse_schedule(each) for each in all_held_best("swapped_heads_bf16", (8, 512, 64))]
    promised = [(each["unit"], each["divisible"], each.get("multiple", 0)) for each in found]
    assert promised == [(4, 4, 4), (4, 0, 0), (4, 4, 2)]
    even = parse_schedule(held_best("swapped_heads_bf16", (8, 512, 64), near=(7, 700, 66)))
    assert (even["unit"], even["multiple"]) == (4, 2)


def test_what_is_first_holds_where_it_is_measured_and_at_the_sizes_that_asked() -> None:
    hint = (512, 1024)
    promising = parse_schedule(held_best("softmax_f32", hint))
    assert (promising["r"], promising["divisible"]) == (1024, 2)
    odd = parse_schedule(held_best("softmax_f32", hint, near=(509, 1021)))
    assert (odd["r"], odd["divisible"]) == (1024, 0)
    longer = parse_schedule(held_best("softmax_f32", hint, near=(600, 1360)))
    assert (longer["r"] * longer["pieces"], longer["divisible"]) == (1536, 2)
    # What is best at the sizes that asked would not hold at the hint: the hint's own then.
    shorter = parse_schedule(held_best("softmax_f32", (512, 1040), near=(512, 1024)))
    assert (shorter["r"], shorter["divisible"]) == (2048, 2)


@pytest.mark.parametrize("name", ["softmax_f32", "column_sum_f32", "row_argmax_f32"])
@pytest.mark.parametrize("hint", [(131_072, 128), (128, 131_072), (8192, 4096)])
def test_sizes_beside_those_of_a_hint_have_a_first_of_their_own(name: str, hint: Sizes) -> None:
    """What a hint of powers of two promises serves none of the odd sizes in its bucket."""
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    first, other = map(parse_schedule, all_held_best(name, hint))
    assert (first["divisible"] > 0, other["divisible"]) == (True, 0)
    here = dict(zip(kernel.symbols, hint, strict=True))
    odd = {symbol: size - 1 for symbol, size in here.items()}
    guards = [generate(kernel, each, H100).guard for each in (first, other)]
    assert [size_facts_hold(each, odd) for each in guards] == [False, True]
    assert all(size_facts_hold(each, here) for each in guards)


def test_what_promises_nothing_is_alone() -> None:
    assert len(all_held_best("softmax_f32", (512, 1021))) == 1


def test_equal_source_gives_equal_bytes_wherever_it_is_compiled(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    binaries = {compile_c(hand_written(LOOP), scratch=folder).binary for folder in (first, second)}
    assert len(binaries) == 1
    assert str(tmp_path).encode() not in binaries.pop()
    assert list(first.iterdir()) == []


def test_headers_compiled_ahead_are_compiled_once_and_change_no_byte(tmp_path: Path) -> None:
    headers = Headers(tmp_path)
    body = "#include <immintrin.h>\n" + hand_written(LOOP).source
    sources = [replace(hand_written(LOOP), source=body, flags=("-O1",)) for _ in range(2)]
    ahead = {compile_c(each, scratch=tmp_path, headers=headers).binary for each in sources}
    assert ahead == {compile_c(sources[0], scratch=tmp_path).binary}
    assert len(list(tmp_path.glob("headers-*/headers.h.gch"))) == 1
    assert headers.options(sources[0]) != ()


def test_a_source_without_intrinsics_takes_no_header_compiled_ahead(tmp_path: Path) -> None:
    assert Headers(tmp_path).options(hand_written(LOOP)) == ()
    assert list(tmp_path.iterdir()) == []


def test_headers_that_do_not_compile_are_read_as_text(tmp_path: Path) -> None:
    source = replace(hand_written(""), source="#include <immintrin.h>\n", flags=("--no-such",))
    assert Headers(tmp_path).options(source) == ()


def test_a_binary_needs_libc_and_openmp_alone(tmp_path: Path) -> None:
    compiled = compile_variant(request(), scratch=tmp_path, toolchain=target().toolchain)
    library = tmp_path / "kernel.so"
    library.write_bytes(compiled.binary)
    listed = subprocess.run(
        ["readelf", "--dynamic", "--wide", library], check=True, capture_output=True, text=True
    ).stdout
    needed = {
        line.rpartition("[")[2].rstrip("]") for line in listed.splitlines() if "NEEDED" in line
    }
    assert needed <= {"libc.so.6", "libm.so.6"}


def test_a_variant_comes_with_what_is_needed_to_launch_it(tmp_path: Path) -> None:
    compiled = compile_variant(request(), scratch=tmp_path, toolchain=target().toolchain)
    assert compiled.artifact.size_bytes == len(compiled.binary)
    assert compiled.artifact.cpu.entry in compiled.source
    assert set(compiled.phase_s) == {"generate", "toolchain"}


def test_what_the_compiler_says_becomes_a_reproducer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Generated:
        return replace(hand_written("this is no C;"), flags=("-O1",))

    monkeypatch.setattr(compile_worker, "generate", broken)
    with pytest.raises(CompileFailed, match="error") as caught:
        compile_variant(request(), scratch=tmp_path, toolchain=target().toolchain)
    files = caught.value.reproducer
    assert set(files) == {
        "kernel.ir", "schedule.txt", "source.txt", "command.txt", "stderr.txt", "versions.txt",
        "repro.py",
    }  # fmt: skip
    assert "this is no C" in files["source.txt"]
    assert files["command.txt"].splitlines()[0].startswith("cc ")
    assert "-O1" in files["command.txt"]


def test_the_reproducer_runs_with_the_compiler_package_alone(tmp_path: Path) -> None:
    kernel, _ = lowered(activation())
    files = for_compile(
        request(),
        target=repr(target()),
        source="",
        commands="\n".join(map(" ".join, commands(default_source(kernel).flags))),
        log="",
    )
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    subprocess.run([sys.executable, "repro.py"], cwd=tmp_path, check=True)
    assert (tmp_path / "kernel.so").exists()


def only_cc(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """A shell script of these lines stands for the compiler; there is nothing else to run."""
    script = folder / "cc"
    script.write_text("\n".join(("#!/bin/sh", *lines, "")), encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_missing_compiler_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CcMissing):
        compile_c(hand_written(LOOP), scratch=tmp_path)
    assert not [entry for entry in toolchain.detect() if entry.startswith("cc")]


def test_a_compiler_that_does_not_say_in_time_what_it_is_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_cc(tmp_path, monkeypatch, "exec /bin/sleep 100")
    monkeypatch.setattr(toolchain, "_VERSION_TIMEOUT_S", 0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        toolchain.detect()


def test_a_compiler_that_is_not_gcc_is_not_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_cc(tmp_path, monkeypatch, "echo 'error: unknown argument' >&2", "exit 1")
    assert toolchain._cc() == ""


def test_a_full_disk_is_no_failure_of_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = 'echo "Fatal error: can\'t close kernel.o: No space left on device" >&2'
    only_cc(tmp_path, monkeypatch, said, "exit 1")
    headers = Headers(tmp_path)
    for included in ("", "#include <immintrin.h>\n"):
        source = replace(hand_written(LOOP), source=included + hand_written(LOOP).source)
        with pytest.raises(DiskFull, match="No space left"):
            compile_c(source, scratch=tmp_path, headers=headers)


@pytest.mark.parametrize(
    "lines",
    [
        ("kill -9 $$",),
        ('echo "cc: fatal error: Killed signal terminated program cc1" >&2', "exit 1"),
        ('echo "collect2: fatal error: ld terminated with signal 9 [Killed]" >&2', "exit 1"),
    ],
)
def test_a_compiler_that_the_system_kills_is_no_failure_of_what_is_compiled(
    lines: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_cc(tmp_path, monkeypatch, *lines)
    with pytest.raises(CompilerKilled):
        compile_c(hand_written(LOOP), scratch=tmp_path)


@pytest.mark.parametrize(
    "said", ["kernel.c:1:1: error: 'Killed' undeclared", "cc: signal terminated program cc1"]
)
def test_a_compiler_that_refuses_a_source_was_not_killed(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_cc(tmp_path, monkeypatch, f'echo "{said}" >&2', "exit 1")
    with pytest.raises(CompileFailed, match=re.escape(said)):
        compile_c(hand_written(LOOP), scratch=tmp_path)


def test_a_disk_that_fills_in_the_middle_of_a_job_is_told_as_such() -> None:
    def compile_variant(request: pb.WorkerRequest) -> pb.WorkerResponse:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "kernel.c")

    asked = pb.WorkerRequest(compile_variant=request())
    answer = serve._answer(asked, {"compile_variant": compile_variant})
    assert answer.error.code == "DISK_FULL"


def test_a_target_of_another_toolchain_is_refused(tmp_path: Path) -> None:
    other = replace(target(), toolchain=("cc 99.0.0",))
    with pytest.raises(ToolchainChanged, match=r"cc 99\.0\.0"):
        compile_variant(request(on=other), scratch=tmp_path, toolchain=target().toolchain)


def test_a_compiler_that_hangs_is_given_up_and_its_worker_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_cc(tmp_path, monkeypatch, "exec /bin/sleep 100")
    with pytest.raises(CcTimedOut):
        compile_c(hand_written(LOOP), scratch=tmp_path, timeout_s=0.1)

    def late(*_: object, **__: object) -> None:
        raise CcTimedOut("cc took more than 1 s")

    monkeypatch.setattr(compile_worker, "compile_c", late)
    state = WorkerState()
    jobs = handlers(state, tmp_path, target().toolchain)
    with pytest.raises(CcTimedOut):
        jobs["compile_variant"](pb.WorkerRequest(compile_variant=request()))
    assert state.is_damaged


def test_a_compiler_that_waits_for_a_cpu_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says something once it was looked at for longer than it has, all of which it starved."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    only_cc(tmp_path, monkeypatch, f"read line < {fifo}", "echo $line >&2", "exit 1")
    looked_at_s: list[float] = []

    def since_last_s(starvation: Starvation) -> float:
        is_late = looked_at_s and looked_at_s[-1] - looked_at_s[0] > TIMEOUT_S
        looked_at_s.append(time.monotonic())
        if not is_late and looked_at_s[-1] - looked_at_s[0] > TIMEOUT_S:
            fifo.write_text("no such C\n", encoding="utf-8")
        return math.inf

    monkeypatch.setattr(Starvation, "since_last_s", since_last_s)
    with pytest.raises(CompileFailed, match="no such C"):
        compile_c(hand_written(LOOP), scratch=tmp_path, timeout_s=TIMEOUT_S)


def test_a_program_is_lowered_to_kernels_and_fallbacks() -> None:
    found = compile_worker.lower_program(
        pb.LowerProgram(program=program_to_proto(norm()), target_kind="cpu")
    )
    (kernel,) = found.kernels
    assert kernel.symbols == ["k0"]
    assert kernel.ir == print_kernel(lowered(norm())[0])
    assert [fallback.kernel for fallback in found.fallbacks] == [kernel.id]


@pytest.mark.parametrize(
    ("kind", "found", "wanted"),
    [
        ("cpu", ("cc 12.2.0", "triton 3.7.1", "ptxas 12.8.93"), ("cc 12.2.0",)),
        ("cuda", ("cc 12.2.0", "triton 3.7.1", "ptxas 12.8.93"), ("triton 3.7.1", "ptxas 12.8.93")),
        ("cuda", ("cc 12.2.0",), ()),
        ("cpu", (), ()),
    ],
)
def test_a_target_takes_the_tools_of_its_kind(
    kind: str, found: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    assert toolchain.for_kind(kind, found) == wanted


def test_the_flags_never_trade_correctness_for_speed() -> None:
    assert not {"-ffast-math", "-Ofast", "-ffinite-math-only"} & set(cc.COMPILE_FLAGS)
    assert "-fopenmp" not in cc.LINK_FLAGS


def test_a_masked_store_is_one_that_memory_behind_its_mask_need_not_be_there_for(
    tmp_path: Path,
) -> None:
    """A masked `vextract` faults on what its mask leaves out; gcc makes one of half a register."""
    kernel = parse_kernel(HALF_OF_A_REGISTER)
    avx512 = Target(CpuDevice("any", FEATURES[AVX512], "glibc"), ("cc",))
    for lanes in (4, 8):
        schedule = parse_schedule(f"cpu.pointwise axis=0 lanes={lanes} unroll=1 block=1024")
        generated = generate(kernel, schedule, avx512)
        (tmp_path / "kernel.c").write_text(generated.source)
        flags = (*cc.COMPILE_FLAGS, *generated.flags)
        subprocess.run([toolchain.CC, *flags, "-S", "kernel.c"], cwd=tmp_path, check=True)
        assembly = (tmp_path / "kernel.s").read_text()
        assert re.search(r"vmovdqu32\s[^\n]*\{%k", assembly)
        assert not re.search(r"vextract\w+\s[^\n]*\)\{%k", assembly)
