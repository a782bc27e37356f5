"""Where a warm-up's results go: tables or JSON on stdout, files beside them, talk on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os.path import realpath
from pathlib import Path

from nearhint.cli_output import SCHEMA_VERSION, counted, print_json, table, talk
from nearhint.errors import InvalidSetting, OutputFailed
from nearhint.warmup.asking import Outcome
from nearhint.warmup.page import milliseconds_text, page, sizes_text
from nearhint.warmup.report import KernelReport, ModelReport, Report
from nearhint.warmup.survey import Survey

STDOUT = "-"
JOBS_A_GOAL = 2
"""One brings the default Variant, one the winner."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Places for results: `json` is a file's path, "-" for stdout, or empty; `html` a file.

    Files come first, since whoever reads stdout may leave; what no file takes is printed all the
    same.
    """

    json: str = ""
    html: Path | None = None

    def check(self) -> None:
        """Raises `InvalidSetting` where a file could not be written at the end of it all."""
        if self._json_file and self.html and realpath(self._json_file) == realpath(self.html):
            expected = "another file than --json's"
            raise InvalidSetting(name="--html", expected=expected, value=str(self.html))
        for option, path in (("--json", self._json_file), ("--html", self.html)):
            if path is None:
                continue
            try:
                is_there = path.exists()
                path.open("ab").close()
                if not is_there:
                    path.resolve().unlink()
            except OSError as error:
                expected = f"a file that can be written ({error.strerror})"
                raise InvalidSetting(name=option, expected=expected, value=str(path)) from error

    def report(self, report: Report) -> None:
        """Prints and keeps what a warm-up came to; raises `OutputFailed`."""
        content = report.as_json()
        try:
            self._keep(content)
            if self.html is not None:
                _write(self.html, page(report))
        finally:
            self._show(content, lambda: _print(report))
            _tell(report.models)
            for kernel, reason in report.at_t0.items():
                if kernel not in report.in_part:
                    talk(f"runs as the original ops: {kernel[:12]}: {reason}")
            for each in report.kernels:
                problems = f"{each.id[:12]}: {'; '.join(each.problems)}"
                if each.id in report.pending:
                    talk(f"not yet tuned: {problems}")
                elif each.id in report.in_part and each.problems:
                    talk(f"not tuned at all its sizes: {problems}")

    def survey(self, survey: Survey, models: Sequence[ModelReport]) -> None:
        """Prints and keeps what a warm-up would do; raises `OutputFailed`."""
        goals, met = survey.goals(), survey.met()
        jobs = JOBS_A_GOAL * (len(goals) - len(met))
        programs = [
            {
                "model": each.wish.model,
                "program": each.program_id,
                "label": each.wish.program.label,
                "target": each.target,
                "points": [_named(each.wish.program.symbols, sizes) for sizes in each.goals],
                "kernels": sorted({goal.kernel for some in each.goals.values() for goal in some}),
                "reason": each.reason,
            }
            for each in survey.programs
        ]
        kernels = [
            {
                "kernel": goal.kernel,
                "fallback": goal.fallback,
                "target": goal.target,
                "bucket": list(goal.bucket),
                "is_met": goal in met,
            }
            for goal in goals
        ]
        content = {
            "dry_run": True,
            "models": [asdict(model) for model in models],
            "programs": programs,
            "goals": kernels,
            "estimated_jobs": jobs,
        }
        _tell(models)
        try:
            self._keep(content)
        finally:
            self._show(content, lambda: _print_survey(survey, models, jobs))

    def compiled(self, outcome: Outcome, models: Sequence[ModelReport]) -> None:
        """Prints and keeps what was compiled ahead; raises `OutputFailed`."""
        goals = outcome.survey.goals()
        content = {
            "compile_only": True,
            "models": [asdict(model) for model in models],
            "goals": [
                {
                    "kernel": goal.kernel,
                    "fallback": goal.fallback,
                    "target": goal.target,
                    "bucket": list(goal.bucket),
                    "problem": outcome.problems.get(goal, ""),
                }
                for goal in goals
            ],
        }
        _tell(models)
        try:
            self._keep(content)
        finally:
            self._show(content, lambda: _print_compiled(outcome, models))

    @property
    def _json_file(self) -> Path | None:
        return Path(self.json) if self.json not in ("", STDOUT) else None

    def _show(self, content: Mapping[str, object], print_tables: Callable[[], None]) -> None:
        """Prints JSON where that is wanted on stdout, else tables."""
        if self.json == STDOUT:
            print_json(content)
        else:
            print_tables()

    def _keep(self, content: Mapping[str, object]) -> None:
        """Writes JSON where a file is wanted."""
        if self._json_file is not None:
            text = json.dumps({"schema_version": SCHEMA_VERSION, **content}, indent=2)
            _write(self._json_file, text + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OutputFailed(path=path, problem=error.strerror or error) from error


def _named(symbols: Sequence[object], sizes: Sequence[int]) -> dict[str, int]:
    names = (getattr(symbol, "user_name", "") or getattr(symbol, "name", "") for symbol in symbols)
    return dict(zip(names, sizes, strict=True))


def _print_survey(survey: Survey, models: Sequence[ModelReport], jobs: int) -> None:
    goals, met = survey.goals(), survey.met()
    _print_models(models)
    table(
        ("program", "model", "label", "points #", "kernels #", "why none"),
        [
            (
                each.program_id[:12],
                each.wish.model,
                each.wish.program.label,
                len(each.goals),
                len({goal.kernel for some in each.goals.values() for goal in some}),
                each.reason,
            )
            for each in survey.programs
        ],
        title="Programs",
    )
    table(
        ("kernel", "original ops", "bucket", "state"),
        [
            (
                goal.kernel[:12],
                goal.fallback[:12],
                "x".join(map(str, goal.bucket)),
                "measured" if goal in met else "to be measured",
            )
            for goal in goals
        ],
        title=f"Kernels and buckets; about {counted(jobs, 'job')}",
    )


def _print_compiled(outcome: Outcome, models: Sequence[ModelReport]) -> None:
    _print_models(models)
    table(
        ("kernel", "original ops", "target", "bucket", "problem"),
        [
            (
                goal.kernel[:12],
                goal.fallback[:12],
                goal.target[:12],
                "x".join(map(str, goal.bucket)),
                outcome.problems.get(goal, ""),
            )
            for goal in outcome.survey.goals()
        ],
        title="compiled",
    )


def _print(report: Report) -> None:
    _print_models(report.models)
    table(
        (
            "model",
            "device",
            "sizes",
            "original ms",
            "nearhint ms",
            "gain %",
            "T0 #",
            "T1 #",
            "T2 #",
            "problem",
        ),
        [
            (
                gain.model,
                gain.device,
                sizes_text(gain.sizes),
                milliseconds_text(gain.original_ms),
                milliseconds_text(gain.nearhint_ms),
                f"{100 * (gain.original_ms / gain.nearhint_ms - 1):.1f}"
                if gain.nearhint_ms
                else "",
                *gain.tiers,
                gain.problem,
            )
            for gain in report.points
        ],
        title="warmed up",
    )
    table(
        (
            "kernel",
            "original ops",
            "title",
            "tier",
            "hints #",
            "Variants win #",
            "times faster #",
            "rejected #",
            "why not",
        ),
        [_kernel_row(kernel) for kernel in report.kernels],
        title="Kernels",
    )


def _kernel_row(kernel: KernelReport) -> tuple[object, ...]:
    ratios = [hint.eager_ns / hint.t2_ns for hint in kernel.hints if hint.eager_ns and hint.t2_ns]
    span = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
    return (
        kernel.id[:12],
        kernel.fallback[:12],
        kernel.title,
        f"T{kernel.tier}",
        len(kernel.hints),
        sum(hint.reason == "winner" for hint in kernel.hints),
        span,
        len(kernel.rejected),
        "; ".join(kernel.problems),
    )


def _tell(models: Sequence[ModelReport]) -> None:
    for model in models:
        for line in model.problems():
            talk(line)


def _print_models(models: Sequence[ModelReport]) -> None:
    table(
        ("model", "device", "effort", "labels", "points #", "programs #", "kernels #", "problem"),
        [
            (
                model.name,
                model.device,
                model.effort,
                model.labels_text,
                model.points,
                model.programs,
                model.kernels,
                model.problem,
            )
            for model in models
        ],
        title="models",
    )
