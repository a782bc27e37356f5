"""Kernels whose programs wait for each other, beside themselves."""

from __future__ import annotations

import torch
from tests.gpu.test_cuda_launch import addresses

from nearhint.launchers import cuda

STREAMS, CALLS = 12, 3


def beside_themselves(
    kernel: cuda.CudaKernel, sizes: tuple[int, ...], values: torch.Tensor
) -> list[torch.Tensor]:
    """What a kernel makes of `values`, as large, on so many streams at once that more programs run
    than a device holds; on each in so many calls.
    """
    call, size_bytes = kernel.bind(sizes), kernel.workspace_bytes(sizes)
    found: list[torch.Tensor] = []
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    for stream in streams:
        with torch.cuda.stream(stream):
            # Whatever was there before: words and tickets are zeroed.
            scratch = torch.full((size_bytes,), 0x5A, dtype=torch.uint8, device="cuda")
            out = torch.full_like(values, float("nan"))
            for _ in range(CALLS):
                call(addresses(values, out, scratch), (), int(stream.cuda_stream))
            found.append(out)
    torch.cuda.synchronize()
    return found
