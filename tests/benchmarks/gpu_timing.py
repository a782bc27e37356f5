"""Times of one kernel's Variants on a GPU, beside a copy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
from tests.benchmarks.gpu_variants import Variant

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.aten import torch_dtype
from nearhint_daemon.workers.cases import named_places, sizes_at

SAMPLES = 7


def timed(
    kernel: ir.Kernel, sizes: Mapping[str, int], variants: Sequence[Variant], *, cache: str = "warm"
) -> tuple[dict[str, float], float]:
    """Medians in µs by Schedule, and that of a copy of the first input, all interleaved as replays
    of CUDA graphs; `cache` is "warm" or "cold".
    """
    from nearhint_daemon.workers.cuda_clock import CudaClock
    from nearhint_daemon.workers.cuda_subject import CudaSubject

    tensors = storages(kernel, sizes)
    count = sum(param.role != "out" for param in kernel.params)
    outputs = [lambda tensor=tensor: tensor for tensor in tensors[count:]]
    copied = torch.empty_like(tensors[0])
    calls: list[Callable[[], object]] = [lambda: copied.copy_(tensors[0])]
    for variant in variants:
        subject = CudaSubject(variant.binary, variant.artifact, device_index=0)
        calls.append(subject.caller(tuple(sizes.values()), tensors[:count], outputs, threads=1))
    clock = CudaClock(cache=cache, device_index=0)
    counts = [clock.calls_for(call) for call in calls]
    samples = [
        [clock.sample(call, many).ns for call, many in zip(calls, counts, strict=True)]
        for _ in range(SAMPLES)
    ]
    copy_us, *medians = (statistics.median(column) / 1e3 for column in zip(*samples, strict=True))
    names = [str(variant.schedule) for variant in variants]
    return {name: round(us, 2) for name, us in zip(names, medians, strict=True)}, copy_us


def storages(
    kernel: ir.Kernel, sizes: Mapping[str, int], *, device: str = "cuda"
) -> list[torch.Tensor]:
    """Random parameters on a device, outputs included."""
    generator = torch.Generator(device=device).manual_seed(1)
    found: list[torch.Tensor] = []
    at = sizes_at(kernel, sizes)
    places = named_places(kernel, at)
    for number, (param, count) in enumerate(zip(kernel.params, at.elements, strict=True)):
        made = torch.randn(count, device=device, generator=generator)
        if number in places:
            made.uniform_(0, places[number][1], generator=generator)
        found.append(made.to(torch_dtype(param.dtype, "native")))
    return found
