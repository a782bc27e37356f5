"""The compile worker: Programs to Plans and Kernels, Kernels to Schedules, Schedules to binaries.

    python -m nearhint_daemon.workers.compile_worker --fd N --parent PID

It runs at idle priority and never runs what it compiles.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.generated import Generated
from nearhint_compiler.errors import CompilerError
from nearhint_compiler.ir.legality import check_kernel
from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.ir.text import parse_kernel, print_kernel
from nearhint_compiler.schedule import Schedule, candidates, crossings
from nearhint_compiler.schedule.choice import FULL, choose
from nearhint_compiler.schedule.firsts import beside, firsts
from nearhint_compiler.schedule.neighbours import neighbours
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_daemon.workers import toolchain as tools
from nearhint_daemon.workers.built import Built
from nearhint_daemon.workers.cc import CcTimedOut, Headers, commands, compile_c
from nearhint_daemon.workers.errors import CompileFailed, RequestInvalid, ToolchainChanged
from nearhint_daemon.workers.libdevice import Libdevice
from nearhint_daemon.workers.limits import COMPILE_LIMITS, be_idle, enter
from nearhint_daemon.workers.reproducer import for_compile
from nearhint_daemon.workers.serve import (
    Handler,
    WorkerState,
    parse_arguments,
    seconds_since_spawn,
    serve,
)
from nearhint_proto.convert import (
    artifact_to_proto,
    expr_to_proto,
    fallback_to_proto,
    guard_to_proto,
    plan_to_proto,
    program_from_proto,
    size_hint_from_proto,
    size_hint_to_proto,
    target_from_proto,
)
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.canonical import content_hash
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.target import Target


def read_kernel(text: str) -> Kernel:
    """The Kernel of a printed IR; raises `InvalidKernel` for text or loops that are not legal."""
    return check_kernel(parse_kernel(text))


def lower_program(request: pb.LowerProgram) -> pb.Lowered:
    """Program -> Plan, Kernels (each once) and one Fallback a launch."""
    from nearhint_compiler.pipeline import lower  # sympy: only where it is needed

    lowered = lower(program_from_proto(request.program), target_kind=request.target_kind)
    return pb.Lowered(
        plan=plan_to_proto(lowered.plan),
        kernels=[
            pb.KernelText(
                id=kernel.id,
                ir=print_kernel(kernel.kernel),
                title=kernel.title,
                bytes_read=expr_to_proto(kernel.traffic.read),
                bytes_written=expr_to_proto(kernel.traffic.written),
                symbols=kernel.kernel.symbols,
            )
            for kernel in lowered.kernels
        ],
        fallbacks=map(fallback_to_proto, lowered.fallbacks),
        sources=[
            pb.LaunchSources(step=source.step, sources=source.sources) for source in lowered.sources
        ],
    )


def list_schedules(request: pb.ListSchedules) -> pb.Schedules:
    """Kernel -> Schedules worth trying at the hint, the default first, and those that are not."""
    kernel = read_kernel(request.kernel_ir)
    target = target_from_proto(request.target)
    dims = size_hint_from_proto(request.hint)
    if any(name not in dims for name in kernel.symbols):
        return pb.Schedules(schedules=map(str, candidates(kernel, target)))
    chosen = choose(
        kernel,
        target,
        dims,
        effort=request.effort or FULL,
        transferred=_legal(kernel, target, map(parse_schedule, request.transferred)),
        threads=max(1, request.threads),
    )
    return pb.Schedules(
        schedules=map(str, chosen.schedules),
        also_at=map(size_hint_to_proto, crossings(kernel, target, dims)),
        pruned=[
            pb.PrunedSchedule(schedule=str(each.schedule), reason=each.reason)
            for each in chosen.pruned
        ],
        untiled=chosen.untiled,
    )


def choose_first(request: pb.ChooseFirst) -> pb.Schedules:
    """Kernel -> the Schedule held best for the sizes that ask, and where it is measured; or none.

    None where the default is held as good, and where no other has a Guard that holds at both. Where
    it promises what sizes are multiples of, the one held best for those beside comes after it; and
    where that is less than Triton's vectors want, the one for sizes that are but even.
    """
    kernel = read_kernel(request.kernel_ir)
    target = target_from_proto(request.target)
    hint, near = map(size_hint_from_proto, (request.hint, request.near))
    default = parse_schedule(request.default)
    threads = max(1, request.threads)
    met = [each for each in (hint, near) if each]
    for dims in (near, hint) if near and near != hint else (hint,):
        held = firsts(kernel, target, dims, default=default, threads=threads)
        first = _first_serving(kernel, held, target, met, default=default)
        if first == default:
            return pb.Schedules()
        if first is not None:
            held_beside = (
                beside(
                    kernel, target, dims, first=first, default=default, threads=threads, less=less
                )
                for less in ((1, 2) if first.get("unit", 0) else (1,))
            )
            others = (
                _first_serving(kernel, each, target, met, default=default) for each in held_beside
            )
            found = dict.fromkeys(each for each in (first, *others) if each not in (None, default))
            return pb.Schedules(schedules=map(str, found))
    return pb.Schedules()


def _first_serving(
    kernel: Kernel,
    schedules: Iterable[Schedule],
    target: Target,
    sizes: Iterable[Mapping[str, int]],
    *,
    default: Schedule,
) -> Schedule | None:
    """The first that is the default, or that serves at all of these sizes; None if none does."""
    for schedule in schedules:
        if schedule == default or _serves(kernel, schedule, target, sizes):
            return schedule
    return None


def _serves(
    kernel: Kernel, schedule: Schedule, target: Target, sizes: Iterable[Mapping[str, int]]
) -> bool:
    """Whether the emitter takes a Schedule, with a Guard that holds at all of these sizes."""
    try:
        guard = generate(kernel, schedule, target).guard
    except CompilerError:
        return False
    return all(size_facts_hold(guard, each) for each in sizes)


def list_neighbours(request: pb.ListNeighbours) -> pb.Schedules:
    """Schedule -> the Schedules one step from it that the emitter takes."""
    kernel = read_kernel(request.kernel_ir)
    target = target_from_proto(request.target)
    dims = size_hint_from_proto(request.hint)
    found = neighbours(kernel, parse_schedule(request.schedule), dims)
    return pb.Schedules(schedules=map(str, _legal(kernel, target, found)))


def _legal(kernel: Kernel, target: Target, schedules: Iterable[Schedule]) -> list[Schedule]:
    """Those that the emitter takes."""
    found: list[Schedule] = []
    for schedule in schedules:
        with suppress(CompilerError):
            generate(kernel, schedule, target)
            found.append(schedule)
    return found


def compile_variant(
    request: pb.CompileVariant,
    *,
    scratch: Path,
    toolchain: tuple[str, ...],
    headers: Headers | None = None,
    libdevice: Libdevice | None = None,
) -> pb.Compiled:
    """Kernel + Schedule -> binary and launch metadata.

    Raises `CompileFailed` and `CcMissing`, with a reproducer, `DiskFull`, `CompilerKilled` and
    `ToolchainChanged`.
    """
    target = target_from_proto(request.target)
    missing = set(target.toolchain) - set(toolchain)
    if missing:
        raise ToolchainChanged(
            f"the Target needs {', '.join(sorted(missing))}; here is {', '.join(toolchain)}"
        )
    started = time.perf_counter()
    kernel = read_kernel(request.kernel_ir)
    generated = generate(kernel, parse_schedule(request.schedule), target)
    emitted = time.perf_counter()
    try:
        built = build(generated, target, scratch=scratch, headers=headers, libdevice=libdevice)
    except CompileFailed as error:
        error.reproducer = for_compile(
            request,
            target=repr(target),
            source=generated.source,
            commands="\n".join(map(" ".join, commands(generated.flags))),
            log=str(error),
        )
        raise
    ended = time.perf_counter()
    artifact = ArtifactRef(content_hash(built.binary), len(built.binary), built.launch)
    return pb.Compiled(
        artifact=artifact_to_proto(artifact),
        binary=built.binary,
        guard=guard_to_proto(generated.guard),
        source=generated.source,
        log=built.log,
        phase_s={"generate": emitted - started, "toolchain": ended - emitted},
    )


def build(
    generated: Generated,
    target: Target,
    *,
    scratch: Path,
    headers: Headers | None = None,
    libdevice: Libdevice | None = None,
) -> Built:
    """Runs the toolchain that the generated source is for."""
    match generated.language:
        case "c":
            return compile_c(generated, scratch=scratch, headers=headers)
        case "triton":
            from nearhint_daemon.workers.cubin import compile_cubin

            return compile_cubin(generated, target, scratch=scratch, libdevice=libdevice)
        case other:
            raise RequestInvalid(f"no toolchain for {other!r}")


def handlers(
    state: WorkerState, scratch: Path, toolchain: tuple[str, ...]
) -> Mapping[str, Handler]:
    """The jobs of this worker, by the names of their fields."""
    headers, libdevice = Headers(scratch), Libdevice(scratch)

    def compile_or_leave(request: pb.WorkerRequest) -> pb.WorkerResponse:
        try:
            compiled = compile_variant(
                request.compile_variant,
                scratch=scratch,
                toolchain=toolchain,
                headers=headers,
                libdevice=libdevice,
            )
        except CcTimedOut:
            state.is_damaged = True
            raise
        return pb.WorkerResponse(compiled=compiled)

    return {
        "lower_program": lambda request: pb.WorkerResponse(
            lowered=lower_program(request.lower_program)
        ),
        "list_schedules": lambda request: pb.WorkerResponse(
            schedules=list_schedules(request.list_schedules)
        ),
        "list_neighbours": lambda request: pb.WorkerResponse(
            schedules=list_neighbours(request.list_neighbours)
        ),
        "choose_first": lambda request: pb.WorkerResponse(
            schedules=choose_first(request.choose_first)
        ),
        "compile_variant": compile_or_leave,
    }


def main() -> None:
    """Serves the daemon until it closes the socket."""
    arguments = parse_arguments()
    enter(COMPILE_LIMITS, parent=arguments.parent)
    toolchain = tools.detect()
    be_idle()
    pong = pb.Pong(toolchain=toolchain, ready_s=seconds_since_spawn())
    state = WorkerState()
    serve(
        arguments.descriptor,
        handlers(state, Path.cwd(), toolchain),
        state,
        ready=lambda _: pb.WorkerResponse(pong=pong),
    )


if __name__ == "__main__":
    main()
