"""Snapshots: what one run of a Plan works from, from beginning to end.

A Snapshot is immutable but for the answers of `choose`, which it remembers. A new Plan or Table
makes a new Snapshot; the old one stays valid, and keeps its loaded binaries, for as long as someone
holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from nearhint.launchers import LoadedKernel
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.choice import FALLBACK, Selection
from nearhint_rules.choice import Choice as Decided
from nearhint_rules.guard import Aligned
from nearhint_rules.plan import Launch, Plan
from nearhint_rules.prediction import contenders
from nearhint_rules.selectors import BoundSelector, Interpolated, rule_of
from nearhint_rules.table import Table

CHOICE_LIMIT = 4096
"""Remembered answers a Snapshot; past it they are forgotten and made again."""


class Choice:
    """What runs for one launch step at given Kernel sizes.

    `kernel` is the loaded binary (None: run the Fallback); `selection` says why, from which hint
    and at which tier. A Fallback that was measured and won is served at the tier of its hint.
    `facts` must hold for the call's addresses (`guard.pointer_facts_hold`), else `otherwise` is
    the answer. Where the sizes' bucket is not tuned for this step (`is_covered` False),
    `ProgramHandle.want` asks for it.
    """

    __slots__ = ("_otherwise", "facts", "is_covered", "kernel", "selection")

    def __init__(
        self,
        kernel: LoadedKernel | None,
        selection: Selection,
        is_covered: bool,
        facts: tuple[Aligned, ...] = (),
        otherwise: Choice | Callable[[], Choice] | None = None,
    ) -> None:
        self.kernel = kernel
        self.selection = selection
        self.is_covered = is_covered
        self.facts = facts
        self._otherwise = otherwise

    @property
    def otherwise(self) -> Choice | None:
        """The answer where `facts` do not hold; there whenever there are any.

        Worked out when it is first asked for, and remembered. No lock is taken: two threads that
        ask at once work out equal answers.
        """
        otherwise = self._otherwise
        if otherwise is not None and not isinstance(otherwise, Choice):
            otherwise = self._otherwise = otherwise()
        return otherwise

    @property
    def tier(self) -> int:
        """The tier that serves, 0 to 3."""
        return self.selection.tier

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Choice):
            return NotImplemented
        return self._plain() == other._plain()

    def __hash__(self) -> int:
        return hash((self.selection, self.facts))

    def __repr__(self) -> str:
        names = ("kernel", "selection", "is_covered", "facts", "otherwise")
        said = zip(names, self._plain(), strict=True)
        return f"Choice({', '.join(f'{name}={value!r}' for name, value in said)})"

    def _plain(self) -> tuple[object, ...]:
        return self.kernel, self.selection, self.is_covered, self.facts, self.otherwise


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A checked Plan, with the Tables and binaries of its Kernels that are there by now.

    `tables` maps a Kernel's identity to its Table as far as its binaries are here, `loaded` an
    Artifact to the loaded binary (by its launch metadata too: two Kernels can share the bytes),
    `selectors` a launch step's number to its selection.
    """

    plan: Plan
    generation: int
    tables: Mapping[str, Table]
    loaded: Mapping[ArtifactRef, LoadedKernel]
    selectors: Mapping[int, BoundSelector]
    _kernels: dict[tuple[str, int], LoadedKernel] = field(
        default_factory=dict[tuple[str, int], LoadedKernel]
    )
    _choices: dict[tuple[int, tuple[int, ...]], Choice] = field(
        default_factory=dict[tuple[int, tuple[int, ...]], Choice]
    )

    def choose(self, step: int, dims: tuple[int, ...]) -> Choice:
        """The answer for launch step `step` at the Kernel's sizes `dims`; remembered."""
        key = (step, dims)
        choice = self._choices.get(key)
        if choice is None:
            choice = self._decide(step, dims)
            if len(self._choices) >= CHOICE_LIMIT:
                self._choices.clear()
            self._choices[key] = choice
        return choice

    def _decide(self, step: int, dims: tuple[int, ...]) -> Choice:
        decided = self.selectors[step].prepare(dims)
        launch = self.plan.steps[step]
        assert isinstance(launch, Launch)  # no other step has a selector
        facts, selection = decided.first
        kernel = None
        if selection.variant != FALLBACK:
            key = (launch.kernel, selection.variant)
            kernel = self._kernels.get(key) or self._kernel(*key)
        if not facts:
            return Choice(kernel, selection, decided.is_covered)
        # Not the Snapshot itself, which remembers the Choice: it is to go when no one holds it.
        otherwise = partial(_otherwise, self.tables[launch.kernel], self.loaded, decided)
        return Choice(kernel, selection, decided.is_covered, facts, otherwise)

    def _kernel(self, kernel: str, variant: int) -> LoadedKernel:
        """A Variant's binary, remembered: an Artifact's launch metadata are long to hash."""
        found = self.loaded[self.tables[kernel].variants[variant].artifact]
        self._kernels[kernel, variant] = found
        return found


def _otherwise(
    table: Table, loaded: Mapping[ArtifactRef, LoadedKernel], decided: Decided
) -> Choice:
    """The answer where the first alternative's facts do not hold, with those after it."""
    found: Choice | None = None
    for facts, selection in decided.rest[::-1]:
        kernel = None
        if selection.variant != FALLBACK:
            kernel = loaded[table.variants[selection.variant].artifact]
        found = Choice(kernel, selection, decided.is_covered, facts, found)
    assert found is not None  # the last alternative needs no facts
    return found


def servable(table: Table, loaded: Mapping[ArtifactRef, LoadedKernel]) -> Table:
    """`table` with only those Variants ranked and pinned whose binaries are loaded.

    Positions stay.
    """
    here = {
        position for position, variant in enumerate(table.variants) if variant.artifact in loaded
    }
    ids = {"", *(table.variants[position].id for position in here)}
    return replace(
        table,
        pins=tuple(pin for pin in table.pins if pin.variant in ids),
        default=table.default if table.default in here else -1,
        hints=tuple(
            replace(row, ranked=tuple(each for each in row.ranked if each[0] in here))
            for row in table.hints
        ),
        probes=tuple(
            replace(row, ranked=tuple(each for each in row.ranked if each[0] in here))
            for row in table.probes
        ),
    )


def needed(table: Table) -> tuple[int, ...]:
    """The Variants that selection can answer with, by position.

    That is the default, what is pinned, and at each hint and probe the ranked ones up to the first
    without a Guard; with predictions, also whatever was nearly the best of some hint.
    """
    found = dict.fromkeys([table.default] if table.default >= 0 else [])
    pinned = {pin.variant for pin in table.pins}
    found |= dict.fromkeys(at for at, each in enumerate(table.variants) if each.id in pinned)
    if isinstance(rule_of(table), Interpolated):
        found |= dict.fromkeys(sorted(contenders(table)))
    for row in (*table.hints, *table.probes):
        for position, _ in row.ranked:
            found[position] = None
            if not table.variants[position].guard.facts:
                break
    return tuple(found)
