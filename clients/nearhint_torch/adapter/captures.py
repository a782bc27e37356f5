"""How often torch captures one function; past that its calls run as they were written."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from torch._dynamo import config

CAPTURES_LIMIT = "torch._dynamo.config.recompile_limit"
"""The setting that says so; of each function, and of each of its parts between graph breaks."""
_ENOUGH = 1 << 20


def captures_limit() -> int:
    """How often that is."""
    return int(config.recompile_limit)


@contextmanager
def capturing_all() -> Generator[None]:
    """Within, a function is captured however often it was."""
    with config.patch(recompile_limit=_ENOUGH, accumulated_recompile_limit=_ENOUGH):
        yield
