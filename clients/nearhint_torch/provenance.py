"""Where a captured node came from: module path, file and line, for people to read.

No folder of the machine leaves the process: of a file only the last part of its path is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from torch import fx

SOURCE_LIMIT = 160
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_SUBSCRIPT = re.compile(r"\['([^']*)'\]")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def source_of(node: fx.Node) -> str:
    """E.g. `"encoder.layer.0.attention modeling_bert.py:123"`; empty if nothing is known."""
    return _UNPRINTABLE.sub("?", f"{_module_path(node)} {_line(node)}".strip())[:SOURCE_LIMIT]


def label_of(graph: fx.Graph) -> str:
    """The class of the outermost module of the graph, e.g. `"BertModel"`, or nothing."""
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if isinstance(stack, Mapping) and stack:
            _, module = next(iter(stack.values()))
            name = module if isinstance(module, str) else getattr(module, "__name__", "")
            return _UNPRINTABLE.sub("?", name.rpartition(".")[2])[:SOURCE_LIMIT]
    return ""


def _module_path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack")
    if not isinstance(stack, Mapping) or not stack:
        return ""
    path, _ = list(stack.values())[-1]
    dotted = _SUBSCRIPT.sub(r".\1", str(path)).replace("._modules.", ".")
    _, _, inner = dotted.removeprefix("L").lstrip(".").partition(".")
    return inner.replace("_modules.", "")


def _line(node: fx.Node) -> str:
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    file, line = frames[-1]
    return f"{PurePath(file).name}:{line}"
