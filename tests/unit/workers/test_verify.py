"""Verification accepts what computes the Kernel, and nothing else."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.workers.building import (
    S0,
    activation,
    attention_weights,
    column_sums,
    compiled,
    default_source,
    doubled,
    hand_written,
    lowered,
    node,
    norm,
    tensor,
)

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_daemon.workers import reference as referring
from nearhint_daemon.workers import verify as verifying
from nearhint_daemon.workers.cases import sizes_at
from nearhint_daemon.workers.elements import (
    DRAWN_ELEMENTS,
    Array,
)
from nearhint_daemon.workers.errors import MemoryLimitExceeded
from nearhint_daemon.workers.reference import make_reference, sensitivity
from nearhint_daemon.workers.subjects import CpuSubject
from nearhint_daemon.workers.tolerance import tolerances
from nearhint_daemon.workers.verify import References, Verdict, cases, verify
from nearhint_rules import expr as ex
from nearhint_rules import program as pr
from nearhint_rules.guard import ALWAYS, Aligned, AtMost, Divisible, Equals, Guard

K0, P0 = ex.symbol("k0"), ex.symbol("p0")
KERNELS = Path(__file__).parents[2] / "kernels"


def verdict_on(
    kernel: ir.Kernel, subject: CpuSubject, guard: Guard = ALWAYS, hint: int = 1000
) -> Verdict:
    hints = [dict.fromkeys(kernel.symbols, hint)]
    return verify(kernel, subject, guard, hints, threads=2, seed=1, references=References())


def by_hand(body: str, folder: Path) -> CpuSubject:
    return CpuSubject(*compiled(hand_written(body), folder))


@pytest.mark.parametrize(
    "program", [norm(), activation(), attention_weights(), column_sums()], ids=lambda p: p.id[:6]
)
def test_generated_kernels_pass(program: pr.Program, tmp_path: Path) -> None:
    kernel, _ = lowered(program)
    subject = CpuSubject(*compiled(default_source(kernel), tmp_path))
    found = verdict_on(kernel, subject, hint=24)
    assert found.problem == ""
    assert found.cases >= 6
    assert found.worst_error < 0.5


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", ""),
        ("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2.001f;", "is"),
        ("for (int64_t i = 0; i < n - 1; i++) y[i] = x[i] * 2;", "is -1.69"),
        ("for (int64_t i = 0; i < n / 8 * 8; i++) y[i] = x[i] * 2;", "is -1.69"),
        ("for (int64_t i = 0; i < n; i++) y[i] = x[n - 1 - i] * 2;", "is"),
        ("for (int64_t i = 0; i <= n; i++) y[i] = i < n ? x[i] * 2 : 7;", "writes beside"),
        ("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2; y[-1] = 0;", "writes beside"),
        ("for (int64_t i = 0; i < n; i++) y[i] = isnan(x[i]) ? 0 : x[i] * 2;", "nan"),
        ("for (int64_t i = 0; i < n; i++) y[i] = isinf(x[i]) ? 3e38f : x[i] * 2;", "inf"),
        ("if (threads > 1) return; for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", "is -1.69"),
        ("for (int64_t i = 0; i < n; i++) y[i] = n > 900 && i == 899 ? 0 : x[i] * 2;", "is 0"),
        (
            "for (int64_t i = 0; i < n; i++) y[i] = x[i] * ((uintptr_t)y % 64 ? 3 : 2);",
            "shifted",
        ),
    ],
)
def test_each_kind_of_mistake_is_found(body: str, problem: str, tmp_path: Path) -> None:
    found = verdict_on(doubled(), by_hand(body, tmp_path))
    assert bool(found.problem) == bool(problem)
    assert problem in found.problem
    assert found.is_damaging == (problem == "writes beside")


LOOKUPS = tuple(path.stem for path in sorted(KERNELS.glob("*.ir")) if "(gather" in path.read_text())


@pytest.mark.parametrize("name", LOOKUPS)
def test_what_a_binary_tells_of_places_outside_is_verified(name: str, tmp_path: Path) -> None:
    """What tells of one that is none refuses a right call, what does not reads another element."""
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    generated = default_source(kernel)
    assert "return outside;" in generated.source
    for answer, problem in (
        ("outside", ""),
        ("0", "does not tell of a place outside"),
        ("1", "tells of a place outside where there is none"),
        ("threads > 1 && outside", "does not tell of a place outside"),
    ):
        source = generated.source.replace("return outside;", f"return {answer};")
        subject = CpuSubject(*compiled(replace(generated, source=source), tmp_path))
        found = verdict_on(kernel, subject, hint=24)
        assert found.problem.partition(",")[0] == problem
        assert not found.is_damaging


def test_elements_between_the_stores_must_stay_untouched(tmp_path: Path) -> None:
    kernel = doubled()
    spread = ir.Kernel(
        kernel.symbols,
        kernel.pointwise,
        (),
        kernel.params,
        (*kernel.body[:2], ir.Store(1, ex.mul(3, P0), 1)),
    )
    tidy = by_hand("for (int64_t i = 0; i < n; i++) y[3 * i] = x[i] * 2;", tmp_path)
    assert verdict_on(spread, tidy).problem == ""
    untidy = by_hand(
        "for (int64_t i = 0; i < n; i++) { y[3 * i] = x[i] * 2; if (i) y[3 * i - 1] = 0; }",
        tmp_path,
    )
    assert "where no store is" in verdict_on(spread, untidy).problem


def test_large_sizes_are_compared_in_slabs_and_must_be_written_everywhere(tmp_path: Path) -> None:
    hint = (1 << 20) + 3
    right = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", tmp_path)
    assert verdict_on(doubled(), right, hint=hint).problem == ""
    last = by_hand(
        f"for (int64_t i = 0; i < n; i++) y[i] = i == {hint - 1} ? 0 : x[i] * 2;", tmp_path
    )
    assert "not" in verdict_on(doubled(), last, hint=hint).problem
    hole = by_hand(
        "for (int64_t i = 0; i < n; i++) if (i % 300000 != 299999) y[i] = x[i] * 2;", tmp_path
    )
    assert verdict_on(doubled(), hole, hint=hint).problem != ""


def test_sizes_and_layouts_follow_the_guard() -> None:
    guard = Guard((Divisible(K0, 16), AtMost(K0, 256), Aligned(0, 64)))
    found = list(cases(doubled(), guard, [{"k0": 64}, {"k0": 65}], threads=2, can_shift=False))
    sizes = [case.sizes.dims["k0"] for case in found]
    assert set(sizes) >= {16, 64, 256}
    assert all(size % 16 == 0 and size <= 256 for size in sizes)
    assert {case.layout for case in found} == {"aligned"}
    (only,) = {
        case.sizes.dims["k0"]
        for case in cases(doubled(), Guard((Equals(K0, 7),)), [], threads=1, can_shift=True)
    }
    assert only == 7


def test_a_guard_that_no_size_meets_is_a_failure(tmp_path: Path) -> None:
    guard = Guard((Equals(ex.mul(K0, K0), 3),))
    subject = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", tmp_path)
    assert "none of the sizes" in verdict_on(doubled(), subject, guard).problem


def test_a_hint_is_capped_before_anything_is_allocated(tmp_path: Path) -> None:
    subject = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", tmp_path)
    with pytest.raises(MemoryLimitExceeded):
        verdict_on(doubled(), subject, hint=1 << 40)


@pytest.mark.parametrize(("limit_bytes", "fits"), [(8 << 20, True), ((8 << 20) - 1, False)])
def test_a_hint_may_take_as_much_memory_as_is_said(
    limit_bytes: int, fits: bool, tmp_path: Path
) -> None:
    subject = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", tmp_path)
    with nullcontext() if fits else pytest.raises(MemoryLimitExceeded):
        verify(
            doubled(),
            subject,
            ALWAYS,
            [{"k0": 1 << 20}],
            threads=1,
            seed=1,
            references=References(),
            limit_bytes=limit_bytes,
        )


@pytest.mark.parametrize("hint", [20_000, 2 * DRAWN_ELEMENTS])
def test_a_jump_that_rounding_moves_is_excused_but_not_a_wrong_one(
    hint: int, tmp_path: Path
) -> None:
    """floor(x * 3): where x * 3 is a rounding error away from an integer, either side is right."""
    kernel = ir.Kernel(
        ("k0",),
        (K0,),
        (),
        (ir.Param("in", "f32"), ir.Param("out", "f32")),
        (
            ir.Load(0, P0),
            ir.Const("f32", int(np.float32(1 / 3).view(np.uint32))),
            ir.Op("div", "f32", (0, 1)),
            ir.Op("floor", "f32", (2,)),
            ir.Store(1, P0, 3),
        ),
    )
    loop = "for (int64_t i = 0; i < n; i++) y[i] = floorf(x[i] {});"
    right = by_hand(loop.format("/ (1.0f / 3.0f)"), tmp_path)
    assert verdict_on(kernel, right, hint=hint).problem == ""
    wrong = by_hand(loop.format("* 3.01f"), tmp_path)
    assert verdict_on(kernel, wrong, hint=hint).problem != ""


BUCKETS = """
    (kernel (symbols k0) (pointwise k0) (reduction)
      (params (out i64))
      (body (iota p0) (cast f32 0) (const f32 0x3f800000) (add f32 1 2) (log f32 3)
        (const f32 0x40317218) (div f32 4 5) (const f32 0x41000000) (mul f32 6 7) (cast i64 8)
        (store 0 p0 9)))
