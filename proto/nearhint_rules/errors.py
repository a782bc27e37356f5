"""Errors of the shared vocabulary: one class per cause, each with a stable code."""

from __future__ import annotations


class RulesError(ValueError):
    """Base of all errors raised by `nearhint_rules`; `code` is stable across releases."""

    code = "RULES"


class InvalidExpression(RulesError):
    """A size expression is outside the grammar, or cannot be evaluated."""

    code = "EXPRESSION_INVALID"


class InvalidMessage(RulesError):
    """A value or message breaks a rule; `field` names the place, e.g. `nodes[3].inputs`."""

    code = "MESSAGE_INVALID"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class InvalidProgram(InvalidMessage):
    """A Program, or a Fallback, breaks a structural rule."""

    code = "PROGRAM_INVALID"


class InvalidPlan(InvalidMessage):
    """A Plan breaks a structural rule."""

    code = "PLAN_INVALID"


class InvalidTable(InvalidMessage):
    """A Table contradicts itself: a ranked Variant that is not listed, hints of the wrong rank."""

    code = "TABLE_INVALID"


class InvalidRange(RulesError):
    """A range of sizes is empty, or a size is outside it; `symbol` names whose."""

    code = "RANGE_INVALID"

    def __init__(self, symbol: str, problem: str) -> None:
        super().__init__(f"{symbol}: {problem}")
        self.symbol = symbol
        self.problem = problem
