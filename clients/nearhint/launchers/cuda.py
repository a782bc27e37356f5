"""CUDA Artifacts: cubins loaded from checked memory, launched through the driver API.

A module is loaded once for each device and bytes, and stays for the life of the process: a captured
graph may hold its kernels, nobody can ask which, and unloading would wait for the device. So a
launch is one call of the driver, and nothing in it allocates, waits, or asks about capture.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

from nearhint.launchers.cuda_driver import (
    DriverError,
    capability_of,
    checked,
    current,
    driver,
    primary_context,
    relaxed_capture,
)
from nearhint.launchers.errors import (
    ArtifactCorrupt,
    CapabilityMismatch,
    DeviceOutOfMemory,
    GridTooLarge,
    LaunchFailed,
    LoadFailed,
    WrongSizes,
)
from nearhint_rules import expr as ex
from nearhint_rules.artifact import (
    Argument,
    CudaLaunch,
    NullArgument,
    PointerArgument,
    ScalarArgument,
    SizeArgument,
    StageArgument,
    WorkspaceArgument,
)
from nearhint_rules.errors import InvalidExpression

BoundLaunch: TypeAlias = Callable[[Sequence[int], Sequence[float], int], None]
"""Takes the parameters' addresses by position, followed by that of the workspace if there is one,
the scalars' values in the order of the launch's scalar arguments, and a stream's handle."""

GRID_LIMIT = (2**31 - 1, 65_535, 65_535)
STATIC_SHARED_BYTES = 48 << 10
"""Shared memory that a block gets without asking."""
STREAMS_KEPT = 256
NO_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
EARLY_DRIVER = 12_030
"""The driver from which on graphs keep what launches may begin early (CUDA 12.3)."""
_STAGE = struct.Struct("=i4x")
_CELLS = {"f64": "d", "f32": "f4x", "i64": "q", "i32": "i4x"}
"""Every argument is packed into 8 bytes."""
_NOT_CURRENT = frozenset(
    {
        "CUDA_ERROR_INVALID_CONTEXT",
        "CUDA_ERROR_INVALID_HANDLE",
        "CUDA_ERROR_INVALID_RESOURCE_HANDLE",
        "CUDA_ERROR_NOT_INITIALIZED",
    }
)
"""What the driver says where the thread's current context is not the kernel's."""

_lock = threading.Lock()
_functions: dict[tuple[int, str, str], Any] = {}


@dataclass(frozen=True, slots=True)
class _Packing:
    """How a launch's arguments lie in its buffer: pointers, then scalars, then what is fixed.

    Pointers into the workspace come last among the pointers; the stage is the first of what is
    fixed, and written before each launch.
    """

    pointers: struct.Struct
    pick: Callable[[Sequence[int]], Sequence[int]]
    scalars: struct.Struct
    places: tuple[int, ...]

    @property
    def fixed_offset(self) -> int:
        """Where the fixed part begins, in bytes."""
        return self.pointers.size + self.scalars.size


