"""Programs between domain and wire. From the wire: bounded, canonical, checked."""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_proto.convert_expr import (
    ExprReader,
    check_count,
    check_dtype,
    check_identifier,
    check_size,
    check_text,
    expr_to_proto,
    printable,
)
from nearhint_proto.v1 import program_pb2 as pb
from nearhint_proto.v1 import types_pb2
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidMessage, InvalidProgram
from nearhint_rules.program import (
    Arg,
    DType,
    FloatType,
    IntType,
    Keyword,
    Node,
    OtherType,
    Program,
    Ref,
    Symbol,
    TensorType,
    ValueType,
    check,
)

SYMBOL_LIMIT = 256
VALUE_LIMIT = 1 << 20
NODE_LIMIT = 1 << 17
ARG_LIMIT = 1024
"""Arguments of a node, items of a sequence, outputs of a node."""
ARG_DEPTH_LIMIT = 4
RANK_LIMIT = 64
NAME_LIMIT = 256
TEXT_LIMIT = 4096
"""Characters of a string argument, and of a node's source."""

_DEVICES = ("cpu", "cuda")
_KEYWORD_KINDS = ("device", "layout", "memory_format")


def symbol_to_proto(symbol: Symbol) -> types_pb2.Symbol:
    """The message of a symbol."""
    return types_pb2.Symbol(
        name=symbol.name,
        low=symbol.low,
        high=symbol.high,
        user_name=printable(symbol.user_name, NAME_LIMIT),
    )


def symbol_from_proto(message: types_pb2.Symbol, *, field: str = "symbol") -> Symbol:
    """The symbol; raises `InvalidMessage`."""
    return Symbol(
        name=check_identifier(message.name, f"{field}.name"),
        low=check_size(message.low, f"{field}.low"),
        high=check_size(message.high, f"{field}.high") if message.HasField("high") else None,
        user_name=check_text(message.user_name, NAME_LIMIT, f"{field}.user_name"),
    )


def value_type_to_proto(value_type: ValueType) -> pb.ValueType:
    """The message of a value's type."""
    match value_type:
        case TensorType(dtype, shape, stride, device):
            return pb.ValueType(
                tensor=pb.TensorType(
                    dtype=dtype,
                    shape=map(expr_to_proto, shape),
                    stride=map(expr_to_proto, stride),
                    device=device,
                )
            )
        case IntType(expr):
            known = None if expr is None else expr_to_proto(expr)
            return pb.ValueType(integer=pb.IntType(expr=known))
        case FloatType():
            return pb.ValueType(number=pb.FloatType())
        case OtherType():
            return pb.ValueType(other=pb.OtherType())


def value_type_from_proto(message: pb.ValueType, reader: ExprReader, field: str) -> ValueType:
    """The type; raises `InvalidMessage`."""
    kind = message.WhichOneof("kind")
    if kind == "tensor":
        tensor = message.tensor
        check_count(tensor.shape, RANK_LIMIT, f"{field}.shape")
        check_count(tensor.stride, RANK_LIMIT, f"{field}.stride")
        return TensorType(
            dtype=check_dtype(tensor.dtype, f"{field}.dtype"),
            shape=reader.read_all(tensor.shape, f"{field}.shape"),
            stride=reader.read_all(tensor.stride, f"{field}.stride"),
            device=device_kind_from_proto(tensor.device, f"{field}.device"),
        )
    if kind == "integer":
        if not message.integer.HasField("expr"):
            return IntType(None)
        return IntType(reader.read(message.integer.expr, f"{field}.expr"))
    if kind == "number":
        return FloatType()
    if kind == "other":
        return OtherType()
    raise InvalidMessage(field, "no type")


def device_kind_from_proto(text: str, field: str) -> str:
    """`text`, if it is "cpu" or "cuda"."""
    if text not in _DEVICES:
        raise InvalidMessage(field, "neither cpu nor cuda")
    return text


def arg_to_proto(arg: Arg) -> pb.Arg:
    """The message of an argument."""
    match arg:
        case Ref(value):
            return pb.Arg(ref=value)
        case bool():
            return pb.Arg(boolean=arg)
        case float():
            return pb.Arg(float=arg)
        case None:
            return pb.Arg(none=True)
        case str():
            return pb.Arg(text=arg)
        case DType(name):
            return pb.Arg(dtype=name)
        case Keyword(kind, name):
            return pb.Arg(keyword=pb.Arg.Keyword(kind=kind, name=name))
        case tuple():
            return pb.Arg(items=pb.Arg.Items(args=map(arg_to_proto, arg)))
        case _:
            return pb.Arg(expr=expr_to_proto(ex.as_expr(arg)))


