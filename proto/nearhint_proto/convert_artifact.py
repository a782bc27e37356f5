"""Guards, launch metadata and Artifacts between domain and wire."""

from __future__ import annotations

from nearhint_proto.convert_expr import (
    ExprReader,
    check_count,
    check_identifier,
    check_range,
    check_sha256,
    check_size,
    check_text,
    expr_to_proto,
)
from nearhint_proto.convert_target import FEATURE_LIMIT, texts_from_proto
from nearhint_proto.v1 import types_pb2 as pb
from nearhint_rules.artifact import (
    Argument,
    ArtifactRef,
    CpuLaunch,
    CudaLaunch,
    LaunchMetadata,
    NullArgument,
    PointerArgument,
    ScalarArgument,
    SizeArgument,
    StageArgument,
    WorkspaceArgument,
)
from nearhint_rules.errors import InvalidMessage
from nearhint_rules.expr import ZERO, Expr
from nearhint_rules.guard import Aligned, AtMost, Divisible, Equals, Fact, Guard
from nearhint_rules.program import SIZE_LIMIT

FACT_LIMIT = 64
ARGUMENT_LIMIT = 2048
PARAMETER_LIMIT = 2048
ALIGNMENT_LIMIT = 1 << 20
WARP_LIMIT = 32
STAGE_LIMIT = 16
SIGNATURE_LIMIT = 4096
KEY_ID_LIMIT = 256
ARTIFACT_BYTES_LIMIT = 1 << 30

_SCALAR_DTYPES = ("f32", "f64", "i32", "i64")
_SIZE_DTYPES = ("i32", "i64")


def fact_to_proto(fact: Fact) -> pb.Fact:
    """The message of one fact."""
    match fact:
        case Divisible(expr, by):
            return pb.Fact(divisible=pb.Fact.Divisible(expr=expr_to_proto(expr), by=by))
        case AtMost(expr, bound):
            return pb.Fact(at_most=pb.Fact.AtMost(expr=expr_to_proto(expr), bound=bound))
        case Equals(expr, value):
            return pb.Fact(equals=pb.Fact.Equals(expr=expr_to_proto(expr), value=value))
        case Aligned(parameter, to_bytes):
            return pb.Fact(aligned=pb.Fact.Aligned(parameter=parameter, to_bytes=to_bytes))


def _fact_from_proto(message: pb.Fact, reader: ExprReader, field: str) -> Fact:
    match message.WhichOneof("kind"):
        case "divisible":
            return Divisible(
                reader.read(message.divisible.expr, f"{field}.expr"),
                check_range(message.divisible.by, 1, SIZE_LIMIT - 1, f"{field}.by"),
            )
        case "at_most":
            return AtMost(
                reader.read(message.at_most.expr, f"{field}.expr"),
                check_size(message.at_most.bound, f"{field}.bound"),
            )
        case "equals":
            return Equals(
                reader.read(message.equals.expr, f"{field}.expr"),
                check_size(message.equals.value, f"{field}.value"),
            )
        case "aligned":
            aligned = message.aligned
            return Aligned(
                check_range(aligned.parameter, 0, PARAMETER_LIMIT - 1, f"{field}.parameter"),
                check_range(aligned.to_bytes, 1, ALIGNMENT_LIMIT, f"{field}.to_bytes"),
            )
        case None:
            raise InvalidMessage(field, "no fact")


def guard_to_proto(guard: Guard) -> pb.Guard:
    """The message of a Guard."""
    return pb.Guard(facts=map(fact_to_proto, guard.facts))


def guard_from_proto(
    message: pb.Guard, *, reader: ExprReader | None = None, field: str = "guard"
) -> Guard:
    """The Guard; raises `InvalidMessage`."""
    reader = reader or ExprReader()
    check_count(message.facts, FACT_LIMIT, f"{field}.facts")
    return Guard(
        tuple(
            _fact_from_proto(fact, reader, f"{field}.facts[{position}]")
            for position, fact in enumerate(message.facts)
        )
    )


def _argument_to_proto(argument: Argument) -> pb.LaunchArgument:
    match argument:
        case PointerArgument(parameter):
            return pb.LaunchArgument(pointer=parameter)
        case ScalarArgument(parameter, dtype):
            return pb.LaunchArgument(
                scalar=pb.LaunchArgument.Scalar(parameter=parameter, dtype=dtype)
            )
        case SizeArgument(expr, dtype):
            return pb.LaunchArgument(
                size=pb.LaunchArgument.Size(expr=expr_to_proto(expr), dtype=dtype)
            )
        case NullArgument():
            return pb.LaunchArgument(null=True)
        case WorkspaceArgument(offset):
            return pb.LaunchArgument(workspace=expr_to_proto(offset))
        case StageArgument():
            return pb.LaunchArgument(stage=True)


