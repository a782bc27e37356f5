"""Triton source to a cubin, ahead of time: no GPU is needed. Equal source, equal bytes.

Triton compiles for an explicit target in a private folder, with a cache of its own and without
line information, which would put the folder's name into the binary. What no device could launch,
or what keeps its values in memory instead of registers, is refused. A worker hands on the few
functions of libdevice that kernels call (`libdevice.py`), because reading all of it takes longer
than most passes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import linecache
import re
import tempfile
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nearhint_compiler.codegen.generated import Generated
from nearhint_daemon.workers.built import Built
from nearhint_daemon.workers.errors import (
    CapabilityUnknown,
    CompileFailed,
    KernelOversized,
    RequestInvalid,
)
from nearhint_daemon.workers.libdevice import Libdevice
from nearhint_daemon.workers.packed import scattered
from nearhint_daemon.workers.refusals import refusal
from nearhint_rules.artifact import CudaLaunch, NullArgument
from nearhint_rules.target import CudaDevice, Target, capability_problem

OPTIONS: Mapping[str, int] = {"enable_reflect_ftz": False, "sanitize_overflow": False}
"""libdevice keeps denormal numbers, as eager does. Checks for integer overflow are
made only to be dropped: binaries without them are the same."""
SPILL_LIMIT_BYTES = 64
"""Register spills, a thread, beyond which a kernel is refused: the next Schedule is better."""
REGISTERS = 65_536
"""Registers of a block, on every capability that Triton compiles for."""
SHARED_LIMIT_BYTES: Mapping[int, int] = {
    75: 64 << 10,
    80: 163 << 10,
    86: 99 << 10,
    87: 163 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    103: 227 << 10,
    120: 99 << 10,
    121: 99 << 10,
}
"""Shared memory of a block by capability (CUDA C++ Programming Guide, compute capabilities)."""
SHARED_LIMIT_DEFAULT_BYTES = 48 << 10

_PTX_PARAMETERS = re.compile(r"\.visible \.entry \w+\(([^)]*)\)")
_SPILLED = re.compile(r"(\d+) bytes spill stores")
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True, slots=True)
class Options:
    """What an emitter's flags say: see `Generated.flags`."""

    signature: Mapping[str, str]
    constants: Mapping[str, int]
    divisible: Mapping[int, int]
    options: Mapping[str, int]


def read_flags(flags: Sequence[str]) -> Options:
    """Reads `signature:NAME=TYPE`, `constexpr:NAME=VALUE`, `divisible:POSITION=BY` and `KEY=VALUE`.

    >>> flags = read_flags(["signature:a0=*fp32", "constexpr:X=8", "divisible:0=16", "num_warps=4"])
    >>> flags.constants, flags.divisible
    ({'X': 8}, {0: 16})
    """
    signature: dict[str, str] = {}
    constants: dict[str, int] = {}
    divisible: dict[int, int] = {}
    options: dict[str, int] = {}
    for flag in flags:
        key, _, value = flag.rpartition("=")
        match flag.partition(":")[0]:
            case "signature":
                signature[key.partition(":")[2]] = value
            case "constexpr":
                constants[key.partition(":")[2]] = int(value)
            case "divisible":
                divisible[int(key.partition(":")[2])] = int(value)
            case _:
                options[key] = int(value)
    return Options(signature, constants, divisible, options)


def compile_cubin(
    generated: Generated, target: Target, *, scratch: Path, libdevice: Libdevice | None = None
) -> Built:
    """Compiles Triton source in a fresh folder under `scratch`, faster with `libdevice`.

    Raises `CapabilityUnknown`, `CompileFailed` with what Triton said, `DiskFull`, `CompilerKilled`
    and `KernelOversized`.
    """
    if not isinstance(target.device, CudaDevice) or not isinstance(generated.launch, CudaLaunch):
        raise RequestInvalid("Triton source for a Target that is no CUDA device")
    capability = target.device.capability
    if problem := capability_problem(capability):
        raise CapabilityUnknown(problem)
    log = io.StringIO()
    with tempfile.TemporaryDirectory(dir=scratch) as name, contextlib.redirect_stdout(log):
        try:
            compiled = _compile(generated, capability, Path(name), libdevice)
        except Exception as error:  # Triton's errors have no common base
            said = f"{type(error).__name__}: {error}"
            raise refusal(said) from error
    if apart := next(scattered(str(compiled.asm["ttgir"])), ""):
        raise CompileFailed(f"packed elements that are no neighbours: {apart}")
    binary, ptx, metadata = compiled.asm["cubin"], compiled.asm["ptx"], compiled.metadata
    launch = replace(
        generated.launch,
        arguments=(*generated.launch.arguments, *_hidden(ptx, metadata, generated.launch)),
        warps=metadata.num_warps,
        shared_bytes=metadata.shared,
    )
    _check_resources(launch, log.getvalue())
    return Built(binary, launch, log.getvalue())