def arg_from_proto(message: pb.Arg, reader: ExprReader, field: str, *, depth: int = 0) -> Arg:
    """The argument; raises `InvalidMessage`."""
    kind = message.WhichOneof("kind")
    match kind:
        case "ref":
            return Ref(message.ref)
        case "expr":
            return reader.read(message.expr, field)
        case "float":
            return message.float
        case "boolean":
            return message.boolean
        case "none":
            return None
        case "text":
            check_count(message.text, TEXT_LIMIT, field)
            return message.text
        case "dtype":
            return DType(check_dtype(message.dtype, field))
        case "keyword":
            if message.keyword.kind not in _KEYWORD_KINDS:
                raise InvalidMessage(field, "unknown kind of keyword")
            return Keyword(message.keyword.kind, check_identifier(message.keyword.name, field))
        case "items":
            if depth == ARG_DEPTH_LIMIT:
                raise InvalidMessage(field, f"sequences nested more than {ARG_DEPTH_LIMIT} deep")
            return _args(message.items.args, reader, field, depth=depth + 1)
        case None:
            raise InvalidMessage(field, "no argument")


def _args(
    messages: Sequence[pb.Arg], reader: ExprReader, field: str, *, depth: int
) -> tuple[Arg, ...]:
    check_count(messages, ARG_LIMIT, field)
    return tuple(
        arg_from_proto(message, reader, f"{field}[{position}]", depth=depth)
        for position, message in enumerate(messages)
    )


def _node_to_proto(node: Node) -> pb.Node:
    return pb.Node(
        op=node.op,
        args=map(arg_to_proto, node.args),
        kwargs=[pb.NamedArg(name=name, arg=arg_to_proto(arg)) for name, arg in node.kwargs],
        inputs=node.inputs,
        outputs=map(value_type_to_proto, node.outputs),
        aliases=[pb.Alias(output=output, value=value) for output, value in node.aliases],
        mutates=node.mutates,
        has_randomness=node.has_randomness,
        source=printable(node.source, TEXT_LIMIT),
    )


def _node_from_proto(message: pb.Node, reader: ExprReader, field: str) -> Node:
    check_count(message.kwargs, ARG_LIMIT, f"{field}.kwargs")
    check_count(message.inputs, VALUE_LIMIT, f"{field}.inputs")
    check_count(message.outputs, ARG_LIMIT, f"{field}.outputs")
    check_count(message.aliases, ARG_LIMIT, f"{field}.aliases")
    check_count(message.mutates, ARG_LIMIT, f"{field}.mutates")
    return Node(
        op=message.op,
        args=_args(message.args, reader, f"{field}.args", depth=0),
        kwargs=tuple(
            (
                check_identifier(named.name, f"{field}.kwargs[{position}].name"),
                arg_from_proto(named.arg, reader, f"{field}.kwargs[{position}]"),
            )
            for position, named in enumerate(message.kwargs)
        ),
        inputs=tuple(message.inputs),
        outputs=tuple(
            value_type_from_proto(out, reader, f"{field}.outputs[{position}]")
            for position, out in enumerate(message.outputs)
        ),
        aliases=tuple((alias.output, alias.value) for alias in message.aliases),
        mutates=tuple(message.mutates),
        has_randomness=message.has_randomness,
        source=check_text(message.source, TEXT_LIMIT, f"{field}.source"),
    )


def program_to_proto(program: Program) -> pb.Program:
    """The message of a Program; raises `InvalidExpression` for a size nested too deep to travel."""
    return pb.Program(
        symbols=map(symbol_to_proto, program.symbols),
        inputs=map(value_type_to_proto, program.inputs),
        nodes=map(_node_to_proto, program.nodes),
        outputs=[pb.ProgramOutput(value=value) for value in program.outputs],
        label=printable(program.label, NAME_LIMIT),
    )


def program_from_proto(message: pb.Program, *, field: str = "") -> Program:
    """The Program, checked; raises `InvalidProgram`, which names the field below `field`."""
    return read_program(message, ExprReader(), field)


def read_program(message: pb.Program, reader: ExprReader, field: str) -> Program:
    """As `program_from_proto`, within the budget of `reader`."""
    prefix = f"{field}." if field else ""
    try:
        check_count(message.symbols, SYMBOL_LIMIT, "symbols")
        check_count(message.inputs, VALUE_LIMIT, "inputs")
        check_count(message.nodes, NODE_LIMIT, "nodes")
        check_count(message.outputs, VALUE_LIMIT, "outputs")
        program = Program(
            symbols=tuple(
                symbol_from_proto(symbol, field=f"symbols[{position}]")
                for position, symbol in enumerate(message.symbols)
            ),
            inputs=tuple(
                value_type_from_proto(value_type, reader, f"inputs[{position}]")
                for position, value_type in enumerate(message.inputs)
            ),
            nodes=tuple(
                _node_from_proto(node, reader, f"nodes[{position}]")
                for position, node in enumerate(message.nodes)
            ),
            outputs=tuple(
                output.value if output.HasField("value") else None for output in message.outputs
            ),
            label=check_text(message.label, NAME_LIMIT, "label"),
        )
        check(program)
    except InvalidMessage as problem:
        raise InvalidProgram(f"{prefix}{problem.field}", problem.problem) from None
    return program
