"""The examples in the docstrings of the rules are right."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import nearhint_rules

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(nearhint_rules.__path__, "nearhint_rules.")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_right(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_modules_to_look_at() -> None:
    assert "nearhint_rules.expr.algebra" in MODULES
