"""What users say of sizes — names, ranges, hints — and what reaches the Program of it."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as nn
from tests.unit.torch.conftest import Install
from tests.unit.torch.test_backend import counted

import nearhint
from nearhint_rules.program import Program
from nearhint_torch import adapter
from nearhint_torch.dimension import Dimension, read_dimension
from nearhint_torch.errors import InvalidDynamic
from nearhint_torch.marking import put_on, take_off

Tensor = torch.Tensor
Dim = torch.export.Dim
LIMIT_S = 60.0


def twice(x: Tensor) -> Tensor:
    return x * 2


def ranges(program: Program) -> list[tuple[str, int, int | None]]:
    return [(symbol.user_name, symbol.low, symbol.high) for symbol in program.symbols]


def marked(*sizes: int, **marks: Any) -> Tensor:
    """A tensor whose first size is marked by torch's own function."""
    x = torch.ones(*sizes)
    torch._dynamo.mark_dynamic(x, 0, **marks)
    return x


def test_the_range_of_a_marked_dimension_reaches_the_program(session: Install) -> None:
    fake = session(lambda program: None)
    torch.compile(twice, backend="nearhint", dynamic=False)(marked(8, 4, min=2, max=64))
    assert ranges(fake.handles[0].program) == [("x_0", 2, 64)]
    assert fake.handles[0].wanted == [{"s0": 8}], "what the call had, no more"


def test_a_hint_override_is_asked_for_though_no_call_has_it(session: Install) -> None:
    fake = session(lambda program: None)
    x = marked(8, 4, min=2, max=64, hint_override=24)
    assert torch.equal(torch.compile(twice, backend="nearhint", dynamic=False)(x), x * 2)
    (handle,) = fake.handles
    assert ranges(handle.program) == [("x_0", 2, 64)]
    assert (handle.named, handle.wanted) == ([{"s0": 24}], [{"s0": 8}])


def test_a_size_without_a_hint_is_wanted_as_captured(session: Install) -> None:
    fake = session(lambda program: None)
    x = marked(8, 6, hint_override=24)
    torch._dynamo.mark_dynamic(x, 1)
    torch.compile(twice, backend="nearhint", dynamic=False)(x)
    assert fake.handles[0].named == [{"s0": 24, "s1": 6}]


def test_a_hint_that_the_range_excludes_is_counted_and_not_asked_for(session: Install) -> None:
    fake = session(lambda program: None)
    x = torch.ones(8, 4)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64, hint_override=100)
    compiled = torch.compile(twice, backend="nearhint", dynamic=False)
    results: list[Tensor] = []
    # torch itself may refuse the contradiction before a backend sees it.
    try:
        count = counted("hint_override_outside_range", lambda: results.append(compiled(x)))
    except Exception as error:
        assert "100" in str(error)  # noqa: PT017 - either is right
    else:
        assert count == 1
        assert torch.equal(results[0], x * 2)
    assert not any(handle.named for handle in fake.handles)


def test_a_computed_size_is_computed_at_the_hint(session: Install) -> None:
    fake = session(lambda program: None)

    def scaled(x: Tensor) -> Tensor:
        return nn.interpolate(x.t()[None], scale_factor=2.5) + 1

    with torch.no_grad():
        torch.compile(scaled, backend="nearhint", dynamic=False)(marked(8, 4, hint_override=24))
    assert 60 in fake.handles[0].named[0].values()
    assert 20 in fake.handles[0].wanted[0].values()


def test_an_exported_program_brings_its_ranges(session: Install) -> None:
    fake = session(lambda program: None)
    x = torch.ones(8, 4)
    exported = torch.export.export(
        torch.nn.ReLU(), (x,), dynamic_shapes=({0: Dim("rows", min=2, max=64)},)
    )
    with torch.no_grad():
        torch.compile(exported.module(), backend="nearhint", dynamic=True)(x)
    assert [bounds for _, *bounds in ranges(fake.handles[0].program)] == [[2, 64]]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("rows", ("rows", 2, None)),
        (range(2, 65), ("x_0", 2, 64)),
        (range(1, 65), ("x_0", 2, 64)),
        (Dim("rows", min=4, max=64), ("rows", 4, 64)),
        (Dim("rows", max=64), ("rows", 2, 64)),
        (Dim("rows", min=4), ("rows", 4, None)),
        (Dim("rows"), ("rows", 2, None)),
    ],
)
def test_a_kernels_dimension_is_a_name_a_range_or_both(
    session: Install, given: Any, expected: tuple[str, int, int | None]
) -> None:
    fake = session(lambda program: None)
    kernel = nearhint.kernel(twice, dynamic={"x": {0: given}})
    for rows in (5, 6, 9):
        assert torch.equal(kernel(torch.ones(rows, 4)), torch.full((rows, 4), 2.0))
    assert len(fake.handles) == 1
    assert ranges(fake.handles[0].program) == [expected]


def test_a_size_of_one_within_a_range_is_captured_on_its_own(session: Install) -> None:
    fake = session(lambda program: None)
    kernel = nearhint.kernel(twice, dynamic={"x": {0: range(1, 65)}})
    for rows in (1, 7, 1, 64):
        assert torch.equal(kernel(torch.ones(rows, 4)), torch.full((rows, 4), 2.0))
    assert len(fake.handles) == 2


