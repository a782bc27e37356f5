"""The lowering table of elementwise ops: one row an op.

A row is `elementwise(build, "argument names", computed_in, defaults)`. `computed_in` is "output"
(every operand is cast to the output's dtype), "operands" (to torch's result type, and operands of
another dtype are as it has them: comparisons and remainders, which jump) or "own" (each operand
keeps its dtype).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.call import Call, Operand, as_number, is_host_scalar
from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.loops import BROADCAST, Loops, Point, Read
from nearhint_compiler.frontend.refusals import no_booleans, no_overflow
from nearhint_rules.expr import ONE, Int
from nearhint_rules.program import DTYPES, Arg, Ref, TensorType

Rule: TypeAlias = Callable[[Call], Loops]
Body: TypeAlias = Callable[..., Value]


def elementwise(body: Body, names: str, computed_in: str = "output", **defaults: Arg) -> Rule:
    """The rule of an op whose leading arguments, up to a bar, are operands.

    `names` lists the op's arguments; those after `|` reach `body` as keyword arguments, raw.
    """
    operand_text, _, option_text = names.partition("|")
    operand_names, option_names = operand_text.split(), option_text.split()

    def rule(call: Call) -> Loops:
        call.bind([*operand_names, *option_names], defaults)
        shape = call.out.shape
        operands = [call.operand(name, shape) for name in operand_names]
        options = {name: call[name] for name in option_names}
        wanted = [_wanted(computed_in, operand, operands, call.out.dtype) for operand in operands]

        def build(point: Point) -> tuple[Value]:
            values = [
                operand.at(point, dtype) for operand, dtype in zip(operands, wanted, strict=True)
            ]
            if computed_in == "operands":
                values = [
                    value if operand.dtype == value.dtype else point.emit.nearest(value)
                    for operand, value in zip(operands, values, strict=True)
                ]
            result = body(point.emit, *values, **options)
            return (point.emit.cast(result, call.out.dtype),)

        return call.pointwise(build)

    return rule


def _wanted(computed_in: str, operand: Operand, operands: list[Operand], output: str) -> str:
    if computed_in == "own":
        return operand.dtype
    return output if computed_in == "output" else common_dtype(operands)


def common_dtype(operands: list[Operand]) -> str:
    """torch's result type of these operands."""
    found = dtypes.result_type(
        tensors=[operand.dtype for operand in operands if operand.kind == "tensor"],
        zero_dim=[operand.dtype for operand in operands if operand.kind == "zero_dim"],
        numbers=[operand.dtype for operand in operands if operand.kind == "number"],
    )
    if found is None:
        raise Unlowerable("no operands")
    return found


def _op(name: str) -> Body:
    return lambda e, *operands: e.op(name, *operands)


def _float_op(name: str) -> Body:
    """An op that integers pass through unchanged: floor, ceil, round, trunc."""
    return lambda e, x: x if e.is_integer(x) else e.op(name, x)


def _add(e: Emitter, x: Value, y: Value, *, alpha: Arg) -> Value:
    if x.dtype == "bool":
        return e.op("or", x, scaled(e, y, alpha))
    return e.op("add", x, scaled(e, y, alpha))


def _sub(e: Emitter, x: Value, y: Value, *, alpha: Arg) -> Value:
    return e.op("sub", x, scaled(e, y, alpha))


def _rsub(e: Emitter, x: Value, y: Value, *, alpha: Arg) -> Value:
    return e.op("sub", y, scaled(e, x, alpha))


def scaled(e: Emitter, value: Value, factor: Arg | Value) -> Value:
    """`value` times a number among the arguments, which is 1 for the most part."""
    if isinstance(factor, Value):
        return e.op("mul", factor, value)
    if factor == Int(1) or (isinstance(factor, float) and factor == 1.0):
        return value
    return e.op("mul", number_as(e, value.dtype, factor), value)


def number_as(e: Emitter, dtype: str, arg: Arg) -> Value:
    """A number among the arguments, in the dtype that `dtype` is computed in."""
    if isinstance(arg, Int):
        return e.const(dtype, arg.value)
    if isinstance(arg, float) and dtypes.CATEGORY[dtype] == 2:
        return e.const(dtype, arg)
    raise Unlowerable("a number is wanted")


