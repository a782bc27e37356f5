"""The log of each test goes nowhere but to that test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from nearhint_daemon import logs


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    """What is sent to a stderr that was captured here would meet a closed file elsewhere."""
    loggers = (logging.getLogger(), logs._ROOT)
    before = [(each, each.handlers[:], each.level, each.propagate) for each in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate
