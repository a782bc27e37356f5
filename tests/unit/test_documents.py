"""ERRORS.md and METRICS.md say what the code says: no row too few, none too many."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from nearhint import errors as client_errors
from nearhint.exit_codes import ExitCode, exit_code
from nearhint_daemon.errors import STATUS_OF_CODE
from nearhint_daemon.metrics import FALLBACK_REASONS, Metrics
from nearhint_daemon.server import service_methods

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("clients", "compiler", "daemon", "proto")
OPEN_LABELS = frozenset({"version", "compiler", "python", "service", "method", "code", "le"})
"""Labels whose values the page does not list: versions, and names of the protocol."""


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])


TOLD = ("–", "nothing", "report it", "see Daemon", "see Workers", "correct the field")
"""How a remedy begins that no error need repeat: there is none, or the message has it."""
HINTED_MODULES = (
    "nearhint.errors",
    "nearhint.launchers.errors",
    "nearhint_daemon.errors",
    "nearhint_torch.errors",
)


ERROR_MODULES = sorted(
    module_name(path) for source in SOURCES for path in (ROOT / source).rglob("errors.py")
)


def tables(document: str) -> Iterator[tuple[str, list[str]]]:
    """The cells of each row of each table, with the heading that it is under."""
    heading = ""
    for line in (ROOT / document).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|") and not line.startswith("|---"):
            yield heading, [cell.strip() for cell in line.strip("|").split("|")]


def plain(cell: str) -> str:
    return cell.strip("`")


def documented_errors(module: str) -> dict[tuple[str, str], str]:
    """(class, code) -> gRPC status or exit code, from the section of ERRORS.md for `module`."""
    rows = [cells for heading, cells in tables("ERRORS.md") if heading.endswith(f"`{module}`")]
    assert all(len(row) == 5 and all(row) for row in rows), "a row with an empty cell"
    return {(plain(row[1]), plain(row[0])): row[2] for row in rows if row[0] != "code"}


def remedies(module: str) -> dict[tuple[str, str], str]:
    """(class, code) -> what to do, where that is more than the message says: see `TOLD`."""
    rows = [cells for heading, cells in tables("ERRORS.md") if heading.endswith(f"`{module}`")]
    return {
        (plain(row[1]), plain(row[0])): row[4]
        for row in rows
        if row[0] != "code" and not row[4].startswith(TOLD) and "the message" not in row[4]
    }


def raised_by(module: ModuleType) -> dict[str, type[Exception]]:
    return {
        name: each
        for name, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, Exception) and each.__module__ == module.__name__
    }


@pytest.mark.parametrize("name", ERROR_MODULES)
def test_every_error_and_nothing_else_is_on_the_page(name: str) -> None:
    found = {
        (cause, str(vars(each).get("code", "")))
        for cause, each in raised_by(importlib.import_module(name)).items()
    }
    assert set(documented_errors(name)) == found


@pytest.mark.parametrize("name", HINTED_MODULES)
def test_an_error_that_something_can_be_done_about_says_what(name: str) -> None:
    found = raised_by(importlib.import_module(name))
    bases = {base for each in found.values() for base in each.__mro__[1:]}
    silent = {
        cause
        for cause, _ in remedies(name)
        if found[cause] not in bases and not getattr(found[cause], "hint", "")
    }
    assert silent == set()


def test_every_status_on_the_page_is_the_one_that_calls_end_with() -> None:
    given: dict[str, str] = {}
    for name in ERROR_MODULES:
        if not name.startswith(("nearhint.", "nearhint_torch.")):
            given |= {code: status for (_, code), status in documented_errors(name).items()}
    assert {code: status for code, status in given.items() if status != "–"} == STATUS_OF_CODE


def test_every_exit_code_on_the_page_is_the_one_that_commands_end_with() -> None:
    for name in ERROR_MODULES:
        for cause, each in raised_by(importlib.import_module(name)).items():
            if issubclass(each, client_errors.NearhintError):
                shown = documented_errors(name)[cause, each.code]
                # Which code an error has depends on its class; its fields are not looked at.
                assert shown == str(int(exit_code(_without_fields(each)))), cause
    listed = [int(cells[0]) for _, cells in tables("ERRORS.md") if cells[0].isdecimal()]
    assert listed == [int(code) for code in ExitCode]


def _without_fields(
    error: type[client_errors.NearhintError],
) -> client_errors.NearhintError:
    made = error.__new__(error)
    made.fields = {}
    return made


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    made = Metrics(version="test", compiler_version="test")
    made.add_methods(service_methods())
    return made


def test_every_metric_and_nothing_else_is_on_the_page(metrics: Metrics) -> None:
    found: dict[str, tuple[str, set[str]]] = {}
    for family in metrics.registry.collect():
        if family.name.startswith("nearhint_"):
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[family.name] = (family.type, labels)
    shown = {
        plain(cells[0]): (cells[1], {plain(label) for label in cells[2].split(", ")} - {"–"})
        for heading, cells in tables("METRICS.md")
        if heading == "Metrics" and cells[0] != "metric"
    }
    assert shown == found


def test_every_value_of_a_label_is_on_the_page(metrics: Metrics) -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for family in metrics.registry.collect():
        if family.name.startswith("nearhint_"):
            for sample in family.samples:
                for label in sample.labels.keys() - OPEN_LABELS:
                    found.setdefault((label, family.name), set()).add(sample.labels[label])
    shown: dict[tuple[str, str], set[str]] = {}
    for heading, cells in tables("METRICS.md"):
        if heading == "Values of labels" and cells[0] != "label":
            values = {text for place, text in enumerate(cells[2].split("`")) if place % 2}
            shown |= {(plain(cells[0]), plain(name)): values for name in cells[1].split(", ")}
    assert shown == found


def test_reasons_in_the_protocols_comment_are_counted_as_such() -> None:
    protocol = (ROOT / "proto/nearhint_proto/v1/kernel_service.proto").read_text(encoding="utf-8")
    (comment,) = re.findall(r"// (.*)\n  map<string, uint64> fallback_reasons", protocol)
    named = re.findall(r'"(\w+)"', comment)
    assert named
    assert set(named) <= set(FALLBACK_REASONS) - {"other"}
