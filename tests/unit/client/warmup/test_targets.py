"""Targets elsewhere: the device half as `nearhint status` and `policy` print it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.unit.client.cli_cases import run

from nearhint.errors import FileMissing, InvalidManifest
from nearhint.testing import FakeDaemon
from nearhint.warmup.targets import as_on, device_json, read_device
from nearhint_proto import convert
from nearhint_rules import expr as ex
from nearhint_rules.program import Keyword, Node, Program, Ref, Symbol, TensorType
from nearhint_rules.target import CpuDevice, CudaDevice, Device

CPU = CpuDevice("a model", ("avx2", "fma"), "glibc 2.36")
CUDA = CudaDevice("a device", 90, 132, 80 << 30, "570.1", 700)


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda half: half,
        lambda half: {"name": "x", "device": half},
        lambda half: {"devices": [{"name": "x", "device": half}], "schema_version": 1},
    ],
)
def test_what_the_status_prints_is_read_back(tmp_path: Path, device: Device, wrap: object) -> None:
    assert callable(wrap)
    path = tmp_path / "target.json"
    path.write_text(json.dumps(wrap(device_json(convert.device_to_proto(device)))))
    assert read_device(path) == device


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{", "not JSON"),
        ("3", "device"),
        ('{"name": "cpu", "device": null}', "device"),
        ("{}", "kind"),
        ('{"kind": "tpu"}', "kind"),
        ('{"kind": ["cpu"]}', "kind"),
        ('{"kind": "cpu", "model": "m", "features": []}', "libc"),
        ('{"kind": "cpu", "model": "m", "features": [], "libc": "g", "cores": 3}', "cores"),
        ('{"kind": "cpu", "model": "m", "features": "avx2", "libc": "g"}', "features"),
        ('{"kind": "cpu", "model": 3, "features": [], "libc": "g"}', "device"),
        ('{"devices": []}', "devices"),
        ('{"devices": [{}, {}]}', "devices"),
    ],
)
def test_what_is_no_device_is_refused_with_its_key(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "target.json"
    path.write_text(text)
    with pytest.raises(InvalidManifest) as caught:
        read_device(path)
    assert caught.value.fields["key"] == key


@pytest.mark.parametrize(("typed", "meant"), [(900, 90), (20, 120), (0, 0)])
def test_a_capability_that_there_is_not_is_refused_with_those_that_there_are(
    tmp_path: Path, typed: int, meant: int
) -> None:
    path = tmp_path / "target.json"
    path.write_text(json.dumps({"kind": "cuda", **asdict(replace(CUDA, capability=typed))}))
    with pytest.raises(InvalidManifest) as caught:
        read_device(path)
    assert caught.value.fields["key"] == "capability"
    assert f"no such compute capability as {typed}" in str(caught.value)
    assert "90 (Hopper)" in str(caught.value)
    assert str(caught.value).endswith(f"did you mean {meant}?") == bool(meant)


def test_one_of_several_devices_is_printed_as_a_target_is_read(
    explained: FakeDaemon, tmp_path: Path
) -> None:
    explained.store.status.devices.add(name="cuda:0", device=convert.device_to_proto(CUDA))
    path = tmp_path / "target.json"
    path.write_text(run("status", "--json", "--address", explained.address).stdout)
    with pytest.raises(InvalidManifest, match="`nearhint policy DEVICE --json`"):
        read_device(path)
    path.write_text(run("policy", "cuda:0", "--json", "--address", explained.address).stdout)
    assert read_device(path) == CUDA


def test_a_target_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileMissing):
        read_device(tmp_path / "absent.json")


def test_a_program_as_on_a_device_has_its_tensors_there_and_its_numbers_here() -> None:
    rows = ex.Sym("s0")
    tensor = TensorType("f32", (rows,), (ex.Int(1),))
    number = TensorType("f64", (), ())
    node = Node(
        op="aten.add.Tensor",
        args=(Ref(0), Ref(1)),
        kwargs=(("device", Keyword("device", "cpu")),),
        inputs=(0, 1),
        outputs=(tensor,),
    )
    moved = as_on(Program((Symbol("s0"),), (tensor, number), (node,), (2,)), CUDA)
    assert [value.device for value in moved.inputs if isinstance(value, TensorType)] == [
        "cuda",
        "cpu",
    ]
    assert moved.nodes[0].outputs == (TensorType("f32", (rows,), (ex.Int(1),), "cuda"),)
    assert moved.nodes[0].kwargs == (("device", Keyword("device", "cuda")),)