def _mul(e: Emitter, x: Value, y: Value) -> Value:
    return e.op("and" if x.dtype == "bool" else "mul", x, y)


def _divide(e: Emitter, x: Value, y: Value, *, rounding_mode: Arg = None) -> Value:
    names = {None: "div", "floor": "floordiv", "trunc": "truncdiv"}
    if rounding_mode is not None and not isinstance(rounding_mode, str):
        raise Unlowerable("a rounding mode is wanted")
    if rounding_mode not in names:
        raise Unlowerable("an unknown rounding mode")
    return e.op(names[rounding_mode], x, y)


def _truncated(e: Emitter, x: Value, y: Value, *, rounding_mode: Arg) -> Value:
    """As `_divide`; a quotient of low precision is rounded before it is cut."""
    if rounding_mode != "trunc" or x.dtype not in dtypes.FLOATS:
        return _divide(e, x, y, rounding_mode=rounding_mode)
    return e.op("trunc", e.nearest(e.op("div", x, y)))


def _divided(call: Call) -> Loops:
    """A quotient with a rounding mode; by a single number eager cuts what is more precise."""
    call.bind(("self", "other", "rounding_mode"), {"rounding_mode": None})
    body = _divide if _is_single(call, call["other"]) else _truncated
    return elementwise(body, "self other | rounding_mode", rounding_mode=None)(call)


def _is_single(call: Call, arg: Arg) -> bool:
    """Whether an operand is one number for eager; on a GPU only what lies on the host is."""
    kind = call.types[arg.value] if isinstance(arg, Ref) else None
    if not isinstance(kind, TensorType):
        return True
    return is_host_scalar(kind) or (call.device == "cpu" and {*kind.shape} <= {ONE})


def _compare(name: str) -> Body:
    """Whether a value is infinite, its own precision says."""
    return lambda e, x, y: e.op(name, e.overflowed(x) if e.is_infinity(y) else x, y)


def _logical(name: str) -> Body:
    return lambda e, *operands: e.op(name, *(e.cast(operand, "bool") for operand in operands))


def _pow_scalar(e: Emitter, x: Value, *, exponent: Arg) -> Value:
    if isinstance(exponent, Int):
        number: float = exponent.value
    elif isinstance(exponent, float) and not e.is_integer(x):
        number = exponent
    else:
        raise Unlowerable("an exponent is wanted")
    if number in _POWERS and ((number >= 0 and number == int(number)) or not e.is_integer(x)):
        return _POWERS[number](e, x)
    if x.dtype not in dtypes.FLOATS:
        raise Unlowerable("an integer power")
    return e.op("pow", x, e.const(x.dtype, number))


def _power(call: Call) -> Loops:
    """A power by a number; of f16, eager's CPU takes no roots for those by a half."""
    call.bind(("self", "exponent"), {})
    is_root = call["exponent"] in (0.5, -0.5)
    if is_root and call.out.dtype == "f16" and call.device == "cpu":
        return _POWER(call)
    if call.is_given_number(call["exponent"]):
        return _POWER_BY_GIVEN(call)
    return _POWER_BY_NUMBER(call)


def _power_or_root(e: Emitter, x: Value, exponent: Value) -> Value:
    """A power by a number that is not known here: for those by a half, eager takes roots."""
    found = e.op("pow", x, exponent)
    for half, root in ((0.5, "sqrt"), (-0.5, "rsqrt")):
        is_half = e.op("eq", exponent, e.const(exponent.dtype, half))
        found = e.op("where", is_half, e.op(root, x), found)
    return found


def _square(e: Emitter, x: Value) -> Value:
    return e.op("mul", x, x)


_POWER = elementwise(_op("pow"), "self exponent")
_POWER_BY_GIVEN = elementwise(_power_or_root, "self exponent")
_POWER_BY_NUMBER = elementwise(_pow_scalar, "self | exponent")
_POWERS: Mapping[float, Body] = {
    0.0: lambda e, x: e.const(x.dtype, 1),
    1.0: lambda e, x: x,
    2.0: _square,
    3.0: lambda e, x: e.op("mul", _square(e, x), x),
    4.0: lambda e, x: _square(e, _square(e, x)),
    0.5: lambda e, x: e.op("sqrt", x),
    -0.5: lambda e, x: e.op("rsqrt", x),
    -1.0: lambda e, x: e.op("reciprocal", x),
    -2.0: lambda e, x: e.op("reciprocal", _square(e, x)),
}
"""Exponents that eager computes exactly as well, and the chains that give the same."""


