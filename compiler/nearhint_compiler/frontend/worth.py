"""What a Kernel is worth: which loops are cheap to compute twice, which deserve a launch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.creation import CREATION
from nearhint_compiler.frontend.joins import JOINS
from nearhint_compiler.frontend.lookups import LOOKUPS
from nearhint_compiler.frontend.loops import Read
from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.pointwise import is_short_power
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

CHEAP_NODES = 6
"""Nodes that are computed again: not those that are made of positions and numbers alone."""
PART_NODES = 24
"""Nodes of a part that only a join reads: all parts are computed at each point, and one is used."""
WORK_LIMIT, LEVEL_LIMIT = 128, 8
"""Nodes that a point takes, and levels of what is computed where it is read, at most."""
TINY_POINTS, TINY_NODES = 64, 3
"""Of so few points so few ops are as quick as a launch; each further one is a call."""
HELD_ROW = 16_384
"""Elements of rows that a GPU's registers hold, which are read once however they lie."""

HEAVY = frozenset(
    f"aten.{name}"
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tanh", "erf", "sigmoid",
        "gelu", "silu", "elu", "softplus", "pow", "mish", "log_sigmoid_forward", "glu",
        "tan", "atan", "atan2", "asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh", "sinc",
        "special_entr", "special_xlog1py", "logaddexp2", "binary_cross_entropy_with_logits",
        "soft_margin_loss", "lgamma",
    )
)  # fmt: skip
"""Ops that cost more than the memory traffic that recomputing them saves."""

JUMPS = frozenset(
    f"aten.{name}" for name in ("round", "floor", "ceil", "trunc", "frac", "remainder", "fmod")
)
"""Ops whose results leap, though they are floats."""

QUICK = frozenset(
    f"aten.{name}" for name in ("exp", "exp2", "log", "log2", "sigmoid", "silu", "tanh")
)
"""Of those, what a GPU has instructions for, or takes few: one for each element that memory has to
bring and take is no time."""
PARTS = 2
"""Of what is heavy, so much may be computed for parts that a GPU joins, of which one is used:
cosines beside sines took 1.3 times as long from memory (`gpu_sweep --cases embedded_times`)."""
MOVES = frozenset({"aten.constant_pad_nd.default", "aten.flip.default"})
"""Joins that read each element of their one input once, and what is beyond it seldom."""

PARTED = frozenset({"aten.cat.default", "aten.stack.default", "aten.constant_pad_nd.default"})
"""Joins that a CPU walks part by part (`analysis.parted`), if it walks their own dims."""

CHOICES = frozenset({"aten.gather.default"})
"""Ops that read whole rows in a loop, and a few of their elements alone."""
CLONES = frozenset({"aten.clone.default", "aten.contiguous.default", "aten.copy.default"})
REPEATS = frozenset({"aten.repeat.default", "aten.lift_fresh_copy.default"})
TRIANGLES = frozenset({"aten.tril.default", "aten.triu.default"})
OVERWRITTEN = frozenset(
    f"aten.{name}.default"
    for name in ("constant_pad_nd", "diagonal_scatter", "select_scatter", "slice_scatter")
)
"""Ops that eager runs in two passes: the second writes over a part of what the first one did."""
COPIES: Mapping[str, frozenset[str]] = {
    "cpu": CLONES | REPEATS | {*CREATION, *JOINS, *LOOKUPS} - OVERWRITTEN,
    "cuda": CLONES | REPEATS | {*CREATION} - TRIANGLES,
}
"""By device: ops that eager runs as fast as any Kernel when they stand alone. (On a GPU it joins
rows of odd lengths, rolls, flips and looks up element by element, and reads what it leaves out of a
triangle.)"""


@dataclass(slots=True)
class Work:
    """How many nodes a point of each unit takes, and through how many levels of what is inlined.

    Both are bounds, as if nothing at two places were the same. A stencil that is applied again and
    again takes five times as many nodes at each level, and each place at one is an index into
    another: so much is neither quick to compute nor to compile.
    """

    nodes: dict[int, int]
    levels: dict[int, int] = field(default_factory=dict)

    def takes(self, unit: int, places: Mapping[int, int]) -> bool:
        """Whether readers may compute `unit` at so many places each; if so, they do from now on."""
        own, level = self.nodes[unit], self.levels.get(unit, 0) + 1
        wanted = {reader: self.nodes[reader] + own * count for reader, count in places.items()}
        if level > LEVEL_LIMIT or max(wanted.values()) > WORK_LIMIT:
            return False
        self.nodes.update(wanted)
        self.levels.update({each: max(level, self.levels.get(each, 0)) for each in places})
        return True


