"""Errors of the shared vocabulary: one class per cause, each with a stable code."""

from __future__ import annotations


class RulesError(ValueError):
    """Base of all errors raised by `nearhint_rules`; `code` is stable across releases."""

    code = "RULES"


class InvalidExpression(RulesError):
    """A size expression is outside the grammar, or cannot be evaluated."""

    code = "EXPRESSION_INVALID"


class InvalidProgram(RulesError):
    """A Program breaks a structural rule; `field` names the offending place, e.g. `nodes[3].inputs`."""

    code = "PROGRAM_INVALID"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class InvalidTable(RulesError):
    """A Table contradicts itself: a ranked Variant that is not listed, hints of the wrong rank."""

    code = "TABLE_INVALID"
