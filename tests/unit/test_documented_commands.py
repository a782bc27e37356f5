"""What documents tell people to type, and the files that they name, are there."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from nearhint import config as client_config
from nearhint.cli import main as nearhint
from nearhint.warmup.manifest import read_manifest
from nearhint_daemon.cli import main as nearhintd

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "ERRORS.md",
    "METRICS.md",
    "clients/README.md",
    "compiler/README.md",
    "daemon/README.md",
    "deploy/README.md",
    "deploy/runbook.md",
    "proto/README.md",
    "tests/benchmarks/README.md",
)
PROGRAMS = {"nearhint": nearhint, "nearhintd": nearhintd}
SOURCES = ("proto", "compiler", "daemon", "clients", "tests")
OTHERS_OPTIONS = frozenset({"--dist", "--update-golden"})
"""Options of pytest."""
PATTERNS = frozenset({"_x.py"})
"""What stands for names of files."""


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(document), re.DOTALL | re.MULTILINE)


def inline(document: str) -> list[str]:
    """What stands between backticks, code blocks left out."""
    prose = re.sub(r"^```.*?^```", "", text_of(document), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", prose)]


def typed(document: str) -> Iterator[list[str]]:
    """The words of each line that is to be typed."""
    for block in blocks(document, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                yield shlex.split(line.removeprefix("$ "), comments=True)


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that words call, and what is left for it; raises `KeyError`."""
    command: click.Command = PROGRAMS[words[0]]
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        command = command.commands[rest[0]]
        rest = rest[1:]
    return command, rest


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts} | {"--help", "-h"}


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        yield path
        return
    for name, each in command.commands.items():
        yield from leaves(each, (*path, name))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_to_be_typed_is_understood(document: str) -> None:
    for words in typed(document):
        if words[0] in PROGRAMS:
            command, rest = command_of(words)
            command.make_context(words[0], list(rest))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_and_option_in_a_sentence_is_there(document: str) -> None:
    every = {
        option
        for name, program in PROGRAMS.items()
        for path in leaves(program, (name,))
        for option in options_of(command_of(list(path))[0])
    }
    for code in inline(document):
        words = code.split()
        if words[0] in PROGRAMS and len(words) > 1:
            command, rest = command_of(words)
            assert {word for word in rest if word.startswith("--")} <= options_of(command), code
        elif words[0].startswith("--"):
            given = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert given <= every | OTHERS_OPTIONS, code


def test_every_command_is_in_the_readme() -> None:
    shown = text_of("README.md")
    for name, program in PROGRAMS.items():
        for path in leaves(program, (name,)):
            assert " ".join(path) in shown, path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_target_of_make_is_there(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    lines = [" ".join(words) for words in typed(document)]
    named = re.findall(r"\bmake ([a-z-]+)", "\n".join([*lines, *inline(document)]))
    assert set(named) <= targets


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_is_named_is_there(document: str) -> None:
    there = [path for source in SOURCES for path in (ROOT / source).rglob("*")]
    known = {path.relative_to(ROOT).as_posix() for path in there}
    for code in inline(document):
        module = re.match(r"(?:python -m )?(tests\.benchmarks\.\w+)", code)
        words = [f"{module[1].replace('.', '/')}.py"] if module else code.split()
        for word in words:
            is_source = word.startswith(tuple(f"{source}/" for source in SOURCES))
            is_file = word.endswith((".py", ".proto")) and word not in PATTERNS
            if not is_source and not is_file:
                continue
            name = word.rstrip("/").removesuffix("/*.proto")
            assert name in known or any(each.endswith(f"/{name}") for each in known), word


def test_the_variables_of_the_client_are_those_that_it_reads() -> None:
    read = set(re.findall(r"^(NEARHINT_\w+) ", client_config.__doc__ or "", re.MULTILINE))
    table = set(re.findall(r"^\| `(NEARHINT_\w+)", text_of("README.md"), re.MULTILINE))
    assert table == read


def test_the_manifest_of_the_readme_is_one(tmp_path: Path) -> None:
    (manifest,) = blocks("README.md", "toml")
    (tmp_path / "manifest.toml").write_text(manifest, encoding="utf-8")
    (tmp_path / "traffic.csv").write_text("rows,count\n3,1\n")
    half = {"kind": "cpu", "model": "a model", "features": [], "libc": "glibc 2.36"}
    (tmp_path / "h100.json").write_text(json.dumps(half))
    read = read_manifest(tmp_path / "manifest.toml")
    assert [model.name for model in read.models] == ["my_model:warm_up", "ranker"]
