"""Checks a Plan against the Program that it claims to be for, before anything runs by it.

The daemon is trusted for which code runs, not for being right: a Plan of another version, or of a
broken daemon, must cost a Fallback and not an answer. The check walks the steps as the runner
would and raises `InvalidAnswer` at the first that

    reads a slot that is not defined, or was freed          makes a slot twice
    names a node, slot, symbol or storage that is not there
    gives an output another dtype, device, rank or size than the Program's
    runs a random or mutating node never, twice, out of order, or as a part of a Kernel
    reads a tensor before or after a mutation that the Program has on the other side
    gives one storage to two tensors at once, or a shared storage to a tensor that leaves the Plan
    computes anew what the Program has as an alias, where that can be told from outside
    leaves a slot undefined that its Fallback would define, or an output of the Program undefined

Sizes are compared by value at a few points of the assumed ranges: the compiler may have used those
ranges to write a size more simply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from nearhint.errors import InvalidAnswer
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr
from nearhint_rules.plan import Free, Launch, MakeView, Output, Plan, RunNodes
from nearhint_rules.program import Node, Program, TensorType, first_outputs, value_types

STEP_LIMIT = 65_536
_SAMPLES = (0, 5, 11)
"""Distances from a symbol's least value at which sizes are compared."""


def check_plan(plan: Plan, program: Program, *, program_id: str, target_kind: str) -> None:
    """Raises `InvalidAnswer` unless `plan` is a right way to compute `program`."""
    if plan.program != program_id:
        raise InvalidAnswer(what="plan", problem="it is for another Program")
    if plan.target_kind != target_kind:
        raise InvalidAnswer(what="plan", problem=f"it is for {plan.target_kind}")
    if len(plan.steps) > STEP_LIMIT:
        raise InvalidAnswer(what="plan", problem=f"{len(plan.steps)} steps")
    _PlanWalk(plan, program).run()