class CudaKernel:
    """A CUDA Artifact that is loaded on one device."""

    __slots__ = (
        "_context",
        "_function",
        "_grid",
        "_offsets",
        "_packing",
        "_sizes",
        "_workspace",
        "launch",
        "sha256",
    )

    def __init__(self, function: Any, context: Any, launch: CudaLaunch, sha256: str) -> None:
        self.launch = launch
        self.sha256 = sha256
        self._function = function
        self._context = context
        self._packing = _packing(launch)
        self._grid = [ex.compiled(size) for size in launch.grid]
        self._sizes = [
            (ex.compiled(argument.expr), argument.dtype)
            for argument in launch.arguments
            if isinstance(argument, SizeArgument)
        ]
        self._offsets = [
            ex.compiled(argument.offset)
            for argument in launch.arguments
            if isinstance(argument, WorkspaceArgument)
        ]
        self._workspace = ex.compiled(launch.workspace_bytes)

    def workspace_bytes(self, dims: Sequence[int]) -> int:
        """How much scratch memory a launch at these sizes wants, from its stream's own memory."""
        return self._workspace(_named(dims))

    def bind(self, dims: Sequence[int], *, threads: int = 0) -> BoundLaunch:
        """A launch at fixed sizes; safe to call from several threads at once.

        `dims` are the values of the Kernel's symbols, in order. `threads` is for CPU Artifacts and
        ignored. The stream must belong to the Artifact's device. Raises `WrongSizes` and
        `GridTooLarge`; the launch raises `LaunchFailed`.
        """
        del threads
        grid, fixed = self._at(dims)
        free: list[_Slot] = []
        packing, launch, function = self._packing, self.launch, self._function
        pack_pointers, pick = packing.pointers.pack_into, packing.pick
        if self._offsets:
            pick = _with_workspace(pick, [offset(_named(dims)) for offset in self._offsets])
        stages, stage_at = launch.stages, packing.fixed_offset
        pack_scalars, scalars_at = packing.scalars.pack_into, packing.pointers.size
        has_scalars = packing.scalars.size > 0
        launch_kernel, block = driver().cuLaunchKernel, 32 * launch.warps
        columns, rows, layers = grid
        shared = launch.shared_bytes
        retry = self._launch_in_own_context
        early = _early_launcher(grid, block, shared) if _begins_early(launch) else None

        def call(addresses: Sequence[int], scalars: Sequence[float], stream: int) -> None:
            # A list's pop and append are atomic: each call has a buffer of its own while it runs,
            # and the driver has copied the arguments when it returns.
            try:
                slot = free.pop()
            except IndexError:
                slot = _Slot(packing, fixed)
            buffer = slot.buffer
            pack_pointers(buffer, 0, *pick(addresses))
            if has_scalars:
                pack_scalars(buffer, scalars_at, *scalars)
            arguments = (
                function, columns, rows, layers, block, 1, 1, shared,
                _streams.get(stream) or _stream(stream), slot.table_address, 0,
            )  # fmt: skip
            if stages == 1:
                (code,) = launch_kernel(*arguments)
                if code:
                    retry(code, arguments)
                free.append(slot)
                return
            for stage in range(stages):
                _STAGE.pack_into(buffer, stage_at, stage)
                if stage and early is not None:
                    (code,) = early(stream, function, slot.table_address)
                else:
                    (code,) = launch_kernel(*arguments)
                if code:
                    retry(code, arguments)
            free.append(slot)

        return call

    def _at(self, dims: Sequence[int]) -> tuple[tuple[int, int, int], bytes]:
        """The grid, and the fixed arguments packed."""
        sizes = _named(dims)
        try:
            columns, rows, layers = (extent(sizes) for extent in self._grid)
            values = iter([(size(sizes), dtype) for size, dtype in self._sizes])
            packed = bytes(8 * _count(self.launch, StageArgument))
            packed += b"".join(struct.pack(_CELLS[dtype], value) for value, dtype in values)
            packed += bytes(8 * _count(self.launch, NullArgument))
        except (KeyError, InvalidExpression):
            raise WrongSizes(given=len(dims), wanted=self.launch.entry) from None
        except struct.error as error:
            raise LaunchFailed(entry=self.launch.entry, problem=str(error)) from error
        grid = (columns, rows, layers)
        if any(not 1 <= blocks <= most for blocks, most in zip(grid, GRID_LIMIT, strict=True)):
            raise GridTooLarge(entry=self.launch.entry, grid=grid)
        return grid, packed

    def _launch_in_own_context(self, code: Any, arguments: tuple[Any, ...]) -> None:
        if code.name not in _NOT_CURRENT:
            raise LaunchFailed(entry=self.launch.entry, problem=code.name)
        try:
            with current(self._context):
                checked(driver().cuLaunchKernel(*arguments))
        except DriverError as error:
            raise LaunchFailed(entry=self.launch.entry, problem=error.name) from error


class _Slot:
    """The memory of one launch: the arguments, and the table of pointers to them."""

    __slots__ = ("buffer", "table", "table_address")

    def __init__(self, packing: _Packing, fixed: bytes) -> None:
        self.buffer = ctypes.create_string_buffer(packing.fixed_offset + len(fixed) + 8)
        start = ctypes.addressof(self.buffer)
        ctypes.memmove(start + packing.fixed_offset, fixed, len(fixed))
        self.table = (ctypes.c_void_p * len(packing.places))(
            *(start + place for place in packing.places)
        )
        self.table_address = ctypes.addressof(self.table)


_streams: dict[int, Any] = {}


def _stream(handle: int) -> Any:
    if len(_streams) >= STREAMS_KEPT:
        _streams.clear()
    _streams[handle] = found = driver().CUstream(handle)
    return found


def _begins_early(launch: CudaLaunch) -> bool:
    """Whether stages may begin early, also under capture."""
    return launch.begin_early and int(checked(driver().cuDriverGetVersion())) >= EARLY_DRIVER


