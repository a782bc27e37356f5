"""The layout rules of CONTRIBUTING.md, as tests."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = ("daemon", "compiler", "proto", "clients")
TOP_LEVEL_FOLDERS = (*SOURCE_FOLDERS, "tests", "deploy")
MAX_MODULE_LINES = 600
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})

# Called by their bare names only: torch's model.eval() is harmless.
BANNED_CALLS = frozenset({"eval", "exec", "__import__", "sympify", "parse_expr"})
# sympy.S is sympify by another name.
BANNED_ATTRIBUTES = frozenset({"sympify", "parse_expr", "S"})
BANNED_MODULES = frozenset({"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"})


def is_generated(path: Path) -> bool:
    return path.stem.endswith(("_pb2", "_pb2_grpc"))


def hand_written(*folders: str) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if not is_generated(path) and "__pycache__" not in path.parts
    )


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def evaluating_names(tree: ast.AST) -> list[tuple[int, str]]:
    """Line and name of everything in the tree that would evaluate text or unpickle bytes."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in BANNED_CALLS:
                found.append((node.lineno, name))
            case ast.Attribute(value=ast.Name(id="builtins"), attr=name) if name in BANNED_CALLS:
                found.append((node.lineno, f"builtins.{name}"))
            case ast.Attribute(value=ast.Name(id="sympy"), attr=name) if name in BANNED_ATTRIBUTES:
                found.append((node.lineno, f"sympy.{name}"))
            case ast.Attribute(attr="sympify" | "parse_expr" as name):
                found.append((node.lineno, name))
            case ast.Import(names=aliases):
                found += [
                    (node.lineno, alias.name)
                    for alias in aliases
                    if alias.name.partition(".")[0] in BANNED_MODULES
                    or alias.name.startswith("sympy.parsing")
                ]
            case ast.ImportFrom(module=str(module), names=aliases):
                if module.partition(".")[0] in BANNED_MODULES or module.startswith("sympy.parsing"):
                    found.append((node.lineno, module))
                found += [
                    (node.lineno, f"{module}.{alias.name}")
                    for alias in aliases
                    if alias.name in {"sympify", "parse_expr"}
                ]
            case _:
                pass
    return found


@pytest.mark.parametrize("folder", TOP_LEVEL_FOLDERS)
def test_a_top_level_folder_is_no_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_every_package_says_what_it_does() -> None:
    packages = [path for path in hand_written(*SOURCE_FOLDERS) if path.name == "__init__.py"]
    assert packages, "no packages found: the test looks in the wrong place"
    assert [relative(path) for path in packages if not ast.get_docstring(parse(path))] == []


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in hand_written(*SOURCE_FOLDERS)}
    folders -= {ROOT / folder for folder in SOURCE_FOLDERS}
    assert [relative(path) for path in sorted(folders) if not (path / "__init__.py").exists()] == []


def test_every_distributed_package_is_typed() -> None:
    packages = {path.parent for folder in SOURCE_FOLDERS for path in ROOT.glob(f"{folder}/*/*.py")}
    assert [relative(path) for path in sorted(packages) if not (path / "py.typed").exists()] == []


def test_no_module_is_longer_than_its_noun() -> None:
    lines = {
        relative(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in hand_written(*SOURCE_FOLDERS, "tests")
    }
    assert {name: count for name, count in lines.items() if count > MAX_MODULE_LINES} == {}


def test_no_module_has_a_vague_name() -> None:
    assert [
        relative(p) for p in hand_written(*SOURCE_FOLDERS, "tests") if p.stem in VAGUE_NAMES
    ] == []


@pytest.mark.parametrize("folder", SOURCE_FOLDERS)
def test_nothing_evaluates_text_or_unpickles(folder: str) -> None:
    found = [
        f"{relative(path)}:{line}: {name}"
        for path in hand_written(folder)
        for line, name in evaluating_names(parse(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "exec('x = 1')",
        "import builtins\nbuiltins.eval('1')",
        "import pickle",
        "from pickle import loads",
        "import sympy\nsympy.sympify('x')",
        "import sympy as sp\nsp.sympify('x')",
        "import sympy\nsympy.S('x')",
        "from sympy import sympify",
        "from sympy.parsing.sympy_parser import parse_expr",
    ],
)
def test_the_scan_finds_what_it_bans(source: str) -> None:
    assert evaluating_names(ast.parse(source)) != []


@pytest.mark.parametrize("source", ["model.eval()", "S('x')"])
def test_the_scan_lets_harmless_names_pass(source: str) -> None:
    assert evaluating_names(ast.parse(source)) == []


def test_rules_import_the_standard_library_alone() -> None:
    allowed = sys.stdlib_module_names | {"nearhint_rules"}
    found: list[str] = []
    for path in hand_written("proto/nearhint_rules"):
        for node in ast.walk(parse(path)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "."]
            found += [
                f"{relative(path)}: {name}"
                for name in names
                if name.partition(".")[0] not in allowed
            ]
    assert found == []


def test_client_daemon_and_distribution_are_one_version() -> None:
    said = {
        name: re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        for name, pattern in (
            ("pyproject.toml", r'^version = "([\d.]+)"$'),
            ("clients/nearhint/version.py", r'^VERSION = "([\d.]+)"$'),
            ("daemon/nearhint_daemon/core.py", r'^VERSION = "([\d.]+)"$'),
        )
    }
    assert len({tuple(versions) for versions in said.values()}) == 1, said
    assert all(len(versions) == 1 for versions in said.values()), said
