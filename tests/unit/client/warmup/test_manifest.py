"""Manifests: what they may say, and what is said about those that make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearhint.errors import FileMissing, InvalidManifest
from nearhint.exit_codes import ExitCode, exit_code
from nearhint.warmup.files import SMALL_BYTES
from nearhint.warmup.manifest import Range, read_duration, read_manifest

ENTRY = '[[model]]\nentry = "m:f"\n'


def manifest(folder: Path, text: str) -> Path:
    path = folder / "manifest.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(InvalidManifest) as caught:
        read_manifest(manifest(folder, text))
    assert exit_code(caught.value) == ExitCode.USAGE
    return str(caught.value)


def test_a_manifest_says_models_sizes_effort_budget_and_labels(tmp_path: Path) -> None:
    (tmp_path / "seen.csv").write_text("rows,count\n3,5\n40,1\n")
    found = read_manifest(
        manifest(
            tmp_path,
            """
            effort = "quick"
            budget = "1h30m"
            labels = { team = "search" }

            [[model]]
            entry = "my_model:warm_up"
            name = "encoder"
            dims = { batch = [1, 8], tokens = { min = 1, max = 512 } }
            effort = "max"
            labels = { stage = "live" }

            [[model]]
            exported = "ranker.pt2"
            sizes = "seen.csv"
            devices = ["cpu", "cuda:1"]
            dynamic = { x = { 0 = "rows" } }
            points = 7
            """,
        )
    )
    assert found.budget_s == 5400
    encoder, ranker = found.models
    assert (encoder.name, encoder.entry, encoder.exported) == ("encoder", "my_model:warm_up", None)
    assert encoder.axes == {"batch": (1, 8), "tokens": Range(1, 512)}
    assert (encoder.effort, encoder.devices) == ("max", ("cpu",))
    assert encoder.labels == {"team": "search", "stage": "live"}
    assert (ranker.name, ranker.exported) == ("ranker", tmp_path / "ranker.pt2")
    assert [(row.sizes, row.count) for row in ranker.observed] == [
        ({"rows": 3}, 5),
        ({"rows": 40}, 1),
    ]
    assert (ranker.effort, ranker.devices, ranker.points) == ("quick", ("cpu", "cuda:1"), 7)
    assert ranker.dynamic == {"x": {0: "rows"}}
    assert ranker.labels == {"team": "search"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("efforts = 'full'\n" + ENTRY, "efforts: no such key; did you mean effort?"),
        (ENTRY + "dimz = {}", "model[0].dimz: no such key; did you mean dims?"),
        (
            ENTRY + "dims = { n = { min = 1, max = 2, mix = 3 } }",
            "model[0].dims.n.mix: no such key",
        ),
        ("", "model: there must be"),
        ("model = 3", "model: there must be"),
        ("model = [3]", "model[0]: must be a table"),
        ("[[model]]\nname = 'x'", "model[0]: needs one of entry and exported"),
        (ENTRY + "exported = 'x.pt2'", "model[0]: needs one of entry and exported"),
        ("[[model]]\nentry = 3", "model[0].entry: must be text"),
        (ENTRY + ENTRY, "model[1].name: a second model"),
        (ENTRY + "effort = 'hard'", "model[0].effort: must be one of none, quick, full, max"),
        ("budget = 0\n" + ENTRY, "budget: must be seconds above 0"),
        ("budget = 'soon'\n" + ENTRY, "budget: must be seconds above 0"),
        ("budget = true\n" + ENTRY, "budget: must be seconds above 0"),
        ("budget = -3.5\n" + ENTRY, "budget: must be seconds above 0"),
        ("budget = inf\n" + ENTRY, "budget: must be seconds above 0"),
        ("devices = []\n" + ENTRY, "devices: must be a list"),
        (ENTRY + "devices = ['tpu']", "model[0].devices[0]: must be cpu, cuda or cuda:N"),
        ("labels = { a = 3 }\n" + ENTRY, "labels.a: must be text"),
        ('labels = { a = "x\\ny" }\n' + ENTRY, "labels.'a': must be printable"),
        (ENTRY + "points = 0", "model[0].points: must be 1 to 256"),
        (ENTRY + "dims = { n = { min = 8, max = 2 } }", "model[0].dims.n: the range is empty"),
        (ENTRY + "dims = { n = { min = 8 } }", "model[0].dims.n: a range needs max"),
        (ENTRY + "dims = { n = { min = 0, max = 2 } }", "model[0].dims.n.min: must be a size"),
        (ENTRY + "dims = { n = [] }", "model[0].dims.n: the list is empty"),
        (ENTRY + "dims = { n = [1, -1] }", "model[0].dims.n[1]: must be a size"),
        (ENTRY + "dims = { n = 'all' }", "model[0].dims.n: must be {min"),
        (ENTRY + "dims = { 'a b' = 1 }", "model[0].dims.a b: 'a b' is no name"),
        (ENTRY + "points = 3\ndims = { n = [1, 2], m = [1, 2] }", "4 combinations of listed sizes"),
        (ENTRY + "dynamic = { x = { first = 'n' } }", "dynamic.x.first: must be a dimension's"),
        (ENTRY + "dynamic = { x = { 0 = 'n' } }", "dynamic: is of exported programs"),
        ("targets = 'x.json'\n" + ENTRY, "targets: must be a list of files"),
        ("[[model]\n", "not TOML"),
        (f"a = {'[' * 5000}", "not TOML"),
        (f"budget = {'9' * 5000}\n" + ENTRY, "not TOML"),
        (f"budget = {'9' * 400}\n" + ENTRY, "budget: must be seconds above 0"),
        (f"budget = '{'9' * 400}h'\n" + ENTRY, "budget: must be seconds above 0"),
        ("#" * (SMALL_BYTES + 1), "size: more than 1,048,576 bytes"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(
    tmp_path: Path, text: str, place: str
) -> None:
    assert place in refusal(tmp_path, text)


def test_a_manifest_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileMissing) as caught:
        read_manifest(tmp_path / "absent.toml")
    assert exit_code(caught.value) == ExitCode.NOT_FOUND


@pytest.mark.parametrize("key", ["sizes = 'a\\u0000b.csv'", "targets = ['a\\u0000b.json']"])
def test_a_path_that_no_file_can_have_is_not_found(tmp_path: Path, key: str) -> None:
    text = key.replace("'", '"')
    content = text + "\n" + ENTRY if key.startswith("targets") else ENTRY + text
    with pytest.raises(FileMissing, match="null byte"):
        read_manifest(manifest(tmp_path, content))


def test_a_file_of_sizes_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match=r"absent\.csv"):
        read_manifest(manifest(tmp_path, ENTRY + "sizes = 'absent.csv'"))


def test_observed_sizes_outside_the_ranges_are_refused_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "seen.csv").write_text("n,count\n3,1\n9,1\n")
    text = ENTRY + "sizes = 'seen.csv'\ndims = { n = { min = 1, max = 8 } }"
    assert "line 3: n = 9 is outside 1 .. 8" in refusal(tmp_path, text)


def test_observed_sizes_under_other_names_than_the_dims_are_refused(tmp_path: Path) -> None:
    (tmp_path / "seen.csv").write_text("rows,count\n3,1\n")
    text = ENTRY + "sizes = 'seen.csv'\ndims = { n = { min = 1, max = 8 } }"
    assert "differ: n, rows" in refusal(tmp_path, text)


def test_targets_are_read_from_the_manifests_folder(tmp_path: Path) -> None:
    half = {"kind": "cpu", "model": "elsewhere", "features": ["avx2"], "libc": "glibc 2.36"}
    (tmp_path / "there.json").write_text(json.dumps(half))
    found = read_manifest(manifest(tmp_path, "targets = ['there.json']\n" + ENTRY))
    assert [device.model for device in found.targets] == ["elsewhere"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("10m", 600.0), ("1h", 3600.0), ("1h2m3s", 3723.0), (7, 7.0), ("1.5s", 1.5)],
)
def test_durations_are_seconds_or_units(text: object, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "m", "10 m", "-1s", "1d", None, [], float("nan")])
def test_what_is_no_duration_is_none(text: object) -> None:
    assert read_duration(text) is None


def test_models_of_one_package_have_names_of_their_own(tmp_path: Path) -> None:
    text = '[[model]]\nentry = "pkg.bert:f"\n[[model]]\nentry = "pkg.gpt:f"\n'
    found = read_manifest(manifest(tmp_path, text))
    assert [model.name for model in found.models] == ["pkg.bert:f", "pkg.gpt:f"]


@pytest.mark.parametrize("number", ["9" * 5000, "00"])
def test_a_dimension_has_one_number(tmp_path: Path, number: str) -> None:
    dynamic = f'dynamic = {{ x = {{ 0 = "rows", {number} = "columns" }} }}\n'
    assert f"dynamic.x.{number}" in refusal(tmp_path, f"{ENTRY}{dynamic}")
