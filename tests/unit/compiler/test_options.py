"""The options of Schedules: each is told where its family is, and none that is gone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from nearhint_compiler.codegen.triton import options
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.schedule import block_pointers, cpu
from nearhint_compiler.schedule.cuda_facts import EXTRAS
from nearhint_compiler.schedule.neighbours import COORDINATES
from nearhint_compiler.schedule.schedule import parse_schedule

EMITTERS = Path(options.__file__).parents[1]


def read_in(folder: Path) -> set[str]:
    """The options that modules of a folder ask a Schedule for."""
    found: set[str] = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Subscript(
                    ast.Name("schedule" | "each"), ast.Constant(str(name))
                ) | ast.Call(
                    ast.Attribute(ast.Name("schedule" | "each"), "get"),
                    [ast.Constant(str(name)), *_],
                ):
                    found.add(name)
                case _:
                    pass
    return found


def told_in(text: str | None) -> set[str]:
    return set(re.findall(r"\w+", text or ""))


def listed_in(text: str | None) -> set[str]:
    """The options that have an entry of their own, behind the families."""
    _, _, entries = (text or "").partition("As they may, too:")
    return set(re.findall(r"^    (\w+)(?: |$)", entries, re.MULTILINE))


def test_every_option_that_cuda_emitters_read_is_told() -> None:
    read = read_in(EMITTERS / "triton")
    assert {"x", "order", "words"} <= read
    assert read - told_in(options.__doc__) == set()


def test_every_option_with_an_entry_is_read() -> None:
    listed = listed_in(options.__doc__)
    assert "order" in listed
    assert listed - read_in(EMITTERS / "triton") - {block_pointers.OPTION} == set()
    assert set(EXTRAS) <= listed


def test_every_option_that_cpu_emitters_read_is_told() -> None:
    assert read_in(EMITTERS / "c") - told_in(cpu.__doc__) == set()


def test_every_coordinate_of_a_search_is_told() -> None:
    for family, coordinates in COORDINATES.items():
        told = told_in(cpu.__doc__ if family.startswith("cpu.") else options.__doc__)
        assert {each.option for each in coordinates} <= told


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ("cuda.pointwise x=96", "x=96 is no block size"),
        ("cuda.pointwise x=0", "x=0 is no block size"),
        ("cuda.looped x=1 r=64 group=3", "group of"),
        ("cuda.looped x=1 r=4 group=8", "longer than the block"),
        ("cuda.looped x=1 r=64 ahead=17", "ahead of"),
        ("cuda.tiled z=1 y=8 x=8 cuts=1 order=-5000", "order of"),
        ("cuda.split x=1 r=64 splits=4 fold=3", "fold of"),
        ("cuda.looped x=1 r=64 fold=8", "fold of"),
        ("cuda.persistent x=1 r=4 runs=8", "runs of"),
        ("cuda.persistent x=1 r=64 pieces=1", "pieces of"),
        ("cuda.persistent x=1 r=64 pieces=2 turns=4", "pieces of"),
        ("cuda.looped x=1 r=64 held=1 words=1", "tiles held of"),
        ("cuda.split x=1 r=64 splits=4 keep=1", "kept of what is not walked"),
        ("cuda.persistent x=1 r=64 ahead=2", "a row ahead"),
        ("cuda.looped x=1 r=64 early=1", "not in registers"),
    ],
)
def test_options_that_no_kernel_can_have_are_refused(schedule: str, problem: str) -> None:
    with pytest.raises(InvalidSchedule, match=problem):
        options.check(parse_schedule(f"{schedule} warps=4 index=32"))


def test_options_that_go_together_are_taken() -> None:
    options.check(
        parse_schedule("cuda.persistent x=1 r=64 warps=4 index=32 turns=4 ahead=2 early=1")
    )
    options.check(parse_schedule("cuda.looped x=1 r=64 warps=4 index=32 held=2 keep=1 unroll=2"))
