"""The Kernels whose selection is judged, the ranges of their sizes, and the sizes to judge at.

Sizes are drawn before anything is tuned: most log-uniformly over the ranges, odd ones, primes and
both ends among them (`nearhint_rules.held_out`); the rest as a server's requests bring them.

Requests are a seeded invention after published traces of chat servers: prompts of log-normal
length around 220 tokens, a batch of 1 to 16 of them; every other step decodes, one token for each
of up to 256 sequences. A matrix has a row a token, and as many columns as some model is wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import torch
from tests.benchmarks import sweep_functions as of
from tests.benchmarks.cpu_cases import layer_norm
from tests.benchmarks.sweeps import Sizes, Sweep

from nearhint_rules.held_out import held_out

WIDTHS = (384, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192)
"""How wide models are."""
TOKENS, TOKENS_SIGMA = 220, 1.1
"""The median of a prompt's length, and the standard deviation of its logarithm."""
BATCH_LIMIT, SEQUENCES_LIMIT = 16, 256
USUAL_BYTES, MOST_BYTES = 256 << 20, 1 << 30
RARE = 0.04
"""The share of sizes above `USUAL_BYTES` that is kept."""
DRAWN, LOGGED = "drawn", "request log"

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """A sweep, the inclusive range of each of its sizes, and what it costs in bytes at sizes.

    `like_requests` makes sizes of a matrix's rows and columns; None: requests say nothing.
    """

    sweep: Sweep
    ranges: Ranges
    like_requests: Callable[[int, int], Sizes] | None = None

    def size_bytes(self, sizes: Sizes) -> int:
        """Bytes of its arguments."""
        width = torch.empty(0, dtype=self.sweep.dtype).element_size()
        return sum(math.prod(shape) * width for shape in self.sweep.layout(*sizes))

    def fitted(self, sizes: Sizes) -> Sizes | None:
        """The sizes, those that count blocks rounded up; None outside the ranges."""
        if self.sweep.unit:
            sizes = (*sizes[:-1], -(-sizes[-1] // self.sweep.unit) * self.sweep.unit)
        if all(low <= size <= high for size, (low, high) in zip(sizes, self.ranges, strict=True)):
            return sizes
        return None


def held_out_sizes(subject: Subject, *, drawn: int, logged: int, seed: int) -> dict[Sizes, str]:
    """Sizes to judge at, by where they are from; those of requests come between the others."""
    draw = Random(seed)

    def kept(sizes: Sizes) -> Sizes | None:
        fitted = subject.fitted(sizes)
        if fitted is None or subject.size_bytes(fitted) > MOST_BYTES:
            return None
        if subject.size_bytes(fitted) > USUAL_BYTES and draw.random() > RARE:
            return None
        return fitted

    ends = [tuple(low for low, _ in subject.ranges), tuple(high for _, high in subject.ranges)]
    known: dict[Sizes, str] = {}
    plain = iter(held_out(ends, cutoff=1, count=drawn, seed=seed, reach=kept))
    asked = _requested(subject, logged, draw, kept)
    for number in range(drawn + logged):
        turn = (number + 1) * logged // (drawn + logged) > number * logged // (drawn + logged)
        sizes = next(asked if turn else plain, None)
        if sizes is not None:
            known.setdefault(sizes, LOGGED if turn else DRAWN)
    return known


def _requested(
    subject: Subject, count: int, draw: Random, kept: Callable[[Sizes], Sizes | None]
) -> Iterator[Sizes]:
    if subject.like_requests is None:
        return
    found: set[Sizes] = set()
    for number in range(64 * count):
        if len(found) == count:
            return
        if number % 2:
            rows = max(1, min(round(draw.expovariate(3 / SEQUENCES_LIMIT)), SEQUENCES_LIMIT))
        else:
            prompts = min(1 + int(draw.expovariate(0.5)), BATCH_LIMIT)
            lengths = (draw.lognormvariate(math.log(TOKENS), TOKENS_SIGMA) for _ in range(prompts))
            rows = sum(max(1, round(length)) for length in lengths)
        sizes = kept(subject.like_requests(rows, draw.choice(WIDTHS)))
        if sizes is not None and sizes not in found:
            found.add(sizes)
            yield sizes


def rows_and_columns(rows: int, columns: int) -> Sizes:
    """Sizes of a matrix."""
    return rows, columns


def attention_heads(rows: int, columns: int) -> Sizes:
    """Tokens, heads of 128, and 128."""
    return rows, columns // 128, 128


def _transposed_add(rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    return ((rows, columns), (columns, rows))


_BF16, _F16, _F32 = torch.bfloat16, torch.float16, torch.float32
_MIDDLE = (2040, 1984)
_GPU: Ranges = ((16, 16384), (64, 8192))
_GPU_SMALL: Ranges = ((16, 8192), (64, 8192))


def _gpu(sweep: Sweep, ranges: Ranges = _GPU) -> Subject:
    return Subject(sweep, ranges, rows_and_columns)


GPU: tuple[Subject, ...] = (
    _gpu(Sweep("softmax", of.softmax, of.matrix, _MIDDLE, (), _BF16)),
    _gpu(Sweep("rms_norm_residual", of.rms_norm_residual, of.matrix_and_rows(1, matrices=2),
               _MIDDLE, (), _BF16)),
    _gpu(Sweep("swiglu", of.swiglu, of.two_matrices, _MIDDLE, (), _BF16)),
    _gpu(Sweep("column_sum", of.column_sum, of.matrix, _MIDDLE, (), _BF16)),
    _gpu(Sweep("transposed_copy", of.transposed_copy, of.matrix, _MIDDLE, (), _BF16), _GPU_SMALL),
    _gpu(Sweep("row_sum", of.row_sum, of.matrix, _MIDDLE, (), _F32)),
    _gpu(Sweep("layer_norm", layer_norm, of.matrix_and_rows(2), _MIDDLE, (), _F16)),
    _gpu(Sweep("bias_gelu", of.bias_gelu, of.matrix_and_rows(1), _MIDDLE, (), _F32)),
    _gpu(Sweep("transposed_add", of.transposed_add, _transposed_add, _MIDDLE, (), _F32),
         _GPU_SMALL),
    _gpu(Sweep("logsumexp", of.logsumexp, of.matrix, _MIDDLE, (), _F16)),
    Subject(Sweep("rotary", of.rotary, of.heads, (2040, 12, 72), (), _BF16),
            ((16, 8192), (4, 64), (32, 256)), attention_heads),
    _gpu(Sweep("log_softmax", of.log_softmax, of.matrix, _MIDDLE, (), _F32)),
    _gpu(Sweep("add", of.add, of.two_matrices, _MIDDLE, (), _F16)),
    _gpu(Sweep("column_sum", of.column_sum, of.matrix, _MIDDLE, (), _F32)),
    _gpu(Sweep("dequantise", of.dequantise, of.matrix_and_column, _MIDDLE, (), _BF16,
               of.int8_weight)),
    _gpu(Sweep("argmax", of.argmax, of.matrix, _MIDDLE, (), _F32)),
)  # fmt: skip
"""At least 14; halves of the list are of the same kinds."""

_CPU_MIDDLE = (480, 672)
_CPU: Ranges = ((4, 2048), (32, 4096))


def _cpu(sweep: Sweep) -> Subject:
    return Subject(sweep, _CPU, rows_and_columns)


CPU: tuple[Subject, ...] = (
    _cpu(Sweep("softmax", of.softmax, of.matrix, _CPU_MIDDLE, ())),
    _cpu(Sweep("column_sum", of.column_sum, of.matrix, _CPU_MIDDLE, ())),
    _cpu(Sweep("layer_norm", layer_norm, of.matrix_and_rows(2), _CPU_MIDDLE, ())),
    _cpu(Sweep("bias_gelu", of.bias_gelu, of.matrix_and_rows(1), _CPU_MIDDLE, ())),
    _cpu(Sweep("transposed_add", of.transposed_add, _transposed_add, _CPU_MIDDLE, ())),
    _cpu(Sweep("row_sum", of.row_sum, of.matrix, _CPU_MIDDLE, (), _BF16)),
)  # fmt: skip
