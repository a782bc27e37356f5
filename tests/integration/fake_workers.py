"""Workers that answer at once and count what they were asked: the daemon's logic, no compiler.

Each node of a Program becomes a launch of a Kernel of its own. Binaries are the Schedule's text.
What a job does can be changed by `faults`, a function from the job's name and its request to an
answer, or None for the usual one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nearhint_compiler import COMPILER_VERSION
from nearhint_daemon.config import Config
from nearhint_daemon.core import Pools
from nearhint_daemon.metrics import Metrics
from nearhint_daemon.workers.errors import WorkerDied
from nearhint_proto import convert
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef, CpuLaunch
from nearhint_rules.canonical import content_hash
from nearhint_rules.expr import ONE, Sym
from nearhint_rules.guard import Fact, Guard, size_facts_hold
from nearhint_rules.plan import Fallback, Launch, Output, Plan
from nearhint_rules.program import (
    Node,
    Program,
    Ref,
    Symbol,
    TensorType,
    canonicalise,
    first_outputs,
    slice_program,
)
from nearhint_rules.table import Timing
from nearhint_rules.target import CpuDevice

CPU = CpuDevice("Test CPU", ("avx2",), "glibc 2.36")
SCHEDULES = ("cpu.rows vector=8", "cpu.rows vector=16", "cpu.rows vector=32")
NOT_HERE = "its Guard does not hold here"
DISCARDED = 4
"""Samples that each contestant of a measurement lost."""
MEDIAN_NS = {"fallback": 2000, SCHEDULES[0]: 1500, SCHEDULES[1]: 1000, SCHEDULES[2]: 1800}
COPY_BYTES = 1 << 20
COPY_TIMING = Timing(100_000, 0.002, 42)

Faults = Callable[[str, pb.WorkerRequest], pb.WorkerResponse | None]


def no_faults(job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
    return None


def refused(request: pb.WorkerRequest, code: str, message: str) -> pb.WorkerResponse:
    """A worker's error as its answer."""
    return pb.WorkerResponse(id=request.id, error=pb.WorkerError(code=code, message=message))


