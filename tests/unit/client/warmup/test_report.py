"""The report's data, and the page that is drawn of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.unit.client import doubling

from nearhint.errors import InvalidSetting, OutputFailed
from nearhint.warmup import output
from nearhint.warmup.asking import Outcome
from nearhint.warmup.chart import Line, Mark, chart
from nearhint.warmup.output import Outputs
from nearhint.warmup.page import LINES, page
from nearhint.warmup.report import (
    ORIGINAL,
    Gain,
    ModelReport,
    Report,
    kernel_reports,
    standing,
)
from nearhint.warmup.survey import BUDGET_ENDED, Goal, Survey, Surveyed, Wish
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2, types_pb2
from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef, CpuLaunch
from nearhint_rules.guard import Guard
from nearhint_rules.table import HintRow, Table, Timing, Variant
from nearhint_rules.target import CpuDevice

TARGET, KERNEL, FALLBACK = "7a" * 32, "ab" * 32, "fa" * 32
LOST_KERNEL = "cd" * 32
VOID = frozenset({"meta"})
NASTY = "<script>alert('&')</script>"


def variant(name: str) -> Variant:
    launch = CpuLaunch("entry", ex.Sym("k0"), 1, ())
    return Variant(name, f"cpu.{name}", Guard(()), ArtifactRef(f"{len(name):064x}", 9, launch))


def row(size: int, default_ns: int, other_ns: int, eager_ns: int, *, tier: int = 2) -> HintRow:
    timings = sorted(
        [(0, Timing(default_ns, 0.001, 9)), (1, Timing(other_ns, 0.001, 9))],
        key=lambda each: each[1].median_ns,
    )
    ranked = tuple(timings) if tier > 1 else ((0, Timing(default_ns, 0.001, 9)),)
    return HintRow((size,), ranked, ((FALLBACK, Timing(eager_ns, 0.001, 9)),), tier)


TABLE = Table(
    KERNEL,
    TARGET,
    ("k0",),
    (variant("default"), variant("wide")),
    0,
    (row(1024, 4000, 2000, 8000), row(16, 900, 800, 100), row(65536, 9000, 9000, 50000, tier=1)),
    3,
)


def goals() -> list[Goal]:
    sizes = [(16,), (1024,), (65536,)]
    return [Goal(TARGET, KERNEL, FALLBACK, size) for size in sizes] + [
        Goal(TARGET, LOST_KERNEL, FALLBACK, (16,))
    ]


def outcome() -> Outcome:
    wish = Wish(
        model="m",
        place="cpu",
        program=doubling.program(),
        device=CpuDevice("a", (), "g"),
        threads=1,
        sizes=((16,),),
        effort="full",
    )
    surveyed = Surveyed(wish, "p" * 64, TARGET, {(16,): tuple(goals())})
    *_, slow, lost = goals()
    return Outcome(
        Survey((surveyed,), {(TARGET, KERNEL): TABLE}), {slow: BUDGET_ENDED, lost: NASTY}
    )


def explained() -> dict[str, admin_service_pb2.ExplainKernelResponse]:
    moved = convert.expr_to_proto(ex.mul(8, ex.Sym("k0")))
    copy = admin_service_pb2.CopyBandwidth(
        timing=types_pb2.Timing(median_ns=1000, spread=0.01, samples=9), bytes_moved=8192
    )
    return {
        KERNEL: admin_service_pb2.ExplainKernelResponse(
            kernel=admin_service_pb2.KernelSummary(id=KERNEL, title=NASTY),
            bytes_moved=moved,
            copy_bandwidths={TARGET: copy},
            rejected=[f"cpu.bad: wrong: {NASTY}"],
            provenance=["model.layer0"],
        )
    }


def report() -> Report:
    at_t2, at_t0, pending = standing(outcome())
    return Report(
        source="manifest.toml",
        created_at="2026-11-21 12:00:00Z",
        versions={"client": "0.1.0"},
        devices=({"name": "cpu", "model": NASTY},),
        models=(
            ModelReport("m", "m:f", "cpu", "full", {"team": NASTY}, 3, 1, 2),
            ModelReport("bad", "b:f", "cpu", "full", {}, problem=NASTY),
        ),
        kernels=kernel_reports(outcome(), explained()),
        points=(Gain("m", "cpu", {"rows": 16}, 2.0, 1.0, (0, 0, 1)),),
        settled=not pending,
        at_t2=at_t2,
        at_t0=at_t0,
        pending=pending,
    )


def test_hints_have_the_times_of_eager_t1_and_t2_small_to_large() -> None:
    kernel = report().kernels[0]
    assert [hint.sizes for hint in kernel.hints] == [{"k0": 16}, {"k0": 1024}, {"k0": 65536}]
    assert [(h.eager_ns, h.t1_ns, h.t2_ns) for h in kernel.hints] == [
        (100, 900, 800),
        (8000, 4000, 2000),
        (50000, 9000, None),
    ]


def test_what_was_selected_is_what_a_client_selects_and_says_why() -> None:
    small, large, _ = report().kernels[0].hints
    assert (small.selected, small.reason) == (ORIGINAL, "fallback_wins")
    assert (large.selected, large.reason) == ("cpu.wide", "winner")


def test_the_share_is_of_the_copy_bandwidth_for_what_was_selected() -> None:
    small, large, _ = report().kernels[0].hints
    assert large.share == pytest.approx(8 * 1024 / 2000 / (8192 / 1000))
    assert large.eager_share == pytest.approx(8 * 1024 / 8000 / (8192 / 1000))
    assert small.share == pytest.approx(small.eager_share)


def test_a_kernel_stands_where_its_worst_bucket_does() -> None:
    found = report()
    assert (found.at_t2, found.pending) == ((), (KERNEL,))
    assert found.at_t0 == {LOST_KERNEL: NASTY}
    assert not found.settled
    assert not found.is_whole


def test_a_reason_stands_once_behind_all_buckets_that_it_kept_out() -> None:
    first, second, third, _ = goals()
    why = {first: BUDGET_ENDED, second: NASTY, third: BUDGET_ENDED}
    kernel, _ = kernel_reports(Outcome(outcome().survey, why), explained())
    assert kernel.problems == (f"16, 65536: {BUDGET_ENDED}", f"1024: {NASTY}")


def test_a_report_is_whole_only_without_problems() -> None:
    whole = replace(
        report(),
        settled=True,
        at_t0={},
        pending=(),
        models=report().models[:1],
        kernels=tuple(replace(kernel, problems=()) for kernel in report().kernels),
    )
    assert whole.is_whole
    assert not replace(whole, models=report().models).is_whole
    assert not replace(whole, points=(Gain("m", "cpu", {}, problem="it broke"),)).is_whole
    assert not replace(whole, points=(Gain("m", "cpu", {}, 1.0, 1.0, (1, 0, 0)),)).is_whole


def test_what_the_budget_left_is_told_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Outputs().report(report())
    assert f"not yet tuned: {KERNEL[:12]}: 65536: {BUDGET_ENDED}\n" in capsys.readouterr().err


def test_what_was_tuned_in_part_is_not_said_to_run_as_the_original_ops(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kernels = tuple(replace(each, problems=("65536: too large",)) for each in report().kernels)
    told = replace(report(), at_t0={KERNEL: "too large", LOST_KERNEL: NASTY}, pending=())
    Outputs().report(replace(told, kernels=kernels))
    lines = capsys.readouterr().err.splitlines()
    assert f"not tuned at all its sizes: {KERNEL[:12]}: 65536: too large" in lines
    assert f"runs as the original ops: {LOST_KERNEL[:12]}: {NASTY}" in lines
    assert "0 Kernels tuned, 1 in part, 1 left to the original ops" in page(told)


def test_the_report_is_json() -> None:
    content = json.loads(json.dumps(report().as_json()))
    assert content["points"][0]["tiers"] == {"T0": 0, "T1": 0, "T2": 1}
    assert content["kernels"][0]["hints"][1]["t2_ns"] == 2000
    assert content["kernels"][1]["problems"] == [f"16: {NASTY}"]


class Reader(HTMLParser):
    """Checks that tags are closed in order, and keeps texts and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_what_no_file_takes_is_printed_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = Outputs(json="/dev/full")
    outputs.check()
    with pytest.raises(OutputFailed, match="No space left"):
        outputs.report(report())
    assert "warmed up" in capsys.readouterr().out


