"""Updates in place, where capture would copy a whole argument of which a model writes a part.

A captured graph is functional. `cache[:, :, p] = k` is an `index_put` of the whole cache there, and
the graph ends with copying that back: for one token the cache is read twice and written twice.
Where nothing reads the former content afterwards, such updates are again made in the argument:

    copy_(x, index_put(x, ...))              index_put_(x, ...)
    copy_(x, slice_scatter(x, part, ...))    `part` is written into slice(x, ...), in the same way
    copy_(x, copy(x, part))                  copy_(x, part)

What `unbind` gives, as of a tensor of keys and values, is selected for that. Updates of updates are
made one after the other. Torch's compiler calls this re-inplacing
(torch/_inductor/fx_passes/reinplace.py).

What is put into a part of any other tensor (`made[..., ::2] = x`) is put there as it is: capture
copies it over a copy of that part before. And what data places in a tensor that was filled or
copied for it, and that nothing reads as it was (`zeros.index_add_(0, i, x)`, a rolled window of
keys whose last place is the new one), is placed there, where a functional op would copy it once
more. What Kernels may compute point by point (masks, a few places of each row) or bring together
(sums at places) stays functional, and so does what is placed in a result of theirs, which could not
be one then.

Diagonals are written through `as_strided`, which says where in a storage it begins. What torch
makes of an argument lies as far into its storage as the argument, but what a Kernel makes of it
does not: a view that begins where its base does is said to begin there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from nearhint_torch.adapter import op_name, outputs_from_arguments, size_expression
from nearhint_torch.effects import aliases_of, effects_of

_aten: Any = torch.ops.aten
COPY_BACK = "aten.copy_.default"
COPY = "aten.copy.default"
IN_PLACE: Mapping[str, Any] = {
    "aten.index_add.default": _aten.index_add_.default,
    "aten.index_copy.default": _aten.index_copy_.default,
    "aten.index_fill.int_Scalar": _aten.index_fill_.int_Scalar,
    "aten.index_fill.int_Tensor": _aten.index_fill_.int_Tensor,
    "aten.index_put.default": _aten.index_put_.default,
    "aten.masked_scatter.default": _aten.masked_scatter_.default,
    "aten.scatter.src": _aten.scatter_.src,
    "aten.scatter.value": _aten.scatter_.value,
    "aten.scatter_add.default": _aten.scatter_add_.default,
    "aten.scatter_reduce.two": _aten.scatter_reduce_.two,
}
"""Ops that write part of their first argument, and the same op in place."""
MADE = frozenset(
    f"aten.{name}"
    for name in (
        "clone.default", "empty.memory_format", "empty_like.default", "full.default",
        "full_like.default", "new_empty.default", "new_full.default", "new_ones.default",
        "new_zeros.default", "ones.default", "ones_like.default", "roll.default", "zeros.default",
        "zeros_like.default",
    )
)  # fmt: skip
"""Ops that fill or copy a tensor, which others write into."""
BROUGHT = frozenset(
    {
        "aten.index_add_.default", "aten.scatter_.src", "aten.scatter_.value",
        "aten.scatter_add_.default", "aten.scatter_reduce_.two",
    }
)  # fmt: skip
"""Ops that Kernels may be made of, on some devices: a Program is the same for all."""
REDUCED = ("sum", "amax", "amin")
"""What such Kernels make of elements that are brought together."""
VIEWS: Mapping[str, str] = {
    "aten.diagonal_scatter.default": "aten.diagonal.default",
    "aten.select_scatter.default": "aten.select.int",
    "aten.slice_scatter.default": "aten.slice.Tensor",
}
"""Ops that put their second argument into a part of the first, and the view that the part is."""
UPDATES = frozenset({COPY, *IN_PLACE, *VIEWS})
OFFSETS: Mapping[str, int] = {
    "aten.as_strided.default": 3,
    "aten.as_strided_scatter.default": 4,
}
"""Ops that are told an offset into the storage of their first argument, and its position."""


def update_in_place(module: fx.GraphModule) -> None:
    """Makes such updates of the arguments of a captured graph in place, and others directly."""
    graph = module.graph
    changed = _count_from_bases(graph)
    copies = [
        node
        for node in graph.nodes
        if op_name(node.target) == COPY_BACK and node.args[0].op == "placeholder"
    ]
    if copies:
        changed |= _select(graph)
    for node in copies:
        changed |= _update(graph, node)
    for node in list(graph.nodes):
        changed |= op_name(node.target) in VIEWS and _put_directly(graph, node)
    for node in list(graph.nodes):
        changed |= op_name(node.target) in UPDATES and _update_made(graph, node)
    if changed:
        module.recompile()


def _count_from_bases(graph: fx.Graph) -> bool:
    """Has views that begin where their bases do begin there, wherever that is."""
    changed = False
    for node in graph.nodes:
        place = OFFSETS.get(op_name(node.target))
        if place is None or len(node.args) <= place:
            continue
        given, base = node.args[place], node.args[0].meta["val"].storage_offset()
        if _size(given.meta["val"] if isinstance(given, fx.Node) else given) == _size(base):
            node.update_arg(place, None)
            changed = True
    return changed


def _put_directly(graph: fx.Graph, update: fx.Node) -> bool:
    """Has an update of `VIEWS` put what would be copied over a part.

    Nothing may be written meanwhile: what was copied might be a view of that.
    """
    part = update.args[1]
    if not isinstance(part, fx.Node) or op_name(part.target) != COPY or len(part.users) > 1:
        return False
    over, source = part.args[:2]
    if not isinstance(over, fx.Node) or not isinstance(source, fx.Node):
        return False
    given, wanted = source.meta["val"], part.meta["val"]
    if given.device != wanted.device or _sizes(given) != _sizes(wanted):
        return False
    if any(map(_writes_something, _between(part, update))):
        return False
    if given.dtype != wanted.dtype:
        with graph.inserting_before(update):
            source = graph.call_function(_aten._to_copy.default, (source,), {"dtype": wanted.dtype})
        source.meta = {**part.meta, "val": given.to(wanted.dtype)}
    update.update_arg(1, source)
    graph.erase_node(part)
    if not over.users and op_name(over.target) in VIEWS.values():
        graph.erase_node(over)
    return True


def _between(first: fx.Node, last: fx.Node) -> Iterator[fx.Node]:
    node = first.next
    while node is not last:
        yield node
        node = node.next


def _writes_something(node: fx.Node) -> bool:
    effects = effects_of(node, outputs=1)
    return effects.is_ordered or bool(effects.mutates)


def _sizes(tensor: torch.Tensor) -> list[object]:
    """A tensor's sizes, of which those that vary are expressions: nothing is asked of them."""
    sizes: Iterable[Any] = tensor.shape
    return [_size(size) for size in sizes]