def test_marks_of_the_callers_own_stay(session: Install) -> None:
    fake = session(lambda program: None)
    kernel = nearhint.kernel(twice, dynamic={"x": {0: "rows"}})
    kernel(marked(8, 4, min=2, max=64, hint_override=24))
    assert ranges(fake.handles[0].program) == [("rows", 2, 64)]
    assert fake.handles[0].named == [{"s0": 24}]


def rows_of_eight(x: Tensor) -> Tensor:
    assert x.shape[0] == 8
    return x * 3


@pytest.mark.parametrize("rows", [8, 70])
def test_a_call_leaves_no_marks_on_its_arguments(session: Install, rows: int) -> None:
    fake = session(lambda program: None)
    x, given = torch.ones(rows, 4), vars(torch.ones(1))
    kernel = nearhint.kernel(twice, dynamic={"x": {1: "columns", 0: range(2, 65)}})
    with nullcontext() if rows < 65 else pytest.raises(InvalidDynamic, match="has 70"):
        kernel(x)
    assert vars(x) == given
    if rows == 8:
        columns = nearhint.kernel(rows_of_eight, dynamic={"x": {1: "columns"}})
        assert torch.equal(columns(x), x * 3)
        assert ranges(fake.handles[1].program) == [("columns", 2, None)]
        assert torch.equal(torch.compile(rows_of_eight, backend="eager")(x), x * 3)


