"""The examples in docstrings are right; those of the rules have a test of their own."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = ("nearhint", "nearhint_torch", "nearhint_compiler", "nearhint_daemon")
NO_IMPORT = ("__main__",)
"""Modules that do something when they are imported."""


def modules() -> list[str]:
    return sorted(
        module.name
        for name in PACKAGES
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}.")
        if not module.name.endswith(NO_IMPORT)
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_examples_in_docstrings_are_right(package: str) -> None:
    finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner()
    failed: list[str] = []
    for name in modules():
        if name.startswith(f"{package}."):
            for example in finder.find(importlib.import_module(name), name):
                # torch takes its own names out of the globals later, when a compiled function dies.
                failed += [example.name] * bool(runner.run(example, clear_globs=False).failed)
    assert failed == []
    assert runner.tries > 0
