"""The cases of a Variant on a CUDA device: run one after the other, and compared there.

Of a small case the device needs microseconds; to fill its memory, to wait for it and to compare it
took the host a thousand times as long. So small cases share one piece of memory. What it holds
before is made once for all Variants of a Kernel, and kept on the host, where no binary can spoil
it: random inputs, poison for outputs, a pattern around each. Afterwards it must be the same but for
what was to be stored, and that within its tolerances; one answer says so for all cases. Large ones
are compared alike, each in memory of its own.

The device only accepts. Where it finds anything else than right, what lies in its memory goes to
the host, which alone rejects, and excuses (`verify.judged`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.recent import Recent
from nearhint_daemon.workers.cuda_subject import (
    BAND_BYTES,
    WORDS,
    CudaBuffer,
    device_errors,
    on_host,
    start_in,
)
from nearhint_daemon.workers.elements import (
    FLOATS,
    STORAGE,
    Array,
    decode,
    drawn_of,
    whole_of,
)
from nearhint_daemon.workers.errors import DeviceBroken
from nearhint_daemon.workers.memory import ALIGNMENT_BYTES, PATTERN, close_all, poison_byte
from nearhint_daemon.workers.reference import Expected, Reference
from nearhint_daemon.workers.tolerance import PRECISIONS
from nearhint_daemon.workers.verify import Case, Ran, Runs, unwritten_limit

SMALL_BYTES = 4 << 20
"""What the parameters of a case take at most that shares its memory."""
TOGETHER_BYTES = 32 << 20
"""What the memory is that cases share, or a little more."""
KEPT_BYTES = 256 << 20
"""Room for what is made once for all Variants of a Kernel."""
TINY = float(np.finfo(float).tiny)
_TORCH_FLOATS: Mapping[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}


class Launcher(Protocol):
    """A loaded binary on its device."""

    @property
    def device(self) -> str:
        """The device's name in torch."""
        ...

    @property
    def scalars(self) -> Sequence[int]:
        """The parameters that are passed as numbers, in order."""
        ...

    def launch(
        self, dims: Sequence[int], addresses: Sequence[int], scalars: Sequence[float]
    ) -> torch.Tensor | None:
        """Begins a run; the bytes behind its workspace, all bits of which must stay set."""
        ...


class CudaRuns:
    """Runs cases, of any Kernel, and keeps what the next Variant needs as well."""

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._kept = Recent[tuple[object, ...], _Shared](
            limit_bytes, weigh=lambda shared: shared.size_bytes
        )

    def of(self, subject: Launcher) -> Runs:
        """What runs cases of one binary."""

        def runs(
            kernel: ir.Kernel, wanted: Iterable[tuple[Case, Reference]]
        ) -> Generator[Ran, None, None]:
            alone = _Alone(kernel, subject)
            for together in _grouped(kernel, wanted):
                if len(together) > 1:
                    yield from _run_together(self._shared(kernel, together), subject)
                else:
                    yield from alone.run(*together[0])

        return runs

    def _shared(self, kernel: ir.Kernel, together: Sequence[tuple[Case, Reference]]) -> _Shared:
        key = (kernel, *((case.layout, id(reference)) for case, reference in together))
        found = self._kept.get(key)
        return self._kept.keep(key, _shared(kernel, together)) if found is None else found


def _grouped(
    kernel: ir.Kernel, wanted: Iterable[tuple[Case, Reference]]
) -> Generator[list[tuple[Case, Reference]], None, None]:
    """Neighbours that are small and wholly known together, the others alone."""
    together: list[tuple[Case, Reference]] = []
    size = 0
    for case, reference in wanted:
        needed = case.sizes.size_bytes(kernel)
        is_small = reference.is_whole and needed <= SMALL_BYTES
        if together and (not is_small or size + needed > TOGETHER_BYTES):
            yield together
            together, size = [], 0
        if is_small:
            together.append((case, reference))
            size += needed
        else:
            yield [(case, reference)]
    if together:
        yield together


@dataclass(frozen=True, slots=True)
class _Region:
    """Where a parameter lies in the memory, and what belongs to it: bytes from `low` to `high`."""

    low: int
    start: int
    end: int
    high: int


@dataclass(frozen=True, slots=True)
class _Compared:
    """All elements of one dtype that cases are to store, case by case.

    `places` are counted in elements of the memory, `bounds` say which are a case's: one number more
    than there are cases.
    """

    dtype: str
    places: Array
    values: Array
    allowed: Array
    bounds: Array