def is_cheap(
    graph: Graph,
    nodes: Sequence[int],
    *,
    copies: int,
    broadcast: bool,
    into: Collection[int],
    parted: bool = False,
) -> bool:
    """Whether recomputing `nodes` in `copies` places is no worse than storing their result.

    `broadcast` says that a place has another number of points, so that an element is computed
    more than once there. `into` are the nodes that read the result. If these are `parted`, each
    element is computed once there at most.
    """
    if not all(graph.loops[node].is_pointwise for node in nodes):
        return False
    if all(not graph.loops[node].shape for node in nodes):
        return True
    if copies == 1 and not broadcast:
        return True
    readers = {graph.program.nodes[node].op for node in into}
    heavy = [_family(graph, node) for node in nodes if _is_heavy(graph, node)]
    if copies == 1 and graph.tensor(graph.starts[nodes[0]]).device == "cuda":
        if readers <= MOVES:
            return True
        is_quick = len(heavy) == 1 and QUICK.issuperset(heavy)
        if is_quick or (readers <= JOINS.keys() and len(heavy) <= PARTS):
            heavy = []
    if parted:
        heavy = []
    is_part = copies == 1 and readers <= JOINS.keys()
    work = [node for node in nodes if graph.loops[node].reads]
    return not heavy and len(work) <= (PART_NODES if is_part else CHEAP_NODES)


def are_parts(graph: Graph, nodes: Collection[int], into: Collection[int]) -> bool:
    """Whether `into` are joins that a CPU may walk part by part, and that read `nodes` once each.

    They are not read through joins that are parts themselves, which are not walked so.
    """
    ops = graph.program.nodes
    if not PARTED.issuperset(ops[node].op for node in into) or not JOINS.keys().isdisjoint(
        ops[node].op for node in nodes
    ):
        return False
    if any(graph.tensor(graph.starts[node]).device != "cpu" for node in into):
        return False
    read: set[int] = set()
    for each in (each for node in into for each in graph.loops[node].reads):
        root = graph.root(each.value)
        if graph.producers[root] not in nodes:
            continue
        have, wanted = (ex.product(graph.tensor(value).shape) for value in (root, each.value))
        if root in read or not ix.is_nonnegative(ex.sub(have, wanted), graph.ranges):
            return False
        read.add(root)
    return True


def is_light(graph: Graph, nodes: Collection[int]) -> bool:
    """Whether computing `nodes` again at a few more points of a row costs little."""
    return len(nodes) <= PART_NODES and not any(_is_heavy(graph, node) for node in nodes)


def _is_heavy(graph: Graph, node: int) -> bool:
    made = graph.program.nodes[node]
    if made.op == "aten.pow.Tensor_Scalar":
        given = dict(zip(("self", "exponent"), made.args, strict=False)) | dict(made.kwargs)
        return not is_short_power(given["exponent"])
    return _family(graph, node) in HEAVY


def is_whole(graph: Graph, node: int, numel: Expr) -> bool:
    """Whether a loop makes an element for each of `numel` points, and not one a row."""
    loops = graph.loops[node]
    return not loops.per_row and ex.product(loops.shape) == numel


def taken_of_rows(
    graph: Graph, made: Collection[int], reading: Collection[int], numel: Expr
) -> dict[int, bool]:
    """Of what is `made` at `numel` points of rows, what is read as such, and if each is read once.

    A join reads each element of its parts once, and so does a loop that is no larger.
    """
    found: dict[int, bool] = {}
    for node in reading:
        fewer = ex.sub(numel, ex.product(graph.loops[node].shape))
        is_once = graph.program.nodes[node].op in PARTED or ix.is_nonnegative(fewer, graph.ranges)
        for read in graph.loops[node].reads:
            maker = graph.producers[graph.root(read.value)]
            if maker in made and is_whole(graph, maker, numel):
                found[maker] = found.get(maker, True) and is_once
    return found


