"""CUDA launches against a driver made of Python: what is packed, loaded and retried."""

# ruff: noqa: N802 - the names are the driver's

from __future__ import annotations

import ctypes
import enum
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nearhint.launchers import cuda, cuda_driver, detect_cuda, load
from nearhint.launchers.errors import (
    ArtifactCorrupt,
    CapabilityMismatch,
    CudaUnavailable,
    DeviceOutOfMemory,
    GridTooLarge,
    LaunchFailed,
    LoadFailed,
    WrongSizes,
)
from nearhint_rules import expr as ex
from nearhint_rules.artifact import (
    CudaLaunch,
    NullArgument,
    PointerArgument,
    ScalarArgument,
    SizeArgument,
    StageArgument,
    WorkspaceArgument,
)

BINARY = b"\x7fELF a cubin"
SHA256 = hashlib.sha256(BINARY).hexdigest()
K0, K1 = ex.symbol("k0"), ex.symbol("k1")
LAUNCH = CudaLaunch(
    entry="nearhint_test",
    arguments=(
        PointerArgument(0),
        ScalarArgument(1, "f32"),
        ScalarArgument(2, "i64"),
        PointerArgument(3),
        SizeArgument(ex.mul(K0, K1), "i32"),
        SizeArgument(K1, "i64"),
        NullArgument(),
    ),
    grid=(ex.floordiv(ex.add(K0, 3), 4), K1, ex.ONE),
    warps=4,
    shared_bytes=0,
    capability=90,
)
CELLS: tuple[Any, ...] = (
    ctypes.c_uint64, ctypes.c_float, ctypes.c_int64, ctypes.c_uint64,
    ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64,
)  # fmt: skip


