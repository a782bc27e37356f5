"""C source to a shared object, through the system's `cc`. Equal source, equal bytes.

A worker compiles the intrinsics' header once and hands that to `cc`, because reading the header as
text takes longer than most kernels (GCC manual, "Using Precompiled Headers").

OpenMP is used to compile but not to link: `GOMP_*` stays unresolved, and the launcher lets it find
the runtime that is already in the process. Names, dates, build ids and the linker's notes are left
out or stripped, so that an Artifact is named by what was compiled and with what.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nearhint_compiler.codegen.generated import Generated
from nearhint_daemon.workers.built import Built
from nearhint_daemon.workers.errors import CcMissing, CompileFailed
from nearhint_daemon.workers.limits import limit_child_cpu
from nearhint_daemon.workers.refusals import refusal
from nearhint_daemon.workers.starvation import Deadline
from nearhint_daemon.workers.toolchain import CC

COMPILE_FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-falign-functions=64",
    "-falign-loops=64",
    "-fno-ident",
    "-frandom-seed=nearhint",
    "-pipe",
)
"""Before the Schedule's own. Never -ffast-math: NaN and infinity are as in eager. Loops begin at
cache lines, so that what else a source has in it does not change how fast they are."""
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
"""In which `cc` could run: on a machine that serves it may wait for long."""
_INTRINSICS = "#include <immintrin.h>\n"


class CcTimedOut(CompileFailed):
    """`cc` did not end in time; parts of it may still run, so the worker must go."""


def commands(flags: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The two commands: kernel.c to kernel.o, kernel.o to kernel.so."""
    return (
        (CC, *COMPILE_FLAGS, *flags, "-c", "-o", "kernel.o", "kernel.c"),
        (CC, *LINK_FLAGS, "-o", "kernel.so", "kernel.o", *LIBRARIES),
    )


class Headers:
    """The intrinsics' header, compiled once for each set of flags, in folders under `scratch`."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._options: dict[tuple[str, ...], tuple[str, ...]] = {}

    def options(self, generated: Generated, *, timeout_s: float = TIMEOUT_S) -> tuple[str, ...]:
        """What makes `cc` take the compiled header; none where the source includes no such thing.

        Raises `CcTimedOut`, `DiskFull`, `CompilerKilled`.
        """
        flags = tuple(generated.flags)
        if _INTRINSICS not in generated.source:
            return ()
        if flags not in self._options:
            self._options[flags] = self._compiled(flags, timeout_s)
        return self._options[flags]

    def _compiled(self, flags: Sequence[str], timeout_s: float) -> tuple[str, ...]:
        folder = Path(tempfile.mkdtemp(prefix="headers-", dir=self._scratch))
        header = folder / "headers.h"
        header.write_text(_INTRINSICS, encoding="ascii")
        command = (CC, *COMPILE_FLAGS, *flags, "-x", "c-header", "-o", "headers.h.gch", header.name)
        try:
            _run(command, folder, timeout_s)
        except CcTimedOut:
            raise
        except CompileFailed:  # then it is read as text
            return ()
        return ("-include", str(header))


def compile_c(
    generated: Generated,
    *,
    scratch: Path,
    timeout_s: float = TIMEOUT_S,
    headers: Headers | None = None,
) -> Built:
    """Compiles C source in a fresh folder under `scratch`, faster with `headers`.

    Raises `CcMissing`, `CompileFailed` with what `cc` said, `DiskFull`, `CompilerKilled`, or
    `CcTimedOut`.
    """
    if shutil.which(CC) is None:
        raise CcMissing("no C compiler: install one that is found as `cc`")
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        (folder / "kernel.c").write_text(generated.source, encoding="utf-8")
        options = headers.options(generated, timeout_s=timeout_s) if headers is not None else ()
        steps = commands((*generated.flags, *options))
        log = "".join(_run(command, folder, timeout_s) for command in steps)
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
        deadline = Deadline(running.pid, timeout_s)
        log = None
        while log is None:
            step_s = deadline.step_s()
            if not step_s:
                running.kill()
                raise CcTimedOut(f"cc took more than {timeout_s:g} s")
            with suppress(subprocess.TimeoutExpired):
                log, _ = running.communicate(timeout=step_s)
    if running.returncode != 0:
        said = log.strip() or f"cc ended with status {running.returncode}"
        raise refusal(said)
    return log
