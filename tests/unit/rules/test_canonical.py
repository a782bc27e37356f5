"""Canonical bytes: framed, typed, and the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from nearhint_rules import expr as ex
from nearhint_rules.canonical import content_hash, encode, identity
from nearhint_rules.program import Node, Program, Ref, Symbol, TensorType

SHAPE = (ex.mul(ex.Sym("batch"), ex.Sym("tokens")), ex.Sym("tokens"))
PROGRAM = Program(
    symbols=(Symbol("tokens", 2), Symbol("batch", 2)),
    inputs=(TensorType("f32", SHAPE, (ex.Sym("tokens"), ex.ONE)),),
    nodes=(Node("aten.relu.default", (Ref(0),), (), (0,), (TensorType("f32", SHAPE, SHAPE),)),),
    outputs=(1,),
)


@dataclass(frozen=True)
class Named:
    value: object
    note: str = field(default="", metadata={"identity": False})


@dataclass(frozen=True)
class Other:
    value: object
    note: str = field(default="", metadata={"identity": False})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (0, None),
        ("1", 1),
        ("a", b"a"),
        (("ab",), ("a", "b")),
        ((), ((),)),
        (("a", ("b",)), (("a",), "b")),
        (Named(1), Other(1)),
        (Named(1), Named(2)),
        (Named((1,)), (1,)),
    ],
)
def test_different_values_have_different_bytes(first: object, second: object) -> None:
    assert encode(first) != encode(second)


def test_a_field_that_is_no_part_of_the_identity_is_left_out() -> None:
    assert encode(Named(1, "here")) == encode(Named(1, "there"))


@pytest.mark.parametrize("value", [[1], {"a": 1}, {1}, object(), Named])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="no canonical form"):
        encode(value)


def test_the_domain_takes_part_in_the_identity() -> None:
    assert identity("a", ("bc",)) != identity("ab", ("c",))
    assert identity("a", 1) != identity("b", 1)


def test_content_is_named_by_its_sha256() -> None:
    assert content_hash(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_identity_is_the_same_under_any_hash_seed() -> None:
    source = "from tests.unit.rules.test_canonical import PROGRAM; print(PROGRAM.id)"
    found = {
        subprocess.run(
            [sys.executable, "-c", source],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("0", "1", "4242")
    }
    assert found == {PROGRAM.id}