def is_short_power(exponent: Arg) -> bool:
    """Whether a power by this number is a few products, a root or a quotient."""
    number = exponent.value if isinstance(exponent, Int) else exponent
    return isinstance(number, (int, float)) and number in _POWERS


def _where(call: Call) -> Loops:
    call.bind(("condition", "self", "other"), {})
    shape, dtype = call.out.shape, call.out.dtype
    condition, left, right = (call.operand(name, shape) for name in ("condition", "self", "other"))

    def build(point: Point) -> tuple[Value]:
        chosen = condition.at(point, "bool")
        return (point.emit.op("where", chosen, left.at(point, dtype), right.at(point, dtype)),)

    return call.pointwise(build)


def _masked_fill(call: Call) -> Loops:
    call.bind(("self", "mask", "value"), {})
    shape, dtype = call.out.shape, call.out.dtype
    x, mask, fill = (call.operand(name, shape) for name in ("self", "mask", "value"))

    def build(point: Point) -> tuple[Value]:
        filled = point.emit.rounded(fill.at(point, dtypes.compute_dtype(dtype)), dtype)
        return (point.emit.op("where", mask.at(point, "bool"), filled, x.at(point, dtype)),)

    return call.pointwise(build)


def put_where(call: Call) -> Loops:
    """One value where a mask of the leading dims says so, and `self` elsewhere."""
    call.bind(("self", "indices", "values", "accumulate"), {"accumulate": False})
    shape, dtype, listed = call.out.shape, call.out.dtype, call["indices"]
    if not isinstance(listed, tuple) or len(listed) != 1 or call.flag("accumulate"):
        raise Unlowerable("no single mask, or what is added up")
    mask, kind = call.tensor_at(listed[0])
    values = call.tensor("values")
    if kind.dtype != "bool" or kind.shape != shape[: len(kind.shape)]:
        raise Unlowerable("places, or a mask of other dims than the leading ones")
    if not {*values.shape} <= {ONE} or values.dtype != dtype:
        raise Unlowerable("several values, or one of another dtype")
    x, value = call.operand("self", shape), call.operand("values", shape)
    call.reads.append(Read(mask, tuple(range(len(kind.shape)))))
    place = len(call.reads) - 1

    def build(point: Point) -> tuple[Value]:
        given = value.at(point, dtype), x.at(point, dtype)
        return (point.emit.op("where", point.read(place), *given),)

    return call.pointwise(build)


def _clamp(low_name: str, high_name: str) -> Rule:
    def rule(call: Call) -> Loops:
        names = [name for name in ("self", low_name, high_name) if name]
        call.bind(names, dict.fromkeys(names[1:]))
        shape, dtype = call.out.shape, call.out.dtype
        x = call.operand("self", shape)
        bounds = [
            (op, call.operand(name, shape))
            for op, name in (("max", low_name), ("min", high_name))
            if name and call[name] is not None
        ]

        def build(point: Point) -> tuple[Value]:
            value = x.at(point, dtype)
            for op, bound in bounds:
                value = point.emit.op(op, value, bound.at(point, dtype))
            return (value,)

        return call.pointwise(build)

    return rule


def _copy(names: str, source: str = "", *, saturates: bool = True) -> Rule:
    """Copies and casts of one argument, by default the first: an explicit cast to low precision
    does round.
    """
    first, *others = names.split()
    source = source or first

    def rule(call: Call) -> Loops:
        call.bind((first, *others), dict.fromkeys(others))
        call.tensor(source)
        x = call.operand(source, call.out.shape)
        dtype = call.out.dtype
        if source != first and dtype != x.dtype and dtype in dtypes.STORED_FLOATS:
            raise Unlowerable("a cast to 8-bit floats that no op of its own makes")

        def build(point: Point) -> tuple[Value]:
            return (point.emit.rounded(x.at(point, x.dtype), dtype, saturates=saturates),)

        return call.pointwise(build)

    return rule


