"""The one package with names that torch does not promise to keep.

All else in `nearhint_torch` uses torch's public interface, or the types defined here. Each name has
a test in tests/unit/torch/test_adapter.py; where 2.11 and 2.13 differ, both spellings are here.
May import: torch.
"""

from __future__ import annotations

from nearhint_torch.adapter.arguments import has_addresses, is_watched, map_placed, place_text
from nearhint_torch.adapter.calls import (
    EmptyMaker,
    Viewer,
    current_stream,
    empty_maker,
    has_hooks,
    on_device,
    viewer,
)
from nearhint_torch.adapter.captures import CAPTURES_LIMIT, captures_limit, capturing_all
from nearhint_torch.adapter.marks import (
    NotDynamic,
    exported_dimension,
    mark_dynamic,
    marks_of,
    put_back,
)
from nearhint_torch.adapter.originals import original_of
from nearhint_torch.adapter.schemas import Parameter, Schema, op_name, schema_of
from nearhint_torch.adapter.symbols import (
    REMAINDERS,
    ShapeFacts,
    SymbolFacts,
    SymbolicExpr,
    size_expression,
    source_name,
)
from nearhint_torch.adapter.tracing import (
    ControlFlow,
    GraphCompiler,
    Runnable,
    aot_inference,
    is_saving,
    outputs_from_arguments,
    returns_gradients,
    static_inputs,
)

__all__ = [
    "CAPTURES_LIMIT",
    "REMAINDERS",
    "ControlFlow",
    "EmptyMaker",
    "GraphCompiler",
    "NotDynamic",
    "Parameter",
    "Runnable",
    "Schema",
    "ShapeFacts",
    "SymbolFacts",
    "SymbolicExpr",
    "Viewer",
    "aot_inference",
    "captures_limit",
    "capturing_all",
    "current_stream",
    "empty_maker",
    "exported_dimension",
    "has_addresses",
    "has_hooks",
    "is_saving",
    "is_watched",
    "map_placed",
    "mark_dynamic",
    "marks_of",
    "on_device",
    "op_name",
    "original_of",
    "outputs_from_arguments",
    "place_text",
    "put_back",
    "returns_gradients",
    "schema_of",
    "size_expression",
    "source_name",
    "static_inputs",
    "viewer",
]
