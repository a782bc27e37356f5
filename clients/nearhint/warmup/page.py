"""The page of a warm-up: one HTML file that needs nothing else, in dark and in light.

Every text of a report is escaped here or in `chart`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import prod

from nearhint.cli_output import counted
from nearhint.warmup.chart import Line, Mark, chart
from nearhint.warmup.report import Gain, HintReport, KernelReport, ModelReport, Report

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #59636e; --paper: #ffffff;
  --rule: #d1d9e0; --eager: #9a6700; --t1: #0969da; --t2: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9198a1; --paper: #0d1117;
  --rule: #3d444d; --eager: #d29922; --t1: #4493f8; --t2: #3fb950; --bad: #f85149; } }
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif;
  margin: 0 auto; max-width: 72rem; padding: 1.5rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: .5rem 0 1rem; }
th, td { border-bottom: 1px solid var(--rule); padding: .2rem .7rem .2rem 0; text-align: left;
  vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
code, td.code { font: 13px/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
section { border-top: 1px solid var(--rule); margin-top: 1.5rem; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; }
.charts figure { flex: 1 1 22rem; margin: 0; }
.bad { color: var(--bad); } .dim { color: var(--dim); }
svg { width: 100%; } svg text { fill: var(--dim); font: 11px system-ui, sans-serif; }
svg line.grid { stroke: var(--rule); stroke-width: .5; }
svg line.level { stroke: var(--dim); stroke-dasharray: 5 4; }
svg polyline { fill: none; stroke-width: 1.8; }
svg polyline.eager { stroke-dasharray: 1.5 4; stroke-linecap: round; }
svg polyline.t1 { stroke-dasharray: 9 4; }
svg .eager { stroke: var(--eager); } svg .t1 { stroke: var(--t1); } svg .t2 { stroke: var(--t2); }
svg circle.eager { fill: var(--eager); } svg circle.t1 { fill: var(--t1); }
svg circle.t2 { fill: var(--t2); }
b.eager { color: var(--eager); } b.t1 { color: var(--t1); } b.t2 { color: var(--t2); }
"""

LINES: Sequence[tuple[str, str, Callable[[HintReport], int | None]]] = (
    ("original ops", "eager", lambda hint: hint.eager_ns),
    ("T1, the default", "t1", lambda hint: hint.t1_ns),
    ("T2, the winner", "t2", lambda hint: hint.t2_ns),
)
DRAWN = {"eager": "dotted", "t1": "dashed", "t2": "solid"}
"""As the style sheet has them: not everybody tells the colours apart."""


