"""Parts that an extra of the distribution brings, loaded on first use."""

from __future__ import annotations

import importlib
from types import ModuleType

from nearhint.errors import MissingExtra


def load(module: str, *, what: str, extra: str) -> ModuleType:
    """A module that needs `nearhint[extra]`; raises `MissingExtra` in the name of `what`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "nearhint":
            raise
        raise MissingExtra(what=what, module=error.name or module, extra=extra) from error
