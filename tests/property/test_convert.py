"""What goes over the wire comes back the same; what is malformed is refused with a typed error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.property.strategies import (
    PLANS,
    TARGETS,
    artifacts,
    exprs,
    fallbacks,
    guards,
    programs,
    tables,
    trees,
)

from nearhint_proto import convert
from nearhint_proto.v1 import kernel_service_pb2, program_pb2, types_pb2
from nearhint_rules.canonical import encode
from nearhint_rules.errors import InvalidMessage
from nearhint_rules.expr import Expr
from nearhint_rules.plan import Fallback, Plan
from nearhint_rules.program import Program
from nearhint_rules.table import Table
from nearhint_rules.target import Target


def over_the_wire(message: Message) -> Any:
    """The message as the other side parses it."""
    return type(message).FromString(message.SerializeToString())


@given(exprs())
def test_expressions_round_trip(expr: Expr) -> None:
    assert convert.expr_from_proto(over_the_wire(convert.expr_to_proto(expr))) == expr


@given(trees())
def test_expressions_from_the_wire_are_canonical(tree: Expr) -> None:
    message = over_the_wire(convert.expr_to_proto(tree))
    try:
        expr = convert.expr_from_proto(message)
    except InvalidMessage:
        return
    assert convert.expr_from_proto(convert.expr_to_proto(expr)) == expr


@given(programs())
def test_programs_round_trip(program: Program) -> None:
    back = convert.program_from_proto(over_the_wire(convert.program_to_proto(program)))
    assert back == program
    assert encode(back) == encode(program)


@examples(50)
@given(fallbacks())
def test_fallbacks_round_trip(fallback: Fallback) -> None:
    back = convert.fallback_from_proto(over_the_wire(convert.fallback_to_proto(fallback)))
    assert back == fallback
    assert back.id == fallback.id


@given(PLANS)
def test_plans_round_trip(plan: Plan) -> None:
    back = convert.plan_from_proto(over_the_wire(convert.plan_to_proto(plan)))
    assert back == plan
    assert back.id == plan.id


@given(TARGETS)
def test_targets_round_trip(target: Target) -> None:
    back = convert.target_from_proto(over_the_wire(convert.target_to_proto(target)))
    assert back == target
    assert back.id == target.id


@given(guards(("k0", "k1")), artifacts(("k0", "k1")))
def test_guards_and_artifacts_round_trip(guard: Any, artifact: Any) -> None:
    assert convert.guard_from_proto(over_the_wire(convert.guard_to_proto(guard))) == guard
    message = over_the_wire(convert.artifact_to_proto(artifact))
    assert convert.artifact_from_proto(message) == artifact


@given(tables())
def test_tables_round_trip(table: Table) -> None:
    assert convert.table_from_proto(over_the_wire(convert.table_to_proto(table))) == table


@given(st.dictionaries(st.sampled_from(("s0", "s1", "x")), st.integers(0, 2**62 - 1)))
def test_size_hints_round_trip(sizes: dict[str, int]) -> None:
    message = over_the_wire(convert.size_hint_to_proto(sizes))
    assert convert.size_hint_from_proto(message) == sizes


READERS: list[tuple[type[Message], Callable[[Any], object]]] = [
    (types_pb2.Expr, convert.expr_from_proto),
    (program_pb2.Program, convert.program_from_proto),
    (program_pb2.Plan, convert.plan_from_proto),
    (program_pb2.Fallback, convert.fallback_from_proto),
    (types_pb2.Table, convert.table_from_proto),
    (types_pb2.Target, convert.target_from_proto),
    (types_pb2.ArtifactRef, convert.artifact_from_proto),
    (types_pb2.Guard, convert.guard_from_proto),
    (types_pb2.SizeHint, convert.size_hint_from_proto),
    (kernel_service_pb2.Selection, convert.selection_from_proto),
]


@pytest.mark.parametrize(
    ("kind", "read"), READERS, ids=lambda value: getattr(value, "__name__", "")
)
@given(data=st.data())
def test_corrupted_messages_are_read_or_refused(
    kind: type[Message], read: Callable[[Any], object], data: st.DataObject
) -> None:
    sent = data.draw(SENT[kind])
    damaged = bytearray(sent.SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = kind.FromString(bytes(damaged))
    except DecodeError:
        return
    try:
        read(message)
    except InvalidMessage:
        return


SENT: dict[type[Message], st.SearchStrategy[Message]] = {
    types_pb2.Expr: trees().map(convert.expr_to_proto),
    program_pb2.Program: programs().map(convert.program_to_proto),
    program_pb2.Plan: PLANS.map(convert.plan_to_proto),
    program_pb2.Fallback: fallbacks().map(convert.fallback_to_proto),
    types_pb2.Table: tables().map(convert.table_to_proto),
    types_pb2.Target: TARGETS.map(convert.target_to_proto),
    types_pb2.ArtifactRef: artifacts(("k0",)).map(convert.artifact_to_proto),
    types_pb2.Guard: guards(("k0",)).map(convert.guard_to_proto),
    types_pb2.SizeHint: st.just(convert.size_hint_to_proto({"s0": 3, "s1": 2**40})),
    kernel_service_pb2.Selection: st.just(kernel_service_pb2.Selection(hint=[1, 2], tier=1)),
}
