"""The lowering table of losses: what they are of each element, then its mean or sum: one row an op.

`binary_cross_entropy` of probabilities is not here: eager raises an error where one is none.
"""

from __future__ import annotations

from collections.abc import Mapping

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.activations import log_sigmoid
from nearhint_compiler.frontend.call import Call, as_number, per_row
from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.loops import Loops, Point
from nearhint_compiler.frontend.pointwise import Body, Rule
from nearhint_compiler.frontend.reductions import all_axes, check_reduced, mean_of, reduced
from nearhint_rules import expr as ex
from nearhint_rules.expr import Int
from nearhint_rules.program import Arg

NONE, MEAN, SUM = range(3)
"""torch's numbers of what is made of a loss's elements."""


def _loss(body: Body, names: str, **defaults: Arg) -> Rule:
    """The rule of a loss over the shape of `self`; operands that are None are left out.

    `names` lists the operands, and behind a bar the number that `body` gets, if there is one.
    """
    operand_text, _, option = names.partition(" | ")
    operand_names = operand_text.split()
    order = [*operand_names, "reduction"] + ([option] if option else [])

    def rule(call: Call) -> Loops:
        call.bind(order, {"reduction": Int(MEAN), **defaults})
        shape, dtype, made = call.tensor("self").shape, call.out.dtype, call.integer("reduction")
        if call.tensor("target").shape != shape or dtype not in dtypes.FLOATS:
            raise Unlowerable("a target of another shape, or a loss of integers")
        given = {
            name: call.operand(name, shape) for name in operand_names if call[name] is not None
        }
        options = {option: as_number(call[option])} if option else {}

        def element(point: Point) -> Value:
            values = {name: operand.at(point, dtype) for name, operand in given.items()}
            return body(point.emit, *[values.get(name) for name in operand_names], **options)

        if made == NONE:
            return call.pointwise(lambda point: (element(point),))
        axes = all_axes(shape)
        check_reduced(call, 0, shape, axes, keepdim=False)
        count = ex.product(shape)

        def total(point: Point) -> tuple[Value]:
            found = element(point)
            is_mean = made == MEAN
            return (
                mean_of(point.emit, found, count) if is_mean else point.emit.reduce("sum", found),
            )

        return per_row(reduced(call, shape, axes, total), 0)

    return rule


def _in_own_dtype(rule: Rule) -> Rule:
    """`rule`, unless the result is traced in another dtype than that of `self`, which it has."""

    def checked(call: Call) -> Loops:
        loops = rule(call)
        if call.out.dtype != call.tensor("self").dtype:
            raise Unlowerable("a loss of less precision than its target, which torch mistakes")
        return loops

    return checked


def _square(e: Emitter, x: Value, target: Value) -> Value:
    away = e.op("sub", x, target)
    return e.op("mul", away, away)


def _smooth_l1(e: Emitter, x: Value, target: Value, *, beta: float) -> Value:
    away, half = e.op("abs", e.op("sub", x, target)), e.const(x.dtype, 0.5)
    turn = e.const(x.dtype, beta)
    near = e.op("div", e.op("mul", e.op("mul", half, away), away), turn)
    far = e.op("sub", away, e.op("mul", half, turn))
    return e.op("where", e.op("lt", away, turn), near, far)


def _huber(e: Emitter, x: Value, target: Value, *, delta: float) -> Value:
    away, half = e.op("abs", e.op("sub", x, target)), e.const(x.dtype, 0.5)
    turn = e.const(x.dtype, delta)
    near = e.op("mul", e.op("mul", half, away), away)
    far = e.op("mul", turn, e.op("sub", away, e.op("mul", half, turn)))
    return e.op("where", e.op("le", away, turn), near, far)


def _soft_margin(e: Emitter, x: Value, target: Value) -> Value:
    return e.op("log1p", e.op("exp", e.op("mul", e.op("neg", x), target)))


def _of_logits(
    e: Emitter, x: Value, target: Value, weight: Value | None, positive: Value | None
) -> Value:
    one, log = e.const(x.dtype, 1), log_sigmoid(e, x)
    if positive is not None:
        more = e.op("mul", e.op("sub", positive, one), target)
        log = e.op("mul", log, e.op("add", more, one))
    found = e.op("sub", e.op("mul", e.op("sub", one, target), x), log)
    return found if weight is None else e.op("mul", found, weight)


LOSSES: Mapping[str, Rule] = {
    "aten.mse_loss.default": _loss(_square, "self target"),
    "aten.smooth_l1_loss.default": _loss(_smooth_l1, "self target | beta", beta=1.0),
    "aten.huber_loss.default": _in_own_dtype(_loss(_huber, "self target | delta", delta=1.0)),
    "aten.soft_margin_loss.default": _in_own_dtype(_loss(_soft_margin, "self target")),
    "aten.binary_cross_entropy_with_logits.default": _loss(
        _of_logits, "self target weight pos_weight", weight=None, pos_weight=None
    ),
}
