"""Loaded binaries as verification and measurement see them, one class a kind of device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nearhint.launchers import cpu
from nearhint.launchers.errors import ArtifactCorrupt, PlaceOutside
from nearhint_daemon.workers.elements import Elements
from nearhint_daemon.workers.errors import RequestInvalid
from nearhint_daemon.workers.memory import Buffer, GuardedBuffer
from nearhint_rules.artifact import ArtifactRef, CpuLaunch

if TYPE_CHECKING:
    import torch

    from nearhint_daemon.workers.measure import Allocate


class CpuSubject:
    """A CPU binary."""

    def __init__(self, binary: bytes, artifact: ArtifactRef) -> None:
        if not isinstance(artifact.launch, CpuLaunch):
            raise RequestInvalid("a CUDA binary for a CPU")
        if len(binary) != artifact.size_bytes:
            raise ArtifactCorrupt(sha256=artifact.sha256, problem=f"{len(binary)} bytes")
        self._kernel = cpu.load(binary, artifact.launch, sha256=artifact.sha256)

    def allocate(self, dtype: str, count: int, *, layout: str, content: Elements | None) -> Buffer:
        """Memory between pages that cannot be touched."""
        return GuardedBuffer(dtype, count, layout=layout, content=content)

    def run(self, dims: Sequence[int], buffers: Sequence[Buffer], *, threads: int) -> bool:
        """Runs once, with exactly `threads`, however small the work; whether a place was outside.

        Some of those that data names are, and the nearest ones are to be read.
        """
        call = self._kernel.bind_exactly(dims, threads=threads)
        try:
            call([buffer.address for buffer in buffers])
        except PlaceOutside:
            return True
        return False

    def caller(
        self,
        dims: Sequence[int],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[Allocate],
        *,
        threads: int,
    ) -> Callable[[], object]:
        """A callable that allocates the outputs and runs the binary on fixed inputs.

        Places outside are no reason to stop: what is computed of drawn inputs may lead anywhere,
        and the original ops beside it are run at the nearest ones, too.
        """
        bound = self._kernel.bind(dims, threads=threads)
        addresses = [tensor.data_ptr() for tensor in inputs]

        def call(every: Sequence[int]) -> None:
            try:  # noqa: SIM105 - a context manager would be timed
                bound(every)
            except PlaceOutside:
                pass

        kept = tuple(inputs)  # an address does not keep its tensor

        if len(outputs) == 1:
            (allocate,) = outputs

            def call_one() -> object:
                output = allocate()
                call((*addresses, output.data_ptr()))
                return output, kept

            return call_one

        def call_all() -> object:
            made = [allocate() for allocate in outputs]
            call((*addresses, *(tensor.data_ptr() for tensor in made)))
            return made, kept

        return call_all
