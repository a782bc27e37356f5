"""Arguments that eager refuses though a Kernel could compute with them.

Such a node stays the client's own, and raises what eager raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend.call import Call
from nearhint_compiler.frontend.loops import Loops
from nearhint_rules.program import Arg, Ref, TensorType

Rule: TypeAlias = Callable[[Call], Loops]

LARGEST: Mapping[str, float] = {
    "f16": 65504.0,
    "bf16": (2 - 2**-7) * 2.0**127,
    "f32": (2 - 2**-23) * 2.0**127,
}


def no_booleans(rule: Rule, *names: str) -> Rule:
    """`rule`, but none of the arguments `names` may be a boolean, or a tensor of them."""

    def checked(call: Call) -> Loops:
        loops = rule(call)
        if any(_is_boolean(call, call[name]) for name in names):
            raise Unlowerable("a boolean that eager refuses")
        return loops

    return checked


def no_overflow(rule: Rule, *names: str) -> Rule:
    """`rule`, but the numbers among the arguments `names` have to be some of the output's dtype."""

    def checked(call: Call) -> Loops:
        loops = rule(call)
        largest = LARGEST.get(call.out.dtype, math.inf)
        for name in names:
            number = call.arguments.get(name)
            if isinstance(number, float) and largest < abs(number) < math.inf:
                raise Unlowerable("a number that eager refuses: it is beyond the dtype's range")
        return loops

    return checked


def _is_boolean(call: Call, arg: Arg) -> bool:
    if isinstance(arg, Ref):
        found = call.types[arg.value]
        return isinstance(found, TensorType) and found.dtype == "bool"
    return isinstance(arg, bool)