class _Aliases:
    """Which values may share storage (union-find)."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, value: int) -> int:
        parent = self._parent
        while parent[value] != value:
            parent[value] = parent[parent[value]]
            value = parent[value]
        return value

    def join(self, one: int, other: int) -> None:
        self._parent[self.root(one)] = self.root(other)


class _PlanWalk:
    def __init__(self, plan: Plan, program: Program) -> None:
        self.plan = plan
        self.program = program
        self.types = value_types(program)
        self.starts = first_outputs(program)
        self.symbols = frozenset(symbol.name for symbol in program.symbols)
        self.points = _sample_points(program)
        # What the Program says shares storage, and what does when the Plan runs: a Launch writes
        # memory of its own even where its nodes would have made a view.
        self.meant = _Aliases(len(self.types))
        for index in range(len(program.nodes)):
            self._join_node(self.meant, index)
        self.actual = _Aliases(len(self.types))
        self.defined = set(range(len(program.inputs)))
        self.made = set(self.defined)
        self.epochs: dict[int, int] = {}
        self.expected = self._expected_epochs()
        self.visible = {
            self.meant.root(value)
            for value in (
                *(value for value in program.outputs if value is not None),
                *(value for node in program.nodes for value in node.mutates),
            )
        }
        self.effects = [index for index, node in enumerate(program.nodes) if _is_effect(node)]
        self.effects_run: list[int] = []
        self.place = "plan"

    def run(self) -> None:
        for number, step in enumerate(self.plan.steps):
            self.place = f"plan.steps[{number}]"
            match step:
                case Launch():
                    self._launch(step)
                case RunNodes(nodes, offers):
                    for node in nodes:
                        self._run_node(node, is_fallback=False)
                    self._check_offers(nodes, offers)
                case MakeView():
                    self._view(step)
                case Free(slots):
                    for slot in slots:
                        self._need([slot])
                        self.defined.discard(slot)
        self.place = "plan"
        self._need(value for value in self.program.outputs if value is not None)
        if self.effects_run != self.effects:
            self._refuse("a random or mutating node does not run once and in order")
        self._check_storages()

    def _refuse(self, problem: str) -> None:
        raise InvalidAnswer(what=self.place, problem=problem)

    def _need(self, slots: Iterable[int]) -> None:
        for slot in slots:
            if slot not in self.defined:
                self._refuse(f"slot {slot} is not defined here")

    def _define(self, slot: int) -> None:
        if slot in self.made:
            self._refuse(f"slot {slot} is made twice")
        self.made.add(slot)
        self.defined.add(slot)

    def _node(self, index: int) -> Node:
        if not 0 <= index < len(self.program.nodes):
            self._refuse(f"the Program has no node {index}")
        return self.program.nodes[index]

    def _outputs_of(self, index: int) -> range:
        return range(
            self.starts[index], self.starts[index] + len(self.program.nodes[index].outputs)
        )

    def _join_node(self, aliases: _Aliases, index: int) -> None:
        for position, value in self.program.nodes[index].aliases:
            aliases.join(self.starts[index] + position, value)

    def _check_epochs(self, index: int, node: Node) -> None:
        now = tuple(self.epochs.get(self.meant.root(value), 0) for value in node.inputs)
        if now != self.expected[index]:
            self._refuse(f"node {index} reads a tensor on the wrong side of a mutation")

    def _expected_epochs(self) -> list[tuple[int, ...]]:
        epochs: dict[int, int] = {}
        expected: list[tuple[int, ...]] = []
        for node in self.program.nodes:
            expected.append(tuple(epochs.get(self.meant.root(value), 0) for value in node.inputs))
            for value in node.mutates:
                root = self.meant.root(value)
                epochs[root] = epochs.get(root, 0) + 1
        return expected

    def _run_node(self, index: int, *, is_fallback: bool) -> None:
        node = self._node(index)
        self._need(node.inputs)
        self._check_epochs(index, node)
        if _is_effect(node):
            if is_fallback:
                self._refuse(f"node {index} is random or mutates, and is no part of a Kernel")
            self.effects_run.append(index)
            for value in node.mutates:
                root = self.meant.root(value)
                self.epochs[root] = self.epochs.get(root, 0) + 1
        if not is_fallback:
            self._join_node(self.actual, index)
        for slot in self._outputs_of(index):
            self._define(slot)

    def _launch(self, step: Launch) -> None:
        self._check_symbols(step.dims)
        self._need(step.inputs)
        before_made, before_defined = set(self.made), set(self.defined)
        for index in step.nodes:
            # A Fallback may make again what exists (a view): its own copy, gone with the step.
            self._node(index)
            self.made.difference_update(self._outputs_of(index))
            self._run_node(index, is_fallback=True)
        written = [output.slot for output in step.outputs]
        self._need(written)
        produced = {slot for index in step.nodes for slot in self._outputs_of(index)}
        aliased = self._aliased(step.nodes)
        self.made, self.defined = before_made, before_defined
        for output in step.outputs:
            if output.slot not in produced:
                self._refuse(f"slot {output.slot} is not made by the nodes of its Fallback")
            if output.slot in aliased and self.meant.root(output.slot) in self.visible:
                self._refuse(f"slot {output.slot} must share storage, and would be a copy")
            self._check_output(output)
            self._define(output.slot)

    def _check_offers(self, nodes: Sequence[int], offers: Sequence[Output]) -> None:
        """Memory offered to a node for a result of its own: never for an alias of something."""
        produced = {slot for index in nodes for slot in self._outputs_of(index)}
        aliased = self._aliased(nodes)
        for output in offers:
            if output.slot not in produced or output.slot in aliased:
                self._refuse(f"slot {output.slot} is no new tensor of these nodes")
            self._check_output(output)

    def _aliased(self, nodes: Sequence[int]) -> set[int]:
        return {
            self.starts[index] + position
            for index in nodes
            for position, _ in self.program.nodes[index].aliases
        }

    def _view(self, step: MakeView) -> None:
        self._need([step.base])
        self._node(step.node)
        if step.slot not in self._outputs_of(step.node):
            self._refuse(f"slot {step.slot} is not made by node {step.node}")
        self._check_symbols((*step.shape, *step.stride, step.offset))
        value_type = self.types[step.slot]
        base_type = self.types[step.base]
        if not isinstance(value_type, TensorType) or not isinstance(base_type, TensorType):
            self._refuse("a view of or as something that is no tensor")
        else:
            self._check_shape(step.shape, value_type)
        self.actual.join(step.slot, step.base)
        self._define(step.slot)

    def _check_output(self, output: Output) -> None:
        value_type = self.types[output.slot]
        if not isinstance(value_type, TensorType):
            self._refuse(f"slot {output.slot} is no tensor")
            return
        if (output.dtype, output.device) != (value_type.dtype, value_type.device):
            self._refuse(f"slot {output.slot} is {output.dtype} on {output.device}")
        if not -1 <= output.storage < self.plan.storages:
            self._refuse(f"there is no storage {output.storage}")
        self._check_symbols((*output.shape, *output.stride))
        self._check_shape(output.shape, value_type)

    def _check_shape(self, shape: Sequence[Expr], value_type: TensorType) -> None:
        if len(shape) != len(value_type.shape):
            self._refuse(f"{len(shape)} axes, the Program has {len(value_type.shape)}")
        for ours, theirs in zip(value_type.shape, shape, strict=True):
            if ours != theirs and not self._agree(ours, theirs):
                self._refuse(f"size {ex.to_text(theirs)}, the Program has {ex.to_text(ours)}")

    def _agree(self, ours: Expr, theirs: Expr) -> bool:
        try:
            return all(
                ex.evaluate(ours, point) == ex.evaluate(theirs, point) for point in self.points
            )
        except InvalidExpression:
            return False

    def _check_symbols(self, exprs: Iterable[Expr]) -> None:
        for name in ex.symbols_of(*exprs):
            if name not in self.symbols:
                self._refuse(f"the Program has no symbol {name}")

    def _check_storages(self) -> None:
        """Two tensors of one storage: the first is last read before the second is made.

        Not by the step that makes the second either: its Fallback may write before it has read.
        """
        ends = self._last_reads()
        free_after: dict[int, int] = {}
        for number, step in enumerate(self.plan.steps):
            if not isinstance(step, Launch | RunNodes):
                continue
            self.place = f"plan.steps[{number}]"
            for output in step.outputs:
                if output.storage < 0:
                    continue
                end = ends.get(self.actual.root(output.slot), number)
                if free_after.get(output.storage, -1) >= number:
                    self._refuse(f"storage {output.storage} is still in use")
                if end > len(self.plan.steps):
                    self._refuse(f"slot {output.slot} leaves the Plan in a shared storage")
                free_after[output.storage] = end

    def _last_reads(self) -> Mapping[int, int]:
        """Alias root -> the last step that reads it; one past the end + 1 for what leaves."""
        ends: dict[int, int] = {}
        for number, step in enumerate(self.plan.steps):
            for slot in self._reads(step):
                ends[self.actual.root(slot)] = number
        for value in self.program.outputs:
            if value is not None:
                ends[self.actual.root(value)] = len(self.plan.steps) + 1
        return ends

    def _reads(self, step: Launch | RunNodes | MakeView | Free) -> Iterator[int]:
        match step:
            case Launch(inputs=inputs, nodes=nodes):
                yield from inputs
                for index in nodes:
                    yield from self.program.nodes[index].inputs
            case RunNodes(nodes, _):
                for index in nodes:
                    yield from self.program.nodes[index].inputs
            case MakeView(base=base):
                yield base
            case Free():
                return


def _is_effect(node: Node) -> bool:
    return node.has_randomness or bool(node.mutates)


def _sample_points(program: Program) -> list[dict[str, int]]:
    points: list[dict[str, int]] = []
    for distance in _SAMPLES:
        point: dict[str, int] = {}
        for position, symbol in enumerate(program.symbols):
            value = symbol.low + distance * (position + 1)
            point[symbol.name] = value if symbol.high is None else min(value, symbol.high)
        points.append(point)
    return points
