"""CPU Artifacts: shared objects loaded from sealed memory, called through ctypes.

The bytes are written to a memory file, the file is sealed against every change, and only then is
its hash compared with the one that was promised; so what runs is what was checked. The entry's
signature is in `nearhint_rules.artifact`.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import itertools
import mmap
import os
import struct
import weakref
from collections.abc import Callable, Sequence
from typing import TypeAlias

from nearhint.launchers import openmp
from nearhint.launchers.detect import cpu_device
from nearhint.launchers.errors import (
    ArtifactCorrupt,
    FeaturesMissing,
    LoadFailed,
    PlaceOutside,
    WrongSizes,
)
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CHECKED_ENTRY, CpuLaunch

BoundCall: TypeAlias = Callable[[Sequence[int]], None]
"""Takes the addresses of the parameters, in order; what they point at must outlive the call.

Raises `PlaceOutside` where an index is out of range."""

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_load_numbers = itertools.count(1)
_dlclose = ctypes.CDLL(None).dlclose
_dlclose.argtypes = (ctypes.c_void_p,)


class CpuKernel:
    """A loaded CPU Artifact. It is unloaded when neither it nor a bound call is referred to."""

    __slots__ = ("__weakref__", "_entry", "_packers", "_work", "launch", "sha256")

    def __init__(self, library: ctypes.CDLL, launch: CpuLaunch, sha256: str) -> None:
        self.launch = launch
        self.sha256 = sha256
        entry = library[launch.entry]
        entry.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32)
        entry.restype = ctypes.c_int32 if launch.entry == CHECKED_ENTRY else None
        self._entry = entry
        self._packers: dict[int, Callable[..., bytes]] = {}
        self._work = ex.compiled(launch.work)
        weakref.finalize(self, _dlclose, library._handle).atexit = False

    def threads_for(self, dims: Sequence[int], *, threads: int) -> int:
        """How many of `threads` a call at `dims` uses: what its work pays for, at least one."""
        try:
            work = self._work({f"k{number}": size for number, size in enumerate(dims)})
        except KeyError as missing:
            raise WrongSizes(given=len(dims), wanted=missing.args[0]) from None
        return max(1, min(threads, work // max(1, self.launch.grain)))

    def bind(self, dims: Sequence[int], *, threads: int) -> BoundCall:
        """A callable at fixed sizes; safe to call from several threads at once.

        `dims` are the values of the Kernel's symbols, in order. The pointer array is packed into a
        fresh bytes object for each call: that costs less than a thread-local buffer, and no call
        can see another's.
        """
        return self.bind_exactly(dims, threads=self.threads_for(dims, threads=threads))

    def bind_exactly(self, dims: Sequence[int], *, threads: int) -> BoundCall:
        """As `bind`, with exactly `threads`, whatever the work: for tests of the Artifact."""
        sizes = struct.pack(f"{len(dims)}q", *dims)
        count = threads
        entry = self._entry
        packers = self._packers  # not one for each of thousands of sizes
        owner = self  # keeps the library loaded for as long as the call can be made

        def call(addresses: Sequence[int], _owner: CpuKernel = owner) -> None:
            number = len(addresses)
            pack = packers.get(number)
            if pack is None:
                pack = packers[number] = struct.Struct(f"{number}P").pack
            if entry(pack(*addresses), sizes, count):
                raise PlaceOutside

        return call


def load(binary: bytes, launch: CpuLaunch, *, sha256: str) -> CpuKernel:
    """Loads a shared object from sealed memory; see `nearhint.launchers.load`."""
    missing = sorted(set(launch.features) - set(cpu_device().features))
    if missing:
        raise FeaturesMissing(sha256=sha256, missing=", ".join(missing))
    descriptor = os.memfd_create("nearhint-artifact", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _write(descriptor, binary)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        _check(descriptor, len(binary), sha256)
        openmp.make_visible()
        try:
            library = ctypes.CDLL(_unique_path(descriptor), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise LoadFailed(sha256=sha256, problem=str(error)) from error
    finally:
        os.close(descriptor)
    try:
        return CpuKernel(library, launch, sha256)
    except AttributeError as error:
        _dlclose(library._handle)
        raise LoadFailed(sha256=sha256, problem=f"no entry {launch.entry!r}") from error


def _write(descriptor: int, binary: bytes) -> None:
    rest = memoryview(binary)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _check(descriptor: int, size: int, sha256: str) -> None:
    if size == 0:
        raise ArtifactCorrupt(sha256=sha256, problem="it is empty")
    # A private mapping: before Linux 6.7 a shared one of a sealed file is refused, even to read.
    with mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as content:
        found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ArtifactCorrupt(sha256=sha256, problem=f"its bytes have the hash {found}")


def _unique_path(descriptor: int) -> str:
    """A path to the open file that was never used in this process before.

    glibc takes a library for loaded if its *name* was seen, and descriptors are used again: after
    a close, /proc/self/fd/7 would give the kernel that was loaded through it earlier. So each path
    spells a fresh number in its slashes: "/" for a 0, "/." for a 1.
    """
    bits = f"{next(_load_numbers):b}"
    return "/proc/self/fd" + "".join("/." if bit == "1" else "/" for bit in bits) + f"/{descriptor}"
