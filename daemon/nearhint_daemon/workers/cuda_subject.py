"""CUDA binaries as verification and measurement see them.

A kernel that writes far out of bounds makes the device's context unusable for good, for this
process: that is a `DeviceBroken`, after which the worker must leave.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from nearhint.launchers import cuda
from nearhint.launchers.errors import (
    ArtifactCorrupt,
    DeviceOutOfMemory,
    LaunchFailed,
    LoadFailed,
)
from nearhint_daemon.workers.elements import STORAGE, Array, Elements, decode, drawn_of
from nearhint_daemon.workers.errors import DeviceBroken, OutOfMemory, RequestInvalid
from nearhint_daemon.workers.inputs import repeat_into, repeats
from nearhint_daemon.workers.measure import Allocate
from nearhint_daemon.workers.memory import ALIGNMENT_BYTES, PATTERN, Buffer, poison_byte
from nearhint_daemon.workers.sent_references import WORDS, as_words
from nearhint_rules.artifact import ArtifactRef, CudaLaunch, ScalarArgument

BAND_BYTES = 16 * ALIGNMENT_BYTES
"""Pattern on either side of a parameter."""
SCRATCH_BAND_BYTES = 4096
"""Pattern behind a workspace."""
_NO_MEMORY = re.compile("out.of.memory", re.IGNORECASE)
"""How torch ("CUDA error: out of memory") and the driver (CUDA_ERROR_OUT_OF_MEMORY) name it."""


class CudaBuffer:
    """A parameter in device memory between two bands of a pattern; inputs must stay as they are."""

    def __init__(
        self, dtype: str, count: int, *, device: str, layout: str, drawn: torch.Tensor | None
    ) -> None:
        """`drawn`: what the content repeats, as words on the device; None for an output."""
        self.dtype = dtype
        storage = np.dtype(STORAGE[dtype])
        size = count * storage.itemsize
        start = start_in(layout, size, storage.itemsize)
        self._whole = torch.full(
            (size + 2 * BAND_BYTES + ALIGNMENT_BYTES,), PATTERN, dtype=torch.uint8, device=device
        )
        self._start, self._end = start, start + size
        self.words = self._whole[self._start : self._end].view(WORDS[storage.itemsize][0])
        self._drawn = drawn
        if drawn is None:
            self._whole[self._start : self._end].fill_(poison_byte(dtype))
        else:
            repeat_into(self.words, drawn)

    @property
    def address(self) -> int:
        """Where the parameter begins."""
        start: int = self._whole.data_ptr() + self._start
        return start

    def read(self) -> Array:
        """The elements, as stored."""
        return on_host(self.dtype, self.words)

    def read_at(self, indices: Array) -> Array:
        """The elements at `indices`, as stored; they alone leave the device."""
        where = torch.from_numpy(indices).to(self.words.device)
        return on_host(self.dtype, self.words[where])

    def value(self) -> float:
        """The first element, as a Python number."""
        number: float = decode(self.dtype, on_host(self.dtype, self.words[:1]))[0].item()
        return number

    def intact(self) -> torch.Tensor:
        """`is_intact`, a bool that is not waited for."""
        around = (self._whole[: self._start], self._whole[self._end :])
        found = torch.stack([(band == PATTERN).all() for band in around]).all()
        return found if self._drawn is None else found & repeats(self.words, self._drawn)

    def is_intact(self) -> bool:
        """Whether the pattern around the parameter is whole, and an input as it was."""
        return bool(self.intact())

    def close(self) -> None:
        """Gives the memory back to torch's allocator."""
        self._whole = self.words = torch.empty(0, dtype=torch.uint8)
        self._drawn = None


def start_in(layout: str, size_bytes: int, width: int) -> int:
    """Where a parameter begins, in bytes, in memory that is aligned; `width` is an element's."""
    moved = {"aligned": 0, "flush": -size_bytes % ALIGNMENT_BYTES, "shifted": width}
    return BAND_BYTES + moved[layout]


def on_host(dtype: str, words: torch.Tensor) -> Array:
    """Elements as stored, from those that they are moved as."""
    raw: Array = words.cpu().numpy()
    return np.asarray(raw.view(np.dtype(STORAGE[dtype])))


