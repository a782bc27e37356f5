"""What is certain of positions, wherever they lie: comparisons that always hold, or never do.

Masks and places are computed from positions, and these are compared with sizes: whether one counts
from the end, whether it lies inside. Where the answer is certain, nothing of it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping

from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

COMPARISONS: Mapping[str, tuple[int, int]] = {
    "lt": (-1, 1),
    "le": (-1, 0),
    "gt": (1, 1),
    "ge": (1, 0),
}
"""By name the sign and the margin: it holds where sign * (left - right) is the margin at least."""


def compared(name: str, left: Expr, right: Expr, ranges: ix.Ranges) -> bool | None:
    """Whether a comparison holds for all values within `ranges`, or for none; None if unknown.

    >>> within = ix.Ranges({"s0": (1, None)}, {"p0": ex.symbol("s0")})
    >>> compared("lt", ex.symbol("p0"), ex.ZERO, within)
    False
    """
    sign, margin = COMPARISONS[name]
    beyond = ex.sub(ex.mul(sign, ex.sub(left, right)), margin)
    if ix.is_nonnegative(beyond, ranges):
        return True
    if ix.is_nonnegative(ex.sub(-1, beyond), ranges):
        return False
    return None
