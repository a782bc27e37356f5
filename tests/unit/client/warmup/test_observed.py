"""Files of observed sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearhint.errors import InvalidManifest
from nearhint.warmup.observed import read_observed


def test_csv_and_json_lines_say_the_same(tmp_path: Path) -> None:
    csv, lines = tmp_path / "seen.csv", tmp_path / "seen.jsonl"
    csv.write_text("batch,tokens,count\n1,12,803\n\n8,40,96\n1,12,7\n")
    lines.write_text(
        '{"batch": 1, "tokens": 12, "count": 803}\n'
        '{"batch": 8, "tokens": 40, "count": 96}\n\n'
        '{"tokens": 12, "batch": 1, "count": 7}\n'
    )
    for path in (csv, lines):
        assert [(dict(row.sizes), row.count) for row in read_observed(path)] == [
            ({"batch": 1, "tokens": 12}, 810),
            ({"batch": 8, "tokens": 40}, 96),
        ]


def test_a_row_without_a_count_is_one_call(tmp_path: Path) -> None:
    path = tmp_path / "seen.csv"
    path.write_text("n\n5\n5\n6\n")
    assert [row.count for row in read_observed(path)] == [2, 1]


def test_lines_of_json_are_known_by_their_suffix_in_capitals_too(tmp_path: Path) -> None:
    path = tmp_path / "SEEN.JSONL"
    path.write_text('{"n": 5}\n')
    assert [dict(row.sizes) for row in read_observed(path)] == [{"n": 5}]


def test_what_is_no_size_is_told_in_short(tmp_path: Path) -> None:
    path = tmp_path / "seen.jsonl"
    path.write_text(f'{{"n": "{"9" * 100_000}"}}\n')
    with pytest.raises(InvalidManifest, match="line 1: n must be a whole number") as caught:
        read_observed(path)
    assert len(str(caught.value)) < 200 + len(str(path))


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    path = tmp_path / "seen.csv"
    path.write_text("n,count\n5,2\n", encoding="utf-8-sig")
    assert [dict(row.sizes) for row in read_observed(path)] == [{"n": 5}]


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("a.csv", "", "line 1"),
        ("a.csv", "n,count\n", "rows"),
        ("a.csv", "n,n\n1,2\n", "line 1"),
        ("a.csv", "4,3\n8,1\n", "line 1"),
        ("a.csv", "count\n1\n", "line 1"),
        ("a.csv", "n,count\n1\n", "line 2"),
        ("a.csv", "n,count\n1,x\n", "line 2"),
        ("a.csv", "n,count\n0,3\n", "line 2"),
        ("a.csv", "n,count\n3,0\n", "line 2"),
        ("a.csv", "n\n99999999999999999999999\n", "line 2"),
        ("a.csv", f"n\n3\n{'9' * 200_000}\n", "line 3"),
        ("a.csv", f"{'n' * 200_000}\n3\n", "line 1"),
        ("a.jsonl", "{\n", "line 1"),
        ("a.jsonl", "[1]\n", "line 1"),
        ("a.jsonl", '{"count": 3}\n', "line 1"),
        ("a.jsonl", '{"n": 1}\n{"m": 1}\n', "line 2"),
        ("a.jsonl", '{"n": 1.5}\n', "line 1"),
        ("a.jsonl", '{"n": true}\n', "line 1"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(
    tmp_path: Path, name: str, text: str, place: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidManifest) as caught:
        read_observed(path)
    assert caught.value.fields["key"] == place
