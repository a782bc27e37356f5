"""Generated C for short loops that share what they read: these are written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.native import LEVELS, MACHINE, WIDTHS, check, compile_kernel

from nearhint_compiler.analysis.written_out import written_out
from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule

PRODUCTS = """
(kernel (symbols k0)
  (pointwise k0 3)
  (reduction)
  (params (in f32) (out f32))
  (body
    (iota p1)
    (const i64 0x1)
    (lt bool 0 1)
    (const i64 0x2)
    (lt bool 0 3)
    (load 0 (* 2 p0))
    (load 0 (+ (* 2 p0) 1))
    (mul f32 5 6)
    (add f32 5 6)
    (sub f32 5 6)
    (where f32 4 8 9)
    (where f32 2 7 10)
    (store 1 (+ (* 3 p0) p1) 11)))
"""
"""A product, a sum and a difference of two numbers, beside each other."""
BUTTERFLY = """
(kernel (symbols k0 k1)
  (pointwise k0)
  (reduction k1 2 2)
  (params (in f32) (out f32) (out f32))
  (body
    (iota r1)
    (const i64 0x0)
    (eq bool 0 1)
    (iota r2)
    (le bool 3 1)
    (load 0 (+ (* 4 k1 p0) (* 4 r0)))
    (load 0 (+ (* 4 k1 p0) (* 4 r0) 1))
    (load 0 (+ (* 4 k1 p0) (* 4 r0) 2))
    (load 0 (+ (* 4 k1 p0) (* 4 r0) 3))
    (add f32 5 6)
    (sub f32 5 6)
    (where f32 4 9 10)
    (add f32 7 8)
    (sub f32 7 8)
    (where f32 4 12 13)
    (add f32 11 14)
    (sub f32 11 14)
    (where f32 2 15 16)
    (abs f32 17)
    (reduce KIND f32 18)
    (store 1 p0 19)
    (div f32 17 19)
    (store 2 (+ (* 4 k1 p0) (* 4 r0) (* 2 r1) r2) 21)))
"""
"""Fours of a row are turned, and the row is divided by what it has in all."""
PLAIN = """
(kernel (symbols k0)
  (pointwise k0 4)
  (reduction)
  (params (in f32) (in f32) (out f32))
  (body
    (load 0 (+ (* 4 p0) p1))
    (load 1 p0)
    (mul f32 0 1)
    (store 2 (+ (* 4 p0) p1) 2)))
"""
"""Each point has an element of its own."""


RANKED = """
(kernel (symbols k0)
  (pointwise k0 4)
  (reduction 4)
  (params (in f32) (out bool) (out f32))
  (body
    (load 0 (+ (* 4 p0) r0))
    (load 0 (+ (* 4 p0) p1))
    (gt bool 0 1)
    (cast i64 2)
    (reduce sum i64 3)
    (reduce KIND f32 0)
    (const i64 0x2)
    (lt bool 4 6)
    (store 1 (+ (* 4 p0) p1) 7)
    (sub f32 1 5)
    (where f32 7 1 9)
    (store 2 (+ (* 4 p0) p1) 10)))
"""
"""Of each four the largest two, and what all four have in common beside the others."""
LENGTHS = """
(kernel (symbols k0)
  (pointwise k0)
  (reduction TERMS)
  (params (in f32) (out f32))
  (body
    (load 0 (+ (* TERMS p0) r0))
    (mul f32 0 0)
    (reduce sum f32 1)
    (store 1 p0 2)))
"""
SHARES = """
(kernel (symbols k0)
  (pointwise k0)
  (reduction TERMS)
  (params (in f32) (out f32))
  (body
    (load 0 (+ (* TERMS p0) r0))
    (reduce max f32 0)
    (sub f32 0 1)
    (exp f32 2)
    (reduce sum f32 3)
    (div f32 3 4)
    (store 1 (+ (* TERMS p0) r0) 5)))
"""
SEVERAL = """
(kernel (symbols k0)
  (pointwise k0 9)
  (reduction)
  (params (in f32) (in f32) (out f32))
  (body
    (iota p1)
    (const i64 0x1)
    (lt bool 0 1)
    (load 0 p0)
    (load 1 p0)
    (const i64 0x5)
    (lt bool 0 5)
    (mul f32 3 4)
    (sub f32 3 4)
    (where f32 6 7 8)
    (where f32 2 3 9)
    (store 2 (+ (* 9 p0) p1) 10)))
