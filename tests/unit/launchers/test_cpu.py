"""CPU Artifacts are loaded from sealed memory, checked, and called on torch's thread pool."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.descriptors import descriptors

from nearhint.launchers import cpu, load
from nearhint.launchers.errors import (
    ArtifactCorrupt,
    FeaturesMissing,
    LoadFailed,
    WrongSizes,
)
from nearhint.launchers.openmp import runtimes_in
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CpuLaunch

SOURCE = """
#include <stdint.h>
void nh_add(void *const *parameters, const int64_t *dims, int32_t threads) {
    const float *x = parameters[0];
    float *y = parameters[1];
    #pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < dims[0]; i++) y[i] = x[i] + ADDEND;
}
"""
LAUNCH = CpuLaunch("nh_add", ex.mul(2, ex.symbol("k0")), grain=100)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def build(folder: Path, addend: int) -> tuple[bytes, str]:
    source = folder / f"add{addend}.c"
    source.write_text(SOURCE, encoding="utf-8")
    built, library = source.with_suffix(".o"), source.with_suffix(".so")
    compile_only = ["cc", "-O2", "-fPIC", "-fopenmp", f"-DADDEND={addend}", "-c"]
    subprocess.run([*compile_only, "-o", built, source], check=True)
    subprocess.run(["cc", "-shared", "-nostartfiles", "-o", library, built], check=True)
    binary = library.read_bytes()
    return binary, hashlib.sha256(binary).hexdigest()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    return build(tmp_path_factory.mktemp("artifact"), 1)


def run(kernel: cpu.CpuKernel, size: int) -> list[float]:
    x, y = np.arange(size, dtype=np.float32), np.full(size, np.nan, np.float32)
    kernel.bind((size,), threads=2)([x.ctypes.data, y.ctypes.data])
    return [float(value) for value in y]


def test_a_loaded_kernel_computes(artifact: tuple[bytes, str]) -> None:
    binary, sha256 = artifact
    assert run(load(binary, LAUNCH, sha256=sha256), 5) == [1, 2, 3, 4, 5]


def test_a_flipped_byte_is_never_loaded(artifact: tuple[bytes, str]) -> None:
    binary, sha256 = artifact
    forged = bytearray(binary)
    forged[len(forged) // 2] ^= 1
    with pytest.raises(ArtifactCorrupt, match="hash"):
        load(bytes(forged), LAUNCH, sha256=sha256)
    with pytest.raises(ArtifactCorrupt, match="empty"):
        load(b"", LAUNCH, sha256=sha256)


def test_the_memory_file_is_sealed_when_its_hash_is_taken(
    artifact: tuple[bytes, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int | None] = []

    def tamper(descriptor: int, size: int, sha256: str) -> None:
        for change in (lambda: os.pwrite(descriptor, b"x", 0), lambda: os.ftruncate(descriptor, 1)):
            with pytest.raises(PermissionError) as error:
                change()
            refused.append(error.value.errno)

    monkeypatch.setattr(cpu, "_check", tamper)
    binary, sha256 = artifact
    load(binary, LAUNCH, sha256=sha256)
    assert len(refused) == 2


def test_a_descriptor_number_used_again_does_not_bring_back_the_old_library(
    artifact: tuple[bytes, str], tmp_path: Path
) -> None:
    binary, sha256 = artifact
    other, other_sha256 = build(tmp_path, 10)
    first = load(binary, LAUNCH, sha256=sha256)
    second = load(other, LAUNCH, sha256=other_sha256)
    assert run(first, 2) == [1, 2]
    assert run(second, 2) == [10, 11]


def test_loading_leaves_no_descriptor_open(artifact: tuple[bytes, str]) -> None:
    binary, sha256 = artifact
    before = descriptors()
    kept = [load(binary, LAUNCH, sha256=sha256) for _ in range(8)]
    assert descriptors() <= before
    assert len(kept) == 8


def mapped_artifacts() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:nearhint-artifact")


def test_a_library_lives_as_long_as_its_last_bound_call(artifact: tuple[bytes, str]) -> None:
    gc.collect()
    before = mapped_artifacts()
    call = load(artifact[0], LAUNCH, sha256=artifact[1]).bind((1,), threads=1)
    gc.collect()
    assert mapped_artifacts() > before
    del call
    gc.collect()
    assert mapped_artifacts() == before


def test_an_artifact_for_other_instructions_is_refused(artifact: tuple[bytes, str]) -> None:
    launch = CpuLaunch("nh_add", ex.ONE, 1, features=("avx2", "quantum"))
    with pytest.raises(FeaturesMissing, match="quantum"):
        load(artifact[0], launch, sha256=artifact[1])


def test_a_missing_entry_and_a_file_that_is_no_library_are_typed_errors(
    artifact: tuple[bytes, str],
) -> None:
    with pytest.raises(LoadFailed, match="nh_sub"):
        load(artifact[0], CpuLaunch("nh_sub", ex.ONE, 1), sha256=artifact[1])
    text = b"this is no ELF file"
    with pytest.raises(LoadFailed):
        load(text, LAUNCH, sha256=hashlib.sha256(text).hexdigest())


@pytest.mark.parametrize(("size", "threads"), [(1, 1), (99, 1), (100, 2), (150, 3), (10_000, 8)])
def test_threads_are_what_the_work_pays_for(
    artifact: tuple[bytes, str], size: int, threads: int
) -> None:
    kernel = load(artifact[0], LAUNCH, sha256=artifact[1])
    assert kernel.threads_for((size,), threads=8) == threads


def test_too_few_sizes_are_a_typed_error(artifact: tuple[bytes, str]) -> None:
    with pytest.raises(WrongSizes):
        load(artifact[0], LAUNCH, sha256=artifact[1]).bind((), threads=1)


def test_sizes_that_a_kernel_is_bound_at_share_how_addresses_are_packed(
    artifact: tuple[bytes, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    class Noted(struct.Struct):
        def __init__(self, form: str) -> None:
            super().__init__(form)
            made.append(form)

    monkeypatch.setattr(struct, "Struct", Noted)
    kernel = load(artifact[0], LAUNCH, sha256=artifact[1])
    for size in range(1, 20):
        assert run(kernel, size) == [place + 1 for place in range(size)]
    assert made == ["2P"]


def test_one_bound_call_serves_many_threads(artifact: tuple[bytes, str]) -> None:
    call = load(artifact[0], LAUNCH, sha256=artifact[1]).bind((256,), threads=1)
    wrong: list[int] = []

    def work(number: int) -> None:
        x, y = np.full(256, number, np.float32), np.zeros(256, np.float32)
        for _ in range(200):
            y[:] = 0
            call([x.ctypes.data, y.ctypes.data])
            if not (y == number + 1).all():
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


ONE_RUNTIME = """
import hashlib, sys
from pathlib import Path
{imports}
from nearhint.launchers import load
from nearhint.launchers.openmp import runtimes_in
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CpuLaunch
binary = Path(sys.argv[1]).read_bytes()
load(binary, CpuLaunch("nh_add", ex.ONE, 1), sha256=hashlib.sha256(binary).hexdigest())
print(*runtimes_in(Path("/proc/self/maps").read_text()), sep="\\n")
"""


@pytest.mark.parametrize("imports", ["", "import torch"])
def test_the_process_has_one_openmp_runtime(
    artifact: tuple[bytes, str], tmp_path: Path, imports: str
) -> None:
    if imports:
        pytest.importorskip("torch")
    (tmp_path / "add.so").write_bytes(artifact[0])
    result = subprocess.run(
        [sys.executable, "-c", ONE_RUNTIME.format(imports=imports), str(tmp_path / "add.so")],
        check=True,
        capture_output=True,
        text=True,
    )
    (runtime,) = result.stdout.split()
    assert ("/torch/lib/" in runtime) == bool(imports)


def test_torchs_own_runtime_comes_first() -> None:
    row = "7f00-7f01 r-xp 0 00:01 5 "
    paths = [
        "/usr/lib/libgomp.so.1.0.0",
        "/x/torch/lib/libgomp-a34b3233.so.1",
        "/x/libgomp_not.so",
        "/x/libiomp5.so",
    ]
    assert runtimes_in("\n".join(row + path for path in paths)) == (
        "/x/torch/lib/libgomp-a34b3233.so.1",
        "/usr/lib/libgomp.so.1.0.0",
        "/x/libiomp5.so",
    )
