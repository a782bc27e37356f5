"""A Plan is run only if it is a right way to compute its Program."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from nearhint.errors import InvalidAnswer
from nearhint.plan_check import check_plan
from nearhint_rules import expr as ex
from nearhint_rules.plan import Free, Launch, MakeView, Output, Plan, RunNodes, Step
from nearhint_rules.program import Node, Program, Ref, Symbol, TensorType

S0 = ex.symbol("s0")
VECTOR = TensorType("f32", (S0,), (ex.ONE,))
COLUMN = TensorType("f32", (S0, ex.ONE), (ex.ONE, ex.ONE))
KERNEL = "ab" * 32


def pure(*inputs: int) -> Node:
    return Node("aten.add.Tensor", tuple(map(Ref, inputs)), (), inputs, (VECTOR,))


def view(value: int) -> Node:
    return Node(
        "aten.unsqueeze.default", (Ref(value),), (), (value,), (COLUMN,), aliases=((0, value),)
    )


def fill(value: int) -> Node:
    return Node("", (), (), (value,), (VECTOR,), aliases=((0, value),), mutates=(value,))


def program(*nodes: Node, outputs: tuple[int, ...]) -> Program:
    return Program((Symbol("s0", 2),), (VECTOR,), nodes, outputs)


def output(slot: int, **changes: object) -> Output:
    return replace(Output(slot, "f32", (S0,), (ex.ONE,)), **changes)  # type: ignore[arg-type]


def launch(inputs: tuple[int, ...], outputs: tuple[Output, ...], nodes: tuple[int, ...]) -> Launch:
    return Launch(KERNEL, "cd" * 32, (S0,), inputs, outputs, nodes)


def check(of: Program, *steps: Step, storages: int = 0) -> None:
    plan = Plan(of.id, "cpu", "test", steps, storages)
    check_plan(plan, of, program_id=of.id, target_kind="cpu")


CHAIN = program(pure(0), pure(1), pure(2), outputs=(3,))
"""x -> 1 -> 2 -> 3"""
TAIL = program(pure(0), view(1), pure(1), outputs=(3, 2))
MUTATING = program(pure(0), fill(0), pure(0), outputs=(1, 3))
"""1 reads the input before it is filled, 3 after."""


def test_a_fused_plan_passes() -> None:
    check(CHAIN, launch((0,), (output(3),), (0, 1, 2)))


def test_storages_may_be_shared_once_a_tensor_was_last_read() -> None:
    check(
        program(pure(0), pure(1), pure(2), pure(3), outputs=(4,)),
        launch((0,), (output(1, storage=0),), (0,)),
        RunNodes((1,), (output(2, storage=1),)),
        Free((1,)),
        launch((2,), (output(3, storage=0),), (2,)),
        launch((3,), (output(4),), (3,)),
        storages=2,
    )


def test_views_frees_and_opaque_nodes_pass() -> None:
    check(
        TAIL,
        launch((0,), (output(1),), (0,)),
        MakeView(2, 1, (S0, ex.ONE), (ex.ONE, ex.ONE), ex.ZERO, 1),
        RunNodes((2,)),
        Free((1,)),
    )


def test_a_size_may_be_written_more_simply_than_in_the_program() -> None:
    two_ways = ex.maximum(S0, 1)
    loose = Program(
        (Symbol("s0", 2),),
        (VECTOR,),
        (replace(pure(0), outputs=(TensorType("f32", (two_ways,), (ex.ONE,)),)),),
        (1,),
    )
    check(loose, launch((0,), (output(1),), (0,)))


def test_mutations_in_their_order_pass() -> None:
    check(MUTATING, RunNodes((0, 1, 2)))
    check(MUTATING, launch((0,), (output(1),), (0,)), RunNodes((1, 2)))


WRONG: dict[str, tuple[Program, tuple[Step, ...], str]] = {
    "a node that is not there": (CHAIN, (RunNodes((0, 1, 2, 3)),), "no node 3"),
    "a negative node": (CHAIN, (RunNodes((-1,)),), "no node -1"),
    "a node before its inputs": (CHAIN, (RunNodes((1, 0, 2)),), "slot 1 is not defined"),
    "an output that is never made": (CHAIN, (RunNodes((0, 1)),), "slot 3 is not defined"),
    "a node run twice": (CHAIN, (RunNodes((0, 0, 1, 2)),), "slot 1 is made twice"),
    "a read after a free": (
        CHAIN,
        (RunNodes((0,)), Free((1,)), RunNodes((1, 2))),
        "slot 1 is not defined",
    ),
    "a free of nothing": (CHAIN, (Free((2,)), RunNodes((0, 1, 2))), "slot 2 is not defined"),
    "a slot out of range": (CHAIN, (launch((99,), (output(3),), (0, 1, 2)),), "slot 99"),
    "a launch without the nodes of its output": (
        CHAIN,
        (launch((0,), (output(3),), (0, 1)),),
        "slot 3 is not defined",
    ),
    "an output that its fallback does not make": (
        CHAIN,
        (RunNodes((0,)), launch((1,), (output(1),), (1,)), RunNodes((2,))),
        "not made by the nodes",
    ),
    "another dtype": (
        CHAIN,
        (launch((0,), (output(3, dtype="f64"),), (0, 1, 2)),),
        "slot 3 is f64",
    ),
    "another device": (
        CHAIN,
        (launch((0,), (output(3, device="cuda"),), (0, 1, 2)),),
        "slot 3 is f32 on cuda",
    ),
    "another size": (
        CHAIN,
        (launch((0,), (output(3, shape=(ex.add(S0, 1),)),), (0, 1, 2)),),
        "size (+ s0 1)",
    ),
    "another rank": (
        CHAIN,
        (launch((0,), (output(3, shape=(S0, S0), stride=(S0, S0)),), (0, 1, 2)),),
        "2 axes",
    ),
    "an unknown symbol": (
        CHAIN,
        (replace(launch((0,), (output(3),), (0, 1, 2)), dims=(ex.symbol("s9"),)),),
        "no symbol s9",
    ),
    "an unknown storage": (
        CHAIN,
        (launch((0,), (output(3, storage=4),), (0, 1, 2)),),
        "no storage 4",
    ),
    "a storage in use": (
        CHAIN,
        (
            launch((0,), (output(1, storage=0),), (0,)),
            launch((1,), (output(2, storage=0),), (1,)),
            launch((1, 2), (output(3),), (2,)),
        ),
        "still in use",
    ),
    "a storage that the same step reads": (
        CHAIN,
        (
            launch((0,), (output(1, storage=0),), (0,)),
            RunNodes((1,), (output(2, storage=0),)),
            RunNodes((2,)),
        ),
        "still in use",
    ),
    "an offer of a storage in use": (
        CHAIN,
        (RunNodes((0, 1), (output(1, storage=0), output(2, storage=0))), RunNodes((2,))),
        "still in use",
    ),
    "an offer for another node's slot": (
        CHAIN,
        (RunNodes((0,)), RunNodes((1,), (output(1, storage=0),)), RunNodes((2,))),
        "slot 1 is no new tensor",
    ),
    "an offer for a view": (
        TAIL,
        (
            RunNodes((0,)),
            RunNodes((1,), (Output(2, "f32", (S0, ex.ONE), (ex.ONE, ex.ONE), storage=0),)),
            RunNodes((2,)),
        ),
        "slot 2 is no new tensor",
    ),
    "a shared storage that leaves": (
        CHAIN,
        (launch((0,), (output(3, storage=0),), (0, 1, 2)),),
        "leaves the Plan",
    ),
    "a copy where the program has an alias": (
        TAIL,
        (
            launch((0,), (output(1),), (0,)),
            launch(
                (1,),
                (Output(2, "f32", (S0, ex.ONE), (ex.ONE, ex.ONE)),),
                (1,),
            ),
            RunNodes((2,)),
        ),
        "must share storage",
    ),
    "a view of another node's slot": (
        TAIL,
        (
            RunNodes((0,)),
            MakeView(2, 1, (S0, ex.ONE), (ex.ONE, ex.ONE), ex.ZERO, 2),
            RunNodes((2,)),
        ),
        "not made by node 2",
    ),
    "a mutation that never runs": (MUTATING, (RunNodes((0, 2)),), "wrong side"),
    "a read moved across a mutation": (MUTATING, (RunNodes((1, 0, 2)),), "wrong side"),
    "a mutation inside a kernel": (
        MUTATING,
        (RunNodes((0,)), launch((0,), (output(2),), (1,)), RunNodes((2,))),
        "random or mutates",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_refused(name: str) -> None:
    of, steps, problem = WRONG[name]
    with pytest.raises(InvalidAnswer, match=re.escape(problem)):
        check(of, *steps, storages=1)


def test_a_random_node_runs_once() -> None:
    noise = replace(pure(0), op="", args=(), has_randomness=True)
    unused = program(noise, pure(0), outputs=(2,))
    with pytest.raises(InvalidAnswer, match="once and in order"):
        check(unused, RunNodes((1,)))


def test_a_plan_for_something_else_is_refused() -> None:
    plan = Plan(CHAIN.id, "cpu", "test", (RunNodes((0, 1, 2)),))
    with pytest.raises(InvalidAnswer, match="another Program"):
        check_plan(plan, CHAIN, program_id="0" * 64, target_kind="cpu")
    with pytest.raises(InvalidAnswer, match="for cpu"):
        check_plan(plan, CHAIN, program_id=CHAIN.id, target_kind="cuda")