def has_jumps(graph: Graph, nodes: Collection[int]) -> bool:
    """Whether something leaps where what it is made of moves by a digit, as roundings do.

    A Kernel computes what it has jumps of with all digits that eager has (`analysis.jumps`), and
    another one does not know of them. What integers are made of integers has none.
    """
    return any(
        _family(graph, node) in JUMPS or _is_integer_of_floats(graph, node) for node in nodes
    )


def _is_integer_of_floats(graph: Graph, node: int) -> bool:
    values = (graph.starts[node], *(read.value for read in graph.loops[node].reads))
    made, *given = (dtypes.CATEGORY[graph.tensor(value).dtype] for value in values)
    return made < dtypes.CATEGORY["f32"] and any(each >= dtypes.CATEGORY["f32"] for each in given)


def _family(graph: Graph, node: int) -> str:
    return graph.program.nodes[node].op.rpartition(".")[0]


def is_worth_a_launch(graph: Graph, nodes: Sequence[int], inlined: Collection[int]) -> bool:
    """Whether a group gains anything over running its nodes: not a plain copy, not a tiny one."""
    if not graph.on_host.isdisjoint(nodes):
        return False
    if inlined:
        return True
    points = [ex.product(graph.loops[node].shape) for node in nodes]
    is_tiny = all(isinstance(count, ex.Int) and count.value <= TINY_POINTS for count in points)
    if is_tiny and len(nodes) <= TINY_NODES:
        return False
    first, device = nodes[0], graph.tensor(graph.starts[nodes[0]]).device
    is_copy = graph.program.nodes[first].op in COPIES[device]
    return len(nodes) > 1 or not is_copy or _turns(graph, first)


def _turns(graph: Graph, node: int) -> bool:
    """Whether a copy lays its input out in another order, which tiles do better than eager."""
    if graph.program.nodes[node].op not in CLONES:
        return False
    source = graph.tensor(graph.loops[node].reads[0].value)
    return source.stride != graph.tensor(graph.starts[node]).stride


def is_turned_for_rows(graph: Graph, node: int, readers: Collection[int]) -> bool:
    """Whether a copy turns long rows that are walked again and again.

    Such rows are of several dims, of which neighbours along the last lie far apart, and those along
    another beside one another: each walk would be as slow as the turning, which tiles do once.
    """
    if graph.tensor(graph.starts[node]).device != "cuda" or not _turns(graph, node):
        return False
    source = graph.tensor(graph.loops[node].reads[0].value)
    apart = {size for size, step in zip(source.shape, source.stride, strict=True) if step != ex.ONE}
    for reader in readers:
        loops = graph.loops[reader]
        sizes = [loops.shape[axis] for axis in loops.axes if loops.shape[axis] != ex.ONE]
        length = ex.product(sizes)
        is_held = isinstance(length, ex.Int) and length.value <= HELD_ROW
        if apart.issuperset(sizes):
            continue
        has_rows = len(loops.per_row) < len(graph.program.nodes[reader].outputs)
        if len(sizes) > 1 and has_rows and not is_held:
            return True
    return False


def alone(
    graph: Graph, groups: Sequence[Sequence[int]], inlined: Collection[int]
) -> frozenset[int]:
    """What chooses elements of rows that nothing else in its group reads whole.

    `groups` are nodes that share a Kernel, `inlined` what is computed where it is read.
    """
    found: set[int] = set()
    for nodes in groups:
        whole_rows = [node for node in nodes if graph.loops[node].axes]
        choices = {node for node in whole_rows if graph.program.nodes[node].op in CHOICES}
        others = [node for node in whole_rows if node not in choices]
        inside = {*nodes, *inlined}
        whole = set[int]().union(
            *(_sources(graph, inside, graph.loops[node].reads) for node in others)
        )
        found.update(
            node
            for node in choices
            if not _sources(graph, inside, graph.loops[node].reads[:1]) <= whole
        )
    return frozenset(found)


def _sources(graph: Graph, inside: Collection[int], reads: Sequence[Read]) -> set[int]:
    """What lies in memory that is read, also through nodes that are `inside`."""
    found: set[int] = set()
    seen: set[int] = set()
    stack = [*reads]
    while stack:
        root = graph.root(stack.pop().value)
        maker = graph.producers[root]
        if maker not in inside:
            found.add(root)
        elif maker not in seen:
            seen.add(maker)
            stack.extend(graph.loops[maker].reads)
    return found
