"""The cases of a Variant on a CUDA device: run one after the other, and compared there.

Of a small case the device needs microseconds; to fill its memory, to wait for it and to compare it
took the host a thousand times as long. So small cases share one piece of memory: random inputs,
poison for outputs, a pattern around each. Afterwards it must be the same but for what was to be
stored, and that within its tolerances; one answer says so for all cases. Large ones are compared
alike, each in memory of its own. What all of that is made of lies on the device for all Variants of
a Kernel (`sent_references`), and is looked over after each run.

The device only accepts. Where it finds anything else than right, what lies in its memory goes to
the host, which alone rejects, and excuses (`verify.judged`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.cuda_subject import (
    BAND_BYTES,
    CudaBuffer,
    device_errors,
    on_host,
    start_in,
)
from nearhint_daemon.workers.elements import FLOATS, STORAGE, Array, decode, drawn_of
from nearhint_daemon.workers.errors import DeviceBroken
from nearhint_daemon.workers.memory import ALIGNMENT_BYTES, PATTERN, close_all, poison_byte
from nearhint_daemon.workers.reference import Reference
from nearhint_daemon.workers.sent_references import (
    SENT_BYTES,
    WORDS,
    Sent,
    SentOutput,
    SentReferences,
    outputs_of,
)
from nearhint_daemon.workers.tolerance import PRECISIONS
from nearhint_daemon.workers.verify import Case, Ran, Runs, unwritten_limit

SMALL_BYTES = 4 << 20
"""What the parameters of a case take at most that shares its memory."""
TOGETHER_BYTES = 32 << 20
"""What the memory is that cases share, or a little more."""
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
    """Runs cases, of any Kernel, on one device, and keeps there what the next Variant needs."""

    def __init__(self, device: str, limit_bytes: int = SENT_BYTES) -> None:
        self._references = SentReferences(device, limit_bytes)

    def of(self, subject: Launcher) -> Runs:
        """What runs cases of one binary."""

        def runs(
            kernel: ir.Kernel, wanted: Iterable[tuple[Case, Reference]]
        ) -> Generator[Ran, None, None]:
            for together in _grouped(kernel, wanted):
                with device_errors():
                    sent = self._references.of(kernel, [reference for _, reference in together])
                cases = list(zip((case for case, _ in together), sent, strict=True))
                if len(cases) > 1:
                    yield from _run_together(kernel, cases, subject, self._check)
                else:
                    yield from _run_alone(kernel, *cases[0], subject, self._check)

        return runs

    def clear(self) -> None:
        """Gives the device's memory back."""
        self._references.clear()

    def _check(self, is_beside: bool) -> None:
        """Raises `DeviceBroken` where a binary wrote to what is not its own."""
        if is_beside:
            raise DeviceBroken("a kernel wrote behind its workspace")
        if not self._references.are_intact():
            raise DeviceBroken("a kernel wrote to memory that it was not given")


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


def _placed(kernel: ir.Kernel, cases: Sequence[tuple[Case, Sent]]) -> list[list[_Region]]:
    """Where the parameters of each case lie in the memory that they share."""
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
    return regions


