"""C source to a shared object, through the system's `cc`. Equal source, equal bytes.

OpenMP is used to compile but not to link: `GOMP_*` stays unresolved, and the launcher lets it find
the runtime that is already in the process. Names, dates, build ids and the linker's notes are left
out or stripped, so that an Artifact is named by what was compiled and with what.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nearhint_compiler.codegen.generated import Generated
from nearhint_daemon.workers.built import Built
from nearhint_daemon.workers.errors import CcMissing, CompileFailed
from nearhint_daemon.workers.limits import limit_child_cpu
from nearhint_daemon.workers.toolchain import CC

COMPILE_FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-ident",
    "-frandom-seed=nearhint",
    "-pipe",
)
"""Before the Schedule's own. Never -ffast-math: NaN and infinity are as in eager."""
LINK_FLAGS = (
    "-shared",
    "-nostartfiles",
    "-s",
    "-Wl,--build-id=none",
    "-Wl,-z,noexecstack",
    "-Wl,-z,now",
    "-Wl,-z,noseparate-code",
    "-Wl,--as-needed",
)
LIBRARIES = ("-lm",)
TIMEOUT_S = 120.0


class CcTimedOut(CompileFailed):
    """`cc` did not end in time; parts of it may still run, so the worker must go."""


def commands(flags: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The two commands: kernel.c to kernel.o, kernel.o to kernel.so."""
    return (
        (CC, *COMPILE_FLAGS, *flags, "-c", "-o", "kernel.o", "kernel.c"),
        (CC, *LINK_FLAGS, "-o", "kernel.so", "kernel.o", *LIBRARIES),
    )


def compile_c(generated: Generated, *, scratch: Path, timeout_s: float = TIMEOUT_S) -> Built:
    """Compiles C source in a fresh folder under `scratch`.

    Raises `CcMissing`, `CompileFailed` with what `cc` said, or `CcTimedOut`.
    """
    if shutil.which(CC) is None:
        raise CcMissing("no C compiler: install one that is found as `cc`")
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        (folder / "kernel.c").write_text(generated.source, encoding="utf-8")
        log = "".join(_run(command, folder, timeout_s) for command in commands(generated.flags))
        return Built((folder / "kernel.so").read_bytes(), generated.launch, log)


def _run(command: Sequence[str], folder: Path, timeout_s: float) -> str:
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as running:
        limit_child_cpu(running.pid, seconds=int(timeout_s) + 1)
        try:
            log, _ = running.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            running.kill()
            raise CcTimedOut(f"cc took more than {timeout_s:g} s") from None
    if running.returncode != 0:
        raise CompileFailed(log.strip() or f"cc ended with status {running.returncode}")
    return log
