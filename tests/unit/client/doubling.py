"""One small Program, its Plan, Kernel, Table and Artifact, by hand: y = x + x over s0 elements."""

from __future__ import annotations

from nearhint.testing import TARGET_ID
from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef, CpuLaunch
from nearhint_rules.canonical import content_hash
from nearhint_rules.guard import ALWAYS, Guard
from nearhint_rules.plan import Launch, Output, Plan
from nearhint_rules.program import Node, Program, Ref, Symbol, TensorType
from nearhint_rules.table import HintRow, Table, Timing, Variant
from nearhint_rules.target import CpuDevice

S0 = ex.symbol("s0")
DEVICE = CpuDevice("test cpu", ("x86_64",), "glibc 2.36")
KERNEL = "ab" * 32
FALLBACK = "cd" * 32
VECTOR = TensorType("f32", (S0,), (ex.ONE,))
BINARY = b"not a real binary"


def program(label: str = "doubling", *, high: int | None = None) -> Program:
    node = Node("aten.add.Tensor", (Ref(0), Ref(0)), (), (0,), (VECTOR,))
    return Program((Symbol("s0", 2, high),), (VECTOR,), (node,), (1,), label)


def launch(**changes: object) -> Launch:
    fields: dict[str, object] = {
        "kernel": KERNEL,
        "fallback": FALLBACK,
        "dims": (S0,),
        "inputs": (0,),
        "outputs": (Output(1, "f32", (S0,), (ex.ONE,)),),
        "nodes": (0,),
    }
    return Launch(**{**fields, **changes})  # type: ignore[arg-type]


def plan(of: Program | None = None) -> Plan:
    return Plan((of or program()).id, "cpu", "test", (launch(),))


def variant(binary: bytes = BINARY, *, guard: Guard = ALWAYS, name: str = "1") -> Variant:
    ref = ArtifactRef(
        content_hash(binary), len(binary), CpuLaunch("nh_double", ex.symbol("k0"), 1024)
    )
    return Variant(name.rjust(64, "0"), f"schedule {name}", guard, ref)


def table(
    *hints: int,
    generation: int = 1,
    tier: int = 2,
    variants: tuple[Variant, ...] | None = None,
    kernel_ns: int = 100,
    fallback_ns: int = 200,
    reason: str = "",
) -> Table:
    listed = (variant(),) if variants is None else variants
    return Table(
        KERNEL,
        TARGET_ID,
        ("k0",),
        listed,
        0 if listed else -1,
        tuple(
            HintRow(
                (hint,),
                tuple((at, Timing(kernel_ns + at, 0.001, 9)) for at in range(len(listed))),
                ((FALLBACK, Timing(fallback_ns, 0.001, 9)),),
                tier,
            )
            for hint in hints
        ),
        generation,
        reason=reason,
    )