def _image(
    kernel: ir.Kernel,
    cases: Sequence[tuple[Case, Sent]],
    regions: Sequence[Sequence[_Region]],
    device: str,
) -> torch.Tensor:
    """The memory as it is before the cases run, joined at once: hundreds of parts are short."""
    outputs = outputs_of(kernel)
    pattern = torch.full((2 * BAND_BYTES,), PATTERN, dtype=torch.uint8, device=device)
    longest = max(
        placed[place].end - placed[place].start for placed in regions for place in outputs
    )
    poison = {
        byte: torch.full((longest,), byte, dtype=torch.uint8, device=device)
        for byte in {poison_byte(kernel.params[place].dtype) for place in outputs}
    }
    parts: list[torch.Tensor] = []
    for (_, sent), placed in zip(cases, regions, strict=True):
        for param, drawn, region in zip(kernel.params, sent.inputs, placed, strict=True):
            size = region.end - region.start
            parts.append(pattern[: region.start - region.low])
            if drawn is None:
                parts.append(poison[poison_byte(param.dtype)][:size])
            else:
                whole = drawn.view(torch.uint8)
                parts += [whole] * (size // whole.numel())
                parts.append(whole[: size % whole.numel()])
            parts.append(pattern[: region.high - region.end])
    return torch.cat(parts)


def _run_together(
    kernel: ir.Kernel,
    cases: Sequence[tuple[Case, Sent]],
    subject: Launcher,
    check: Callable[[bool], None],
) -> Generator[Ran, None, None]:
    """Runs cases in one memory, and waits once for all of them."""
    regions = _placed(kernel, cases)
    with device_errors():
        image = _image(kernel, cases, regions, subject.device)
        memory = image.clone()
        bands: list[torch.Tensor] = []
        for (case, sent), placed in zip(cases, regions, strict=True):
            band = subject.launch(
                tuple(case.sizes.dims.values()),
                [memory.data_ptr() + region.start for region in placed],
                _numbers(kernel, sent.reference, subject),
            )
            bands += [] if band is None else [band]
        wrong, worst = _wrong(kernel, cases, regions, memory, image)
        is_beside = torch.stack(bands).ne(0xFF).any().double() if bands else worst.new_zeros(())
        answer = torch.cat((wrong, worst.view(1), is_beside.view(1))).cpu().numpy()
        check(bool(answer[-1]))
    for (case, sent), placed, count in zip(cases, regions, answer[:-2], strict=True):
        if not count:
            yield Ran(case, sent.reference, worst_error=float(answer[-2]))
            continue
        params = zip(kernel.params, placed, strict=True)
        yield Ran(
            case,
            sent.reference,
            buffers=[_Placed(param, region, memory, image) for param, region in params],
        )


def _wrong(
    kernel: ir.Kernel,
    cases: Sequence[tuple[Case, Sent]],
    regions: Sequence[Sequence[_Region]],
    memory: torch.Tensor,
    image: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each case how much of its memory is not right, and the worst of the errors that are."""
    left = memory.clone()
    count = torch.zeros(len(cases), dtype=torch.float64, device=memory.device)
    worst = torch.zeros((), dtype=torch.float64, device=memory.device)
    outputs = outputs_of(kernel)
    for dtype in dict.fromkeys(kernel.params[place].dtype for place in outputs):
        words = WORDS[np.dtype(STORAGE[dtype]).itemsize][0]
        stored = [
            (number, placed[place].start // words.itemsize, output)
            for number, ((_, sent), placed) in enumerate(zip(cases, regions, strict=True))
            for place, output in zip(outputs, sent.outputs, strict=True)
            if output.dtype == dtype
        ]
        places = _places(stored, memory.device)
        errors = _errors(
            dtype,
            memory.view(words)[places],
            torch.cat([output.values for _, _, output in stored]),
            torch.cat([output.allowed for _, _, output in stored]),
        )
        is_bad = ~(errors <= 1)
        lengths = np.zeros(len(cases) + 1, np.int64)
        for number, _, output in stored:
            lengths[number + 1] += output.places.numel()
        count += _counted(is_bad, np.cumsum(lengths))
        worst = torch.maximum(worst, _worst(errors, is_bad))
        left.view(words)[places] = image.view(words)[places]
    # What is stored to is as it was again: anything else was written where no store is.
    bounds = np.asarray([*(placed[0].low for placed in regions), memory.numel()])
    count += _counted(left.view(torch.int64) != image.view(torch.int64), bounds // 8)
    return count, worst


def _places(stored: Sequence[tuple[int, int, SentOutput]], device: torch.device) -> torch.Tensor:
    """The places of outputs in the memory, counted in words, given where each output begins."""
    lengths = [output.places.numel() for _, _, output in stored]
    starts = torch.repeat_interleave(
        _to_device(np.asarray([start for _, start, _ in stored]), device),
        _to_device(np.asarray(lengths), device),
        output_size=sum(lengths),
    )
    return starts + torch.cat([output.places for _, _, output in stored])


def _counted(flags: torch.Tensor, bounds: Array) -> torch.Tensor:
    """How many flags are set between each two neighbouring bounds."""
    sums = torch.nn.functional.pad(torch.cumsum(flags, 0), (1, 0))
    return sums[_to_device(bounds, flags.device)].diff().double()


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
    overflows = found.sign() * values + allowed >= PRECISIONS[dtype].largest
    same = (found.isnan() & values.isnan()) | (found == values) | (found.isinf() & overflows)
    return torch.where(same, 0.0, torch.where(relative.isfinite(), relative, torch.inf))


def _decoded(dtype: str, words: torch.Tensor) -> torch.Tensor:
    """Stored elements in f64."""
    if dtype in _TORCH_FLOATS:
        return words.view(_TORCH_FLOATS[dtype]).double()
    known = _to_device(decode(dtype, np.arange(256, dtype=np.uint8)), words.device)
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


def _to_device(array: Array, device: torch.device | str) -> torch.Tensor:
    return torch.from_numpy(array).to(device)


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
        return on_host(self._param.dtype, self._words[_to_device(indices, self._words.device)])

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


def _run_alone(
    kernel: ir.Kernel,
    case: Case,
    sent: Sent,
    subject: Launcher,
    check: Callable[[bool], None],
) -> Generator[Ran, None, None]:
    """Runs a large case, in memory of its own."""
    buffers: list[CudaBuffer] = []
    try:
        with device_errors():
            for param, count, drawn in zip(
                kernel.params, case.sizes.elements, sent.inputs, strict=True
            ):
                buffers.append(
                    CudaBuffer(
                        param.dtype, count, device=subject.device, layout=case.layout, drawn=drawn
                    )
                )
            band = subject.launch(
                tuple(case.sizes.dims.values()),
                [buffer.address for buffer in buffers],
                _numbers(kernel, sent.reference, subject),
            )
            is_doubtful, worst = _looked_at(
                buffers, dict(zip(outputs_of(kernel), sent.outputs, strict=True)), sent.reference
            )
            is_beside = worst.new_zeros(()) if band is None else band.ne(0xFF).any().double()
            doubt, error, beside = torch.stack((is_doubtful, worst, is_beside)).tolist()
            check(bool(beside))
        if not doubt:
            close_all(buffers)
            buffers = []
        yield Ran(case, sent.reference, worst_error=error, buffers=buffers)
    finally:
        close_all(buffers)


def _looked_at(
    buffers: Sequence[CudaBuffer], outputs: Mapping[int, SentOutput], reference: Reference
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether anything is not right, and the worst of the errors that are."""
    doubts = [~buffer.intact() for buffer in buffers]
    worst = torch.zeros((), dtype=torch.float64, device=doubts[0].device)
    for place, output in outputs.items():
        words = buffers[place].words
        errors = _errors(output.dtype, words[output.places], output.values, output.allowed)
        is_bad = ~(errors <= 1)
        doubts.append(is_bad.any())
        worst = torch.maximum(worst, _worst(errors, is_bad))
        if output.covered is not None:
            doubts += _coverage_doubts(
                output.dtype, words, output.covered, is_whole=reference.is_whole
            )
    return torch.stack(doubts).any().double(), worst


def _coverage_doubts(
    dtype: str, words: torch.Tensor, covered: torch.Tensor, *, is_whole: bool
) -> list[torch.Tensor]:
    """Whether an output is written where no store is, or not everywhere."""
    width = np.dtype(STORAGE[dtype]).itemsize
    poison = int.from_bytes(bytes([poison_byte(dtype)] * width), "little", signed=width > 1)
    is_poison = words == poison
    found = [~(is_poison | covered).all()]
    if not is_whole:
        unwritten = torch.count_nonzero(is_poison & covered)
        found.append(unwritten > unwritten_limit(dtype, words.numel()))
    return found
