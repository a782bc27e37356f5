"""Size expressions between domain and wire, and the checks that all conversions share.

What comes from the wire is untrusted: depth, counts, ranges and names are bounded here, and what
breaks a bound raises `InvalidMessage`, which names the field. Nothing else is ever raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Sized

from google.protobuf.message import EncodeError

from nearhint_proto.v1 import types_pb2 as pb
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression, InvalidMessage
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES, OTHER_DTYPE, SIZE_LIMIT

WIRE_DEPTH_LIMIT = 40
"""Levels of one expression in a message: protobuf's own limit is 100 messages in each other."""
WORK_LIMIT = 500_000
"""Terms that the distinct expressions of one message may expand to: a second of work at worst."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_count(items: Sized, limit: int, field: str) -> None:
    """Raises `InvalidMessage` if there are more than `limit` items."""
    if len(items) > limit:
        raise InvalidMessage(field, f"{len(items)} items, at most {limit}")


def check_range(value: int, low: int, high: int, field: str) -> int:
    """`value`, if it lies in low .. high inclusive."""
    if not low <= value <= high:
        raise InvalidMessage(field, f"{value} is outside {low} .. {high}")
    return value


def check_size(value: int, field: str) -> int:
    """`value`, if it is a size: below 2^62."""
    if not 0 <= value < SIZE_LIMIT:
        raise InvalidMessage(field, f"{value} is outside 0 .. 2^62")
    return value


def check_identifier(text: str, field: str) -> str:
    """`text`, if it is an identifier of at most 64 letters."""
    if not ex.SYMBOL_PATTERN.fullmatch(text):
        raise InvalidMessage(field, "not an identifier")
    return text


def check_sha256(text: str, field: str) -> str:
    """`text`, if it is a sha256 in 64 lower-case hex digits."""
    if not _SHA256.fullmatch(text):
        raise InvalidMessage(field, "not 64 lower-case hex digits")
    return text


def check_text(text: str, limit: int, field: str) -> str:
    """`text`, if it is at most `limit` characters long and has no control characters."""
    if len(text) > limit:
        raise InvalidMessage(field, f"{len(text)} characters, at most {limit}")
    if _CONTROL.search(text):
        raise InvalidMessage(field, "control characters")
    return text


def printable(text: str, limit: int) -> str:
    """Free text, cut and cleaned so that `check_text` takes it; for what no identity hangs on."""
    return _CONTROL.sub(" ", text[:limit])


def check_dtype(text: str, field: str) -> str:
    """`text`, if it is a dtype of the rules."""
    if text not in DTYPES and text != OTHER_DTYPE:
        raise InvalidMessage(field, "unknown dtype")
    return text


def expr_to_proto(expr: Expr) -> pb.Expr:
    """The message of an expression; raises `InvalidExpression` beyond `WIRE_DEPTH_LIMIT` levels."""
    return _to_proto(expr, WIRE_DEPTH_LIMIT)


def _to_proto(expr: Expr, depth_left: int) -> pb.Expr:
    if depth_left == 0:
        raise InvalidExpression(f"nested more than {WIRE_DEPTH_LIMIT} levels deep")
    inner = [_to_proto(child, depth_left - 1) for child in ex.children(expr)]
    match expr:
        case ex.Int(value):
            return pb.Expr(constant=value)
        case ex.Sym(name):
            return pb.Expr(symbol=name)
        case ex.Pow(_, exponent):
            return pb.Expr(power=pb.Expr.Power(base=inner[0], exponent=exponent))
        case ex.Add():
            return pb.Expr(sum=pb.Expr.Operands(args=inner))
        case ex.Mul():
            return pb.Expr(product=pb.Expr.Operands(args=inner))
        case ex.Min():
            return pb.Expr(minimum=pb.Expr.Operands(args=inner))
        case ex.Max():
            return pb.Expr(maximum=pb.Expr.Operands(args=inner))
        case ex.FloorDiv():
            return pb.Expr(floordiv=pb.Expr.Pair(left=inner[0], right=inner[1]))
        case ex.Mod():
            return pb.Expr(mod=pb.Expr.Pair(left=inner[0], right=inner[1]))


_OPERANDS: dict[str, Callable[..., Expr]] = {
    "sum": ex.add,
    "product": ex.mul,
    "minimum": ex.minimum,
    "maximum": ex.maximum,
}
_PAIRS: dict[str, Callable[[Expr, Expr], Expr]] = {"floordiv": ex.floordiv, "mod": ex.mod}


class ExprReader:
    """Reads the expressions of one message into canonical form, within one budget of work.

    The same bytes are read once: a Program repeats a few sizes thousands of times.
    """

    __slots__ = ("_known", "_work_left")

    def __init__(self) -> None:
        self._known: dict[bytes, Expr] = {}
        self._work_left = WORK_LIMIT

    def read(self, message: pb.Expr, field: str) -> Expr:
        """The expression; raises `InvalidMessage`."""
        kind = message.WhichOneof("kind")
        if kind == "constant":
            return ex.Int(message.constant)
        if kind == "symbol":
            return ex.Sym(check_identifier(message.symbol, field))
        try:
            key = message.SerializeToString(deterministic=True)
        except EncodeError:
            raise InvalidMessage(field, "nested too deep") from None
        known = self._known.get(key)
        if known is None:
            try:
                known = self._read(message, field, WIRE_DEPTH_LIMIT)
            except InvalidExpression as problem:
                raise InvalidMessage(field, str(problem)) from None
            self._known[key] = known
        return known

    def read_all(self, messages: Sequence[pb.Expr], field: str) -> tuple[Expr, ...]:
        """The expressions of a repeated field, whose length the caller has bounded."""
        return tuple(
            self.read(message, f"{field}[{position}]") for position, message in enumerate(messages)
        )

    def _read(self, message: pb.Expr, field: str, depth_left: int) -> Expr:
        if depth_left == 0:
            raise InvalidMessage(field, f"nested more than {WIRE_DEPTH_LIMIT} levels deep")
        self._spend(1, field)
        kind = message.WhichOneof("kind")
        if kind == "constant":
            return ex.Int(message.constant)
        if kind == "symbol":
            return ex.Sym(check_identifier(message.symbol, field))
        if kind == "power":
            base = self._read(message.power.base, field, depth_left - 1)
            check_range(message.power.exponent, 0, ex.DEGREE_LIMIT, field)
            self._spend_on([base] * message.power.exponent, field)
            return ex.power(base, message.power.exponent)
        if kind in _PAIRS:
            pair = message.floordiv if kind == "floordiv" else message.mod
            left = self._read(pair.left, field, depth_left - 1)
            right = self._read(pair.right, field, depth_left - 1)
            self._spend_on([left, right], field)
            return _PAIRS[kind](left, right)
        if kind in _OPERANDS:
            operands: pb.Expr.Operands = getattr(message, kind)
            check_count(operands.args, ex.MONOMIAL_LIMIT, field)
            if not operands.args:
                raise InvalidMessage(field, f"a {kind} of nothing")
            inner = [self._read(arg, field, depth_left - 1) for arg in operands.args]
            if kind == "product":
                self._spend_on(inner, field)
            else:
                self._spend(sum(map(ex.size_of, inner)), field)
            return _OPERANDS[kind](*inner)
        raise InvalidMessage(field, "no expression")

    def _spend(self, work: int, field: str) -> None:
        self._work_left -= work
        if self._work_left < 0:
            raise InvalidMessage(field, f"expressions that expand to more than {WORK_LIMIT} terms")

    def _spend_on(self, factors: Sequence[Expr], field: str) -> None:
        """What multiplying costs: each term of one side meets each operator of the other."""
        terms, size = 1, 1
        for factor in factors:
            factor_terms = len(factor.terms) if isinstance(factor, ex.Add) else 1
            factor_size = ex.size_of(factor)
            self._spend(terms * factor_size + factor_terms * size, field)
            terms = min(terms * factor_terms, ex.MONOMIAL_LIMIT)
            size = min(size * factor_terms + terms * factor_size, ex.SIZE_LIMIT)


def expr_from_proto(message: pb.Expr, *, field: str = "expr") -> Expr:
    """The canonical expression of a message; raises `InvalidMessage`."""
    return ExprReader().read(message, field)