"""
"""Nine numbers that are made of two: more than a vector moves at once, and a short loop."""


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
def test_points_that_are_written_out_are_right(level: str, lanes: int, tmp_path: Path) -> None:
    kernel = parse_kernel(PRODUCTS)
    for unroll in (1, 2):
        schedule = f"cpu.pointwise axis=0 lanes={lanes} unroll={unroll} block=32 written=1"
        native = compile_kernel(kernel, parse_schedule(schedule), tmp_path, at=LEVELS[level])
        for rows in (1, 7, 32, 101):
            x = np.random.default_rng(0).uniform(-9, 9, 2 * rows).astype(np.float32)
            check(native, (rows,), [x], threads=2)


@pytest.mark.parametrize("kind", ["max", "sum"])
@pytest.mark.parametrize("schedule", [
    "cpu.rows axis=0 lanes=8 unroll=2 short=4 stash=0 split=1 written=1",
    "cpu.rows axis=0 lanes=8 unroll=2 short=4 stash=8192 split=1 written=1",
    "cpu.columns axis=0 lanes=8 unroll=1 split=1 written=1",
])  # fmt: skip
def test_terms_that_are_written_out_are_right(kind: str, schedule: str, tmp_path: Path) -> None:
    kernel = parse_kernel(BUTTERFLY.replace("KIND", kind))
    native = compile_kernel(kernel, parse_schedule(schedule), tmp_path)
    for rows, fours in ((1, 1), (3, 79), (40, 9)):
        x = np.random.default_rng(0).uniform(-9, 9, 4 * rows * fours).astype(np.float32)
        for threads in (1, 3):
            check(native, (rows, fours), [x], threads=threads)


def test_what_points_share_is_read_and_computed_once() -> None:
    written = written_out(parse_kernel(BUTTERFLY.replace("KIND", "max")))
    assert written is not None
    kinds = [node.name if isinstance(node, ir.Op) else type(node).__name__ for node in written.body]
    assert (kinds.count("Load"), kinds.count("Store")) == (4, 5)
    assert kinds.count("add") + kinds.count("sub") == 8
    assert "where" not in kinds


def test_loops_are_written_out_where_that_reads_half_as_often() -> None:
    found = candidates(parse_kernel(PRODUCTS), MACHINE, {"k0": 1000})
    assert 0 < sum(each.get("written", 0) for each in found) < len(found)
    plain = parse_kernel(PLAIN)
    assert not any(each.get("written", 0) for each in candidates(plain, MACHINE, {"k0": 1000}))
    schedule = parse_schedule("cpu.pointwise axis=0 lanes=8 unroll=1 block=32 written=1")
    with pytest.raises(InvalidSchedule, match="share"):
        generate(plain, schedule, MACHINE)


@pytest.mark.parametrize("kind", ["max", "sum"])
@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
def test_short_reductions_of_what_points_share_are_written_out_whole(
    level: str, lanes: int, kind: str, tmp_path: Path
) -> None:
    kernel = parse_kernel(RANKED.replace("KIND", kind))
    written = written_out(kernel)
    assert written is not None
    assert (len(written.pointwise), written.reduction) == (1, ())
    kinds = [type(node).__name__ for node in written.body]
    assert (kinds.count("Load"), kinds.count("Reduce"), kinds.count("Store")) == (4, 0, 8)
    schedule = f"cpu.pointwise axis=0 lanes={lanes} unroll=1 block=32 written=1"
    native = compile_kernel(kernel, parse_schedule(schedule), tmp_path, at=LEVELS[level])
    for rows in (1, 7, 32, 101):
        x = np.random.default_rng(0).uniform(-9, 9, 4 * rows).astype(np.float32)
        check(native, (rows,), [x], threads=2)


def test_longer_reductions_that_share_nothing_stay() -> None:
    assert written_out(parse_kernel(LENGTHS.replace("TERMS", "5"))) is None


def test_what_is_written_out_whole_comes_first() -> None:
    first = candidates(parse_kernel(RANKED.replace("KIND", "max")), MACHINE, {"k0": 1000})[0]
    assert (first.family, first.get("written", 0)) == ("cpu.pointwise", 1)


def test_lanes_do_not_run_along_a_short_loop_whose_parts_may_be_written_out() -> None:
    first = candidates(parse_kernel(SEVERAL), MACHINE, {"k0": 1000})[0]
    assert (first["axis"], first.get("written", 0)) == (0, 1)


@pytest.mark.parametrize("terms", [2, 3, 4])
def test_reductions_of_a_few_terms_are_written_out_first(terms: int, tmp_path: Path) -> None:
    for text in (LENGTHS, SHARES):
        kernel = parse_kernel(text.replace("TERMS", str(terms)))
        offered = candidates(kernel, MACHINE, {"k0": 1000})
        assert (offered[0].family, offered[0].get("written", 0)) == ("cpu.pointwise", 1)
        assert "cpu.rows" in {each.family for each in offered}
        run = generate(kernel, offered[0], MACHINE).source.partition("static void run(")[2]
        full, _ = run.split("const int count", 1)
        assert "gather_n_" not in full
        assert "scatter_n_" not in full
        native = compile_kernel(kernel, offered[0], tmp_path)
        for rows in (1, 7, 101):
            x = np.random.default_rng(0).uniform(-9, 9, terms * rows).astype(np.float32)
            check(native, (rows,), [x], threads=2)