class Calls:
    """Calls of one kernel with one tensor, each in a thread, where it stays until it may end."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self._begun: list[threading.Event] = []
        self._may_end: list[threading.Event] = []
        self._threads: list[threading.Thread] = []

        def wait() -> None:
            number = int(threading.current_thread().name)
            self._begun[number].set()
            assert self._may_end[number].wait(LIMIT_S)

        disable: Any = torch.compiler.disable
        stay: Callable[[], None] = disable(wait)

        def function(x: Tensor) -> Tensor:
            stay()
            return x * 2

        self._kernel = nearhint.kernel(function, dynamic={"x": {0: "rows"}})

    def begin(self) -> None:
        """Returns once the call is under way."""
        self._begun.append(threading.Event())
        self._may_end.append(threading.Event())
        name = str(len(self._threads))
        self._threads.append(threading.Thread(target=self._kernel, args=(self.x,), name=name))
        self._threads[-1].start()
        assert self._begun[-1].wait(LIMIT_S)

    def end(self, number: int) -> None:
        """Returns once that call has ended."""
        self._may_end[number].set()
        self._threads[number].join(LIMIT_S)
        assert not self._threads[number].is_alive()


@pytest.fixture
def calls(session: Install) -> Iterator[Calls]:
    session(lambda program: None)
    made = Calls(torch.ones(8, 4))
    for _ in range(2):
        made.begin()
    yield made
    for number in range(2):
        made.end(number)


@pytest.mark.parametrize("first", [0, 1])
def test_calls_that_share_an_argument_leave_no_marks_on_it(calls: Calls, first: int) -> None:
    under_way = vars(calls.x).copy()
    assert under_way["_dynamo_dynamic_indices"] == {0}
    calls.end(first)
    assert vars(calls.x) == under_way, "the other call may be about to capture"
    calls.end(1 - first)
    assert vars(calls.x) == vars(torch.ones(1))


def test_a_child_has_no_marks_of_the_calls_of_other_threads(calls: Calls) -> None:
    child = os.fork()
    if not child:
        signal.alarm(int(LIMIT_S))
        unmarked = vars(calls.x) == vars(torch.ones(1))
        take_off(put_on(calls.x, {0: Dimension("rows")}))
        os._exit(0 if unmarked and vars(calls.x) == vars(torch.ones(1)) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_call_leaves_the_callers_own_marks(session: Install) -> None:
    session(lambda program: None)
    x, twin = (marked(8, 4, min=2, max=64, hint_override=24) for _ in range(2))
    nearhint.kernel(twice, dynamic={"x": {0: range(2, 33), 1: "columns"}})(x)
    assert vars(x) == vars(twin)


@pytest.mark.parametrize(
    "given",
    [
        range(8, 4),
        range(0),
        range(-5, 5),
        range(2, 65, 2),
        7,
        None,
        Dim.AUTO,
        2 * Dim("rows"),
        "two words",
    ],
)
def test_what_names_no_range_of_sizes_is_refused(given: Any) -> None:
    with pytest.raises(InvalidDynamic, match=r"'x'.*dimension 0"):
        nearhint.kernel(twice, dynamic={"x": {0: given}})


def test_dimensions_without_numbers_are_refused() -> None:
    given: Any = {"x": ["rows"]}
    with pytest.raises(InvalidDynamic, match=r"'x'.*by number, like"):
        nearhint.kernel(twice, dynamic=given)


@pytest.mark.parametrize("given", [["x"], {"x"}, "x"])
def test_arguments_without_dimensions_are_refused(given: Any) -> None:
    with pytest.raises(InvalidDynamic, match=r"dynamic\['x'\]: give arguments by name, like"):
        nearhint.kernel(twice, dynamic=given)


WRAPPED: dict[str, tuple[str, Any]] = {
    "module": ("input", torch.nn.ReLU()),
    "partial": ("x", functools.partial(lambda scale, x: x * scale, 2.0)),
    "function": ("x", twice),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_what_torch_calls_through_a_wrapper_keeps_its_names(session: Install, kind: str) -> None:
    fake = session(lambda program: None)
    argument, function = WRAPPED[kind]
    x, kernel = torch.ones(8, 4), nearhint.kernel(function, dynamic={argument: {0: "rows"}})
    assert torch.equal(kernel(x), kernel(**{argument: x}))
    for handle in fake.handles:
        assert ranges(handle.program) == [("rows", 2, None)]
    assert fake.handles


def test_an_argument_that_is_given_by_name_alone_is_found(session: Install) -> None:
    fake = session(lambda program: None)

    def function(x: Tensor, *others: object, scale: Tensor) -> Tensor:
        return x.sum() * scale + len(others)

    kernel = nearhint.kernel(function, dynamic={"scale": {0: "rows"}})
    found = kernel(torch.ones(2), 1, "two", scale=torch.ones(5))
    assert torch.equal(found, torch.full((5,), 4.0))
    assert ranges(fake.handles[0].program) == [("rows", 2, None)]


@pytest.mark.parametrize("argument", ["parts", "named"])
def test_any_number_of_arguments_has_no_dimensions(argument: str) -> None:
    def function(*parts: Tensor, **named: Tensor) -> Tensor:
        return parts[0] + named["y"]

    with pytest.raises(InvalidDynamic, match=f"'{argument}'.* any number of arguments"):
        nearhint.kernel(function, dynamic={argument: {0: "rows"}})


@pytest.mark.parametrize("number", [-1, "0", True])
def test_a_dimension_is_a_number_from_0(number: Any) -> None:
    with pytest.raises(InvalidDynamic, match="numbers from 0"):
        nearhint.kernel(twice, dynamic={"x": {number: "rows"}})


def test_an_argument_that_is_none_has_no_dimensions(session: Install) -> None:
    def norm(x: Tensor, residual: Tensor | None = None) -> Tensor:
        return torch.relu(x if residual is None else x + residual)

    session(lambda program: None)
    kernel = nearhint.kernel(norm, dynamic={"x": {0: "rows"}, "residual": {0: "rows"}})
    x = torch.randn(5, 8)
    for residual in (x, None):
        assert torch.equal(kernel(x, residual), norm(x, residual))
        assert torch.equal(kernel(x, residual=residual), norm(x, residual))


def test_ranges_of_one_name_without_a_size_in_common_are_refused() -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    low, near, high = (torch.export.Dim("rows", min=least, max=least + 8) for least in (2, 10, 20))
    nearhint.kernel(add, dynamic={"x": {0: low}, "y": {0: near}})
    nearhint.kernel(add, dynamic={"x": {0: range(2, 11)}, "y": {0: range(20, 29)}})
    with pytest.raises(InvalidDynamic, match=r"'y'.*dimension 0: no size of rows is in"):
        nearhint.kernel(add, dynamic={"x": {0: low}, "y": {0: high}})


def test_a_call_outside_its_range_is_refused(session: Install) -> None:
    session(lambda program: None)
    kernel = nearhint.kernel(twice, dynamic={"x": {0: range(4, 65)}})
    for rows in (3, 65):
        with pytest.raises(InvalidDynamic, match=f"has {rows}, outside"):
            kernel(torch.ones(rows, 4))


def test_a_dimension_holds_what_its_ends_allow() -> None:
    assert all(Dimension().holds(size) for size in (0, 1, 10**9))
    assert [Dimension("", 2, 4).holds(size) for size in (1, 2, 4, 5)] == [False, True, True, False]
    assert read_dimension("x", 0, Dim("rows", min=0, max=9)) == Dimension("rows", None, 9)


def test_torchs_dimensions_say_their_names_and_ranges() -> None:
    assert adapter.exported_dimension(Dim("rows", min=2, max=64)) == ("rows", 2, 64)
    assert adapter.exported_dimension(Dim("rows")) == ("rows", None, None)
    assert adapter.exported_dimension(2 * Dim("rows")) is None
    assert adapter.exported_dimension(Dim.AUTO) is None
    assert adapter.exported_dimension("rows") is None


def test_a_size_that_is_tied_to_a_fixed_one_is_refused_with_what_to_do() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    kernel = nearhint.kernel(function, dynamic={"x": {0: "rows"}})
    with pytest.raises(InvalidDynamic, match=r"dynamic\['x'\].* must all be named"):
        kernel(torch.ones(5, 4), torch.ones(5, 4))


def test_a_function_that_does_other_things_within_a_range_is_refused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 8 else x * 3

    kernel = nearhint.kernel(function, dynamic={"x": {0: range(1, 65)}})
    with pytest.raises(InvalidDynamic, match="the same in all of a range"):
        kernel(torch.ones(20, 4))
