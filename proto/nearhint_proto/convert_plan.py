"""Plans and Fallbacks between domain and wire. From the wire: bounded, canonical, checked."""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_proto.convert_expr import (
    ExprReader,
    check_count,
    check_dtype,
    check_range,
    check_sha256,
    check_text,
    expr_to_proto,
)
from nearhint_proto.convert_program import (
    NODE_LIMIT,
    RANK_LIMIT,
    SYMBOL_LIMIT,
    VALUE_LIMIT,
    device_kind_from_proto,
    program_to_proto,
    read_program,
)
from nearhint_proto.v1 import program_pb2 as pb
from nearhint_rules.errors import InvalidMessage, InvalidPlan, InvalidProgram
from nearhint_rules.expr import symbols_of
from nearhint_rules.plan import Fallback, Free, Launch, MakeView, Output, Plan, RunNodes, Step

STEP_LIMIT = 1 << 18
PARAMETER_LIMIT = 1024
"""Inputs, and outputs, of one launch."""
VERSION_LIMIT = 64


def _output_to_proto(output: Output) -> pb.PlanOutput:
    return pb.PlanOutput(
        slot=output.slot,
        dtype=output.dtype,
        shape=map(expr_to_proto, output.shape),
        stride=map(expr_to_proto, output.stride),
        device=output.device,
        storage=output.storage,
    )


def _step_to_proto(step: Step) -> pb.Step:
    match step:
        case Launch(kernel, fallback, dims, inputs, outputs, nodes):
            return pb.Step(
                launch=pb.Step.Launch(
                    kernel=kernel,
                    fallback=fallback,
                    dims=map(expr_to_proto, dims),
                    inputs=inputs,
                    outputs=map(_output_to_proto, outputs),
                    nodes=nodes,
                )
            )
        case RunNodes(nodes, outputs):
            return pb.Step(
                run_nodes=pb.Step.RunNodes(nodes=nodes, outputs=map(_output_to_proto, outputs))
            )
        case MakeView(slot, base, shape, stride, offset, node):
            return pb.Step(
                make_view=pb.Step.MakeView(
                    slot=slot,
                    base=base,
                    shape=map(expr_to_proto, shape),
                    stride=map(expr_to_proto, stride),
                    offset=expr_to_proto(offset),
                    node=node,
                )
            )
        case Free(slots):
            return pb.Step(free=pb.Step.Free(slots=slots))


def plan_to_proto(plan: Plan) -> pb.Plan:
    """The message of a Plan; raises `InvalidExpression` for a size nested too deep to travel."""
    return pb.Plan(
        program=plan.program,
        target_kind=plan.target_kind,
        compiler_version=plan.compiler_version,
        steps=map(_step_to_proto, plan.steps),
        storages=plan.storages,
    )


