"""Arguments that eager refuses though a Kernel could compute with them.

Such a node stays the client's own, and raises what eager raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.call import Call
from nearhint_compiler.frontend.loops import Loops
from nearhint_rules.expr import Int
from nearhint_rules.program import Arg, FloatType, Ref, TensorType

Rule: TypeAlias = Callable[[Call], Loops]
_HOLDS_INTEGERS = frozenset({"f64", "f32", "bf16", "i64", "bool"})
"""Dtypes that eager makes any integer of 64 bits a number of, and refuses none."""
_HOLDS_FLOATS = frozenset({"f64", "f32", "bf16"})
"""Dtypes that have room for all floats that clients hand over: larger ones are for eager."""


def no_booleans(rule: Rule, *names: str) -> Rule:
    """`rule`, but none of the arguments `names` may be a boolean, or a tensor of them."""

    def checked(call: Call) -> Loops:
        loops = rule(call)
        if any(_is_boolean(call, call[name]) for name in names):
            raise Unlowerable("a boolean that eager refuses")
        return loops

    return checked


def no_overflow(rule: Rule, *names: str) -> Rule:
    """`rule`, but the numbers among the arguments `names` have to be some of the output's dtype.

    Those that each call gives are if the dtype has all of them.
    """

    def checked(call: Call) -> Loops:
        loops, dtype = rule(call), call.out.dtype
        given = [call.arguments.get(name) for name in names]
        if any(is_beyond(dtype, arg) for arg in given):
            raise Unlowerable("a number that eager refuses, or makes infinite: it is out of range")
        if any(call.is_given_number(arg) and not holds(dtype, call, arg) for arg in given):
            raise Unlowerable("a number that eager refuses where it is out of range")
        return loops

    return checked


def holds(dtype: str, call: Call, arg: Arg) -> bool:
    """Whether eager makes any number of 64 bits that a call may give one of a dtype."""
    is_float = isinstance(arg, Ref) and call.types[arg.value] == FloatType()
    return dtype in _HOLDS_FLOATS if is_float else dtype in _HOLDS_INTEGERS


def is_beyond(dtype: str, arg: Arg) -> bool:
    """Whether an argument is a number that is finite, and beyond those of a dtype of floats."""
    number = arg.value if isinstance(arg, Int) else arg
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    return dtypes.LARGEST.get(dtype, math.inf) < abs(number) < math.inf


def _is_boolean(call: Call, arg: Arg) -> bool:
    if isinstance(arg, Ref):
        found = call.types[arg.value]
        return isinstance(found, TensorType) and found.dtype == "bool"
    return isinstance(arg, bool)
