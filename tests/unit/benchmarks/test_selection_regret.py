"""The sizes that selection is judged at, and what the report makes of a matrix."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from tests.benchmarks import selection_matrix as matrix
from tests.benchmarks import selection_regret
from tests.benchmarks.selection_bench import subjects
from tests.benchmarks.selection_cases import (
    CPU,
    DRAWN,
    GPU,
    LOGGED,
    MOST_BYTES,
    USUAL_BYTES,
    Subject,
    held_out_sizes,
)
from tests.unit.rules.tables import STEP, row, table, variant

from nearhint_rules import expr as ex
from nearhint_rules.choice import FALLBACK
from nearhint_rules.guard import Divisible
from nearhint_rules.metrics import Dims
from nearhint_rules.selectors import SELECTORS
from nearhint_rules.table import Timing


def case() -> matrix.Case:
    served = table(row((16,), {1: 90, 0: 100}, fallback=200), row((256,), {0: 100}, fallback=200))

    def truth(size: int, origin: str, default: int, other: int, ops: int) -> matrix.Truth:
        medians = {0: default, 1: other, FALLBACK: ops}
        return matrix.Truth((size,), origin, {at: Timing(ns, 0.001) for at, ns in medians.items()})

    held_out = (truth(17, DRAWN, 100, 110, 300), truth(200, LOGGED, 120, 100, 90))
    return matrix.Case("case", served, STEP, (truth(16, "hint", 100, 90, 200),), held_out)


@pytest.mark.parametrize("subject", [*GPU, *CPU], ids=lambda each: each.sweep.title)
def test_sizes_are_in_the_ranges_and_mostly_not_large(subject: Subject) -> None:
    found = held_out_sizes(subject, drawn=40, logged=10, seed=1)
    assert found == held_out_sizes(subject, drawn=40, logged=10, seed=1)
    assert {DRAWN, LOGGED} == set(found.values())
    assert all(subject.fitted(sizes) == sizes for sizes in found)
    large = [sizes for sizes in found if subject.size_bytes(sizes) > USUAL_BYTES]
    assert len(large) <= len(found) // 8
    assert all(subject.size_bytes(sizes) <= MOST_BYTES for sizes in found)
    assert any(size % 2 for sizes in found for size in sizes)


def test_enough_kernels_are_judged() -> None:
    assert len({subject.sweep.title for subject in GPU}) >= 14
    assert len({subject.sweep.title for subject in CPU}) >= 6


def test_nothing_is_judged_where_the_fastest_is_not_known_and_the_report_says_where(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = case()
    first, second = known.held_out
    disturbed = {**first.timings, 0: Timing(100, 0.2)}
    wide = replace(known, held_out=(replace(first, timings=disturbed), second))
    assert [each.dims for each in matrix.judge(wide, "", SELECTORS["nearest"])] == [second.dims]
    assert matrix.too_wide([known, wide]) == [("case", first.dims)]
    # What is slow may be as wide as it likes.
    slow = {**first.timings, FALLBACK: Timing(300, 0.2)}
    assert not replace(first, timings=slow).is_wide
    entry = matrix.as_entry(wide, half="develop", repeated=[(17,), (17,)])
    report = selection_regret.report_on(
        {"conditions": {}, "left_out": {}, "kind": "cuda", "kernels": [entry]}
    )
    assert (report["too_wide"], report["held_again"]) == ([("case", (17,))], 2)
    assert "1 sizes too wide to judge at, 2 contests held again" in capsys.readouterr().out


def times(default: int, other: int, ops: int, spread: float = 0.001) -> dict[int, Timing]:
    return {at: Timing(ns, spread) for at, ns in ((0, default), (1, other), (FALLBACK, ops))}


def test_what_is_confirmed_is_the_median_of_each_time() -> None:
    first = matrix.Truth((17,), DRAWN, times(100, 125, 300))
    assert first.confirmed is first
    again = (times(100, 101, 310), times(98, 103, 290))
    assert replace(first, again=again).confirmed.timings == times(100, 103, 300)
    assert replace(first, again=again[:1]).confirmed.timings == times(100, 113, 305)


def test_contests_whose_fastest_is_not_known_confirm_nothing() -> None:
    first = matrix.Truth((17,), DRAWN, times(100, 125, 300))
    disturbed = times(100, 101, 310, spread=0.2)
    assert replace(first, again=(disturbed, disturbed)).confirmed.timings == first.timings
    # Each of these knows its fastest, which is not known of both together.
    unlike = {**times(100, 90, 300), 0: Timing(60, 0.2), 1: Timing(50, 0.001)}
    doubtful = replace(first, timings={**first.timings, 1: Timing(200, 0.2)}, again=(unlike,))
    assert doubtful.confirmed is doubtful


def test_what_was_screened_alone_counts_only_where_nothing_else_is_known() -> None:
    screened = Timing(150, matrix.SCREENED_SPREAD)
    first = matrix.Truth((17,), DRAWN, times(100, 125, 300) | {1: screened, 2: screened})
    assert first.raced == [0, FALLBACK]
    found = replace(first, again=(times(100, 110, 300) | {2: screened},)).confirmed
    assert (found.timings[1].median_ns, found.timings[2]) == (110, screened)


def test_sizes_that_fail_are_timed_again_apart_and_with_all_that_was_timed_there() -> None:
    known = case()
    passing = matrix.Truth((300,), DRAWN, times(100, 100, 300))
    known = replace(known, held_out=(*known.held_out, passing))
    asked: list[tuple[Dims, list[int]]] = []

    def contest(dims: Dims, wanted: Collection[int]) -> dict[int, Timing]:
        asked.append((dims, sorted(wanted)))
        return times(100, len(asked), 300)

    found = selection_regret.timed_again(known, contest, is_over=lambda: len(asked) == 3)
    assert asked == [(dims, [FALLBACK, 0, 1]) for dims in [(17,), (200,), (17,)]]
    assert [len(truth.again) for truth in found.held_out] == [2, 1, 0]
    assert found.held_out[0].again == (times(100, 1, 300), times(100, 3, 300))
    assert [replace(truth, again=()) for truth in found.held_out] == list(known.held_out)


def test_the_bars_are_held_against_what_is_confirmed_and_the_report_has_both(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = case()
    first, second = known.held_out
    again = replace(first, again=(times(100, 100, 300), times(100, 99, 300)))
    entry = matrix.as_entry(replace(known, held_out=(again, second)), half="develop")
    report = selection_regret.report_on(
        {"conditions": {}, "left_out": {}, "kind": "cuda", "kernels": [entry]}
    )
    served = report["all"]["rules"]["interpolated"]
    assert (served["slower_than_default"], served["slower_than_original"]) == (1, 1)
    confirmed = report["confirmed, all"]
    assert (confirmed["slower_than_default"], confirmed["slower_than_original"]) == (0, 1)
    assert confirmed["mean"] == pytest.approx(1 / 6)
    bars = {bar["name"]: bar["figure"] for bar in report["all"]["bars"]}
    assert bars["slower than default or ops"] == 1
    assert bars["mean regret"] == confirmed["mean"]
    at_first, still = report["failing"]
    assert (at_first["dims"], at_first["slower_than"]) == ((17,), ("default",))
    assert at_first["confirmed"] == {"regret": 0.0, "slower_than": ()}
    assert "confirmed" not in still
    printed = capsys.readouterr().out
    assert "2 sizes failed at first, 1 were timed again, 1 fail" in printed


def test_a_rule_is_held_against_the_fastest_the_default_and_the_original_ops() -> None:
    account = matrix.Account.of(matrix.judge(case(), "nearest", SELECTORS["nearest"]))
    # 1 at 17, where 0 is the fastest; 0 at 200, where the original ops are.
    assert account.summary.mean == pytest.approx((0.1 + 1 / 3) / 2)
    assert (account.slower_than_default, account.slower_than_original) == (1, 1)
    assert account.worst.dims == (200,)


def test_answers_that_were_screened_alone_count_and_are_told_apart() -> None:
    known = case()
    first, second = known.held_out
    screened = {**first.timings, 1: Timing(150, matrix.SCREENED_SPREAD)}
    judged = replace(known, held_out=(replace(first, timings=screened), second))
    report = selection_regret.report_on(
        {
            "conditions": {},
            "left_out": {},
            "kind": "cuda",
            "kernels": [matrix.as_entry(judged, half="develop")],
        }
    )
    assert report["all"]["rules"]["interpolated"]["sizes"] == 2
    assert report["all"]["rules"]["interpolated"]["mean"] == pytest.approx((0.5 + 1 / 3) / 2)
    raced = report["raced, all"]
    assert (raced["sizes"], raced["worst_at"]) == (1, (200,))


@pytest.mark.parametrize("name", ["matrix.json", "matrix.json.gz"])
def test_a_matrix_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    known = case()
    first, second = known.held_out
    again = replace(first, again=(times(100, 100, 300), times(100, 99, 300)))
    for written in (known, replace(known, held_out=(again, second))):
        matrix.write({"kernels": [matrix.as_entry(written, half="report")]}, file)
        assert list(matrix.cases(matrix.read(file))) == [written]


def test_every_bar_is_held_against_the_rule_that_serves() -> None:
    bars = {bar.name: bar for bar in matrix.bars(matrix.judge_all([case()]), "cuda")}
    assert len(bars) == 6
    assert not bars["slower than default or ops"].passes


def test_kernels_are_chosen_by_number_or_by_patterns_of_their_titles() -> None:
    assert [each.sweep.title for each in subjects("cuda", "add f16,row_sum")] == [
        "row_sum f32",
        "add f16",
    ]
    assert len(subjects("cuda", "14")) == 14


def test_a_pattern_of_no_title_is_refused_with_those_that_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["selection_regret", "--device", "cuda:0", "--kernels", "nosuch"]
    )
    with pytest.raises(SystemExit) as left:
        selection_regret.main()
    assert left.value.code == 2
    assert "add f16" in capsys.readouterr().err


def test_a_file_is_judged_without_companions_that_are_odd_in_one_size() -> None:
    k0, k1 = ex.Sym("k0"), ex.Sym("k1")
    variants = (variant(0), variant(1, Divisible(k0, 8)), variant(2, Divisible(k1, 8)))
    dims = [(512, 2816), (503, 2771), (503, 2816)]
    served = table(*(row(each, {0: 100}) for each in dims), variants=variants)
    entry = matrix.as_entry(matrix.Case("case", served, STEP, (), ()))
    (left,) = matrix.cases(matrix.without_sided_rows({"kernels": [entry]}))
    assert [each.dims for each in left.table.hints] == dims[:2]