def _added(op: str) -> Rule:
    """`self` and `value` times what `op` makes of two tensors; eager's CPU scales the first one.

    Both orders overflow, but not for the same numbers.
    """

    def of_scaled(e: Emitter, x: Value, y: Value, z: Value, *, value: Arg) -> Value:
        return e.op("add", x, e.op(op, scaled(e, y, value), z))

    def of_product(e: Emitter, x: Value, y: Value, z: Value, *, value: Arg) -> Value:
        return e.op("add", x, scaled(e, e.op(op, y, z), value))

    rules = {
        device: elementwise(body, "self tensor1 tensor2 | value", value=Int(1))
        for device, body in (("cpu", of_scaled), ("cuda", of_product))
    }
    return lambda call: rules[call.device](call)


def _lerp(e: Emitter, x: Value, y: Value, weight: Value) -> Value:
    half, one = e.const(x.dtype, 0.5), e.const(x.dtype, 1.0)
    step = e.op("sub", y, x)
    near = e.op("add", x, e.op("mul", weight, step))
    far = e.op("sub", y, e.op("mul", step, e.op("sub", one, weight)))
    return e.op("where", e.op("lt", e.op("abs", weight), half), near, far)


def _nan_to_num(e: Emitter, x: Value, *, nan: Arg, posinf: Arg, neginf: Arg) -> Value:
    """What would be infinite once it is rounded is so here: eager has rounded it."""
    if x.dtype not in dtypes.FLOATS:
        return x
    largest, infinite = dtypes.LARGEST[x.dtype], dtypes.INFINITE_FROM[x.dtype]
    fills = (
        (e.op("isnan", x), 0.0 if nan is None else nan),
        (e.op("ge", x, e.const(x.dtype, infinite)), largest if posinf is None else posinf),
        (e.op("le", x, e.const(x.dtype, -infinite)), -largest if neginf is None else neginf),
    )
    found = x
    for is_it, fill in fills:
        found = e.op("where", is_it, number_as(e, x.dtype, fill), found)
    return found


def _shift(name: str) -> Body:
    """A shift by less than nothing, or by the width or more, leaves the sign's copies or zeros."""

    def body(e: Emitter, x: Value, places: Value) -> Value:
        last = 8 * DTYPES[x.dtype] - 1
        inside = e.op(name, x, e.op("and", places, e.const(x.dtype, last)))
        keeps_sign = name == "shr" and x.dtype != "u8"
        beyond = e.op("shr", x, e.const(x.dtype, last)) if keeps_sign else e.const(x.dtype, 0)
        is_beyond = e.op("gt", places, e.const(x.dtype, last))
        is_before = e.op("lt", places, e.const(x.dtype, 0))
        return e.op("where", e.op("or", is_beyond, is_before), beyond, inside)

    return body


def _logaddexp(e: Emitter, x: Value, y: Value) -> Value:
    """Infinities of one sign are what their sum is; else the larger, and what the other adds."""
    distance = e.op("neg", e.op("abs", e.op("sub", x, y)))
    total = e.op("add", e.op("max", x, y), e.op("log1p", e.op("exp", distance)))
    same = e.op("and", e.op("isinf", x), e.op("eq", x, y))
    return e.op("where", same, x, total)


def _xlogy(e: Emitter, x: Value, y: Value) -> Value:
    zero = e.const(x.dtype, 0)
    found = e.op("where", e.op("eq", x, zero), zero, e.op("mul", x, e.op("log", y)))
    return e.op("where", e.op("isnan", y), y, found)


def _logit(e: Emitter, x: Value, *, eps: Arg) -> Value:
    one = e.const(x.dtype, 1.0)
    if eps is not None:
        if as_number(eps) > 0.5:
            raise Unlowerable("an epsilon whose bounds cross")
        least = number_as(e, x.dtype, eps)
        x = e.op("min", e.op("max", x, least), e.op("sub", one, least))
    return e.op("log", e.op("div", x, e.op("sub", one, x)))


def _frac(e: Emitter, x: Value) -> Value:
    return e.op("sub", x, e.op("trunc", x))


def _isnan(e: Emitter, x: Value) -> Value:
    return e.const("bool", 0) if x.dtype not in dtypes.FLOATS else e.op("isnan", x)