@dataclass(frozen=True, slots=True)
class _Shared:
    """The memory of some cases as it is before they run, and what is to be in it after."""

    kernel: ir.Kernel
    cases: Sequence[tuple[Case, Reference]]
    image: Array
    regions: Sequence[Sequence[_Region]]
    compared: Sequence[_Compared]

    @property
    def bounds(self) -> Array:
        """The bytes where each case's memory begins, and where that of the last one ends."""
        return np.asarray([*(placed[0].low for placed in self.regions), self.image.size])

    @property
    def size_bytes(self) -> int:
        """What it takes to keep it, and its references with it."""
        arrays = [
            self.image,
            *(
                array
                for each in self.compared
                for array in (each.places, each.values, each.allowed, each.bounds)
            ),
        ]
        references = {id(reference): reference for _, reference in self.cases}
        return sum(array.nbytes for array in arrays) + sum(
            reference.size_bytes for reference in references.values()
        )


def _shared(kernel: ir.Kernel, cases: Sequence[tuple[Case, Reference]]) -> _Shared:
    regions: list[list[_Region]] = []
    low = 0
    for case, _ in cases:
        placed: list[_Region] = []
        for param, count in zip(kernel.params, case.sizes.elements, strict=True):
            width = np.dtype(STORAGE[param.dtype]).itemsize
            start = low + start_in(case.layout, count * width, width)
            end = start + count * width
            high = -(-(end + BAND_BYTES) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            placed.append(_Region(low, start, end, high))
            low = high
        regions.append(placed)
    image = np.full(low, PATTERN, np.uint8)
    for (_, reference), placed in zip(cases, regions, strict=True):
        for param, content, region in zip(kernel.params, reference.inputs, placed, strict=True):
            image[region.start : region.end] = (
                poison_byte(param.dtype) if content is None else whole_of(content).view(np.uint8)
            )
    dtypes = dict.fromkeys(param.dtype for param in kernel.params if param.role == "out")
    compared = [_compared(kernel, dtype, cases, regions) for dtype in dtypes]
    return _Shared(kernel, cases, image, regions, compared)


def _compared(
    kernel: ir.Kernel,
    dtype: str,
    cases: Sequence[tuple[Case, Reference]],
    regions: Sequence[Sequence[_Region]],
) -> _Compared:
    width = np.dtype(STORAGE[dtype]).itemsize
    places, values, allowed, bounds = [], [], [], [0]
    for (_, reference), placed in zip(cases, regions, strict=True):
        (slab,) = reference.slabs
        for place, expected in zip(_outputs(kernel), slab, strict=True):
            if kernel.params[place].dtype == dtype:
                places.append(placed[place].start // width + expected.indices)
                values.append(_comparable(dtype, expected))
                allowed.append(expected.allowed)
        bounds.append(sum(map(len, places)))
    return _Compared(
        dtype,
        np.concatenate(places),
        np.concatenate(values),
        np.concatenate(allowed),
        np.asarray(bounds),
    )


def _outputs(kernel: ir.Kernel) -> list[int]:
    return [place for place, param in enumerate(kernel.params) if param.role == "out"]


def _comparable(dtype: str, expected: Expected) -> Array:
    """What the device compares with: floats in f64, the rest as the bits that are stored."""
    if dtype in FLOATS:
        return np.asarray(expected.values, np.float64)
    stored = np.ascontiguousarray(expected.values, STORAGE[dtype])
    return stored.view(WORDS[stored.dtype.itemsize][1])


def _run_together(shared: _Shared, subject: Launcher) -> Generator[Ran, None, None]:
    """Runs cases in one memory, and waits once for all of them."""
    with device_errors():
        image = _sent(shared.image, subject.device)
        memory = image.clone()
        bands: list[torch.Tensor] = []
        for (case, reference), placed in zip(shared.cases, shared.regions, strict=True):
            band = subject.launch(
                tuple(case.sizes.dims.values()),
                [memory.data_ptr() + region.start for region in placed],
                _numbers(shared.kernel, reference, subject),
            )
            bands += [] if band is None else [band]
        wrong, worst = _wrong(shared, memory, image)
        is_beside = torch.stack(bands).ne(0xFF).any().double() if bands else worst.new_zeros(())
        answer = torch.cat((wrong, worst.view(1), is_beside.view(1))).cpu().numpy()
    _require_whole(not answer[-1])
    for (case, reference), placed, count in zip(
        shared.cases, shared.regions, answer[:-2], strict=True
    ):
        if not count:
            yield Ran(case, reference, worst_error=float(answer[-2]))
            continue
        params = zip(shared.kernel.params, placed, strict=True)
        yield Ran(
            case,
            reference,
            buffers=[_Placed(param, region, memory, image) for param, region in params],
        )


def _wrong(
    shared: _Shared, memory: torch.Tensor, image: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each case how much of its memory is not right, and the worst of the errors that are."""
    left = memory.clone()
    count = torch.zeros(len(shared.cases), dtype=torch.float64, device=memory.device)
    worst = torch.zeros((), dtype=torch.float64, device=memory.device)
    for each in shared.compared:
        words = WORDS[np.dtype(STORAGE[each.dtype]).itemsize][0]
        places = _sent(each.places, memory.device)
        errors = _errors(
            each.dtype,
            memory.view(words)[places],
            _sent(each.values, memory.device),
            _sent(each.allowed, memory.device),
        )
        is_bad = ~(errors <= 1)
        count += _counted(is_bad, each.bounds)
        worst = torch.maximum(worst, _worst(errors, is_bad))
        left.view(words)[places] = image.view(words)[places]
    # What is stored to is as it was again: anything else was written where no store is.
    count += _counted(left.view(torch.int64) != image.view(torch.int64), shared.bounds // 8)
    return count, worst


def _counted(flags: torch.Tensor, bounds: Array) -> torch.Tensor:
    """How many flags are set between each two neighbouring bounds."""
    sums = torch.nn.functional.pad(torch.cumsum(flags, 0), (1, 0))
    return sums[_sent(bounds, flags.device)].diff().double()


def _worst(errors: torch.Tensor, is_bad: torch.Tensor) -> torch.Tensor:
    return torch.where(is_bad, 0.0, errors).max() if errors.numel() else errors.new_zeros(())


def _errors(
    dtype: str, words: torch.Tensor, values: torch.Tensor, allowed: torch.Tensor
) -> torch.Tensor:
    """`verify.element_errors` on the device."""
    if dtype not in FLOATS:
        return torch.where((words == values) | allowed.isinf(), 0.0, torch.inf).double()
    found = _decoded(dtype, words)
    relative = (found - values).abs() / allowed.clamp(min=TINY)
    overflows = values.abs() + allowed >= PRECISIONS[dtype].largest
    same = (
        (found.isnan() & values.isnan())
        | (found == values)
        | (found.isinf() & overflows & (found.sign() == values.sign()))
    )
    return torch.where(same, 0.0, torch.where(relative.isfinite(), relative, torch.inf))


def _decoded(dtype: str, words: torch.Tensor) -> torch.Tensor:
    """Stored elements in f64."""
    if dtype in _TORCH_FLOATS:
        return words.view(_TORCH_FLOATS[dtype]).double()
    known = _sent(decode(dtype, np.arange(256, dtype=np.uint8)), words.device)
    return known[words.long()]


def _numbers(kernel: ir.Kernel, reference: Reference, subject: Launcher) -> list[float]:
    """The scalars of a case, as Python numbers."""
    found: list[float] = []
    for place in subject.scalars:
        content = reference.inputs[place]
        assert content is not None
        number: float = decode(kernel.params[place].dtype, drawn_of(content)[:1])[0].item()
        found.append(number)
    return found


def _sent(array: Array, device: torch.device | str) -> torch.Tensor:
    return torch.from_numpy(array).to(device)


def _require_whole(is_whole: bool) -> None:
    if not is_whole:
        raise DeviceBroken("a kernel wrote behind its workspace")


class _Placed:
    """A parameter in memory that cases share, after the run, for the host to look at."""

    def __init__(
        self, param: ir.Param, region: _Region, memory: torch.Tensor, image: torch.Tensor
    ) -> None:
        self._param, self._region = param, region
        self._memory, self._image = memory, image
        words = WORDS[np.dtype(STORAGE[param.dtype]).itemsize][0]
        self._words = memory[region.start : region.end].view(words)

    @property
    def address(self) -> int:
        """Where the parameter begins."""
        return self._memory.data_ptr() + self._region.start

    def read(self) -> Array:
        """The elements, as stored."""
        return on_host(self._param.dtype, self._words)

    def read_at(self, indices: Array) -> Array:
        """The elements at `indices`, as stored."""
        return on_host(self._param.dtype, self._words[_sent(indices, self._words.device)])

    def is_intact(self) -> bool:
        """Whether what is around the parameter, and an input itself, is as it was."""
        at = self._region
        parts = (
            [(at.low, at.start), (at.end, at.high)]
            if self._param.role == "out"
            else [(at.low, at.high)]
        )
        return all(
            torch.equal(self._memory[low:high], self._image[low:high]) for low, high in parts
        )

    def close(self) -> None:
        """It is not its own: nothing is given back."""


class _Alone:
    """Runs large cases; what is expected goes to the device once for all that share it."""

    def __init__(self, kernel: ir.Kernel, subject: Launcher) -> None:
        self._kernel = kernel
        self._subject = subject
        self._reference: Reference | None = None
        self._expected: list[tuple[torch.Tensor, ...]] = []

    def run(self, case: Case, reference: Reference) -> Generator[Ran, None, None]:
        """Runs one."""
        self._expect(reference)
        buffers: list[CudaBuffer] = []
        try:
            with device_errors():
                for param, count, content in zip(
                    self._kernel.params, case.sizes.elements, reference.inputs, strict=True
                ):
                    buffers.append(
                        CudaBuffer(
                            param.dtype,
                            count,
                            device=self._subject.device,
                            layout=case.layout,
                            content=content,
                        )
                    )
                band = self._subject.launch(
                    tuple(case.sizes.dims.values()),
                    [buffer.address for buffer in buffers],
                    _numbers(self._kernel, reference, self._subject),
                )
                is_doubtful, worst = self._looked_at(buffers, reference)
                is_beside = worst.new_zeros(()) if band is None else band.ne(0xFF).any().double()
                doubt, error, beside = torch.stack((is_doubtful, worst, is_beside)).tolist()
            _require_whole(not beside)
            if not doubt:
                close_all(buffers)
                buffers = []
            yield Ran(case, reference, worst_error=error, buffers=buffers)
        finally:
            close_all(buffers)

    def _expect(self, reference: Reference) -> None:
        if reference is self._reference:
            return
        self._expected = []  # before others come: both may be large
        self._expected = [
            self._sent(place, [slab[position] for slab in reference.slabs])
            for position, place in enumerate(_outputs(self._kernel) if reference.slabs else ())
        ]
        self._reference = reference

    def _sent(self, place: int, slabs: Sequence[Expected]) -> tuple[torch.Tensor, ...]:
        """What all slabs expect of an output: places, values and tolerances."""
        dtype = self._kernel.params[place].dtype
        parts = [
            (expected.indices, _comparable(dtype, expected), expected.allowed) for expected in slabs
        ]
        return tuple(
            torch.cat([_sent(array, self._subject.device) for array in arrays])
            for arrays in zip(*parts, strict=True)
        )

    def _looked_at(
        self, buffers: Sequence[CudaBuffer], reference: Reference
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether anything is not right, and the worst of the errors that are."""
        doubts = [~buffer.intact() for buffer in buffers]
        worst = torch.zeros((), dtype=torch.float64, device=self._subject.device)
        for position, place in enumerate(_outputs(self._kernel)):
            dtype, words = self._kernel.params[place].dtype, buffers[place].words
            if self._expected:
                places, values, allowed = self._expected[position]
                errors = _errors(dtype, words[places], values, allowed)
                is_bad = ~(errors <= 1)
                doubts.append(is_bad.any())
                worst = torch.maximum(worst, _worst(errors, is_bad))
            if reference.covered:
                doubts += self._coverage_doubts(dtype, words, reference, position)
        return torch.stack(doubts).any().double(), worst

    def _coverage_doubts(
        self, dtype: str, words: torch.Tensor, reference: Reference, position: int
    ) -> list[torch.Tensor]:
        """Whether an output is written where no store is, or not everywhere."""
        width = np.dtype(STORAGE[dtype]).itemsize
        poison = int.from_bytes(bytes([poison_byte(dtype)] * width), "little", signed=width > 1)
        is_poison = words == poison
        covered = _sent(reference.covered[position], words.device)
        found = [~(is_poison | covered).all()]
        if not reference.is_whole:
            unwritten = torch.count_nonzero(is_poison & covered)
            found.append(unwritten > unwritten_limit(dtype, words.numel()))
        return found