def test_what_is_compiled_for_two_fallbacks_is_two_lines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A Kernel's binaries are the same, but it is done for one when it is not for the other."""
    surveyed = outcome().survey.programs[0]
    both = tuple(replace(goals()[0], fallback=name * 32) for name in ("aa", "bb"))
    compiled = Outcome(Survey((replace(surveyed, goals={(16,): both}),)), {both[1]: "why"})
    Outputs(json=str(tmp_path / "run.json")).compiled(compiled, ())
    listed = json.loads((tmp_path / "run.json").read_text())["goals"]
    told = [("aa" * 32, ""), ("bb" * 32, "why")]
    assert [(each["fallback"], each["problem"]) for each in listed] == told
    lines = [line for line in capsys.readouterr().out.splitlines() if KERNEL[:12] in line]
    assert [name[:12] in line for (name, _), line in zip(told, lines, strict=True)] == [True, True]


def test_a_point_that_was_not_timed_has_no_times_and_says_where_it_was_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = Gain("m", "cuda:0", {"rows": 16}, problem="it was not called")
    Outputs().report(replace(report(), points=(*report().points, lost)))
    rows = capsys.readouterr().out.splitlines()
    (timed,) = [line for line in rows if "rows=16" in line and "cpu" in line]
    assert "2.000" in timed
    (row,) = [line for line in rows if "cuda:0" in line]
    assert "it was not called" in row
    assert "0.000" not in row