class Code(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_INVALID_DEVICE = 101


@dataclass
class Launched:
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: Any
    values: Any


@dataclass
class FakeDriver:
    """As much of the driver as the launcher uses, with what it was asked written down."""

    capability: tuple[int, int] = (9, 0)
    current: list[str] = field(default_factory=lambda: ["context of device 0"])
    launched: list[Launched] = field(default_factory=list[Launched])
    loads: list[tuple[str, bytes, str]] = field(default_factory=list[tuple[str, bytes, str]])
    attributes: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    capture_mode: str = "global"
    load_code: Code = Code.CUDA_SUCCESS
    launch_code: Code = Code.CUDA_SUCCESS
    cells: tuple[Any, ...] = CELLS
    version: int = 13000
    early: list[int] = field(default_factory=list[int])
    """The numbers of the launches that may begin before the one before has ended."""

    CUlaunchAttributeID = SimpleNamespace(
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION="programmatic"
    )
    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared",
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK="threads",
    )
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT="processors",
    )
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")

    def CUstream(self, handle: int) -> str:
        return f"stream {handle}"

    def cuInit(self, flags: int) -> tuple[Code]:
        return (Code.CUDA_SUCCESS,)

    def cuDeviceGet(self, index: int) -> tuple[Code, str | None]:
        if index > 1:
            return Code.CUDA_ERROR_INVALID_DEVICE, None
        return Code.CUDA_SUCCESS, f"device {index}"

    def cuDeviceGetAttribute(self, kind: str, device: str) -> tuple[Code, int]:
        major, minor = self.capability
        return Code.CUDA_SUCCESS, {"major": major, "minor": minor, "processors": 132}[kind]

    def cuDeviceGetName(self, length: int, device: str) -> tuple[Code, bytes]:
        return Code.CUDA_SUCCESS, b"NVIDIA H100 80GB HBM3 MIG 1g.10gb\0\0"

    def cuDeviceGetPCIBusId(self, length: int, device: str) -> tuple[Code, bytes]:
        return Code.CUDA_SUCCESS, b"0000:01:00.0\0"

    def cuDeviceTotalMem(self, device: str) -> tuple[Code, int]:
        return Code.CUDA_SUCCESS, 80 << 30

    def cuDriverGetVersion(self) -> tuple[Code, int]:
        return Code.CUDA_SUCCESS, self.version

    def cuDevicePrimaryCtxRetain(self, device: str) -> tuple[Code, str]:
        return Code.CUDA_SUCCESS, f"context of {device}"

    def cuCtxPushCurrent(self, context: str) -> tuple[Code]:
        self.current.append(context)
        return (Code.CUDA_SUCCESS,)

    def cuCtxPopCurrent(self) -> tuple[Code, str]:
        return Code.CUDA_SUCCESS, self.current.pop()

    def cuThreadExchangeStreamCaptureMode(self, mode: str) -> tuple[Code, str]:
        before, self.capture_mode = self.capture_mode, mode
        return Code.CUDA_SUCCESS, before

    def cuModuleLoadData(self, binary: bytes) -> tuple[Code, str]:
        self.loads.append((self.current[-1], binary, self.capture_mode))
        return self.load_code, "module"

    def cuModuleGetFunction(self, module: str, entry: bytes) -> tuple[Code, str]:
        return Code.CUDA_SUCCESS, f"{entry.decode()} in {self.current[-1]}"

    def cuFuncSetAttribute(self, function: str, kind: str, value: int) -> tuple[Code]:
        self.attributes.append((kind, value))
        return (Code.CUDA_SUCCESS,)

    def cuFuncGetAttribute(self, kind: str, function: str) -> tuple[Code, int]:
        return Code.CUDA_SUCCESS, 1024

    def cuLaunchKernel(self, function: str, *arguments: Any) -> tuple[Code]:
        if not function.endswith(f"in {self.current[-1]}"):
            return (Code.CUDA_ERROR_INVALID_HANDLE,)
        if self.launch_code:
            return (self.launch_code,)
        *shape, shared, stream, table, extra = arguments
        assert extra == 0
        pointers = (ctypes.c_void_p * len(self.cells)).from_address(table)
        values = tuple(
            cell.from_address(pointer or 0).value
            for cell, pointer in zip(self.cells, pointers, strict=True)
        )
        grid, block = tuple(shape[:3]), tuple(shape[3:])
        self.launched.append(Launched(grid, block, shared, stream, values))
        return (Code.CUDA_SUCCESS,)

    def CUlaunchAttribute(self) -> SimpleNamespace:
        return SimpleNamespace(value=SimpleNamespace())

    def CUlaunchConfig(self) -> SimpleNamespace:
        return SimpleNamespace()

    def cuLaunchKernelEx(
        self, config: SimpleNamespace, function: str, table: int, extra: int
    ) -> tuple[Code]:
        (attribute,) = config.attrs
        assert config.numAttrs == 1
        assert attribute.id == "programmatic"
        assert attribute.value.programmaticStreamSerializationAllowed == 1
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        block = config.blockDimX, config.blockDimY, config.blockDimZ
        self.early.append(len(self.launched))
        return self.cuLaunchKernel(
            function, *grid, *block, config.sharedMemBytes, config.hStream, table, extra
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    for module in (cuda, cuda_driver, detect_cuda):
        monkeypatch.setattr(module, "driver", lambda: fake)
    monkeypatch.setattr(cuda, "_functions", {})
    monkeypatch.setattr(cuda, "_streams", {})
    monkeypatch.setattr(cuda_driver, "_contexts", {})
    detect_cuda.cuda_device.cache_clear()
    yield fake
    detect_cuda.cuda_device.cache_clear()


def test_arguments_are_packed_in_the_order_of_the_launch(fake: FakeDriver) -> None:
    kernel = load(BINARY, LAUNCH, sha256=SHA256)
    call = kernel.bind((10, 7), threads=0)
    call([0x1000, 1, 2, 0x7F0000000000], [1.5, -3], 99)
    call([0x2000, 1, 2, 0x3000], [2.5, 4], 0)
    first, second = fake.launched
    assert first == Launched(
        (3, 7, 1), (128, 1, 1), 0, "stream 99", (0x1000, 1.5, -3, 0x7F0000000000, 70, 7, 0)
    )
    assert second.values == (0x2000, 2.5, 4, 0x3000, 70, 7, 0)
    assert second.stream == "stream 0"


def test_a_kernel_in_stages_is_launched_for_each_with_its_workspace(fake: FakeDriver) -> None:
    launch = replace(
        LAUNCH,
        arguments=(
            PointerArgument(1),
            SizeArgument(K1, "i64"),
            WorkspaceArgument(ex.ZERO),
            WorkspaceArgument(ex.mul(16, K0)),
            StageArgument(),
            NullArgument(),
        ),
        stages=3,
        workspace_bytes=ex.mul(32, K0),
    )
    fake.cells = (
        ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32,
        ctypes.c_uint64,
    )  # fmt: skip
    kernel = load(BINARY, launch, sha256=SHA256)
    assert kernel.workspace_bytes((10, 7)) == 320
    call = kernel.bind((10, 7), threads=0)
    call([0x1000, 0x2000, 0x9000], [], 5)
    call([0x1000, 0x3000, 0xA000], [], 5)
    assert [each.values for each in fake.launched] == [
        (pointer, 7, workspace, workspace + 160, stage, 0)
        for pointer, workspace in ((0x2000, 0x9000), (0x3000, 0xA000))
        for stage in range(3)
    ]


def staged_launch(stages: int) -> CudaLaunch:
    return replace(
        LAUNCH,
        arguments=(PointerArgument(0), WorkspaceArgument(ex.ZERO), StageArgument()),
        stages=stages,
        workspace_bytes=ex.mul(32, K0),
        begin_early=True,
    )


STAGED_CELLS = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32)


