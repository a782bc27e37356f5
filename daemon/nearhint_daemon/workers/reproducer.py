"""What is needed to see a failure again: file names and contents, as text.

Each reproducer holds the request's IR and what it ran, the log, the versions, and a `repro.py` that
needs the compiler package alone.
"""

from __future__ import annotations

import base64
import platform
from collections.abc import Mapping
from importlib import metadata

from google.protobuf import text_format

from nearhint_proto.v1 import worker_pb2 as pb

PACKAGES = ("nearhint", "torch", "triton", "numpy", "protobuf")

COMPILE_SCRIPT = '''"""Compiles the Variant again; needs nearhint's compiler package."""

import subprocess
from pathlib import Path

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_rules.target import CpuDevice, CudaDevice, Target

target = {target}
here = Path(__file__).parent
kernel = parse_kernel((here / "kernel.ir").read_text(encoding="utf-8"))
schedule = parse_schedule((here / "schedule.txt").read_text(encoding="utf-8"))
generated = generate(kernel, schedule, target)
(here / "kernel.c").write_text(generated.source, encoding="utf-8")
for command in (here / "command.txt").read_text(encoding="utf-8").splitlines():
    subprocess.run(command.split(), cwd=here, check=True)
'''

RUN_SCRIPT = '''"""Runs the binary again, on zeroed memory; needs nearhint's compiler package."""

import base64
import ctypes
from pathlib import Path

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES

here = Path(__file__).parent
kernel = parse_kernel((here / "kernel.ir").read_text(encoding="utf-8"))
library = here / "artifact.so"
library.write_bytes(base64.b64decode((here / "artifact.b64").read_text(encoding="ascii")))
ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
entry = ctypes.CDLL(str(library))[{entry!r}]
for sizes in {sizes}:
    dims = [sizes[name] for name in kernel.symbols]
    ranges = {{name: (size, size) for name, size in sizes.items()}}
    for prefix, extents in (("p", kernel.pointwise), ("r", kernel.reduction)):
        for number, extent in enumerate(extents):
            ranges[f"{{prefix}}{{number}}"] = (0, ex.evaluate(extent, sizes) - 1)
    elements = [1] * len(kernel.params)
    for node in kernel.body:
        if isinstance(node, ir.Access):
            last = ex.bounds(node.index, ranges)[1]
            if isinstance(node, ir.Placed):
                last += ex.evaluate(node.stride, sizes) * (ex.evaluate(node.size, sizes) - 1)
            elements[node.param] = max(elements[node.param], last + 1)
    for node in kernel.body:
        if isinstance(node, ir.Former):
            elements[node.param] = max(elements[node.param], elements[-1])
    memory = [
        ctypes.create_string_buffer(count * DTYPES[param.dtype])
        for count, param in zip(elements, kernel.params, strict=True)
    ]
    print("running at", sizes)
    entry(
        (ctypes.c_void_p * len(memory))(*map(ctypes.addressof, memory)),
        (ctypes.c_int64 * len(dims))(*dims),
        ctypes.c_int32({threads}),
    )
print("done")
'''


def versions() -> str:
    """The interpreter, the system and the packages that take part, one a line."""
    lines = [f"python {platform.python_version()}", platform.platform()]
    for package in PACKAGES:
        try:
            lines.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{package} not installed")
    return "\n".join(lines) + "\n"


def for_compile(
    request: pb.CompileVariant, *, target: str, source: str, commands: str, log: str
) -> dict[str, str]:
    """A Variant that did not compile. `target` is the Target as a Python expression."""
    return {
        "kernel.ir": request.kernel_ir,
        "schedule.txt": request.schedule,
        "source.txt": source,
        "command.txt": commands,
        "stderr.txt": log,
        "versions.txt": versions(),
        "repro.py": COMPILE_SCRIPT.format(target=target),
    }


def for_lost_worker(request: pb.WorkerRequest, *, detail: str, log: str) -> dict[str, str]:
    """A job that its worker did not survive; `log` is the end of what the worker wrote."""
    files = {
        "problem.txt": f"{detail}\n",
        "stderr.txt": log,
        "versions.txt": versions(),
    }
    match request.WhichOneof("job"):
        case "verify_variant":
            verify = request.verify_variant
            sizes = [{dim.symbol: dim.value for dim in hint.dims} for hint in verify.sizes]
            files |= _binary_files(verify.kernel_ir, verify.candidate, sizes, verify.threads)
        case "measure_hint":
            measure = request.measure_hint
            files["kernel.ir"] = measure.kernel_ir
            for number, candidate in enumerate(measure.candidates):
                if candidate.HasField("binary"):
                    files[f"artifact{number}.b64"] = _encoded(candidate.binary.binary)
        case "compile_variant":
            files["kernel.ir"] = request.compile_variant.kernel_ir
            files["schedule.txt"] = request.compile_variant.schedule
        case _:
            pass
    files["request.txt"] = text_format.MessageToString(_without_binaries(request))
    return files


def _binary_files(
    kernel_ir: str, candidate: pb.Candidate, sizes: list[dict[str, int]], threads: int
) -> Mapping[str, str]:
    files = {"kernel.ir": kernel_ir, "artifact.b64": _encoded(candidate.binary.binary)}
    artifact = candidate.binary.artifact
    if artifact.HasField("cpu"):
        files["repro.py"] = RUN_SCRIPT.format(
            entry=artifact.cpu.entry, sizes=sizes, threads=max(1, threads)
        )
    return files


def _encoded(binary: bytes) -> str:
    return base64.encodebytes(binary).decode("ascii")


def _without_binaries(request: pb.WorkerRequest) -> pb.WorkerRequest:
    kept = pb.WorkerRequest()
    kept.CopyFrom(request)
    candidates: list[pb.Candidate] = []
    if kept.HasField("verify_variant"):
        candidates.append(kept.verify_variant.candidate)
    if kept.HasField("measure_hint"):
        candidates.extend(kept.measure_hint.candidates)
    for candidate in candidates:
        if candidate.HasField("binary"):
            candidate.binary.ClearField("binary")
    return kept