def _isinf(e: Emitter, x: Value) -> Value:
    if x.dtype not in dtypes.FLOATS:
        return e.const("bool", 0)
    return e.op("isinf", e.overflowed(x))


def _terms(body: Body) -> Rule:
    """Two terms, of which one is scaled by a constant, or by a number that each call gives."""
    by_constant = elementwise(body, "self other | alpha", alpha=Int(1))
    by_given = elementwise(lambda e, x, y, alpha: body(e, x, y, alpha=alpha), "self other alpha")

    def rule(call: Call) -> Loops:
        is_given = any(
            name == "alpha" and call.is_given_number(arg) for name, arg in call.node.kwargs
        )
        return (by_given if is_given else by_constant)(call)

    return no_overflow(rule, "alpha")


def _repeat(call: Call) -> Loops:
    """Copies beside one another along dims of one element, and along new ones before all others."""
    call.bind(("self", "repeats"), {})
    source, times = call.tensor("self").shape, call.sizes("repeats")
    new = len(times) - len(source)
    if new < 0 or len(call.out.shape) != len(times):
        raise Unlowerable("fewer repeats than dims")
    pairs = list(zip(source, times[new:], strict=True))
    if any(size != ONE != count for size, count in pairs):
        raise Unlowerable("copies of more than one element along a dim")
    shape = (*times[:new], *(count if size == ONE else size for size, count in pairs))
    if call.out.shape != shape:
        raise Unlowerable("a repeat whose traced shape is not the one it should have")
    dims = [BROADCAST if size == ONE else dim for dim, size in enumerate(source, new)]
    place, dtype = call.read("self", tuple(dims)), call.out.dtype
    return call.loops(
        shape, frozenset(), lambda point: (point.emit.cast(point.read(place), dtype),)
    )


def _round_to(e: Emitter, x: Value, *, decimals: Arg) -> Value:
    """A multiple of a power of ten; in low precision eager rounds each of three steps."""
    if x.dtype not in ("f64", "f32") or not isinstance(decimals, Int) or abs(decimals.value) > 30:
        raise Unlowerable("digits of an integer or of low precision, or beyond all numbers")
    power = e.const(x.dtype, 10.0 ** abs(decimals.value))
    away, back = ("div", "mul") if decimals.value < 0 else ("mul", "div")
    return e.op(back, e.op("round", e.op(away, x, power)), power)


def _binary_rows(op: str, body: Body, computed_in: str = "output") -> dict[str, Rule]:
    rule = elementwise(body, "self other", computed_in)
    return {f"aten.{op}.Tensor": rule, f"aten.{op}.Scalar": rule}


_MATH = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan",
    "tanh", "erf", "sigmoid", "reciprocal",
)  # fmt: skip