def page(report: Report) -> str:
    """The whole document."""
    body = [
        f"<h1>Warm-up of {escape(report.source)}</h1>",
        f"<p>{escape(_summary(report))}</p>",
        _facts(report),
        _models(report.models),
        _failures(report),
        _points(report.points),
        "<h2>Kernels</h2>",
        "<p>Time against size, both logarithmic: "
        + ", ".join(
            f'<b class="{style}">{escape(name)}</b> ({DRAWN[style]})' for name, style, _ in LINES
        )
        + ". The share is of what a copy on the device reaches; the level line is the copy.</p>",
        *map(_kernel, report.kernels),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>nearhint warm-up: {escape(report.source)}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _summary(report: Report) -> str:
    state = "complete" if report.is_whole else "partial"
    partly = len(report.in_part)
    in_part = f"{partly} in part, " if partly else ""
    return (
        f"{report.created_at}: {state}; {counted(len(report.at_t2), 'Kernel')} tuned, {in_part}"
        f"{len(report.at_t0) - partly} left to the original ops, "
        f"{len(report.pending)} not finished."
    )


def _facts(report: Report) -> str:
    rows = [(name, value) for name, value in report.versions.items()]
    for device in report.devices:
        name = device.get("name", "")
        rows += [(f"{name}: {key}", value) for key, value in device.items() if key != "name"]
    return "<h2>Versions and devices</h2>" + _table(("what", "value"), rows)


def _models(models: Iterable[ModelReport]) -> str:
    rows = [
        (
            model.name,
            model.source,
            model.device,
            model.effort,
            model.labels_text,
            model.points,
            model.programs,
            model.kernels,
            model.problem,
        )
        for model in models
    ]
    names = ("model", "from", "device", "effort", "labels", "points #", "Programs #", "Kernels #")
    return "<h2>Models</h2>" + _table((*names, "problem"), rows)


def _failures(report: Report) -> str:
    rows = [
        (kernel.id[:12], kernel.title, problem)
        for kernel in report.kernels
        for problem in kernel.problems
    ]
    if not rows:
        return ""
    return "<h2>Not tuned</h2>" + _table(("Kernel", "title", "bucket and reason"), rows)


def _points(points: Sequence[Gain]) -> str:
    if not points:
        return ""
    rows = [
        (
            gain.model,
            gain.device,
            sizes_text(gain.sizes),
            milliseconds_text(gain.original_ms),
            milliseconds_text(gain.nearhint_ms),
            f"{gain.original_ms / gain.nearhint_ms:.3f}" if gain.nearhint_ms else "",
            *gain.tiers,
            gain.problem,
        )
        for gain in points
    ]
    names = ("model", "device", "sizes", "original ms #", "nearhint ms #", "times faster #")
    return "<h2>Points</h2>" + _table((*names, "T0 #", "T1 #", "T2 #", "problem"), rows)


def _kernel(kernel: KernelReport) -> str:
    title = escape(kernel.title or "a Kernel that the daemon did not explain")
    parts = [
        f'<section><h3>{title} <span class="dim">{escape(kernel.id[:12])}</span></h3>',
        f'<p class="dim">{escape(_place(kernel))}</p>',
    ]
    parts += [f'<p class="bad">{escape(problem)}</p>' for problem in kernel.problems]
    charts = [_times(kernel), _shares(kernel)]
    figures = "".join(f"<figure>{each}</figure>" for each in charts if each)
    parts.append(f'<div class="charts">{figures}</div>' if figures else "")
    if kernel.hints:
        parts.append(_hints(kernel))
    for heading, lines in (("Rejected", kernel.rejected), ("Came from", kernel.provenance)):
        if lines:
            items = "".join(f"<li><code>{escape(line)}</code></li>" for line in lines)
            parts.append(f"<details><summary>{heading} ({len(lines)})</summary><ul>{items}</ul>")
            parts.append("</details>")
    return "".join((*parts, "</section>"))


def _place(kernel: KernelReport) -> str:
    return f"target {kernel.target[:12]}, original ops {kernel.fallback[:12]}, {_copied(kernel)}"


def _copied(kernel: KernelReport) -> str:
    if kernel.copy_bytes_per_s is None:
        return "the device's copy bandwidth is not known yet"
    return f"the device copies at {kernel.copy_bytes_per_s / 1e9:.1f} GB/s"


def _hints(kernel: KernelReport) -> str:
    rows = [
        (
            sizes_text(hint.sizes),
            f"T{hint.tier}",
            *(_microseconds(read(hint)) for _, _, read in LINES),
            _percent(hint.eager_share),
            _percent(hint.share),
            hint.selected,
            f"{hint.why} [{hint.reason}]",
        )
        for hint in kernel.hints
    ]
    names = ("at", "tier", "eager µs #", "T1 µs #", "T2 µs #", "eager share #", "share #")
    return _table((*names, "selected", "because"), rows)


def _times(kernel: KernelReport) -> str:
    lines = [
        Line(
            name,
            style,
            _marks(kernel.hints, read, lambda value: f"{value / 1e3:.2f} µs"),
        )
        for name, style, read in LINES
    ]
    return chart(lines, x_title=_x_title(kernel), y_title="time", y_text=_time)


def _shares(kernel: KernelReport) -> str:
    lines = [
        Line("original ops", "eager", _marks(kernel.hints, lambda h: h.eager_share, _percent)),
        Line("selected", "t2", _marks(kernel.hints, lambda h: h.share, _percent)),
    ]
    return chart(
        lines,
        x_title=_x_title(kernel),
        y_title="share of the copy bandwidth",
        y_text=_percent,
        level=1.0,
    )


def _marks(
    hints: Iterable[HintReport],
    read: Callable[[HintReport], float | None],
    text: Callable[[float], str],
) -> tuple[Mark, ...]:
    marks = [
        Mark(_x(hint), value, f"{sizes_text(hint.sizes)}: {text(value)}")
        for hint in hints
        if (value := read(hint))
    ]
    return tuple(sorted(marks, key=lambda mark: (mark.x, mark.note)))


def _x(hint: HintReport) -> float:
    return float(hint.bytes_moved or prod(hint.sizes.values()) or 1)


def _x_title(kernel: KernelReport) -> str:
    return "bytes moved" if all(hint.bytes_moved for hint in kernel.hints) else "product of sizes"


def sizes_text(sizes: object) -> str:
    """Sizes by name for people: `k0=64 k1=384`."""
    if not isinstance(sizes, dict) or not sizes:
        return "no sizes"
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def milliseconds_text(milliseconds: float) -> str:
    """A call's time for people; none where it was not timed."""
    return f"{milliseconds:.3f}" if milliseconds else ""


def _microseconds(nanoseconds: int | None) -> str:
    return "" if nanoseconds is None else f"{nanoseconds / 1000:.2f}"


def _percent(share: float | None) -> str:
    if share is None:
        return ""
    return f"{100 * share:.3g} %" if share < 10 else f"{100 * share:.0f} %"


def _time(nanoseconds: float) -> str:
    """A time for people, in the unit that leaves it short: `20 ms`."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; a column whose name ends in a number sign is right-aligned, without the sign."""
    classes = [' class="n"' if name.endswith("#") else "" for name in columns]
    head = "".join(
        f"<th{kind}>{escape(name.removesuffix(' #'))}</th>"
        for name, kind in zip(columns, classes, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{escape(str(cell))}</td>" for cell, kind in zip(row, classes, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
