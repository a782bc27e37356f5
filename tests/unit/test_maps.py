"""The README of each source folder is a map of it: every module once, and none that is gone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("clients", "compiler", "daemon", "proto")
FACES = frozenset({"__init__", "__main__"})


def mapped(folder: str) -> dict[str, list[str]]:
    """Package, as a path in the folder -> the modules that rows of its table name."""
    found: dict[str, list[str]] = {}
    package = ""
    for line in (ROOT / folder / "README.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## `([\w/]+)`", line):
            package = heading[1]
        elif line.startswith("|"):
            found.setdefault(package, []).extend(re.findall(r"`(\w+)\.py`", line))
    return {package: sorted(modules) for package, modules in found.items()}


def written(folder: str) -> dict[str, list[str]]:
    """Package -> the modules that are there; generated ones, and a package's face, left out."""
    found: dict[str, list[str]] = {}
    for path in (ROOT / folder).glob("*/**/*.py"):
        if path.stem not in FACES and not path.stem.endswith(("_pb2", "_pb2_grpc")):
            package = path.parent.relative_to(ROOT / folder).as_posix()
            found.setdefault(package, []).append(path.stem)
    return {package: sorted(modules) for package, modules in found.items()}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_is_on_the_map_of_its_folder_once(folder: str) -> None:
    found = {package: set(modules) for package, modules in mapped(folder).items()}
    there = {package: set(modules) for package, modules in written(folder).items()}
    assert found == there
    assert mapped(folder) == {package: sorted(names) for package, names in found.items()}


def test_every_benchmark_is_on_their_map_once_scripts_before_parts() -> None:
    folder = ROOT / "tests" / "benchmarks"
    scripts, _, parts = (folder / "README.md").read_text(encoding="utf-8").partition("## Parts")
    there = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    # The pool runs itself: the processes that it starts are this module as a program.
    run = {name for name, text in there.items() if "__main__" in text} - {"warm_pool"}
    assert sorted(re.findall(r"`(\w+)\.py`", scripts)) == sorted(run)
    assert sorted(re.findall(r"`(\w+)\.py`", parts)) == sorted(there.keys() - run)


def test_the_example_of_the_compilers_map_prints_sources() -> None:
    text = (ROOT / "compiler" / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("@triton.jit\ndef nearhint_") > 1
    assert ran.stdout.startswith("cuda.")