def test_files_are_written_although_nobody_reads_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(output, "table", left)
    with pytest.raises(BrokenPipeError):
        Outputs(json=str(tmp_path / "run.json"), html=tmp_path / "page.html").report(report())
    assert json.loads((tmp_path / "run.json").read_text())["kernels"]
    assert "svg" in (tmp_path / "page.html").read_text()


def test_files_that_cannot_be_written_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    new, old = tmp_path / "new.json", tmp_path / "old.html"
    old.write_text("from before")
    Outputs(json=str(new), html=old).check()
    assert not new.exists()
    assert old.read_text() == "from before"
    for path in (tmp_path, tmp_path / "absent" / "x.json"):
        with pytest.raises(InvalidSetting, match="--json must be a file that can be written"):
            Outputs(json=str(path)).check()


def test_two_results_are_not_written_into_one_file(tmp_path: Path) -> None:
    """The page would be gone, and nothing would say so."""
    page_, link = tmp_path / "page.html", tmp_path / "latest"
    link.symlink_to(page_)
    for name in (page_, tmp_path / "." / "page.html", link):
        with pytest.raises(InvalidSetting, match="--html must be another file than --json's"):
            Outputs(json=str(name), html=page_).check()
    assert not page_.exists()


def test_a_page_shows_what_no_utf8_is_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    Outputs(html=path).report(replace(report(), source="odd \udcff.toml"))
    assert "odd \\udcff.toml" in path.read_text(encoding="utf-8")


def test_a_link_to_a_file_that_is_not_there_yet_stays_a_link(tmp_path: Path) -> None:
    link, target = tmp_path / "latest.json", tmp_path / "today.json"
    link.symlink_to(target)
    Outputs(json=str(link)).check()
    assert link.is_symlink()
    assert not target.exists()


def test_the_page_is_well_formed_and_has_every_kernel_with_its_reasons() -> None:
    reader = read(page(report()))
    shown = " ".join(reader.texts)
    for kernel in report().kernels:
        assert kernel.id[:12] in shown
    for text in (BUDGET_ENDED, "cpu.wide", "fallback_wins", "model.layer0", "cpu.bad", "rows=16"):
        assert text in shown
    assert reader.tags.count("svg") == 2
    assert reader.tags.count("circle") == 3 + 3 + 2 + 3 + 3


@pytest.mark.parametrize(
    ("nanoseconds", "text"), [(500, "500 ns"), (5e3, "5 µs"), (2e6, "2 ms"), (5e7, "50 ms")]
)
def test_times_beside_a_chart_are_short(nanoseconds: float, text: str) -> None:
    size = int(nanoseconds)
    table = replace(TABLE, hints=(row(16, size, size, 2 * size),))
    wanted = outcome()
    survey = Survey(wanted.survey.programs, {(TARGET, KERNEL): table})
    kernels = kernel_reports(Outcome(survey, wanted.problems), explained())
    assert text in read(page(replace(report(), kernels=kernels))).texts


def test_the_page_escapes_all_that_it_was_given() -> None:
    text = page(report())
    assert "<script" not in text
    assert NASTY in " ".join(read(text).texts)


def test_the_page_needs_nothing_else_and_knows_the_dark() -> None:
    text = page(report())
    reader = read(text)
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(reader.tags)
    assert {"src", "href"}.isdisjoint(name for name, _ in reader.attributes)
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_lines_differ_in_more_than_their_colours() -> None:
    text = page(report())
    dashes = {
        style: re.findall(rf"^svg polyline\.{style} {{ (.*) }}$", text, re.MULTILINE)
        for _, style, _ in LINES
    }
    assert len({tuple(each) for each in dashes.values()}) == len(LINES)
    shown = " ".join(" ".join(read(text).texts).split())
    for how in ("original ops (dotted)", "T1, the default (dashed)", "T2, the winner (solid)"):
        assert how in shown, how


def test_a_chart_lies_within_its_picture_and_one_point_is_no_division_by_zero() -> None:
    line = Line("a", "eager", (Mark(5.0, 7.0, "here"),))
    text = chart([line], x_title="x", y_title="y", y_text=str, level=7.0)
    (circle,) = _circles(text)
    assert 0 < float(circle["cx"]) < 520
    assert 0 < float(circle["cy"]) < 260
    assert chart([], x_title="x", y_title="y", y_text=str) == ""


def test_larger_is_further_right_and_slower_is_higher() -> None:
    marks = (Mark(1.0, 10.0, "a"), Mark(1024.0, 1000.0, "b"))
    text = chart([Line("a", "t2", marks)], x_title="x", y_title="y", y_text=str)
    first, second = _circles(text)
    assert float(first["cx"]) < float(second["cx"])
    assert float(first["cy"]) > float(second["cy"])


def _circles(text: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []

    class Circles(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag == "circle":
                found.append({name: value or "" for name, value in attrs})

    Circles().feed(text)
    return found