def _size(size: Any) -> object:
    return size_expression(size) if isinstance(size, torch.SymInt) else size


def _select(graph: fx.Graph) -> bool:
    """Makes items of `unbind` the views that they are, which updates by `select_scatter` name."""
    taken = [node for node in graph.nodes if op_name(node.target) == "aten.unbind.int"]
    for unbound in taken:
        source, *given = unbound.args
        dim = (given[0] if given else 0) % source.meta["val"].dim()
        for item in list(unbound.users):
            with graph.inserting_before(item):
                part = graph.call_function(_aten.select.int, (source, dim, item.args[1]))
            part.meta = dict(item.meta)
            item.replace_all_uses_with(part)
            graph.erase_node(item)
        graph.erase_node(unbound)
    return bool(taken)


def _update(graph: fx.Graph, copy_back: fx.Node) -> bool:
    """Makes the updates whose result is copied back, up to the first that has to stay."""
    argument, result = copy_back.args[:2]
    assert isinstance(argument, fx.Node)
    updates = _chain(argument, result)
    for number, update in enumerate(updates):
        if not _is_free(graph, argument, update, copy_back):
            return number > 0
        writes = _writes(argument, update)
        if writes is None or not _reads_nothing_of(argument, writes):
            return number > 0
        _replace(graph, argument, update, writes)
    if updates:
        copy_back.replace_all_uses_with(argument)
        graph.erase_node(copy_back)
    return bool(updates)


def _update_made(graph: fx.Graph, update: fx.Node) -> bool:
    """Makes an update in a tensor of `MADE`, unless what it was before is needed."""
    made = update.args[0]
    if not isinstance(made, fx.Node) or op_name(made.target) not in MADE:
        return False
    if _layout(made) != _layout(update):
        return False
    nodes, shared = list(graph.nodes), _sharing(made)
    later = nodes[nodes.index(update) + 1 :]
    if any(not shared.isdisjoint(node.all_input_nodes) for node in later):
        return False
    writes = _writes(made, update)
    if writes is None or not _is_placed_by_data(writes) or not _reads_nothing_of(made, writes):
        return False
    _replace(graph, made, update, writes)
    return True