def test_stages_that_wait_by_themselves_begin_early_on_their_stream(fake: FakeDriver) -> None:
    fake.cells = STAGED_CELLS
    call = load(BINARY, staged_launch(3), sha256=SHA256).bind((10, 7), threads=0)
    call([0x1000, 0x9000], [], 5)
    call([0x1000, 0xA000], [], 6)
    call([0x1000, 0xB000], [], 5)
    assert [(each.values[1:], each.stream) for each in fake.launched] == [
        ((workspace, stage), stream)
        for workspace, stream in ((0x9000, "stream 5"), (0xA000, "stream 6"), (0xB000, "stream 5"))
        for stage in range(3)
    ]
    assert {(each.grid, each.block, each.shared) for each in fake.launched} == {
        (fake.launched[0].grid, fake.launched[0].block, fake.launched[0].shared)
    }
    # The first of a call waits for whatever came before.
    assert fake.early == [1, 2, 4, 5, 7, 8]


def test_stages_begin_one_after_the_other_where_graphs_would_not_keep_it(fake: FakeDriver) -> None:
    fake.cells, fake.version = STAGED_CELLS, 12_020
    load(BINARY, staged_launch(2), sha256=SHA256).bind((10, 7))([0x1000, 0x9000], [], 5)
    assert [each.values[2] for each in fake.launched] == [0, 1]
    assert fake.early == []


def test_an_early_stage_is_launched_in_its_own_context_if_another_is_current(
    fake: FakeDriver,
) -> None:
    fake.cells = STAGED_CELLS
    call = load(BINARY, staged_launch(2), sha256=SHA256).bind((10, 7))
    fake.current.append("context of device 1")
    call([0x1000, 0x9000], [], 5)
    assert [each.values[2] for each in fake.launched] == [0, 1]


def test_a_kernel_without_stages_wants_no_workspace(fake: FakeDriver) -> None:
    assert load(BINARY, LAUNCH, sha256=SHA256).workspace_bytes((10, 7)) == 0


def test_a_module_is_loaded_once_a_device_in_that_devices_context(fake: FakeDriver) -> None:
    for index in (0, 0, 1):
        load(BINARY, LAUNCH, sha256=SHA256, device_index=index)
    assert [context for context, _, _ in fake.loads] == [
        "context of device 0",
        "context of device 1",
    ]
    assert fake.current == ["context of device 0"]


def test_loading_does_not_break_a_capture_that_goes_on(fake: FakeDriver) -> None:
    load(BINARY, LAUNCH, sha256=SHA256)
    assert [mode for _, _, mode in fake.loads] == ["relaxed"]
    assert fake.capture_mode == "global"


