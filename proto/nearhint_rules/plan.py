"""Plans: what a Program becomes. Data, not code; it never names an op.

A Plan works on *slots*, numbered like the Program's values. Steps run in order; each is one of

    Launch    one Kernel over slots, or its Fallback: nodes of the client's own graph
    RunNodes  nodes of the client's own graph, in order
    MakeView  a strided view of a slot's storage
    Free      slots whose tensors are no longer needed

A node index is valid only inside the Program that the Plan was made for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from nearhint_rules.canonical import identity
from nearhint_rules.expr import Expr
from nearhint_rules.program import Program


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that a Launch writes: allocated with exactly these sizes and strides (elements).

    `storage` >= 0 names a storage of the Plan that the tensor may live in, shared with other slots
    whose lifetimes do not overlap; -1 asks for a tensor of its own (it leaves the Plan, or may be
    aliased by something that does).
    """

    slot: int
    dtype: str
    shape: tuple[Expr, ...]
    stride: tuple[Expr, ...]
    device: str = "cpu"
    storage: int = -1


@dataclass(frozen=True, slots=True)
class Launch:
    """Runs a Kernel.

    `dims[i]` gives the Kernel's symbol k_i from the Program's symbols. The Kernel's parameters
    are, in order, `inputs` (slots; where the parameter is a scalar, a 0-d CPU tensor or a number
    that no size determines) and `outputs`. `nodes` is the Fallback: running them leaves the same
    slots. `fallback` is its identity.
    """

    kernel: str
    fallback: str
    dims: tuple[Expr, ...]
    inputs: tuple[int, ...]
    outputs: tuple[Output, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunNodes:
    """Runs nodes of the client's own graph, in order.

    `outputs` are offers: a node that makes one of these slots may write it into the given storage
    (where the client knows how), instead of memory of its own.
    """

    nodes: tuple[int, ...]
    outputs: tuple[Output, ...] = ()


@dataclass(frozen=True, slots=True)
class MakeView:
    """Makes `slot` a view of `base`: sizes, strides and offset in elements of base's dtype.

    The offset counts from the first element of `base`, not of its storage. `node` is the node of
    the client's graph that makes the same view.
    """

    slot: int
    base: int
    shape: tuple[Expr, ...]
    stride: tuple[Expr, ...]
    offset: Expr
    node: int


@dataclass(frozen=True, slots=True)
class Free:
    """Drops slots."""

    slots: tuple[int, ...]


Step: TypeAlias = Launch | RunNodes | MakeView | Free


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps for one Program on one kind of target, made by one version of the compiler."""

    program: str
    target_kind: str
    compiler_version: str
    steps: tuple[Step, ...]
    storages: int = 0

    @property
    def id(self) -> str:
        """sha256 of the canonical form."""
        return identity("nearhint.plan.v1", self)


@dataclass(frozen=True, slots=True)
class Fallback:
    """What a Launch replaces, as a Program of its own, with the Kernel bound to its values.

    `dims[i]` gives the Kernel's symbol k_i from the slice's symbols; `inputs` and `outputs` are
    the slice's values that are the Kernel's parameters, in the Kernel's order. With it the Kernel
    and the original ops can be run on the same tensors, at any sizes.
    """

    program: Program
    kernel: str
    dims: tuple[Expr, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def id(self) -> str:
        """sha256 of the canonical form; the Kernel takes part."""
        return identity("nearhint.fallback.v1", self)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a Launch came from: (Program, step) -> nodes and their sources."""

    step: int
    nodes: tuple[int, ...]
    sources: tuple[str, ...] = field(default=(), metadata={"identity": False})