class CudaSubject:
    """A CUDA binary, loaded on one device."""

    def __init__(self, binary: bytes, artifact: ArtifactRef, *, device_index: int) -> None:
        if not isinstance(artifact.launch, CudaLaunch):
            raise RequestInvalid("a CPU binary for a CUDA device")
        if len(binary) != artifact.size_bytes:
            raise ArtifactCorrupt(sha256=artifact.sha256, problem=f"{len(binary)} bytes")
        self._index = device_index
        self.device = f"cuda:{device_index}"
        with device_errors():
            self._kernel = cuda.load(
                binary, artifact.launch, sha256=artifact.sha256, device_index=device_index
            )
        self.scalars = [
            argument.parameter
            for argument in artifact.launch.arguments
            if isinstance(argument, ScalarArgument)
        ]

    def allocate(self, dtype: str, count: int, *, layout: str, content: Elements | None) -> Buffer:
        """Memory between bands of a pattern."""
        with device_errors():
            drawn = None
            if content is not None:
                drawn = torch.from_numpy(as_words(drawn_of(content))).to(self.device)
            return CudaBuffer(dtype, count, device=self.device, layout=layout, drawn=drawn)

    def run(self, dims: Sequence[int], buffers: Sequence[Buffer], *, threads: int) -> None:
        """Runs once, to the end. Threads are a matter of CPUs."""
        del threads
        with device_errors():
            scalars = [
                buffer.value()
                for buffer in (buffers[place] for place in self.scalars)
                if isinstance(buffer, CudaBuffer)
            ]
            band = self.launch(dims, [buffer.address for buffer in buffers], scalars)
            torch.cuda.synchronize(self._index)
            if band is not None and not bool((band == 0xFF).all()):
                raise DeviceBroken("a kernel wrote behind its workspace")

    def launch(
        self, dims: Sequence[int], addresses: Sequence[int], scalars: Sequence[float]
    ) -> torch.Tensor | None:
        """Begins a run; the bytes behind its workspace, all bits of which must stay set."""
        call = self._kernel.bind(dims)
        size = self._kernel.workspace_bytes(dims)
        stream = torch.cuda.current_stream(self._index).cuda_stream
        if not size:
            call(addresses, scalars, stream)
            return None
        # All bits set is NaN: what is read before it was written shows.
        scratch = torch.full(
            (size + SCRATCH_BAND_BYTES,), 0xFF, dtype=torch.uint8, device=self.device
        )
        call([*addresses, scratch.data_ptr()], scalars, stream)
        return scratch[size:]

    def caller(
        self,
        dims: Sequence[int],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[Allocate],
        *,
        threads: int,
    ) -> Callable[[], object]:
        """A callable that allocates the outputs and launches the binary on fixed inputs."""
        del threads
        call, index = self._kernel.bind(dims), self._index
        size, device = self._kernel.workspace_bytes(dims), self.device
        addresses = [tensor.data_ptr() for tensor in inputs]
        scalars = [inputs[place].item() for place in self.scalars]
        kept = tuple(inputs)  # an address does not keep its tensor

        def launch() -> object:
            made = [allocate() for allocate in outputs]
            scratch = torch.empty(size, dtype=torch.uint8, device=device) if size else None
            # Under capture the current stream is another one than before.
            stream = torch.cuda.current_stream(index).cuda_stream
            placed = [*addresses, *(tensor.data_ptr() for tensor in made)]
            if scratch is not None:
                placed.append(scratch.data_ptr())
            call(placed, scalars, stream)
            return made, scratch, kept

        return launch


def release_memory() -> None:
    """Gives what torch keeps for later back to the device, which may be serving."""
    torch.cuda.empty_cache()


@contextmanager
def device_errors() -> Generator[None, None, None]:
    """Turns what torch and the driver say of a broken device into `DeviceBroken`, and of one whose
    memory others have into `OutOfMemory`."""
    try:
        yield
    except (torch.OutOfMemoryError, DeviceOutOfMemory) as error:
        raise OutOfMemory(str(error)) from error
    except (LaunchFailed, LoadFailed, torch.AcceleratorError) as error:
        if _NO_MEMORY.search(str(error)):
            raise OutOfMemory(str(error)) from error
        if isinstance(error, LoadFailed):
            raise
        raise DeviceBroken(str(error)) from error