def test_a_launch_from_a_thread_without_the_context_makes_it_current(fake: FakeDriver) -> None:
    call = load(BINARY, LAUNCH, sha256=SHA256, device_index=1).bind((1, 1), threads=0)
    call([1, 0, 0, 2], [0.0, 0], 5)
    assert len(fake.launched) == 1
    assert fake.current == ["context of device 0"]


def test_large_shared_memory_is_asked_for(fake: FakeDriver) -> None:
    large = CudaLaunch(LAUNCH.entry, LAUNCH.arguments, LAUNCH.grid, 4, 100_000, 90)
    load(BINARY, large, sha256=SHA256).bind((1, 1), threads=0)([1, 0, 0, 2], [0.0, 0], 5)
    assert fake.attributes == [("shared", 100_000)]
    assert fake.launched[0].shared == 100_000


def test_a_flipped_byte_is_never_loaded(fake: FakeDriver) -> None:
    with pytest.raises(ArtifactCorrupt):
        load(BINARY + b"x", LAUNCH, sha256=SHA256)
    assert fake.loads == []


def test_another_capability_is_refused(fake: FakeDriver) -> None:
    fake.capability = (8, 0)
    with pytest.raises(CapabilityMismatch, match="90, the device has 80"):
        load(BINARY, LAUNCH, sha256=SHA256)
    assert fake.loads == []


def test_what_the_driver_refuses_is_a_typed_error(fake: FakeDriver) -> None:
    call = load(BINARY, LAUNCH, sha256=SHA256).bind((1, 1), threads=0)
    fake.launch_code = Code.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(LaunchFailed, match="nearhint_test: CUDA_ERROR_ILLEGAL_ADDRESS"):
        call([1, 0, 0, 2], [0.0, 0], 5)
    fake.load_code = Code.CUDA_ERROR_INVALID_IMAGE
    with pytest.raises(LoadFailed, match="INVALID_IMAGE"):
        load(BINARY, LAUNCH, sha256=SHA256, device_index=1)
    fake.load_code = Code.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DeviceOutOfMemory):
        load(BINARY, LAUNCH, sha256=SHA256, device_index=1)


def test_sizes_that_do_not_fit_are_typed_errors(fake: FakeDriver) -> None:
    kernel = load(BINARY, LAUNCH, sha256=SHA256)
    with pytest.raises(WrongSizes):
        kernel.bind((3,), threads=0)
    with pytest.raises(GridTooLarge):
        kernel.bind((3, 70_000), threads=0)
    with pytest.raises(LaunchFailed):
        kernel.bind((2**40, 5), threads=0)


def test_a_device_that_is_not_there_is_unavailable(fake: FakeDriver) -> None:
    with pytest.raises(CudaUnavailable, match="device 2"):
        load(BINARY, LAUNCH, sha256=SHA256, device_index=2)


def test_a_device_is_described_by_what_changes_its_timings(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    management: tuple[str, int] = ("580.159.04", 700)
    monkeypatch.setattr(detect_cuda, "_management", lambda bus_id: management)
    device = detect_cuda.cuda_device(1)
    assert device.model == "NVIDIA H100 80GB HBM3"
    assert device.mig_profile == "1g.10gb"
    assert device.capability == 90
    assert device.multiprocessors == 132
    assert device.memory_bytes == 80 << 30
    assert (device.driver, device.power_limit_w) == ("580.159.04", 700)
    management = ("580.159.04", 500)
    assert detect_cuda.cuda_device(1) is device
    assert detect_cuda.cuda_device_now(1).power_limit_w == 500


def test_without_the_management_library_the_kernel_module_names_the_driver(tmp_path: Path) -> None:
    description = tmp_path / "version"
    description.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
        "GCC version:  gcc version 12.3.0\n"
    )
    assert detect_cuda.driver_version_from(description) == "580.159.04"
    assert detect_cuda.driver_version_from(tmp_path / "none") == ""


def test_a_machine_without_a_driver_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", refuse)
    cuda_driver.driver.cache_clear()
    with pytest.raises(CudaUnavailable, match=r"cuda\.bindings"):
        cuda_driver.driver()