def _compile(
    generated: Generated, capability: int, folder: Path, libdevice: Libdevice | None = None
) -> Any:
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    flags = read_flags(generated.flags)
    library = libdevice.options(generated) if libdevice is not None else {}
    path = folder / "kernel.py"
    path.write_text(generated.source, encoding="utf-8")
    with _private(knobs, folder):
        source = ASTSource(
            fn=_import(path, generated.launch.entry),
            signature={**flags.signature, **dict.fromkeys(flags.constants, "constexpr")},
            constexprs=dict(flags.constants),
            attrs={(place,): [["tt.divisibility", by]] for place, by in flags.divisible.items()},
        )
        try:
            target = GPUTarget("cuda", capability, 32)
            options = {**OPTIONS, **flags.options, **library}
            return triton.compile(source, target=target, options=options)
        finally:
            linecache.cache.pop(str(path), None)


def _import(path: Path, entry: str) -> Any:
    spec = importlib.util.spec_from_file_location("nearhint_generated_kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, entry)


class _Stages:
    """What each stage leaves, in one folder: what Triton asks of a cache, without its safeguards.

    Its own puts each file into a folder of the file's own first, for the sake of other processes.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder / key
        self._folder.mkdir()

    def get_group(self, filename: str) -> None:
        """Nothing has been compiled here."""

    def put(self, data: object, filename: str, binary: bool = True) -> str:
        """Writes a stage's result, whose type says whether it is text; returns where it lies."""
        del binary
        path = self._folder / filename
        path.write_bytes(data if isinstance(data, bytes) else str(data).encode())
        return str(path)

    def put_group(self, filename: str, group: Mapping[str, str]) -> None:
        """Nobody looks for it again."""


@contextlib.contextmanager
def _private(knobs: Any, folder: Path) -> Generator[None, None, None]:
    """Triton's settings for the time of one compilation, whatever the environment says."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="tl.make_block_ptr is deprecated")
        for group in (knobs.cache, knobs.compilation, knobs.nvidia, knobs.runtime):
            stack.enter_context(group.scope())
        knobs.cache.manager_class = partial(_Stages, folder)
        knobs.compilation.always_compile = True
        knobs.compilation.disable_line_info = True
        knobs.nvidia.dump_ptxas_log = True
        knobs.runtime.interpret = False
        yield


def _hidden(ptx: str, metadata: Any, launch: CudaLaunch) -> tuple[NullArgument, ...]:
    """The pointers that Triton adds behind our arguments, for scratch memory that we never give."""
    if metadata.global_scratch_size or getattr(metadata, "profile_scratch_size", 0):
        raise CompileFailed("the kernel wants scratch memory")
    found = _PTX_PARAMETERS.search(ptx)
    count = found[1].count(".param") if found else 0
    if count < len(launch.arguments):
        raise CompileFailed(f"{count} parameters in the PTX for {len(launch.arguments)} arguments")
    return (NullArgument(),) * (count - len(launch.arguments))


def _check_resources(launch: CudaLaunch, log: str) -> None:
    shared_limit = SHARED_LIMIT_BYTES.get(launch.capability, SHARED_LIMIT_DEFAULT_BYTES)
    if launch.shared_bytes > shared_limit:
        raise KernelOversized(
            f"{launch.shared_bytes} bytes of shared memory, at most {shared_limit}"
        )
    registers = max(map(int, _REGISTERS.findall(log)), default=0) * 32 * launch.warps
    if registers > REGISTERS:
        raise KernelOversized(f"{registers} registers a block, at most {REGISTERS}")
    spilled = max(map(int, _SPILLED.findall(log)), default=0)
    if spilled > SPILL_LIMIT_BYTES:
        raise KernelOversized(f"{spilled} bytes of registers spill, at most {SPILL_LIMIT_BYTES}")
