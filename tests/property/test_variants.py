"""Any Variant that the search may draw is right: random Kernels, schedules and sizes, for real.

A Variant is verified as the daemon does it, into poisoned outputs between guard bands. 60 draws;
NEARHINT_EXPLORE=9 draws more than five hundred. On a machine with a GPU its Variants are drawn too.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from tests.property.examples import unshrunk
from tests.property.kernels import kernels
from tests.property.test_lowering import programs
from tests.unit.workers.building import compiled

from nearhint.launchers.detect import cpu_device
from nearhint.launchers.detect_cuda import cuda_device
from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import CompilerError
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.pipeline import lower
from nearhint_compiler.schedule import Schedule
from nearhint_compiler.schedule.choice import MAX, choose
from nearhint_compiler.schedule.neighbours import neighbours
from nearhint_daemon.workers.cases import sizes_at
from nearhint_daemon.workers.errors import KernelOversized
from nearhint_daemon.workers.subjects import CpuSubject
from nearhint_daemon.workers.toolchain import detect, for_kind
from nearhint_daemon.workers.verify import References, verify
from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.canonical import content_hash
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.target import Target

SIZES = st.sampled_from((1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 61, 64, 96, 97))


POINTS_LIMIT = 1 << 18
BYTES_LIMIT = 1 << 26
CORPUS = [
    parse_kernel(path.read_text())
    for path in sorted((Path(__file__).parents[1] / "kernels").glob("*.ir"))
]


@st.composite
def lowered_kernels(draw: st.DrawFn) -> ir.Kernel:
    """A Kernel of a random Program."""
    program, _ = draw(programs())
    found = lower(program, target_kind="cpu").kernels
    assume(found)
    return draw(st.sampled_from(found)).kernel


def in_wider_rows(kernel: ir.Kernel) -> ir.Kernel:
    """The same of a view: rows of all that is read by rows begin a size of their own apart."""
    stride = f"k{len(kernel.symbols)}"
    ends = ex.mul(kernel.reduction[-1], ex.Sym("p0")), ex.Sym("r0")
    row, wider = ex.add(*ends), ex.add(ex.mul(ex.symbol(stride), ex.Sym("p0")), ends[1])
    body = tuple(
        replace(node, index=wider) if isinstance(node, ir.Load) and node.index == row else node
        for node in kernel.body
    )
    return replace(kernel, symbols=(*kernel.symbols, stride), body=body)


VIEWS = [
    view
    for kernel in CORPUS
    if kernel.reduction and (view := in_wider_rows(kernel)).body != kernel.body
]
KERNELS = st.one_of(lowered_kernels(), kernels(), st.sampled_from(CORPUS), st.sampled_from(VIEWS))


def drawn_sizes(kernel: ir.Kernel, data: st.DataObject) -> dict[str, int]:
    dims = {name: data.draw(SIZES, label=name) for name in kernel.symbols}
    try:
        sizes = sizes_at(kernel, dims)
    except InvalidExpression:
        reject()
    assume(sizes.points <= POINTS_LIMIT and sizes.size_bytes(kernel) <= BYTES_LIMIT)
    return dims


def drawn_schedule(
    kernel: ir.Kernel, target: Target, dims: dict[str, int], data: st.DataObject
) -> Schedule:
    """One that a search of the whole space tries, or one step from it if the emitter takes that."""
    space = choose(kernel, target, dims, effort=MAX).schedules
    schedule = data.draw(st.sampled_from(space), label="schedule")
    beside = data.draw(st.sampled_from((schedule, *neighbours(kernel, schedule, dims))))
    try:
        generate(kernel, beside, target)
    except CompilerError:
        return schedule
    return beside


@pytest.mark.timeout(600)  # a compiler runs for each of the draws
@unshrunk(60)
@given(KERNELS, st.data())
def test_any_variant_of_any_kernel_is_right_on_a_cpu(
    kernel: ir.Kernel, data: st.DataObject
) -> None:
    target = Target(cpu_device(), for_kind("cpu", detect()))
    dims = drawn_sizes(kernel, data)
    schedule = drawn_schedule(kernel, target, dims, data)
    generated = generate(kernel, schedule, target)
    with tempfile.TemporaryDirectory() as folder:
        binary, reference = compiled(generated, Path(folder))
        verdict = verify(
            kernel,
            CpuSubject(binary, reference),
            generated.guard,
            [dims],
            threads=2,
            seed=data.draw(st.integers(0, 2**20), label="seed"),
            references=References(),
        )
    assert verdict.problem == ""


@pytest.mark.gpu
@unshrunk(60)
@given(KERNELS, st.data())
def test_any_variant_of_any_kernel_is_right_on_a_gpu(
    kernel: ir.Kernel, data: st.DataObject
) -> None:
    from nearhint_daemon.workers.cubin import compile_cubin
    from nearhint_daemon.workers.cuda_runs import CudaRuns
    from nearhint_daemon.workers.cuda_subject import CudaSubject

    target = Target(cuda_device(0), for_kind("cuda", detect()))
    dims = drawn_sizes(kernel, data)
    schedule = drawn_schedule(kernel, target, dims, data)
    generated = generate(kernel, schedule, target)
    with tempfile.TemporaryDirectory() as folder:
        try:
            built = compile_cubin(generated, target, scratch=Path(folder))
        except KernelOversized:
            return
    reference = ArtifactRef(content_hash(built.binary), len(built.binary), built.launch)
    subject = CudaSubject(built.binary, reference, device_index=0)
    verdict = verify(
        kernel,
        subject,
        generated.guard,
        [dims],
        threads=1,
        seed=data.draw(st.integers(0, 2**20), label="seed"),
        references=References(),
        runs=CudaRuns("cuda:0").of(subject),
    )
    assert verdict.problem == ""
