"""Files of observed sizes: how often a model was called with which sizes.

    batch,tokens,count            {"batch": 1, "tokens": 12, "count": 803}
    1,12,803                      {"batch": 8, "tokens": 40, "count": 96}
    8,40,96

CSV with a header, or one JSON object a line; without a count a row is one call. Rows of the same
sizes add up.
"""

from __future__ import annotations

import csv
import json
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from nearhint.errors import InvalidManifest
from nearhint.warmup.files import read_file
from nearhint_rules.program import SIZE_LIMIT

COUNT = "count"
ROWS_LIMIT = 1_000_000
FILE_LIMIT_BYTES = 128 << 20
JSON_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json"})


@dataclass(frozen=True, slots=True)
class Observed:
    """Sizes by name, how many calls had them, and the first line that says so."""

    sizes: Mapping[str, int]
    count: int
    line: int


def read_observed(path: Path) -> tuple[Observed, ...]:
    """The rows of a file, in its order; raises `FileMissing` or `InvalidManifest` with the line.

    Files whose name ends in .jsonl, .ndjson or .json are JSON lines, all others are CSV.
    """
    lines = read_file(path, limit_bytes=FILE_LIMIT_BYTES).splitlines()
    if len(lines) > ROWS_LIMIT:
        raise InvalidManifest(path=path, key="rows", problem=f"more than {ROWS_LIMIT}")
    is_json = path.suffix.lower() in JSON_SUFFIXES
    cells = _json_rows(path, lines) if is_json else _csv_rows(path, lines)
    found: dict[tuple[tuple[str, int], ...], Observed] = {}
    names: frozenset[str] = frozenset()
    for line, row in cells:
        count = _number(path, line, COUNT, row.pop(COUNT, 1))
        sizes = {name: _number(path, line, name, value) for name, value in row.items()}
        names = names or frozenset(sizes)
        if not sizes:
            raise InvalidManifest(path=path, key=f"line {line}", problem="names no size")
        if sizes.keys() != names:
            problem = f"names {', '.join(sizes)}, not {', '.join(sorted(names))}"
            raise InvalidManifest(path=path, key=f"line {line}", problem=problem)
        key = tuple(sorted(sizes.items()))
        known = found.get(key)
        found[key] = (
            Observed(sizes, count, line)
            if known is None
            else Observed(known.sizes, known.count + count, known.line)
        )
    if not found:
        raise InvalidManifest(path=path, key="rows", problem="there are none")
    return tuple(found.values())


def _csv_rows(path: Path, lines: list[str]) -> Iterator[tuple[int, dict[str, object]]]:
    reader = csv.reader(lines)
    try:
        header = [name.strip() for name in next(reader, [])]
        if not all(header) or len(set(header)) != len(header) or not set(header) - {COUNT}:
            problem = "must be different names of dims, and count"
            raise InvalidManifest(path=path, key="line 1", problem=problem)
        if any(name.isdecimal() for name in header):
            problem = f"must name the dims, not {', '.join(header)}"
            raise InvalidManifest(path=path, key="line 1", problem=problem)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                problem = f"{len(cells)} cells under {len(header)} names"
                raise InvalidManifest(path=path, key=f"line {reader.line_num}", problem=problem)
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        place = f"line {reader.line_num}"
        raise InvalidManifest(path=path, key=place, problem=error) from error


def _json_rows(path: Path, lines: list[str]) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidManifest(path=path, key=f"line {number}", problem="not JSON") from error
        if not isinstance(row, dict):
            raise InvalidManifest(path=path, key=f"line {number}", problem="not a JSON object")
        yield number, cast("dict[str, object]", row)


def _number(path: Path, line: int, name: str, value: object) -> int:
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 20:
        text = int(text)
    if not isinstance(text, int) or isinstance(text, bool) or not 0 < text < SIZE_LIMIT:
        problem = f"{name} must be a whole number above 0, not {reprlib.repr(value)}"
        raise InvalidManifest(path=path, key=f"line {line}", problem=problem)
    return text