class _PlanReader:
    """Reads the steps of one Plan, whose numbers of values, nodes and storages are known."""

    __slots__ = ("_exprs", "_storages")

    def __init__(self, *, storages: int) -> None:
        self._exprs = ExprReader()
        self._storages = storages

    def step(self, message: pb.Step, field: str) -> Step:
        match message.WhichOneof("kind"):
            case "launch":
                return self._launch(message.launch, field)
            case "run_nodes":
                return self._run_nodes(message.run_nodes, field)
            case "make_view":
                return self._make_view(message.make_view, field)
            case "free":
                return Free(_numbers(message.free.slots, VALUE_LIMIT, f"{field}.slots"))
            case None:
                raise InvalidMessage(field, "no step")

    def _run_nodes(self, message: pb.Step.RunNodes, field: str) -> RunNodes:
        check_count(message.outputs, NODE_LIMIT, f"{field}.outputs")
        return RunNodes(
            nodes=_numbers(message.nodes, NODE_LIMIT, f"{field}.nodes"),
            outputs=tuple(
                self._output(output, f"{field}.outputs[{position}]")
                for position, output in enumerate(message.outputs)
            ),
        )

    def _launch(self, message: pb.Step.Launch, field: str) -> Launch:
        check_count(message.dims, SYMBOL_LIMIT, f"{field}.dims")
        check_count(message.inputs, PARAMETER_LIMIT, f"{field}.inputs")
        check_count(message.outputs, PARAMETER_LIMIT, f"{field}.outputs")
        return Launch(
            kernel=check_sha256(message.kernel, f"{field}.kernel"),
            fallback=check_sha256(message.fallback, f"{field}.fallback"),
            dims=self._exprs.read_all(message.dims, f"{field}.dims"),
            inputs=_numbers(message.inputs, VALUE_LIMIT, f"{field}.inputs"),
            outputs=tuple(
                self._output(output, f"{field}.outputs[{position}]")
                for position, output in enumerate(message.outputs)
            ),
            nodes=_numbers(message.nodes, NODE_LIMIT, f"{field}.nodes"),
        )

    def _output(self, message: pb.PlanOutput, field: str) -> Output:
        check_count(message.shape, RANK_LIMIT, f"{field}.shape")
        check_count(message.stride, RANK_LIMIT, f"{field}.stride")
        if len(message.shape) != len(message.stride):
            raise InvalidMessage(f"{field}.stride", "rank differs from the shape's")
        return Output(
            slot=check_range(message.slot, 0, VALUE_LIMIT, f"{field}.slot"),
            dtype=check_dtype(message.dtype, f"{field}.dtype"),
            shape=self._exprs.read_all(message.shape, f"{field}.shape"),
            stride=self._exprs.read_all(message.stride, f"{field}.stride"),
            device=device_kind_from_proto(message.device, f"{field}.device"),
            storage=check_range(message.storage, -1, self._storages - 1, f"{field}.storage"),
        )

    def _make_view(self, message: pb.Step.MakeView, field: str) -> MakeView:
        check_count(message.shape, RANK_LIMIT, f"{field}.shape")
        check_count(message.stride, RANK_LIMIT, f"{field}.stride")
        if len(message.shape) != len(message.stride):
            raise InvalidMessage(f"{field}.stride", "rank differs from the shape's")
        return MakeView(
            slot=check_range(message.slot, 0, VALUE_LIMIT, f"{field}.slot"),
            base=check_range(message.base, 0, VALUE_LIMIT, f"{field}.base"),
            shape=self._exprs.read_all(message.shape, f"{field}.shape"),
            stride=self._exprs.read_all(message.stride, f"{field}.stride"),
            offset=self._exprs.read(message.offset, f"{field}.offset"),
            node=check_range(message.node, 0, NODE_LIMIT, f"{field}.node"),
        )


def _numbers(values: Sequence[int], limit: int, field: str) -> tuple[int, ...]:
    """Slots, values or nodes, each below `limit`."""
    check_count(values, VALUE_LIMIT, field)
    for position, value in enumerate(values):
        if not 0 <= value < limit:
            raise InvalidMessage(f"{field}[{position}]", f"{value} is outside 0 .. {limit}")
    return tuple(values)


def plan_from_proto(message: pb.Plan) -> Plan:
    """The Plan; raises `InvalidPlan`.

    Whether its nodes and slots exist is for the client to check: only it has the graph.
    """
    try:
        check_count(message.steps, STEP_LIMIT, "steps")
        storages = check_range(message.storages, 0, VALUE_LIMIT, "storages")
        reader = _PlanReader(storages=storages)
        return Plan(
            program=check_sha256(message.program, "program"),
            target_kind=device_kind_from_proto(message.target_kind, "target_kind"),
            compiler_version=check_text(
                message.compiler_version, VERSION_LIMIT, "compiler_version"
            ),
            steps=tuple(
                reader.step(step, f"steps[{position}]")
                for position, step in enumerate(message.steps)
            ),
            storages=storages,
        )
    except InvalidMessage as problem:
        raise InvalidPlan(problem.field, problem.problem) from None


def fallback_to_proto(fallback: Fallback) -> pb.Fallback:
    """The message of a Fallback."""
    return pb.Fallback(
        program=program_to_proto(fallback.program),
        kernel=fallback.kernel,
        dims=map(expr_to_proto, fallback.dims),
        inputs=fallback.inputs,
        outputs=fallback.outputs,
    )


def fallback_from_proto(message: pb.Fallback) -> Fallback:
    """The Fallback, its Program checked; raises `InvalidProgram`."""
    try:
        reader = ExprReader()
        program = read_program(message.program, reader, "program")
        check_count(message.dims, SYMBOL_LIMIT, "dims")
        check_count(message.inputs, PARAMETER_LIMIT, "inputs")
        check_count(message.outputs, PARAMETER_LIMIT, "outputs")
        values = len(program.inputs) + sum(len(node.outputs) for node in program.nodes)
        dims = reader.read_all(message.dims, "dims")
        known = {symbol.name for symbol in program.symbols}
        if not known.issuperset(symbols_of(*dims)):
            raise InvalidMessage("dims", "uses a symbol that is not declared")
        return Fallback(
            program=program,
            kernel=check_sha256(message.kernel, "kernel"),
            dims=dims,
            inputs=_numbers(message.inputs, values, "inputs"),
            outputs=_numbers(message.outputs, values, "outputs"),
        )
    except InvalidMessage as problem:
        raise InvalidProgram(problem.field, problem.problem) from None
