"""Verification rejects at least 95 % of seeded mutants of generated kernels.

A mutant is one edit of the kind that a wrong emitter makes: an element too few or too many, a tail
dropped, a stride or an operand exchanged, a constant or a store lost. Those that end in a fault
(the pages around each parameter cannot be touched) are rejected by their worker's death.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from tests.unit.workers.building import (
    activation,
    attention_weights,
    column_sums,
    compiled,
    default_source,
    lowered,
    norm,
)

from nearhint_compiler.codegen import Generated
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import print_kernel
from nearhint_daemon.workers.errors import CompileFailed, WorkerLost
from nearhint_daemon.workers.pool import BenchPool
from nearhint_proto.convert import artifact_to_proto, guard_to_proto, size_hint_to_proto
from nearhint_proto.v1 import worker_pb2 as pb

SEED = 20261121
EACH = 14
"""Mutants of each kernel."""
ACCEPTED_SHARE = 0.05

EDITS: tuple[tuple[str, str, str], ...] = (
    ("an element less in a tail", r"least\((\d+), (\w+) - (\w+)\)", r"least(\1, \2 - \3 - 1)"),
    ("a vector for a tail", r"(store_n_\w+\(.*), count\);", r"\1, 16);"),
    ("a lane too far", r"\+ (\w0|p\d) \+ 16\b", r"+ \1 + 17"),
    ("a vector left out", r"(store_(?!n_)\w+\((?:out|[^*]).*\);)", r"/* \1 */"),
    (
        "a tail left out",
        r"for \(; (\w+) < (\w+); \1 \+= (\d+)\) {",
        r"for (; \1 < \2 - \3; \1 += \3) {",
    ),
    ("an extent too small", r"const int64_t (n[pr]\d) = (.*);", r"const int64_t \1 = \2 - 1;"),
    ("another step", r"\(k2 \* p0\)", "(k2 * p1)"),
    ("a stride one too long", r"\((\d+) \* (p\d)\)", r"((\1 + 1) * \2)"),
    ("operands exchanged", r"= (v\d+_\d) - (v\d+(?:_\d)?);", r"= \2 - \1;"),
    ("a product for a quotient", r"= (v\d+(?:_\d)?) / (v\d+(?:_\d)?);", r"= \1 * \2;"),
    ("a product for a sum", r"= (v\d+_\d) \+ (v\d+_\d);", r"= \1 * \2;"),
    ("another constant", r"splat_f32\((0\.\d+|[1-9]\d*\.?\d*)f?\)", r"splat_f32(1.01f * \1)"),
    ("a function left out", r"= (?:exp|erf|tanh)_f32\((v\d+_\d)\);", r"= \1;"),
    ("a row left out", r"call->total \* \(me \+ 1\) / threads", r"\g<0> - 1"),
    ("a read from elsewhere", r"load_f32\(in0 \+", "load_f32(1 + in0 +"),
)
"""Name, pattern and replacement; one occurrence is edited."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    kernel: ir.Kernel
    generated: Generated


def mutants() -> Iterator[Mutant]:
    choose = random.Random(SEED)
    for program in (norm(330), activation(150), attention_weights(), column_sums()):
        kernel, _ = lowered(program)
        original = default_source(kernel)
        # Helper functions come before the first that reads parameters; what they hold is shared.
        start = original.source.find("parameters[0]")
        places = [
            (name, match, replacement)
            for name, pattern, replacement in EDITS
            for match in re.finditer(pattern, original.source)
            if match.start() > start and not _is_asked_for(original.source, match.start())
        ]
        for name, match, replacement in choose.sample(places, EACH):
            source = original.source
            edited = source[: match.start()] + match.expand(replacement) + source[match.end() :]
            line = source.count("\n", 0, match.start()) + 1
            yield Mutant(
                f"{name}, line {line}: {match[0]}", kernel, replace(original, source=edited)
            )


def _is_asked_for(source: str, place: int) -> bool:
    """Whether the line is a prefetch: of whatever place, no result depends on it."""
    line = source[source.rfind("\n", 0, place) + 1 : source.find("\n", place)]
    return "__builtin_prefetch(" in line


@cache
def original_binary(kernel: ir.Kernel, folder: Path) -> bytes:
    return compiled(default_source(kernel), folder)[0]


async def is_accepted(bench: BenchPool, mutant: Mutant, folder: Path) -> bool:
    try:
        binary, artifact = compiled(mutant.generated, folder)
    except CompileFailed:
        return False
    if binary == original_binary(mutant.kernel, folder):
        return False  # an edit of dead text is no mutant
    candidate = pb.BinaryCandidate(
        artifact=artifact_to_proto(artifact),
        binary=binary,
        guard=guard_to_proto(mutant.generated.guard),
    )
    request = pb.VerifyVariant(
        kernel_ir=print_kernel(mutant.kernel),
        candidate=pb.Candidate(id="mutant", binary=candidate),
        sizes=[size_hint_to_proto(dict.fromkeys(mutant.kernel.symbols, 40))],
        threads=2,
        seed=SEED,
    )
    try:
        answer = await bench.run(pb.WorkerRequest(id=1, verify_variant=request), timeout_s=20)
    except WorkerLost:
        return False
    assert answer.WhichOneof("result") == "verdict", answer
    return answer.verdict.is_ok


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.timeout(300)
def test_mutants_of_generated_kernels_are_rejected(tmp_path: Path) -> None:
    async def run() -> tuple[int, list[str]]:
        bench = BenchPool(("cpu",))
        try:
            every = list(mutants())
            accepted = [m.name for m in every if await is_accepted(bench, m, tmp_path)]
            return len(every), accepted
        finally:
            await bench.stop()

    count, accepted = asyncio.run(run())
    assert count >= 20
    assert len(accepted) <= ACCEPTED_SHARE * count, "\n".join(accepted)
