"""Numbers of a call that are no size: Kernels take them by value, whatever they are."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.unit.torch.compiled_session import Compiled
from tests.unit.torch.conftest import Install
from tests.unit.torch.fake_session import FakeSession
from tests.unit.torch.test_real_kernels import assert_close
from torch import Tensor

from nearhint.session import counters
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import lower
from nearhint_rules import expr as ex
from nearhint_rules.expr import Sym
from nearhint_rules.plan import Launch, RunNodes
from nearhint_rules.program import FloatType, IntType, Program
from nearhint_torch.backend import nearhint
from nearhint_torch.runner import watch

Function = Callable[..., Any]
NUMBERS = (3, 5, 0, 1, -2, 2**31 + 7, -(2**40))

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(tmp_path_factory.mktemp("kernels"))


def programs(session: Install, function: Function, *calls: tuple[Any, ...]) -> list[Program]:
    """What is captured of these calls, from none that was before."""
    torch.compiler.reset()
    fake = session(lambda program: None)
    run = torch.compile(function, backend=nearhint, dynamic=True)
    with torch.no_grad():
        for args in calls:
            run(*args)
    return [handle.program for handle in fake.handles]


def tensor_ops(program: Program) -> list[str]:
    """Ops of tensors that a Plan of the Program runs as they are."""
    steps = lower(program, target_kind="cpu").plan.steps
    run = [node for step in steps if isinstance(step, RunNodes) for node in step.nodes]
    return [op for node in run if (op := program.nodes[node].op)]


def captures_of_torch(function: Function, calls: Sequence[tuple[Any, ...]]) -> int:
    """How often torch captures by itself for these calls."""
    count = 0

    def backend(module: torch.fx.GraphModule, _: object) -> Any:
        nonlocal count
        count += 1
        return module.forward

    torch.compiler.reset()
    run = torch.compile(function, backend=backend, dynamic=True)
    with torch.no_grad():
        for args in calls:
            run(*copy.deepcopy(args))
    torch.compiler.reset()
    return count


def test_a_number_is_no_symbol_and_is_bound_nowhere(session: Install) -> None:
    (program,) = programs(session, lambda x, n: x * n + 1, *((torch.ones(4, 6), n) for n in (3, 7)))
    assert [symbol.name for symbol in program.symbols] == ["s0", "s1"]
    assert program.inputs.count(IntType(None)) == 1
    (kernel,) = lower(program, target_kind="cpu").kernels
    assert ir.Param("scalar", "i64") in kernel.kernel.params
    assert kernel.kernel.symbols == ("k0",)


def test_a_number_that_guards_bound_is_still_no_size(session: Install) -> None:
    """As a range of 3 and more, or a remainder, would let a hint be placed by it."""

    def function(x: Tensor, n: int) -> Tensor:
        return x * n if n > 2 else x * (n % 4)

    found = programs(session, function, (torch.ones(4, 6), 5), (torch.ones(4, 6), -5))
    assert len(found) == 2
    for program in found:
        assert [symbol.name for symbol in program.symbols] == ["s0", "s1"]
        assert tensor_ops(program) == []


def test_programs_are_the_same_for_all_values(session: Install) -> None:
    one, other = (
        programs(session, lambda x, n: x * n + 1, (torch.ones(4, 6), n))[0].id
        for n in (3, -(2**40))
    )
    assert one == other


def test_a_size_that_is_a_value_too_is_still_a_size(session: Install) -> None:
    (program,) = programs(session, lambda x, n: x.sum() + torch.full((n,), n), (torch.ones(4), 7))
    assert len(program.symbols) == 2
    assert IntType(None) not in program.inputs
    kernels = lower(program, target_kind="cpu").kernels
    assert any(isinstance(node, ir.Iota) for found in kernels for node in found.kernel.body)


def test_a_place_is_a_number_and_no_size(session: Install) -> None:
    """Of a cache that is written and read from `start` on, positions are counted from there."""

    def function(cache: Tensor, new: Tensor, start: int) -> Tensor:
        cache[:, start : start + new.shape[1]] = new
        positions = torch.arange(start, start + new.shape[1])
        mask = torch.arange(cache.shape[1])[None, :] <= positions[:, None]
        return torch.where(mask, cache.sum(-1)[:, None], -torch.inf).softmax(-1)

    calls = [(torch.zeros(2, 16, 4), torch.ones(2, 3, 4), start) for start in (3, 6, 9)]
    (program,) = programs(session, function, *calls)
    assert len(program.symbols) == 4
    assert IntType(None) in program.inputs
    kernels = lower(program, target_kind="cpu").kernels
    assert any(ir.Param("scalar", "i64") in found.kernel.params for found in kernels)


def test_a_part_of_a_number_or_size_is_a_number_with_a_fraction(session: Install) -> None:
    (program,) = programs(session, lambda x, n: x * (n / 4) + 1 / x.shape[0], (torch.ones(4, 6), 3))
    made = [node.outputs[0] for node in program.nodes if not node.op]
    assert made == [FloatType()] * 2
    assert tensor_ops(program) == []


def test_what_is_computed_of_numbers_and_sizes_is_a_number(session: Install) -> None:
    (program,) = programs(
        session, lambda x, n: x * (n * x.shape[0]) + x.shape[1], (torch.ones(4, 6), 3)
    )
    made = [node.outputs[0] for node in program.nodes if not node.op]
    assert made == [IntType(None)]
    launches = [
        step for step in lower(program, target_kind="cpu").plan.steps if isinstance(step, Launch)
    ]
    assert [step.dims for step in launches] == [
        (ex.mul(Sym("s0"), Sym("s1")), Sym("s1")),
    ]


def serve(
    fake: FakeSession, function: Function, calls: Sequence[tuple[Any, ...]], *, captures: int
) -> None:
    """Each call gives what eager gives, or raises what it raises; all are served by Kernels."""
    run = torch.compile(function, backend=nearhint, dynamic=True)
    with torch.no_grad(), watch() as reports:
        for args in calls:
            try:
                expected = function(*copy.deepcopy(args))
            except Exception as error:
                with pytest.raises(type(error)):
                    run(*copy.deepcopy(args))
                continue
            assert_close(run(*copy.deepcopy(args)), expected)
    assert len(fake.handles) == captures
    assert reports
    assert all(report.launches for report in reports)


FUNCTIONS: dict[str, tuple[Function, torch.dtype]] = {
    "chain": (lambda x, n: x * n + 1, torch.float32),
    "half": (lambda x, n: x * n + 1, torch.bfloat16),
    "wrapped": (lambda x, n: x * n + n, torch.int8),
    "unsigned": (lambda x, n: x > n, torch.uint8),
    "divided": (lambda x, n: x / n, torch.int64),
    "counted": (lambda x, n: x + n, torch.bool),
    "chosen": (lambda x, n: torch.where(x > n, x, n) + 1, torch.float64),
    "filled": (lambda x, n: x.masked_fill(x > 0, n), torch.float32),
    "clamped": (lambda x, n: x.clamp(max=n) * n, torch.float32),
    "positions": (lambda x, n: x + (torch.arange(x.shape[1]) + n), torch.int64),
    "from it on": (lambda x, n: x + torch.arange(n, n + x.shape[1]), torch.int64),
    "of it": (lambda x, n: x * (n + 1) - n // 2 + 2 * n * x.shape[0] + n % 4, torch.int64),
    "triangle": (lambda x, n: torch.tril(x, n % 3) * n, torch.float32),
    "rows": (lambda x, n: (x * n).sum(-1) + n, torch.float64),
    "a part of it": (lambda x, n: x * (n / 4) + 1 / x.shape[1], torch.float32),
    "a part of it beside integers": (lambda x, n: x + n / 4, torch.int8),
    "a part of it compared": (lambda x, n: x > n / 4, torch.int64),
    "returned": (lambda x, n: (x + n)[0], torch.float32),
}


@needs_compiler
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_capture_serves_all_numbers_as_eager_does(
    name: str, session: Install, compiled: Compiled
) -> None:
    function, dtype = FUNCTIONS[name]
    x = torch.randint(-9, 9, (5, 33)).to(dtype)
    calls = [(x, number) for number in NUMBERS]
    expected = captures_of_torch(function, calls)
    fake = session(compiled.snapshot)
    serve(fake, function, calls, captures=expected)
    assert expected == 1
    assert not fake.fallbacks
    (handle,) = fake.handles
    assert len({sizes for sizes, _ in handle.counted}) == 1


@needs_compiler
def test_numbers_of_more_than_64_bits_are_for_eager(session: Install, compiled: Compiled) -> None:
    fake = session(compiled.snapshot)
    calls = [(torch.ones(5, 33), number) for number in (3, 2**63, 2**70, -(2**63))]
    serve(fake, lambda x, n: x * n + 1, calls, captures=1)
    assert fake.fallbacks == ["number_too_large"] * 2


@needs_compiler
def test_a_power_by_a_given_half_is_the_root_that_eager_takes(
    session: Install, compiled: Compiled
) -> None:
    fake = session(compiled.snapshot)
    endless = float("inf")
    x = torch.tensor([-endless, -0.0, 0.0, 2.0, 9.0, endless, -4.0, float("nan")]).expand(5, 8)
    calls = [(x, number) for number in (3, 2, -2, 4, -4, 6, 0)]
    serve(fake, lambda x, n: x ** (n / 4) + x, calls, captures=1)
    assert not fake.fallbacks


@needs_compiler
def test_floats_that_f32_has_no_room_for_are_for_eager(
    session: Install, compiled: Compiled
) -> None:
    fake = session(compiled.snapshot)
    calls = [(torch.randn(5, 33), number) for number in (3, 40, -90, -7)]
    serve(fake, lambda x, n: x.clamp(max=n * 1e37) + 1, calls, captures=1)
    assert fake.fallbacks == ["number_too_large"] * 2


@needs_compiler
def test_places_that_a_number_moves_out_of_a_table_are_refused_as_eager_does(
    session: Install, compiled: Compiled
) -> None:
    fake = session(compiled.snapshot)
    table, places = torch.randn(16, 33), torch.tensor([1, 2])
    calls = [(table, places, number) for number in (3, 13, 14, -18, -19)]
    serve(fake, lambda x, i, n: x[i + n] * n, calls, captures=1)
    assert {*fake.fallbacks} == {"place_outside"}


@needs_compiler
def test_several_numbers_and_a_result_that_is_one(session: Install, compiled: Compiled) -> None:
    fake = session(compiled.snapshot)

    def function(x: Tensor, n: int, m: int) -> tuple[Tensor, int]:
        return x * n - m * x, n + m

    calls = [(torch.randn(5, 33), n, m) for n, m in ((3, 5), (0, 9), (9, 0), (-1, 2**33))]
    run = torch.compile(function, backend=nearhint, dynamic=True)
    with torch.no_grad():
        for args in calls:
            (found, count), (expected, wanted) = run(*args), function(*args)
            assert_close(found, expected)
            assert count == wanted
    assert len(fake.handles) == 1


def test_no_guard_is_added_for_a_number(session: Install) -> None:
    before = counters.seen().get("captures", 0)
    programs(session, lambda x, n: x * n + 1, *((torch.ones(4, 6), n) for n in NUMBERS))
    assert counters.seen()["captures"] == before + 1


@pytest.mark.parametrize("first", [1, 3])
def test_no_guard_is_added_for_how_often_something_is_repeated(
    first: int, session: Install, compiled: Compiled
) -> None:
    def function(x: Tensor, n: int) -> Tensor:
        return (x + 1).repeat(n, 1) * 2

    fake = session(compiled.snapshot)
    run = torch.compile(function, backend=nearhint, dynamic=True)
    with torch.no_grad():
        for args in [(torch.randn(3, 4), n) for n in (first, 1, 2, 5)]:
            assert_close(run(*args), function(*args))
    assert len(fake.handles) == 1
