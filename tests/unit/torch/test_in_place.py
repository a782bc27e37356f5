"""Updates of parts of arguments are made where they are, and whole caches are not copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import Install

from nearhint_rules.program import Program
from nearhint_torch import in_place
from nearhint_torch.backend import nearhint
from nearhint_torch.effects import aliases_of

Tensor = torch.Tensor
Function = Callable[..., Any]
_aten: Any = torch.ops.aten


def program_of(session: Install, function: Function, *args: Any) -> Program:
    fake = session(lambda program: None)
    with torch.no_grad():
        torch.compile(function, backend=nearhint, dynamic=True)(*args)
    (handle,) = fake.handles
    return handle.program


def tokens() -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros(2, 16, 6), torch.randn(2, 3, 6), torch.arange(3) + 4


def put(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    cache[:, places] = new
    return cache.sum(1)


def put_twice(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    cache.index_copy_(1, places, new)
    cache.index_add_(1, places, new)
    return cache.sum(1)


def put_in_slices(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    cache[:, 3 : 3 + new.shape[1], ::2] = new[..., ::2]
    return cache.sum(1)


def put_and_returned(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    cache.index_copy_(1, places, new)
    return cache, cache[:, :2]


def read_before(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    total = cache.sum(1)
    cache[:, places] = new
    return total


def put_in_each(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    """Keys and values that one tensor holds."""
    keys, values = cache.unbind(-3)
    keys[places] = new[0]
    values[3 : 3 + new.shape[1]] = new[1] * 2
    return (keys * values).sum(0)


UPDATES = {
    put: ["aten.index_put_.default"],
    put_twice: ["aten.index_copy_.default", "aten.index_add_.default"],
    put_in_slices: ["aten.copy_.default"],
    put_and_returned: ["aten.index_copy_.default"],
    read_before: ["aten.index_put_.default"],
    put_in_each: ["aten.index_put_.default", "aten.copy_.default"],
}


@pytest.mark.parametrize("function", UPDATES, ids=lambda function: function.__name__)
def test_an_update_is_made_in_the_argument(function: Function, session: Install) -> None:
    program = program_of(session, function, *tokens())
    assert [node.op for node in program.nodes if node.mutates] == UPDATES[function]
    ops = {node.op for node in program.nodes}
    assert ops.isdisjoint({"aten.index_put.default", "aten.slice_scatter.default"})
    copied = [node for node in program.nodes if node.op == "aten.copy_.default"]
    whole = program.inputs[[type(each).__name__ for each in program.inputs].index("TensorType")]
    assert all(node.outputs != (whole,) for node in copied)


def put_elsewhere(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    made = torch.zeros_like(new)
    made[:, 1:] = new[:, :-1]
    made[0, 0] = new[1, 0].double()
    return made + 1


def test_what_is_put_into_a_part_of_what_is_made_is_not_copied_over_that_part_before(
    session: Install,
) -> None:
    program = program_of(session, put_elsewhere, *tokens())
    ops = [node.op for node in program.nodes]
    assert "aten.copy.default" not in ops
    assert ops.count("aten._to_copy.default") == 2


def test_what_is_written_meanwhile_is_copied_before() -> None:
    graph = torch.fx.Graph()
    x, y = (graph.placeholder(name) for name in "xy")
    part = graph.call_function(_aten.slice.Tensor, (x, 0, 1, 3))
    copied = graph.call_function(_aten.copy.default, (part, y))
    written = graph.call_function(_aten.mul_.Tensor, (y, 2))
    graph.output((graph.call_function(_aten.slice_scatter.default, (x, copied, 0, 1, 3)), written))
    for node in graph.nodes:
        node.meta["val"] = torch.zeros(4 if node is x else 2)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    in_place.update_in_place(module)
    assert copied in graph.nodes
    put, _ = module(torch.zeros(4), torch.ones(2))
    assert put.tolist() == [0, 1, 1, 0]


def old_is_read(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    made = cache.index_copy(1, places, new)
    total = cache.sum(1)
    cache.copy_(made)
    return total


def copy_leaves(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    made = cache.index_copy(1, places, new)
    cache.copy_(made)
    return made[:, :1]


def from_itself(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    cache[:, :2] = cache[:, 2:4]
    return cache.sum(1)


def other_updates(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    cache.mul_(2)
    return cache.sum(1)


@pytest.mark.parametrize("function", [old_is_read, copy_leaves, from_itself, other_updates])
def test_an_update_that_others_would_notice_stays_a_copy(
    function: Function, session: Install
) -> None:
    program = program_of(session, function, *tokens())
    assert [node.op for node in program.nodes if node.mutates] == ["aten.copy_.default"]
    assert not any(node.op.endswith("_.default") for node in program.nodes if not node.mutates)


def window(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    """The last places of a window of keys, as decoders keep it."""
    rolled = cache.roll(-1, 1)
    rolled[:, places[-1:]] = new[:, :1]
    cache.copy_(rolled)
    return cache.sum(1)


def copied_twice(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    made = torch.zeros_like(cache).index_copy_(1, places, new)
    made.index_copy_(1, places - 1, new)
    return made * cache, made


def averaged(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    places = places[None, :, None].expand(2, -1, 6)
    return cache.clone().scatter_reduce_(1, places, new, "mean")


MADE = {
    window: ["aten.index_put_.default", "aten.copy_.default"],
    copied_twice: ["aten.index_copy_.default", "aten.index_copy_.default"],
    averaged: ["aten.scatter_reduce_.two"],
}


@pytest.mark.parametrize("function", MADE, ids=lambda function: function.__name__)
def test_what_is_filled_or_copied_for_an_update_is_written_itself(
    function: Function, session: Install
) -> None:
    program = program_of(session, function, *tokens())
    assert [node.op for node in program.nodes if node.mutates] == MADE[function]


def made_is_read(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    made = torch.zeros_like(cache)
    return made.index_copy(1, places, new) + made


def made_leaves(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    made = torch.zeros_like(cache)
    return made.index_copy(1, places, new), made[:1]


def made_is_written(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    made = cache.clone()
    return made.index_copy(1, places, made[:, :3])


def made_by_a_kernel(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    return torch.tanh(cache * 2).index_copy(1, places, new)


def added(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    made = torch.zeros_like(cache).index_add(1, places, new)
    return made, torch.zeros_like(new[0]).index_put((places % 3,), new[0], accumulate=True)


def scattered(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    return cache.clone().scatter_(2, places[None, :, None].expand(2, -1, 1) - 4, 7.0)


def masked(cache: Tensor, new: Tensor, places: Tensor) -> Any:
    made = cache.clone()
    made[cache[..., 0] > 0] = 1.0
    return made


@pytest.mark.parametrize(
    "function",
    [made_is_read, made_leaves, made_is_written, made_by_a_kernel, added, scattered, masked],
)
def test_what_others_read_or_kernels_make_is_not_written(
    function: Function, session: Install
) -> None:
    program = program_of(session, function, *tokens())
    assert not any(node.mutates for node in program.nodes)


@pytest.mark.parametrize(
    "function", [*MADE, added, scattered, made_is_read, made_leaves, made_is_written]
)
def test_updates_of_what_is_made_are_eager_s(function: Function, session: Install) -> None:
    session(lambda program: None)
    _, new, places = tokens()
    given = torch.randn(2, 16, 6)
    wanted, got = given.clone(), given.clone()
    with torch.no_grad():
        result = torch.compile(function, backend=nearhint, dynamic=True)(got, new, places)
        torch.testing.assert_close(result, function(wanted, new, places))
    assert torch.equal(got, wanted)


def test_many_caches_are_not_each_looked_for_in_the_whole_graph(
    session: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def counting(node: torch.fx.Node) -> frozenset[torch.fx.Node]:
        asked.append(node)
        return aliases_of(node)

    monkeypatch.setattr(in_place, "aliases_of", counting)
    caches = [torch.zeros(2, 16, 6) for _ in range(24)]

    def function(new: Tensor, places: Tensor, *caches: Tensor) -> Tensor:
        for cache in caches:
            cache.index_copy_(1, places, new)
            new = torch.tanh(new * cache[:, :3] + 1)
        return new

    _, new, places = tokens()
    program = program_of(session, function, new, places, *caches)
    assert sum(node.op == "aten.index_copy_.default" for node in program.nodes) == len(caches)
    assert len(asked) < 30 * len(caches)