def _argument_from_proto(message: pb.LaunchArgument, reader: ExprReader, field: str) -> Argument:
    match message.WhichOneof("kind"):
        case "pointer":
            return PointerArgument(check_range(message.pointer, 0, PARAMETER_LIMIT - 1, field))
        case "scalar":
            scalar = message.scalar
            if scalar.dtype not in _SCALAR_DTYPES:
                raise InvalidMessage(f"{field}.dtype", f"not one of {', '.join(_SCALAR_DTYPES)}")
            return ScalarArgument(
                check_range(scalar.parameter, 0, PARAMETER_LIMIT - 1, f"{field}.parameter"),
                scalar.dtype,
            )
        case "size":
            if message.size.dtype not in _SIZE_DTYPES:
                raise InvalidMessage(f"{field}.dtype", f"not one of {', '.join(_SIZE_DTYPES)}")
            return SizeArgument(reader.read(message.size.expr, f"{field}.expr"), message.size.dtype)
        case "null":
            return NullArgument()
        case "workspace":
            return WorkspaceArgument(reader.read(message.workspace, f"{field}.workspace"))
        case "stage":
            return StageArgument()
        case None:
            raise InvalidMessage(field, "no argument")


def artifact_to_proto(artifact: ArtifactRef) -> pb.ArtifactRef:
    """The message of an Artifact's name and launch metadata."""
    message = pb.ArtifactRef(
        sha256=artifact.sha256,
        size_bytes=artifact.size_bytes,
        signature=artifact.signature,
        key_id=artifact.key_id,
    )
    match artifact.launch:
        case CpuLaunch(entry, work, grain, features):
            message.cpu.CopyFrom(
                pb.CpuLaunch(entry=entry, work=expr_to_proto(work), grain=grain, features=features)
            )
        case CudaLaunch() as launch:
            message.cuda.CopyFrom(
                pb.CudaLaunch(
                    entry=launch.entry,
                    arguments=map(_argument_to_proto, launch.arguments),
                    grid=map(expr_to_proto, launch.grid),
                    warps=launch.warps,
                    shared_bytes=launch.shared_bytes,
                    capability=launch.capability,
                    stages=launch.stages,
                    workspace_bytes=expr_to_proto(launch.workspace_bytes),
                    begin_early=launch.begin_early,
                    inner=None if launch.inner == ZERO else expr_to_proto(launch.inner),
                )
            )
    return message


def artifact_from_proto(
    message: pb.ArtifactRef, *, reader: ExprReader | None = None, field: str = "artifact"
) -> ArtifactRef:
    """The Artifact's name and launch metadata; raises `InvalidMessage`."""
    check_count(message.signature, SIGNATURE_LIMIT, f"{field}.signature")
    return ArtifactRef(
        sha256=check_sha256(message.sha256, f"{field}.sha256"),
        size_bytes=check_range(message.size_bytes, 0, ARTIFACT_BYTES_LIMIT, f"{field}.size_bytes"),
        launch=_launch_from_proto(message, reader or ExprReader(), field),
        signature=message.signature,
        key_id=check_text(message.key_id, KEY_ID_LIMIT, f"{field}.key_id"),
    )


def _launch_from_proto(message: pb.ArtifactRef, reader: ExprReader, field: str) -> LaunchMetadata:
    match message.WhichOneof("launch"):
        case "cpu":
            cpu = message.cpu
            return CpuLaunch(
                entry=check_identifier(cpu.entry, f"{field}.cpu.entry"),
                work=reader.read(cpu.work, f"{field}.cpu.work"),
                grain=check_range(cpu.grain, 1, SIZE_LIMIT - 1, f"{field}.cpu.grain"),
                features=texts_from_proto(cpu.features, FEATURE_LIMIT, f"{field}.cpu.features"),
            )
        case "cuda":
            cuda = message.cuda
            check_count(cuda.arguments, ARGUMENT_LIMIT, f"{field}.cuda.arguments")
            if len(cuda.grid) != 3:
                raise InvalidMessage(f"{field}.cuda.grid", f"{len(cuda.grid)} axes, not 3")
            grid = [
                reader.read(axis, f"{field}.cuda.grid[{position}]")
                for position, axis in enumerate(cuda.grid)
            ]
            workspace_bytes: Expr = ZERO
            inner: Expr = ZERO
            if cuda.HasField("workspace_bytes"):
                workspace_bytes = reader.read(cuda.workspace_bytes, f"{field}.cuda.workspace_bytes")
            if cuda.HasField("inner"):
                inner = reader.read(cuda.inner, f"{field}.cuda.inner")
            return CudaLaunch(
                entry=check_identifier(cuda.entry, f"{field}.cuda.entry"),
                arguments=tuple(
                    _argument_from_proto(argument, reader, f"{field}.cuda.arguments[{position}]")
                    for position, argument in enumerate(cuda.arguments)
                ),
                grid=(grid[0], grid[1], grid[2]),
                warps=check_range(cuda.warps, 1, WARP_LIMIT, f"{field}.cuda.warps"),
                shared_bytes=cuda.shared_bytes,
                capability=cuda.capability,
                stages=check_range(max(1, cuda.stages), 1, STAGE_LIMIT, f"{field}.cuda.stages"),
                workspace_bytes=workspace_bytes,
                begin_early=cuda.begin_early,
                inner=inner,
            )
        case None:
            raise InvalidMessage(f"{field}.launch", "no launch metadata")
