"""The one conversion between protobuf messages and the values of `nearhint_rules`.

Both sides use it: `x_to_proto` for what is sent, `x_from_proto` for what is received. The latter
take untrusted messages; they raise `nearhint_rules.errors.InvalidMessage` or one of its subclasses
(`InvalidProgram`, `InvalidPlan`, `InvalidTable`), which name the field, and nothing else.
"""

from __future__ import annotations

from nearhint_proto.convert_artifact import (
    artifact_from_proto,
    artifact_to_proto,
    guard_from_proto,
    guard_to_proto,
)
from nearhint_proto.convert_expr import ExprReader, expr_from_proto, expr_to_proto
from nearhint_proto.convert_plan import (
    fallback_from_proto,
    fallback_to_proto,
    plan_from_proto,
    plan_to_proto,
)
from nearhint_proto.convert_program import (
    program_from_proto,
    program_to_proto,
    symbol_from_proto,
    symbol_to_proto,
)
from nearhint_proto.convert_table import (
    hint_row_from_proto,
    hint_row_to_proto,
    selection_from_proto,
    selection_to_proto,
    size_hint_from_proto,
    size_hint_to_proto,
    table_from_proto,
    table_to_proto,
    timing_from_proto,
    timing_to_proto,
    variant_from_proto,
    variant_to_proto,
)
from nearhint_proto.convert_target import (
    device_from_proto,
    device_to_proto,
    target_from_proto,
    target_to_proto,
)

__all__ = [
    "ExprReader",
    "artifact_from_proto",
    "artifact_to_proto",
    "device_from_proto",
    "device_to_proto",
    "expr_from_proto",
    "expr_to_proto",
    "fallback_from_proto",
    "fallback_to_proto",
    "guard_from_proto",
    "guard_to_proto",
    "hint_row_from_proto",
    "hint_row_to_proto",
    "plan_from_proto",
    "plan_to_proto",
    "program_from_proto",
    "program_to_proto",
    "selection_from_proto",
    "selection_to_proto",
    "size_hint_from_proto",
    "size_hint_to_proto",
    "symbol_from_proto",
    "symbol_to_proto",
    "table_from_proto",
    "table_to_proto",
    "target_from_proto",
    "target_to_proto",
    "timing_from_proto",
    "timing_to_proto",
    "variant_from_proto",
    "variant_to_proto",
]