POINTWISE: Mapping[str, Rule] = {
    # arithmetic
    "aten.add.Tensor": _terms(_add),
    "aten.add.Scalar": _terms(_add),
    "aten.sub.Tensor": no_booleans(_terms(_sub), "self", "other"),
    "aten.sub.Scalar": _terms(_sub),
    "aten.rsub.Tensor": no_booleans(_terms(_rsub), "self", "other"),
    "aten.rsub.Scalar": no_booleans(_terms(_rsub), "self", "other"),
    **_binary_rows("mul", _mul),
    **_binary_rows("div", _divide),
    "aten.true_divide.Tensor": elementwise(_divide, "self other"),
    "aten.div.Tensor_mode": _divided,
    "aten.div.Scalar_mode": _divided,
    "aten.floor_divide.default": elementwise(_op("floordiv"), "self other"),
    **_binary_rows("remainder", _op("mod"), "operands"),
    "aten.remainder.Scalar_Tensor": elementwise(_op("mod"), "self other", "operands"),
    **_binary_rows("fmod", _op("fmod"), "operands"),
    "aten.pow.Tensor_Scalar": no_overflow(_power, "exponent"),
    "aten.pow.Tensor_Tensor": _POWER,
    "aten.pow.Scalar": no_overflow(_POWER, "self"),
    "aten.square.default": elementwise(_square, "self"),
    "aten.neg.default": elementwise(_op("neg"), "self"),
    "aten.abs.default": elementwise(_op("abs"), "self"),
    "aten.sign.default": elementwise(_op("sign"), "self"),
    "aten.sgn.default": elementwise(_op("sign"), "self"),
    "aten.frac.default": elementwise(_frac, "self"),
    "aten.addcmul.default": _added("mul"),
    "aten.addcdiv.default": _added("div"),
    "aten.lerp.Scalar": elementwise(_lerp, "self end weight"),
    "aten.lerp.Tensor": elementwise(_lerp, "self end weight"),
    # extrema
    "aten.maximum.default": elementwise(_op("max"), "self other"),
    "aten.minimum.default": elementwise(_op("min"), "self other"),
    "aten.clamp.default": no_overflow(_clamp("min", "max"), "min", "max"),
    "aten.clamp.Tensor": _clamp("min", "max"),
    "aten.clamp_min.default": no_overflow(_clamp("min", ""), "min"),
    "aten.clamp_min.Tensor": _clamp("min", ""),
    "aten.clamp_max.default": no_overflow(_clamp("", "max"), "max"),
    "aten.clamp_max.Tensor": _clamp("", "max"),
    # rounding
    **{
        f"aten.{name}.default": elementwise(_float_op(name), "self")
        for name in ("floor", "ceil", "trunc", "round")
    },
    "aten.round.decimals": elementwise(_round_to, "self | decimals"),
    # transcendental
    **{f"aten.{name}.default": elementwise(_op(name), "self") for name in _MATH},
    "aten.logaddexp.default": elementwise(_logaddexp, "self other"),
    "aten.logit.default": elementwise(_logit, "self | eps", eps=None),
    **{
        f"aten.xlogy.{overload}": no_overflow(elementwise(_xlogy, "self other"), "self", "other")
        for overload in ("Tensor", "Scalar_Self", "Scalar_Other")
    },
    "aten.nan_to_num.default": elementwise(
        _nan_to_num, "self | nan posinf neginf", nan=None, posinf=None, neginf=None
    ),
    # comparison
    **{
        key: rule
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for key, rule in _binary_rows(name, _compare(name), "operands").items()
    },
    "aten.isnan.default": elementwise(_isnan, "self", "own"),
    "aten.isinf.default": elementwise(_isinf, "self", "own"),
    # logic and bits
    "aten.logical_and.default": elementwise(_logical("and"), "self other", "own"),
    "aten.logical_or.default": elementwise(_logical("or"), "self other", "own"),
    "aten.logical_xor.default": elementwise(_logical("xor"), "self other", "own"),
    "aten.logical_not.default": elementwise(_logical("not"), "self", "own"),
    "aten.bitwise_not.default": elementwise(_op("not"), "self"),
    **{
        f"aten.bitwise_{name}.{overload}": elementwise(_op(name), "self other")
        for name in ("and", "or", "xor")
        for overload in ("Tensor", "Scalar")
    },
    **{
        f"aten.{op}": elementwise(_shift(name), "self other")
        for name, side, short in (("shl", "left", "l"), ("shr", "right", "r"))
        for op in (
            f"bitwise_{side}_shift.Tensor",
            f"bitwise_{side}_shift.Tensor_Scalar",
            f"__{short}shift__.Tensor",
            f"__{short}shift__.Scalar",
        )
    },
    # selection
    "aten.where.self": _where,
    "aten.where.ScalarSelf": _where,
    "aten.where.ScalarOther": _where,
    "aten.where.Scalar": _where,
    "aten.masked_fill.Scalar": no_overflow(_masked_fill, "value"),
    "aten.masked_fill.Tensor": _masked_fill,
    "aten.index_put.default": put_where,
    # copies and casts
    "aten.clone.default": _copy("self memory_format"),
    "aten._to_copy.default": _copy(
        "self dtype layout device pin_memory non_blocking memory_format"
    ),
    "prims.convert_element_type.default": _copy("a dtype"),
    "nearhint.cast_or_nan.default": _copy("self dtype", saturates=False),
    "aten.contiguous.default": _copy("self memory_format"),
    "aten.lift_fresh_copy.default": _copy("self"),
    "aten.copy.default": _copy("self src non_blocking", "src"),
    "aten.repeat.default": _repeat,
}