"""
"""The bucket of a distance, as in T5: 8 * log(n + 1) / log(16)."""


def test_a_jump_is_right_as_eager_has_it_operation_by_operation(tmp_path: Path) -> None:
    """No input moves what is computed of places alone, so nothing else would excuse it."""
    kernel = parse_kernel(BUCKETS)
    right = CpuSubject(*compiled(default_source(kernel), tmp_path))
    assert verdict_on(kernel, right).problem == ""
    beside = replace(kernel, body=(*kernel.body[:7], ir.Const("f32", 0x41000010), *kernel.body[8:]))
    wrong = CpuSubject(*compiled(default_source(beside), tmp_path))
    assert "elements are wrong" in verdict_on(kernel, wrong, hint=20_000).problem


SUM_OF_EQUALS = """
    (kernel (symbols k0 k1) (pointwise k0) (reduction k1)
      (params (in f32) (out i32))
      (body (load 0 p0) (reduce sum f32 0) (cast i32 1) (store 1 p0 2)))
"""
"""Each of its additions is rounded in the same direction, so that 20 011 of them are off by more
than random ones are."""


def test_a_jump_from_a_sum_is_right_wherever_the_sum_would_be(tmp_path: Path) -> None:
    kernel = parse_kernel(SUM_OF_EQUALS)
    right = CpuSubject(*compiled(default_source(kernel), tmp_path))
    hints = [{"k0": 3, "k1": 200}]
    for seed in (1, 2, 3, 4, 5, 6):
        found = verify(kernel, right, ALWAYS, hints, threads=1, seed=seed, references=References())
        assert found.problem == ""
    more = (ir.Const("f32", 0x3F801000), ir.Op("mul", "f32", (1, 2)), ir.Op("cast", "i32", (3,)))
    beside = replace(kernel, body=(*kernel.body[:2], *more, ir.Store(1, P0, 4)))
    wrong = CpuSubject(*compiled(default_source(beside), tmp_path))
    assert "elements are wrong" in verdict_on(kernel, wrong).problem


def test_a_sum_that_leads_to_no_number_when_it_is_moved_excuses_nothing(tmp_path: Path) -> None:
    """The root is of zero, a sum of whole numbers less what it is, and of less where that moves."""
    kernel = parse_kernel("""
        (kernel (symbols k0 k1) (pointwise k0) (reduction k1)
          (params (in f32) (out f32))
          (body (load 0 p0) (floor f32 0) (const f32 0x41200000) (add f32 1 2) (reduce sum f32 3)
            (iota k1) (cast f32 5) (mul f32 3 6) (sub f32 4 7) (abs f32 8) (neg f32 9)
            (sqrt f32 10) (add f32 4 11) (store 1 p0 12)))
    """)
    right = CpuSubject(*compiled(default_source(kernel), tmp_path))
    assert verdict_on(kernel, right).problem == ""
    more = (ir.Const("f32", 0x41000000), ir.Op("add", "f32", (12, 13)), ir.Store(1, P0, 14))
    beside = replace(kernel, body=(*kernel.body[:13], *more))
    wrong = CpuSubject(*compiled(default_source(beside), tmp_path))
    assert "elements are wrong" in verdict_on(kernel, wrong).problem


@pytest.mark.parametrize(("op", "by"), [("div.Tensor", 0.1), ("mul.Tensor", 0.3)])
@pytest.mark.parametrize("jump", ["floor", "trunc", "round"])
def test_half_floats_whose_quotients_are_nearly_whole_are_rounded_as_eager_does(
    op: str, by: float, jump: str, tmp_path: Path
) -> None:
    x = tensor(S0, dtype="bf16")
    nodes = (
        node(op, pr.Ref(0), by, makes=(x,)),
        node(f"{jump}.default", pr.Ref(1), makes=(x,)),
    )
    kernel, _ = lowered(pr.Program((pr.Symbol("s0", 1, 4096),), (x,), nodes, (2,)))
    right = CpuSubject(*compiled(default_source(kernel), tmp_path))
    for seed in range(4):
        hints = [dict.fromkeys(kernel.symbols, 20_000)]
        found = verify(kernel, right, ALWAYS, hints, threads=1, seed=seed, references=References())
        assert found.problem == ""


def test_what_jumps_for_one_input_alone_moves_whatever_is_drawn() -> None:
    kernel = parse_kernel(
        "(kernel (symbols k0) (pointwise k0) (reduction) (params (in f32) (out f32))"
        " (body (load 0 p0) (floor f32 0) (store 1 p0 1)))"
    )
    sizes = sizes_at(kernel, {"k0": 64})
    whole = replace(
        make_reference(kernel, sizes, seed=(1,)), inputs=(np.full(64, 3, np.float32), None)
    )
    whole = replace(whole, slabs=((replace(whole.slabs[0][0], values=np.full(64, 3.0)),),))
    for seed in range(8):
        (moves,) = sensitivity(kernel, sizes, whole, 0, np.random.default_rng(seed))
        assert (moves == 1).all()


def test_references_are_kept_within_their_limit() -> None:
    references = References(limit_bytes=4096)
    kernel = doubled()
    found = list(cases(kernel, ALWAYS, [], threads=1, can_shift=True))
    first = references.get(kernel, found[0].sizes, seed=1, draw="normal")
    assert references.get(kernel, found[0].sizes, seed=1, draw="normal") is first
    for case in found:
        references.get(kernel, case.sizes, seed=1, draw=case.draw)
        kept = sum(reference.size_bytes for reference in references._kept.values())
        assert references._kept.weight == kept
        assert kept <= 4096 or len(references._kept) == 1


def test_a_reference_of_a_large_size_keeps_what_was_drawn() -> None:
    """y = x + x of 1024 x 131072 bf16: 268 MB an input, of which a million elements are kept."""
    kernel = parse_kernel("""
        (kernel (symbols k0 k1) (pointwise k0 k1) (reduction)
          (params (in bf16) (out bf16))
          (body (load 0 (+ (* k1 p0) p1))
                (cast f32 0)
                (add f32 1 1)
                (cast bf16 2)
                (store 1 (+ (* k1 p0) p1) 3)))
    """)
    sizes = sizes_at(kernel, {"k0": 1024, "k1": 131_072})
    reference = make_reference(kernel, sizes, seed=(1,))
    (kept, output) = reference.inputs
    assert output is None
    assert kept is not None
    assert (kept.size, kept.nbytes) == (1024 * 131_072, 2 * DRAWN_ELEMENTS)
    assert reference.covered == ()
    assert reference.size_bytes < 24 << 20


def test_the_second_variant_of_a_kernel_computes_no_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def counted(*args: object, **options: object) -> object:
        made.append(args)
        return make_reference(*args, **options)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(verifying, "make_reference", counted)
    subject = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", tmp_path)
    references, hints = References(), [{"k0": 4 * DRAWN_ELEMENTS}, {"k0": 20 * DRAWN_ELEMENTS}]
    counts = []
    for _ in range(2):
        found = verify(doubled(), subject, ALWAYS, hints, threads=1, seed=1, references=references)
        assert found.problem == ""
        counts.append(len(made))
    assert counts[0] == counts[1] > 2


def test_the_second_variant_of_a_kernel_computes_no_tolerance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def counted(*args: Array, **options: Any) -> Array:
        made.append(args)
        return tolerances(*args, **options)

    for module in (verifying, referring):
        monkeypatch.setattr(module, "tolerances", counted, raising=False)
    subject = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", tmp_path)
    references, counts = References(), []
    for _ in range(2):
        verify(doubled(), subject, ALWAYS, [], threads=1, seed=1, references=references)
        counts.append(len(made))
    assert counts[0] == counts[1] > 2


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (f"i == {20 * DRAWN_ELEMENTS + 6} ? 0 : x[i] * 2", "is 0"),
        (f"x[i % {DRAWN_ELEMENTS - 2}] * 2", "is "),
    ],
)
def test_a_mistake_far_behind_what_was_drawn_is_found(
    wrong: str, problem: str, tmp_path: Path
) -> None:
    subject = by_hand(f"for (int64_t i = 0; i < n; i++) y[i] = {wrong};", tmp_path)
    found = verdict_on(doubled(), subject, hint=20 * DRAWN_ELEMENTS + 7)
    assert problem in found.problem
    assert f"k0={20 * DRAWN_ELEMENTS + 7}" in found.problem


def test_sizes_follow_a_guard_over_two_symbols() -> None:
    """What a Guard of cut loops asks: k1 in steps of 32, and k0 in steps of k1 / 32."""
    k1 = ex.symbol("k1")
    guard = Guard((Divisible(k1, 32), Equals(ex.mod(K0, ex.floordiv(k1, 32)), 0)))
    text = "(kernel (symbols k0 k1) (pointwise k0 k1) (reduction) (params (in f32) (out f32))"
    body = " (body (load 0 (+ (* k1 p0) p1)) (store 1 (+ (* k1 p0) p1) 0)))"
    kernel = parse_kernel(text + body)
    found = list(cases(kernel, guard, (), threads=2, can_shift=False))
    assert len({tuple(case.sizes.dims.values()) for case in found}) >= 8
    for case in found:
        rows, columns = case.sizes.dims["k0"], case.sizes.dims["k1"]
        assert columns % 32 == 0
        assert rows % (columns // 32) == 0


def test_few_long_rows_have_numbers_far_apart_both_shared_and_walked_by_a_thread_each() -> None:
    """Text for either takes the largest of a row anew, and normal numbers do not tell which."""
    text = (Path(__file__).parents[2] / "kernels" / "softmax_f32.ir").read_text()
    found = [
        case
        for case in cases(parse_kernel(text), ALWAYS, (), threads=2, can_shift=True)
        if case.draw == "far apart" and case.sizes.dims["k1"] > 20_000
    ]
    rows = {(case.sizes.dims["k0"], case.threads) for case in found}
    assert {threads for count, threads in rows if count <= 2} > {2}
    assert any(count >= threads for count, threads in rows)


@pytest.mark.parametrize(
    ("of_what_is_no_byte", "of_others", "is_right"),
    [("0", "x[i]", True), ("255", "x[i]", True), ("0", "x[i] + 1", False)],
)
def test_a_byte_is_compared_where_the_number_can_be_one(
    of_what_is_no_byte: str, of_others: str, is_right: bool, tmp_path: Path
) -> None:
    """NaN and infinities become bytes as each device likes."""
    kernel = ir.Kernel(
        ("k0",),
        (K0,),
        (),
        (ir.Param("in", "f32"), ir.Param("out", "u8")),
        (ir.Load(0, P0), ir.Op("abs", "f32", (0,)), ir.Op("cast", "u8", (1,)), ir.Store(1, P0, 2)),
    )
    body = (
        "for (int64_t i = 0; i < n; i++) ((unsigned char *)y)[i] = "
        f"isfinite(x[i]) ? fabsf({of_others}) : {of_what_is_no_byte};"
    )
    assert (verdict_on(kernel, by_hand(body, tmp_path)).problem == "") == is_right


@pytest.mark.parametrize(
    ("truncated", "of_zero", "is_right"),
    [
        ("(int64_t)x[i]", "x[i]", True),
        ("isnan(x[i]) ? 0 : (int64_t)x[i]", "x[i]", True),
        ("isnan(x[i]) ? 0 : (int64_t)x[i]", "isnan(x[i]) ? 2.0f : x[i]", False),
        ("isnan(x[i]) ? 1 : (int64_t)x[i]", "0.0f", False),
    ],
    ids=["least", "zero", "another value", "another choice"],
)
def test_what_is_chosen_by_an_integer_of_what_none_is_depends_on_the_device(
    truncated: str, of_zero: str, is_right: bool, tmp_path: Path
) -> None:
    """NaN is less than all 64-bit integers on a CPU and on a GPU, and 0 in the reference."""
    body = (
        ir.Load(0, P0),
        ir.Op("cast", "i64", (0,)),
        ir.Const("i64", 0),
        ir.Op("eq", "bool", (1, 2)),
        ir.Const("f32", 0x3F80_0000),
        ir.Op("where", "f32", (3, 0, 4)),
        ir.Store(1, P0, 5),
    )
    kernel = ir.Kernel(("k0",), (K0,), (), (ir.Param("in", "f32"), ir.Param("out", "f32")), body)
    written = f"for (int64_t i = 0; i < n; i++) y[i] = ({truncated}) == 0 ? ({of_zero}) : 1.0f;"
    assert (verdict_on(kernel, by_hand(written, tmp_path)).problem == "") == is_right


def test_what_is_large_is_interpreted_once_while_the_rest_is_and_nothing_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[int, list[str]] = {}

    def noted(kernel: ir.Kernel, sizes: Any, **options: Any) -> object:
        threads.setdefault(sizes.dims["k0"], []).append(threading.current_thread().name)
        return make_reference(kernel, sizes, **options)

    monkeypatch.setattr(verifying, "make_reference", noted)
    right = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", tmp_path)
    wrong = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 3;", tmp_path)
    references, hints = References(), [{"k0": 1 << 20}, {"k0": 1 << 21}]
    for subject, is_right in ((wrong, False), (right, True), (right, True)):
        found = verify(doubled(), subject, ALWAYS, hints, threads=1, seed=1, references=references)
        assert (found.problem == "") == is_right
        assert references._begun == {}
    main = threading.main_thread().name
    for size, names in threads.items():
        assert (main in names) == (size < 1 << 20)
        assert len(names) <= (2 if size >= 1 << 20 else 3)


def test_what_goes_wrong_beside_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(kernel: ir.Kernel, sizes: Any, **options: Any) -> object:
        if sizes.dims["k0"] == 1 << 20:
            raise MemoryError("no room")
        return make_reference(kernel, sizes, **options)

    monkeypatch.setattr(verifying, "make_reference", failing)
    right = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", tmp_path)
    with pytest.raises(MemoryError, match="no room"):
        verdict_on(doubled(), right, hint=1 << 20)


TANH_BY_HAND = """
    (kernel (symbols k0) (pointwise k0) (reduction)
      (params (in f32) (out f32))
      (body (load 0 p0)
            (add f32 0 0)
            (exp f32 1)
            (const f32 0x3f800000)
            (sub f32 2 3)
            (add f32 2 3)
            (div f32 4 5)
            (store 1 p0 6)))
"""


@pytest.mark.parametrize(
    ("result", "is_right"),
    [
        ("(e - 1) / (e + 1)", True),
        ("x[i] == 80 ? 1 : (e - 1) / (e + 1)", True),
        ("isinf(e) ? 1 : (e - 1) / (e + 1)", False),
        ("isnan(e) ? 1 : (e - 1) / (e + 1)", False),
        ("x[i] < -50 ? 1 : (e - 1) / (e + 1)", False),
    ],
)
def test_what_f32_cannot_hold_on_the_way_is_no_mistake(
    result: str, is_right: bool, tmp_path: Path
) -> None:
    kernel = parse_kernel(TANH_BY_HAND)
    body = f"for (int64_t i = 0; i < n; i++) {{ float e = expf(x[i] + x[i]); y[i] = {result}; }}"
    assert (verdict_on(kernel, by_hand(body, tmp_path)).problem == "") == is_right