def _is_placed_by_data(write: _Write) -> bool:
    """Whether a write is of an op that no Kernel is made of."""
    op, (_, *rest), _ = write
    name = op_name(op)
    if name in BROUGHT:
        return name == "aten.scatter_reduce_.two" and rest[3] not in REDUCED
    if name == "aten.index_put_.default":
        is_added = rest[2:] == [True]
        return not is_added and any(
            place.meta["val"].dtype != torch.bool for place in _nodes_in(rest[0])
        )
    return name != "aten.copy_.default"


def _layout(node: fx.Node) -> tuple[list[object], list[object]]:
    tensor = node.meta["val"]
    return _sizes(tensor), [_size(step) for step in tensor.stride()]


def _chain(argument: fx.Node, result: object) -> list[fx.Node]:
    """The updates that lead from an argument to a result, in order; none if others do."""
    found: list[fx.Node] = []
    while isinstance(result, fx.Node) and op_name(result.target) in UPDATES:
        found.append(result)
        result = result.args[0]
    return found[::-1] if result is argument else []


def _is_free(graph: fx.Graph, argument: fx.Node, update: fx.Node, copy_back: fx.Node) -> bool:
    """Whether nobody needs what was in the argument before the update, or a copy of what is then.

    What leaves the graph is needed, unless it shares the argument's memory in any case.
    """
    nodes = list(graph.nodes)
    later = nodes[nodes.index(update) + 1 :]
    old, new = _sharing(argument), _sharing(update)
    anew = outputs_from_arguments()
    for node in later:
        if node.op == "output":
            leaving = _flat(node.args[0])
            if any(each in new for place, each in enumerate(leaving) if place not in anew):
                return False
        elif node is not copy_back and not old.isdisjoint(node.all_input_nodes):
            return False
    return True


def _sharing(source: fx.Node) -> set[fx.Node]:
    """`source` and what may share its memory, which only those who read it or one of these can."""
    found, left = {source}, [source]
    while left:
        node = left.pop()
        sharing = [each for each in node.users if each not in found and node in aliases_of(each)]
        found.update(sharing)
        left += sharing
    return found


def _flat(results: object) -> list[object]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


_Write = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""An op in place, its arguments and keyword arguments."""


def _writes(target: fx.Node, update: fx.Node) -> _Write | None:
    """The call that makes an update in `target`; None if there is no view of the part."""
    op, rest = op_name(update.target), update.args[1:]
    if op in IN_PLACE:
        return IN_PLACE[op], (target, *rest), dict(update.kwargs)
    if op == COPY:
        return _aten.copy_.default, (target, *rest), dict(update.kwargs)
    view = _view(target, VIEWS[op], update.args[2:], update)
    if view is None or update.kwargs:
        return None
    part: object = update.args[1]
    if (
        isinstance(part, fx.Node)
        and op_name(part.target) in UPDATES
        and len(part.users) == 1
        and _is_same(part.args[0], view)
    ):
        return _writes(view, part)
    return _aten.copy_.default, (view, part), {}


def _view(target: fx.Node, op: str, where: tuple[Any, ...], before: fx.Node) -> fx.Node | None:
    """A view of `target` that the graph has before a node."""
    nodes: Iterable[fx.Node] = target.graph.nodes
    for node in nodes:
        if node is before:
            return None
        if op_name(node.target) == op and node.args == (target, *where) and not node.kwargs:
            return node
    return None


def _is_same(left: object, right: object) -> bool:
    """Whether two values are one node, or the same view of the same."""
    if left is right or not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return left is right
    return (
        op_name(left.target) in VIEWS.values()
        and left.target == right.target
        and left.args[1:] == right.args[1:]
        and left.kwargs == right.kwargs
        and _is_same(left.args[0], right.args[0])
    )


def _reads_nothing_of(argument: fx.Node, write: _Write) -> bool:
    """Whether what is written is no part of the argument itself."""
    _, args, kwargs = write
    return _sharing(argument).isdisjoint(_nodes_in((*args[1:], *kwargs.values())))


def _nodes_in(value: object) -> Iterator[fx.Node]:
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _nodes_in(inner)


def _replace(graph: fx.Graph, argument: fx.Node, update: fx.Node, write: _Write) -> None:
    op, args, kwargs = write
    with graph.inserting_before(update):
        made = graph.call_function(op, args, kwargs)
    made.meta = {**update.meta, "val": args[0].meta["val"]}
    update.replace_all_uses_with(argument)
    _erase(graph, update)


def _erase(graph: fx.Graph, node: fx.Node) -> None:
    """Drops an update that nobody reads, and the updates that only it read."""
    read = [each for each in node.all_input_nodes if op_name(each.target) in UPDATES]
    graph.erase_node(node)
    for each in read:
        if not each.users:
            _erase(graph, each)
