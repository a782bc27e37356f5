"""What sizes have in common is resolved and kept once, not once a size."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.unit.torch.compiled_session import Compiled
from tests.unit.torch.conftest import Install
from tests.unit.torch.fake_session import FakeSnapshot
from torch.nn import functional

from nearhint_compiler.pipeline import lower
from nearhint_rules.expr import Int
from nearhint_rules.plan import MakeView, Plan, Step
from nearhint_torch import resolve, runner
from nearhint_torch.arena import Arena
from nearhint_torch.backend import nearhint
from nearhint_torch.launching import launch_step
from nearhint_torch.parts import Parts

Tensor = torch.Tensor
ROWS, WIDTH = 8, 256

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Parts]:
    """All parts that graphs share meanwhile."""
    noted: list[Parts] = []

    class Noted(Parts):
        __slots__ = ()

        def __init__(self, steps: Sequence[Step] = ()) -> None:
            super().__init__(steps)
            noted.append(self)

    monkeypatch.setattr(runner, "Parts", Noted)
    return noted


class Decoder(torch.nn.Module):
    """Some tokens a call: `depth` layers without the cached ones, and one that has all."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.key = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = x + functional.gelu(layer(functional.layer_norm(x, (WIDTH,))))
        cache = torch.cat((cache, self.key(x)))
        return torch.softmax(x @ cache.t(), -1) @ cache, cache


def inputs(tokens: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return (
        torch.randn(ROWS, WIDTH, generator=generator),
        torch.randn(tokens, WIDTH, generator=generator),
    )


def serve(model: torch.nn.Module, call: Any, sizes: range) -> None:
    with torch.no_grad():
        for tokens in sizes:
            arguments = inputs(tokens)
            torch.testing.assert_close(call(*arguments), model(*arguments), rtol=1e-3, atol=1e-4)


def counted(noted: Sequence[object]) -> tuple[int, int]:
    """How much is noted of six layers at a first length of the cache, and at sixteen more."""
    model = Decoder(depth=6)
    call = torch.compile(model, backend=nearhint, dynamic=True)
    serve(model, call, range(20, 21))
    first = len(noted)
    serve(model, call, range(21, 37))
    return first, len(noted) - first


def test_steps_of_one_token_are_bound_once_for_all_lengths_of_the_cache(
    session: Install, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(compiled.snapshot)
    bound: list[tuple[int, ...]] = []

    def note(plan: Any, *args: Any, **named: Any) -> Any:
        bound.append(plan.dims)
        return launch_step(plan, *args, **named)

    monkeypatch.setattr(resolve, "launch_step", note)
    first, more = counted(bound)
    assert first > 6, "each layer has one at least"
    assert more <= 16 * 3, "the cache, the scores, what they sum up to"


def test_what_a_size_keeps_does_not_grow_with_layers_that_do_not_depend_on_it(
    session: Install, compiled: Compiled
) -> None:
    session(compiled.snapshot)
    kept: list[int] = []
    for depth in (2, 12):
        torch.compiler.reset()
        model = Decoder(depth)
        call = torch.compile(model, backend=nearhint, dynamic=True)
        serve(model, call, range(40, 42))
        gc.collect()
        before = len(gc.get_objects())
        serve(model, call, range(20, 36))
        gc.collect()
        kept.append((len(gc.get_objects()) - before) // 16)
    assert kept[1] <= kept[0] + 10, kept


def test_tensors_in_an_arena_that_do_not_depend_on_a_size_are_laid_out_once(
    session: Install, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(compiled.snapshot)
    laid_out: list[int] = []
    over_buffer = Arena._over_buffer

    def note(arena: Arena, item: Any) -> Any:
        laid_out.append(item.slot)
        return over_buffer(arena, item)

    monkeypatch.setattr(Arena, "_over_buffer", note)
    first, more = counted(laid_out)
    assert first > 6
    assert more <= 16 * 6, "of the cache and the scores"


def test_parts_go_with_the_sizes_that_are_forgotten(
    session: Install, compiled: Compiled, made: list[Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    session(compiled.snapshot)
    monkeypatch.setattr(runner, "RESOLVED_LIMIT", 4)
    model = Decoder(depth=1)
    call = torch.compile(model, backend=nearhint, dynamic=True)
    counts: list[int] = []
    for tokens in range(20, 60):
        serve(model, call, range(tokens, tokens + 1))
        counts.append(len(made[-1].launches))
    assert max(counts) == max(counts[:8]) < 40, counts


def test_a_plan_that_fails_at_each_size_keeps_no_parts(session: Install, made: list[Parts]) -> None:

    def broken(program: Any) -> FakeSnapshot:
        plan = lower(program, target_kind="cpu").plan
        view = MakeView(0, len(program.inputs), (Int(1),), (Int(1),), Int(0), 10**6)
        return FakeSnapshot(
            Plan(plan.program, "cpu", "test", (*plan.steps, view), storages=plan.storages)
        )

    session(broken)
    model = Decoder(depth=1)
    call = torch.compile(model, backend=nearhint, dynamic=True)
    serve(model, call, range(20, 30))
    assert made
    assert not made[-1].launches