@dataclass
class Refusal:
    """Faults of one kind of job, which is refused for as long as that `lasts`."""

    job: str
    code: str
    message: str = "not now"
    lasts: bool = True

    def __call__(self, job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
        if job != self.job or not self.lasts or not self.concerns(request):
            return None
        return refused(request, self.code, self.message)

    def concerns(self, request: pb.WorkerRequest) -> bool:
        """Whether it is refused to this request of the kind."""
        return True


def chain(length: int, *, label: str = "", high: int | None = 4096) -> Program:
    """`length` pointwise nodes, one after the other, over one symbolic size."""
    tensor = TensorType("f32", (Sym("s0"),), (ONE,))
    nodes = tuple(
        Node(
            op="aten.relu.default",
            args=(Ref(position),),
            kwargs=(),
            inputs=(position,),
            outputs=(tensor,),
            source=f"model.layer{position}",
        )
        for position in range(length)
    )
    return canonicalise(Program((Symbol("s0", 2, high),), (tensor,), nodes, (length,), label=label))


def kernel_of(program: Program, node: int) -> str:
    return content_hash(f"{program.id} {node}".encode())


def lowered(program: Program, target_kind: str, *, kernel: str = "") -> pb.Lowered:
    """A Kernel for each node, or this one for all."""
    only = kernel
    steps: list[Launch] = []
    fallbacks: list[Fallback] = []
    starts = first_outputs(program)
    for index, node in enumerate(program.nodes):
        part, _, _ = slice_program(program, (index,), (starts[index],))
        kernel = only or kernel_of(program, index)
        fallback = Fallback(part, kernel, (Sym("s0"),), (0,), (1,))
        output = node.outputs[0]
        assert isinstance(output, TensorType)
        fallbacks.append(fallback)
        steps.append(
            Launch(
                kernel,
                fallback.id,
                (Sym("s0"),),
                node.inputs,
                (Output(starts[index], output.dtype, output.shape, output.stride),),
                (index,),
            )
        )
    plan = Plan(program.id, target_kind, COMPILER_VERSION, tuple(steps))
    return pb.Lowered(
        plan=convert.plan_to_proto(plan),
        kernels=[
            pb.KernelText(
                id=step.kernel,
                ir=f"kernel {step.kernel}",
                title="relu",
                bytes_read=convert.expr_to_proto(Sym("k0")),
                bytes_written=convert.expr_to_proto(ex.mul(2, Sym("k0"))),
                symbols=["k0"],
            )
            for step in steps
        ],
        fallbacks=[convert.fallback_to_proto(fallback) for fallback in fallbacks],
        sources=[
            pb.LaunchSources(step=number, sources=[program.nodes[number].source])
            for number in range(len(steps))
        ],
    )


def compiled(job: pb.CompileVariant) -> pb.Compiled:
    binary = f"{job.kernel_ir}\n{job.schedule}".encode() * 64
    artifact = ArtifactRef(content_hash(binary), len(binary), CpuLaunch("entry", Sym("k0"), 1024))
    return pb.Compiled(artifact=convert.artifact_to_proto(artifact), binary=binary, source="// c")


def measured(job: pb.MeasureHint) -> pb.Measured:
    """Timings by Schedule alone."""
    return timed(job, lambda name: Timing(MEDIAN_NS[name], 0.001, 21), discarded=DISCARDED)


def timed(
    job: pb.MeasureHint, timing_of: Callable[[str], Timing], *, discarded: int = 0
) -> pb.Measured:
    """Timings by Schedule; of what may not run at the sizes, that it may not."""
    answers: list[pb.MeasuredCandidate] = []
    for candidate in job.candidates:
        if not may_run(candidate, job):
            answers.append(pb.MeasuredCandidate(id=candidate.id, problem=NOT_HERE))
            continue
        timing = convert.timing_to_proto(timing_of(schedule_of(candidate)))
        answers.append(pb.MeasuredCandidate(id=candidate.id, timing=timing, discarded=discarded))
    return pb.Measured(candidates=answers, conditions="warm, 1 thread")


def may_run(candidate: pb.Candidate, job: pb.MeasureHint) -> bool:
    """Whether its Guard holds; a Kernel's symbols are those of its Program, in order."""
    sizes = convert.size_hint_from_proto(job.sizes).values()
    dims = {f"k{number}": size for number, size in enumerate(sizes)}
    return size_facts_hold(convert.guard_from_proto(candidate.binary.guard), dims)


def answer(request: pb.WorkerRequest) -> pb.WorkerResponse:
    job = request.WhichOneof("job")
    response = pb.WorkerResponse(id=request.id)
    match job:
        case "lower_program":
            program = convert.program_from_proto(request.lower_program.program)
            response.lowered.CopyFrom(lowered(program, request.lower_program.target_kind))
        case "list_schedules":
            response.schedules.CopyFrom(pb.Schedules(schedules=SCHEDULES))
        case "list_neighbours" | "choose_first":
            response.schedules.CopyFrom(pb.Schedules())
        case "compile_variant":
            response.compiled.CopyFrom(compiled(request.compile_variant))
        case "check_lowering" | "verify_variant":
            response.verdict.CopyFrom(pb.Verdict(is_ok=True, cases=5))
        case "measure_hint":
            response.measured.CopyFrom(measured(request.measure_hint))
        case "measure_copy":
            timing = convert.timing_to_proto(COPY_TIMING)
            response.measured_copy.CopyFrom(
                pb.MeasuredCopy(timing=timing, bytes_moved=COPY_BYTES, conditions="buffers")
            )
        case _:
            raise AssertionError(job)
    return response


@dataclass(frozen=True)
class Script:
    """Schedules by a hint's size and the effort, and medians by Schedule and size.

    `first` is what is held best at a hint, of its size and the one that asked; `also_at` are the
    other sizes of its bucket.
    """

    schedules: Callable[[int, str], Sequence[str]]
    median_ns: Callable[[str, int], int]
    neighbours: Callable[[str], Sequence[str]] = lambda schedule: ()
    first: Callable[[int, int], str] = lambda size, near: ""
    also_at: Callable[[int], Sequence[int]] = lambda size: ()
    timed: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    """Each contest: the size, and the Schedules that were in it."""
    transferred: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    """Each listing: the size, and the Schedules that won elsewhere."""
    disturbed: Callable[[int], int] = lambda size: 0
    """How many samples of a contest at a size are disturbed."""

    def faults(self, job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
        """Answers as the script says."""
        response = pb.WorkerResponse(id=request.id)
        if job == "list_schedules":
            ((name, size),) = convert.size_hint_from_proto(request.list_schedules.hint).items()
            asked = request.list_schedules
            self.transferred.append((size, tuple(asked.transferred)))
            listed = dict.fromkeys((*self.schedules(size, asked.effort), *asked.transferred))
            others = [convert.size_hint_to_proto({name: each}) for each in self.also_at(size)]
            response.schedules.CopyFrom(pb.Schedules(schedules=listed, also_at=others))
        elif job == "list_neighbours":
            beside = self.neighbours(request.list_neighbours.schedule)
            response.schedules.CopyFrom(pb.Schedules(schedules=beside))
        elif job == "choose_first":
            asked_first = request.choose_first
            ((size,), (near,)) = (
                convert.size_hint_from_proto(each).values()
                for each in (asked_first.hint, asked_first.near)
            )
            found = self.first(size, near)
            is_other = found not in {"", asked_first.default}
            response.schedules.CopyFrom(pb.Schedules(schedules=[found] if is_other else []))
        elif job == "measure_hint":
            response.measured.CopyFrom(self._measured(request.measure_hint))
        else:
            return None
        return response

    def _measured(self, job: pb.MeasureHint) -> pb.Measured:
        (size,) = convert.size_hint_from_proto(job.sizes).values()
        names = [schedule_of(each) for each in job.candidates if may_run(each, job)]
        self.timed.append((size, tuple(name for name in names if name != "fallback")))
        disturbed = self.disturbed(size)
        return timed(job, lambda name: Timing(self.median_ns(name, size), 0.001, 21, disturbed))


def schedule_of(candidate: pb.Candidate) -> str:
    """The Schedule of a binary that `compiled` made; "fallback" for original ops."""
    if candidate.WhichOneof("subject") != "binary":
        return "fallback"
    return candidate.binary.binary.decode().split("\n")[1].split("kernel ")[0]


def died(kind: str = "bench") -> WorkerDied:
    return WorkerDied(kind=kind, detail="signal 11", reproducer={"repro.py": "print('boom')\n"})


SHARED = "5" * 64
"""The Kernel of `one_kernel`."""


def one_kernel(job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
    """Whatever the Program, its nodes launch one Kernel."""
    if job != "lower_program":
        return None
    program = convert.program_from_proto(request.lower_program.program)
    target_kind = request.lower_program.target_kind
    return pb.WorkerResponse(id=request.id, lowered=lowered(program, target_kind, kernel=SHARED))


@dataclass
class FakeCompilePool:
    faults: Faults = no_faults
    tools: tuple[str, ...] = ("cc 12.2.0",)
    delay_s: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def toolchain(self) -> tuple[str, ...]:
        return self.tools

    async def run(self, request: pb.WorkerRequest, *, timeout_s: float) -> pb.WorkerResponse:
        job = str(request.WhichOneof("job"))
        self.asked[job] += 1
        await asyncio.sleep(self.delay_s)
        return self.faults(job, request) or answer(request)


@dataclass
class FakeBenchPool:
    faults: Faults = no_faults
    devices: tuple[str, ...] = ("cpu",)
    delay_s: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)
    interrupted: list[str] = field(default_factory=list)

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def hello(self, device: str | None = None) -> pb.Pong:
        return pb.Pong(device=convert.device_to_proto(CPU))

    async def look(self, device: str) -> pb.Pong:
        return await self.hello(device)

    def interrupt(self, device: str) -> None:
        self.interrupted.append(device)

    async def run(
        self, request: pb.WorkerRequest, *, timeout_s: float, device: str | None = None
    ) -> pb.WorkerResponse:
        job = str(request.WhichOneof("job"))
        self.asked[job] += 1
        await asyncio.sleep(self.delay_s)
        return self.faults(job, request) or answer(request)


def make_pools(config: Config, metrics: Metrics) -> Pools:
    return Pools(FakeCompilePool(), FakeBenchPool())


def guarded(script: Script, needs: Mapping[str, Fact]) -> Faults:
    """A script whose Variants of these Schedules have a Guard."""

    def faults(job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
        response = script.faults(job, request)
        fact = needs.get(request.compile_variant.schedule) if job == "compile_variant" else None
        if fact is not None:
            response = pb.WorkerResponse(id=request.id)
            response.compiled.CopyFrom(compiled(request.compile_variant))
            response.compiled.guard.CopyFrom(convert.guard_to_proto(Guard((fact,))))
        return response

    return faults