def _early_launcher(
    grid: tuple[int, int, int], block: int, shared: int
) -> Callable[[int, Any, int], tuple[Any]]:
    """Launches a function on a stream, with a table of arguments, while the launch before runs."""
    cuda = driver()
    attribute = cuda.CUlaunchAttribute()
    attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    configs: dict[int, Any] = {}

    def config_for(stream: int) -> Any:
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes, config.hStream = shared, _streams.get(stream) or _stream(stream)
        config.attrs, config.numAttrs = [attribute], 1
        if len(configs) >= STREAMS_KEPT:
            configs.clear()
        configs[stream] = config
        return config

    def launch(stream: int, function: Any, table: int) -> tuple[Any]:
        found: tuple[Any] = cuda.cuLaunchKernelEx(
            configs.get(stream) or config_for(stream), function, table, 0
        )
        return found

    return launch


def _named(dims: Sequence[int]) -> dict[str, int]:
    return {f"k{number}": size for number, size in enumerate(dims)}


def _count(launch: CudaLaunch, kind: type[Argument]) -> int:
    return sum(isinstance(argument, kind) for argument in launch.arguments)


def _with_workspace(
    pick: Callable[[Sequence[int]], Sequence[int]], offsets: Sequence[int]
) -> Callable[[Sequence[int]], Sequence[int]]:
    """Picks pointers as `pick` does, and those into the workspace, the last of the addresses."""
    return lambda addresses: (
        *pick(addresses),
        *(addresses[-1] + offset for offset in offsets),
    )


_IN_BUFFER: tuple[type[Argument], ...] = (
    PointerArgument,
    WorkspaceArgument,
    ScalarArgument,
    StageArgument,
    SizeArgument,
    NullArgument,
)
"""The kinds of arguments in the order in which they lie in a launch's buffer."""


def _packing(launch: CudaLaunch) -> _Packing:
    pointers = [a.parameter for a in launch.arguments if isinstance(a, PointerArgument)]
    scalars = [a for a in launch.arguments if isinstance(a, ScalarArgument)]
    next_place: dict[type[Argument], int] = {}
    start = 0
    for kind in _IN_BUFFER:
        next_place[kind] = start
        start += 8 * _count(launch, kind)
    places: list[int] = []
    for argument in launch.arguments:
        places.append(next_place[type(argument)])
        next_place[type(argument)] += 8
    return _Packing(
        pointers=struct.Struct(f"={len(pointers) + _count(launch, WorkspaceArgument)}Q"),
        pick=_picker(pointers),
        scalars=struct.Struct("=" + "".join(_CELLS[scalar.dtype] for scalar in scalars)),
        places=tuple(places),
    )


def _picker(positions: Sequence[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    if len(positions) == 1:
        (only,) = positions
        return lambda addresses: (addresses[only],)
    getter: Callable[[Sequence[int]], Sequence[int]] = itemgetter(*positions)
    return getter


def load(binary: bytes, launch: CudaLaunch, *, sha256: str, device_index: int = 0) -> CudaKernel:
    """Loads a cubin on a device; see `nearhint.launchers.load`.

    Raises `ArtifactCorrupt`, `CapabilityMismatch`, `CudaUnavailable`, `DeviceOutOfMemory` or
    `LoadFailed`. May be called while another thread captures a CUDA graph.
    """
    found = hashlib.sha256(binary).hexdigest()
    if found != sha256:
        raise ArtifactCorrupt(sha256=sha256, problem=f"its bytes have the hash {found}")
    capability = capability_of(device_index)
    if capability != launch.capability:
        raise CapabilityMismatch(sha256=sha256, wanted=launch.capability, given=capability)
    context = primary_context(device_index)
    key = (device_index, sha256, launch.entry)
    try:
        with _lock:
            if key not in _functions:
                with relaxed_capture(), current(context):
                    _functions[key] = _load_function(binary, launch)
            return CudaKernel(_functions[key], context, launch, sha256)
    except DriverError as error:
        if error.name == NO_MEMORY:
            raise DeviceOutOfMemory(sha256=sha256) from error
        raise LoadFailed(sha256=sha256, problem=error.name) from error


def _load_function(binary: bytes, launch: CudaLaunch) -> Any:
    cuda = driver()
    module = checked(cuda.cuModuleLoadData(binary))
    function = checked(cuda.cuModuleGetFunction(module, launch.entry.encode()))
    attribute = cuda.CUfunction_attribute
    if launch.shared_bytes > STATIC_SHARED_BYTES:
        kind = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(cuda.cuFuncSetAttribute(function, kind, launch.shared_bytes))
    # Reading an attribute completes a lazy load, which must not happen under capture.
    most = attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    if checked(cuda.cuFuncGetAttribute(most, function)) < 32 * launch.warps:
        raise DriverError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
    return function
