"""Untrusted messages: each is refused with a typed error that names the field, and quickly."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.unit.rules.tables import row, table

from nearhint_proto import convert
from nearhint_proto.convert_expr import WIRE_DEPTH_LIMIT
from nearhint_proto.v1 import program_pb2, types_pb2
from nearhint_rules import expr as ex
from nearhint_rules.errors import (
    InvalidExpression,
    InvalidMessage,
    InvalidPlan,
    InvalidProgram,
    InvalidTable,
)
from nearhint_rules.plan import Free, Launch, Output, Plan
from nearhint_rules.program import Node, Program, Ref, Symbol, TensorType

F32 = TensorType("f32", (ex.Sym("s0"), ex.Int(384)), (ex.Int(384), ex.ONE))
PROGRAM = Program(
    symbols=(Symbol("s0", 2), Symbol("s1", 2, 512)),
    inputs=(F32, F32),
    nodes=(Node("aten.add.Tensor", (Ref(0), Ref(1)), (("alpha", ex.ONE),), (0, 1), (F32,)),),
    outputs=(2, None),
)

ProgramEdit = Callable[[program_pb2.Program], object]


def symbol(name: str) -> types_pb2.Expr:
    return types_pb2.Expr(symbol=name)


def deep(levels: int) -> types_pb2.Expr:
    found = symbol("s0")
    for _ in range(levels):
        found = types_pb2.Expr(
            floordiv=types_pb2.Expr.Pair(left=found, right=types_pb2.Expr(constant=2))
        )
    return found


def set_op(op: str) -> ProgramEdit:
    return lambda message: setattr(message.nodes[0], "op", op)


def set_shape(expr: types_pb2.Expr) -> ProgramEdit:
    return lambda message: message.inputs[0].tensor.shape[0].CopyFrom(expr)


def add_to(name: str, **fields: object) -> ProgramEdit:
    def edit(message: program_pb2.Program) -> None:
        getattr(message, name).add(**fields)

    return edit


def set_symbol(**fields: object) -> ProgramEdit:
    def edit(message: program_pb2.Program) -> None:
        for name, value in fields.items():
            setattr(message.symbols[0], name, value)

    return edit


def set_node(name: str, value: object) -> ProgramEdit:
    def edit(message: program_pb2.Program) -> None:
        field = getattr(message.nodes[0], name)
        del field[:]
        field.extend(value)

    return edit


def nested_items(message: program_pb2.Program) -> None:
    arg = message.nodes[0].args.add()
    for _ in range(6):
        arg = arg.items.args.add()
    arg.none = True


BAD_PROGRAMS: dict[str, tuple[ProgramEdit, str]] = {
    "symbol with a quote": (set_symbol(name="s'0"), "symbols[0].name"),
    "symbol with a newline": (set_symbol(name="s0\n"), "symbols[0].name"),
    "symbol declared twice": (set_symbol(name="s1"), "symbols[1].name"),
    "low of 2^62": (set_symbol(low=2**62), "symbols[0].low"),
    "high below low": (set_symbol(high=1), "symbols[0].high"),
    "high of 2^62": (set_symbol(high=2**62), "symbols[0].high"),
    "user name with a newline": (set_symbol(user_name="a\nb"), "symbols[0].user_name"),
    "long user name": (set_symbol(user_name="a" * 257), "symbols[0].user_name"),
    "operator with a newline": (set_op("aten.add.Tensor\n"), "nodes[0].op"),
    "operator that is no name": (set_op("__import__('os')"), "nodes[0].op"),
    "opaque with arguments": (set_op(""), "nodes[0].args"),
    "negative size": (set_shape(types_pb2.Expr(constant=-1)), "inputs[0].shape"),
    "size of 2^62": (set_shape(types_pb2.Expr(constant=2**62)), "inputs[0].shape"),
    "no expression": (set_shape(types_pb2.Expr()), "inputs[0].shape[0]"),
    "undeclared symbol": (set_shape(symbol("s9")), "inputs[0]"),
    "bad symbol in a size": (set_shape(symbol("s 9")), "inputs[0].shape[0]"),
    "deep size": (set_shape(deep(45)), "inputs[0].shape[0]"),
    "empty sum": (
        set_shape(types_pb2.Expr(sum=types_pb2.Expr.Operands())), "inputs[0].shape[0]"
    ),
    "division by zero": (
        set_shape(
            types_pb2.Expr(
                mod=types_pb2.Expr.Pair(left=symbol("s0"), right=types_pb2.Expr(constant=0))
            )
        ),
        "inputs[0].shape[0]",
    ),
    "huge exponent": (
        set_shape(types_pb2.Expr(power=types_pb2.Expr.Power(base=symbol("s0"), exponent=2**31))),
        "inputs[0].shape[0]",
    ),
    "no type": (add_to("inputs"), "inputs[2]"),
    "unknown dtype": (
        lambda message: setattr(message.inputs[0].tensor, "dtype", "f33"), "inputs[0].dtype"
    ),
    "unknown device": (
        lambda message: setattr(message.inputs[1].tensor, "device", "tpu"), "inputs[1].device"
    ),
    "rank mismatch": (
        lambda message: message.inputs[0].tensor.stride.add(constant=1),
        "inputs[0].stride",
    ),
    "cycle": (set_node("inputs", [0, 1, 2]), "nodes[0].inputs"),
    "argument that is no input": (set_node("inputs", [0]), "nodes[0].args"),
    "mutates what it does not read": (set_node("mutates", [7]), "nodes[0].mutates"),
    "alias of no output": (
        lambda message: message.nodes[0].aliases.add(output=1, value=0),
        "nodes[0].aliases",
    ),
    "nested sequences": (nested_items, "nodes[0].args[2][0][0][0][0]"),
    "no argument": (lambda message: message.nodes[0].args.add(), "nodes[0].args[2]"),
    "keyword of no kind": (
        lambda message: message.nodes[0].args.add().keyword.MergeFrom(
            program_pb2.Arg.Keyword(kind="path", name="x")
        ),
        "nodes[0].args[2]",
    ),
    "argument name": (
        lambda message: setattr(message.nodes[0].kwargs[0], "name", "a b"),
        "nodes[0].kwargs[0].name",
    ),
    "argument named twice": (
        lambda message: message.nodes[0].kwargs.add().MergeFrom(message.nodes[0].kwargs[0]),
        "nodes[0].kwargs",
    ),
    "source with a newline": (
        lambda message: setattr(message.nodes[0], "source", "a\nb"), "nodes[0].source"
    ),
    "output that is no value": (add_to("outputs", value=9), "outputs[2]"),
    "too many symbols": (
        lambda message: message.symbols.extend([types_pb2.Symbol(name="x")] * 300), "symbols"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "field"), BAD_PROGRAMS.values(), ids=BAD_PROGRAMS.keys())
def test_a_malformed_program_is_refused_by_the_field(edit: ProgramEdit, field: str) -> None:
    message = convert.program_to_proto(PROGRAM)
    edit(message)
    with pytest.raises(InvalidProgram) as refused:
        convert.program_from_proto(message)
    assert refused.value.field == field
    assert refused.value.code == "PROGRAM_INVALID"


def test_the_program_that_is_spoiled_above_is_legal() -> None:
    assert convert.program_from_proto(convert.program_to_proto(PROGRAM)) == PROGRAM


def test_fields_are_named_below_the_field_that_holds_the_program() -> None:
    message = convert.program_to_proto(PROGRAM)
    message.nodes[0].op = "x"
    with pytest.raises(InvalidProgram, match=r"program\.nodes\[0\]\.op: not an operator name"):
        convert.program_from_proto(message, field="program")


def product_of_sums(symbols: int) -> types_pb2.Expr:
    sums = [
        types_pb2.Expr(
            sum=types_pb2.Expr.Operands(args=[symbol(f"s{number}"), types_pb2.Expr(constant=1)])
        )
        for number in range(symbols)
    ]
    return types_pb2.Expr(product=types_pb2.Expr.Operands(args=sums))


def power_of_sum() -> types_pb2.Expr:
    inner = types_pb2.Expr.Operands(args=[symbol(f"s{number}") for number in range(9)])
    return types_pb2.Expr(power=types_pb2.Expr.Power(base=types_pb2.Expr(sum=inner), exponent=60))


@pytest.mark.parametrize("bomb", [product_of_sums(30), power_of_sum(), deep(WIRE_DEPTH_LIMIT)])
def test_an_expression_bomb_is_refused_quickly(bomb: types_pb2.Expr) -> None:
    started = time.process_time()
    with pytest.raises(InvalidMessage):
        convert.expr_from_proto(bomb)
    assert time.process_time() - started < 1


def test_many_expensive_expressions_together_are_refused_within_seconds() -> None:
    # Each is legal; the budget is the message's.
    message = convert.program_to_proto(PROGRAM)
    del message.symbols[:]
    message.symbols.extend(types_pb2.Symbol(name=f"s{number}") for number in range(20))
    for number in range(500):
        costly = types_pb2.Expr(
            sum=types_pb2.Expr.Operands(args=[product_of_sums(7), types_pb2.Expr(constant=number)])
        )
        message.nodes[0].args.add().expr.CopyFrom(costly)
    started = time.process_time()
    with pytest.raises(InvalidProgram, match="expand to more than"):
        convert.program_from_proto(message)
    assert time.process_time() - started < 5


def test_an_expression_too_deep_for_a_message_is_refused_when_it_is_written() -> None:
    found: ex.Expr = ex.Sym("s0")
    for number in range(WIRE_DEPTH_LIMIT + 2):
        found = ex.mod(found, 1000 - number)
    with pytest.raises(InvalidExpression, match="nested more than"):
        convert.expr_to_proto(found)


def test_free_text_is_cut_and_cleaned_when_it_is_written() -> None:
    noisy = Program((), (), (), (), label="a\nb" + "x" * 1000)
    back = convert.program_from_proto(convert.program_to_proto(noisy))
    assert back.label.startswith("a bxx")
    assert len(back.label) == 256


def probe(size: int, position: int = 0) -> types_pb2.HintRow:
    ranked = types_pb2.Ranked(variant=position, timing=types_pb2.Timing(median_ns=1))
    return types_pb2.HintRow(dims=[size], ranked=[ranked], tier=2)


TableEdit = Callable[[types_pb2.Table], object]
BAD_TABLES: dict[str, tuple[TableEdit, str]] = {
    "kernel": (lambda message: setattr(message, "kernel", "A" * 64), "kernel"),
    "short target": (lambda message: setattr(message, "target", "a" * 63), "target"),
    "default that is not there": (
        lambda message: setattr(message, "default_variant", 3), "default_variant"
    ),
    "cut-off of zero": (lambda message: setattr(message, "cutoff", 0), "cutoff"),
    "generation": (lambda message: setattr(message, "generation", 2**63), "generation"),
    "hint of another rank": (lambda message: message.hints[0].dims.append(3), "hints[0].dims"),
    "hint of zero": (lambda message: message.hints[0].dims.__setitem__(0, 0), "hints[0].dims"),
    "hint twice": (lambda message: message.hints.append(message.hints[0]), "hints[1].dims"),
    "49 hints": (lambda message: message.hints.extend([message.hints[0]] * 48), "hints"),
    "unknown variant": (
        lambda message: setattr(message.hints[0].ranked[0], "variant", 9), "hints[0].ranked"
    ),
    "variant ranked twice": (
        lambda message: setattr(message.hints[0].ranked[0], "variant", 0), "hints[0].ranked"
    ),
    "tier": (lambda message: setattr(message.hints[0], "tier", 4), "hints[0].tier"),
    "endless spread": (
        lambda message: setattr(message.hints[0].ranked[0].timing, "spread", float("inf")),
        "hints[0].ranked[0].timing.spread",
    ),
    "spread that is no number": (
        lambda message: setattr(message.hints[0].ranked[0].timing, "spread", float("nan")),
        "hints[0].ranked[0].timing.spread",
    ),
    "no time at all": (
        lambda message: setattr(message.hints[0].fallbacks[0].timing, "median_ns", 0),
        "hints[0].fallbacks[0].timing.median_ns",
    ),
    "guard over an unknown symbol": (
        lambda message: message.variants[1].guard.facts.add().equals.MergeFrom(
            types_pb2.Fact.Equals(expr=symbol("k7"), value=1)
        ),
        "variants[1].guard.facts[0].expr",
    ),
    "division by zero in a guard": (
        lambda message: message.variants[1].guard.facts.add().divisible.MergeFrom(
            types_pb2.Fact.Divisible(expr=symbol("k0"), by=0)
        ),
        "variants[1].guard.facts[0].by",
    ),
    "alignment to nothing": (
        lambda message: message.variants[1].guard.facts.add().aligned.MergeFrom(
            types_pb2.Fact.Aligned(parameter=0, to_bytes=0)
        ),
        "variants[1].guard.facts[0].to_bytes",
    ),
    "launch over an unknown symbol": (
        lambda message: message.variants[0].artifact.cpu.work.CopyFrom(symbol("k7")),
        "variants[0].artifact.launch",
    ),
    "entry with a quote": (
        lambda message: setattr(message.variants[0].artifact.cpu, "entry", "f'"),
        "variants[0].artifact.cpu.entry",
    ),
    "no launch metadata": (
        lambda message: message.variants[0].artifact.ClearField("cpu"),
        "variants[0].artifact.launch",
    ),
    "oversized artifact": (
        lambda message: setattr(message.variants[0].artifact, "size_bytes", 2**40),
        "variants[0].artifact.size_bytes",
    ),
    "a pin of no identity": (
        lambda message: message.pins.add(variant="../../LOCK"),
        "pins[0].variant",
    ),
    "a pin of a variant that is not there": (
        lambda message: message.pins.add(variant="9" * 64),
        "pins[0].variant",
    ),
    "a pin at too many sizes": (
        lambda message: message.pins.add(dims=[1] * 3),
        "pins[0].dims",
    ),
    "a pin at a size beyond all": (
        lambda message: message.pins.add(dims=[2**63]),
        "pins[0].dims[0]",
    ),
    "too many pins": (
        lambda message: [message.pins.add(dims=[size]) for size in range(1, 100)],
        "pins",
    ),
    "a probe of a variant that is not there": (
        lambda message: message.probes.append(probe(17, 9)),
        "probes[0].ranked",
    ),
    "a probe at too few sizes": (
        lambda message: message.probes.add(tier=2),
        "probes[0].dims",
    ),
    "a probe twice": (
        lambda message: message.probes.extend([probe(17), probe(17)]),
        "probes[1].dims",
    ),
    "too many probes": (
        lambda message: message.probes.extend(map(probe, range(1, 34))),
        "probes",
    ),
    "two-dimensional grid": (
        lambda message: message.variants[0].artifact.cuda.grid.extend([symbol("k0")] * 2),
        "variants[0].artifact.cuda.grid",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "field"), BAD_TABLES.values(), ids=BAD_TABLES.keys())
def test_a_malformed_table_is_refused_by_the_field(edit: TableEdit, field: str) -> None:
    message = convert.table_to_proto(table(row((16,), {1: 900, 0: 1000})))
    edit(message)
    with pytest.raises(InvalidTable) as refused:
        convert.table_from_proto(message)
    assert refused.value.field == field


PlanEdit = Callable[[program_pb2.Plan], object]
PLAN = Plan(
    program="1" * 64,
    target_kind="cpu",
    compiler_version="0.1",
    steps=(
        Launch(
            "2" * 64, "3" * 64, (ex.Sym("s0"),), (0, 1),
            (Output(2, "f32", (ex.Sym("s0"),), (ex.ONE,), "cpu", 0),), (0,),
        ),
        Free((0,)),
    ),
    storages=1,
)  # fmt: skip
BAD_PLANS: dict[str, tuple[PlanEdit, str]] = {
    "target": (lambda message: setattr(message, "target_kind", "tpu"), "target_kind"),
    "program": (lambda message: setattr(message, "program", ""), "program"),
    "step": (lambda message: message.steps.add(), "steps[2]"),
    "kernel": (
        lambda message: setattr(message.steps[0].launch, "kernel", "../x"), "steps[0].kernel"
    ),
    "storage": (
        lambda message: setattr(message.steps[0].launch.outputs[0], "storage", 1),
        "steps[0].outputs[0].storage",
    ),
    "rank": (
        lambda message: message.steps[0].launch.outputs[0].shape.add(constant=1),
        "steps[0].outputs[0].stride",
    ),
    "slot": (
        lambda message: message.steps[1].free.slots.append(2**31), "steps[1].slots[1]"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "field"), BAD_PLANS.values(), ids=BAD_PLANS.keys())
def test_a_malformed_plan_is_refused_by_the_field(edit: PlanEdit, field: str) -> None:
    message = convert.plan_to_proto(PLAN)
    edit(message)
    with pytest.raises(InvalidPlan) as refused:
        convert.plan_from_proto(message)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("dims", "field"),
    [
        ([("s0", 1), ("s0", 2)], "sizes.dims[1].symbol"),
        ([("s0", 2**62)], "sizes.dims[0].value"),
        ([("s'", 1)], "sizes.dims[0].symbol"),
        ([(f"s{number}", 1) for number in range(300)], "sizes.dims"),
    ],
)
def test_malformed_sizes_are_refused_by_the_field(dims: list[tuple[str, int]], field: str) -> None:
    message = types_pb2.SizeHint(
        dims=[types_pb2.Dim(symbol=name, value=value) for name, value in dims]
    )
    with pytest.raises(InvalidMessage) as refused:
        convert.size_hint_from_proto(message)
    assert refused.value.field == field
