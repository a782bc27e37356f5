"""A lowering is checked at sizes that its Program's ranges allow and that its ops accept."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.workers.building import S0, S1, lowered, node, tensor

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.lowering_check import check_lowering
from nearhint_rules import expr as ex
from nearhint_rules import program as pr
from nearhint_rules.plan import Fallback

P0 = ex.symbol("p0")
EXP = ir.Kernel(
    ("k0",),
    (ex.symbol("k0"),),
    (),
    (ir.Param("in", "f32"), ir.Param("out", "f32")),
    (ir.Load(0, P0), ir.Op("exp", "f32", (0,)), ir.Store(1, P0, 1)),
)


def with_op(kernel: ir.Kernel, name: str) -> ir.Kernel:
    """Another function of each element."""
    body = [replace(each, name=name) if isinstance(each, ir.Op) else each for each in kernel.body]
    return replace(kernel, body=tuple(body))


def test_sizes_that_the_ops_refuse_are_left_out() -> None:
    """view(s0 // 4, 4) needs a multiple of 4, which the ranges do not say."""
    quarter = ex.floordiv(S0, 4)
    x, square = tensor(S0), tensor(quarter, 4)
    program = pr.Program(
        (pr.Symbol("s0", 4, 64),),
        (x,),
        (
            node("view.default", pr.Ref(0), (quarter, ex.Int(4)), makes=(square,)),
            node("exp.default", pr.Ref(1), makes=(square,)),
        ),
        (2,),
    )
    fallback = Fallback(program, "k" * 64, (ex.mul(4, quarter),), (0,), (2,))
    assert check_lowering(EXP, fallback, seed=1).problem == ""


def test_blocks_are_checked_at_multiples_of_their_size() -> None:
    """Of s0 // (s0 // 128) nothing is known where s0 is less: every other size is."""
    blocks = ex.floordiv(S0, 128)
    x, square = tensor(S0), tensor(blocks, ex.floordiv(S0, blocks))
    program = pr.Program(
        (pr.Symbol("s0", 2),),
        (x,),
        (
            node("view.default", pr.Ref(0), (blocks, ex.Int(128)), makes=(square,)),
            node("exp.default", pr.Ref(1), makes=(square,)),
        ),
        (2,),
    )
    fallback = Fallback(program, "k" * 64, (S0,), (0,), (2,))
    found = check_lowering(EXP, fallback, seed=1)
    assert found.problem == ""
    assert found.cases >= 3
    assert "ATen says" in check_lowering(with_op(EXP, "neg"), fallback, seed=1).problem


def test_sizes_where_the_ops_make_another_shape_are_left_out() -> None:
    """view(-1, 4) makes what the Program says where its other size is 4, as the guards said."""
    x, square = tensor(S0, S1), tensor(S0, S1)
    program = pr.Program(
        (pr.Symbol("s0", 2, 64), pr.Symbol("s1", 2, 4)),
        (x,),
        (
            node("view.default", pr.Ref(0), (ex.Int(-1), ex.Int(4)), makes=(square,)),
            node("exp.default", pr.Ref(1), makes=(square,)),
        ),
        (2,),
    )
    fallback = Fallback(program, "k" * 64, (ex.mul(S0, S1),), (0,), (2,))
    found = check_lowering(EXP, fallback, seed=1)
    assert found.problem == ""
    assert found.cases >= 1
    assert "ATen says" in check_lowering(with_op(EXP, "tanh"), fallback, seed=1).problem


def test_sizes_that_alone_make_as_many_parts_as_were_captured_are_found() -> None:
    """split(x, 2) has three parts of 5 or of 6; the ranges say what the last one's size does."""
    last = tensor(ex.sub(S0, 4))
    program = pr.Program(
        (pr.Symbol("s0", 4),),
        (tensor(S0),),
        (
            replace(
                node("split.Tensor", pr.Ref(0), ex.Int(2), makes=(tensor(2), tensor(2), last)),
                aliases=((0, 0), (1, 0), (2, 0)),
            ),
            node("exp.default", pr.Ref(3), makes=(last,)),
        ),
        (4,),
    )
    kernel, fallback = lowered(program)
    found = check_lowering(kernel, fallback, seed=1)
    assert found.problem == ""
    assert found.cases == 2
    assert "ATen says" in check_lowering(with_op(kernel, "neg"), fallback, seed=1).problem


def test_blocks_that_are_fewer_than_those_of_a_sequence_are_found() -> None:
    """s2 is cut into as many parts as s1 has blocks of s0; four of these are left out."""
    s2 = ex.symbol("s2")
    blocks = ex.floordiv(S1, S0)
    x = tensor(ex.sub(blocks, 4), ex.floordiv(s2, blocks))
    program = pr.Program(
        (pr.Symbol("s0", 2), pr.Symbol("s1", 12), pr.Symbol("s2", 2)),
        (x,),
        (node("exp.default", pr.Ref(0), makes=(x,)),),
        (1,),
    )
    kernel, fallback = lowered(program)
    found = check_lowering(kernel, fallback, seed=1)
    assert found.problem == ""
    assert found.cases >= 3
    assert "ATen says" in check_lowering(with_op(kernel, "neg"), fallback, seed=1).problem
