"""The models that `tests.benchmarks.models` times do what their families do."""

from __future__ import annotations

import pytest
import torch
from tests.benchmarks.model_cases import MODELS, PLACES, ModelCase, Scale
from tests.benchmarks.models import compiled, copied, error_of, exactly

SMALL = Scale(32, 4, 2, "cpu", torch.float32)


def names(case: ModelCase) -> str:
    return case.name


def case_named(name: str) -> ModelCase:
    return next(case for case in MODELS if case.name == name)


@pytest.mark.parametrize("case", MODELS, ids=names)
def test_a_model_makes_what_it_makes_in_f64(case: ModelCase) -> None:
    torch.manual_seed(0)
    model = case.model(SMALL).eval()
    with torch.no_grad():
        for sizes in (case.tuned[0], case.timed[1]):
            assert len(sizes) == len(case.symbols)
            arguments = case.arguments(SMALL, sizes)
            made = model(*copied(arguments))
            assert error_of(made, exactly(model, SMALL, arguments)) < 1e-4


@pytest.mark.parametrize("case", MODELS, ids=names)
def test_no_size_that_is_timed_was_tuned(case: ModelCase) -> None:
    assert not {*case.timed} & {*case.tuned} - {(1,)}


def test_steps_with_a_cache_make_what_a_prompt_does() -> None:
    torch.manual_seed(0)
    prompt, step = case_named("decoder, a prompt"), case_named("decoder, a step")
    model = prompt.model(SMALL).eval()
    ids, places = prompt.arguments(SMALL, (3, 7))
    _, _, *caches = step.arguments(SMALL, (3, 0))
    assert caches[0].shape[3] == PLACES
    with torch.no_grad():
        whole = model(ids, places)
        steps = [model(ids[:, place, None], place[None], *caches) for place in places]
    torch.testing.assert_close(steps[-1], whole)


def test_sides_share_weights_and_no_code() -> None:
    model = case_named("experts").model(SMALL).eval()
    first, second = compiled(model, "eager"), compiled(model, "eager")
    # By identity, as torch tells them apart: they are equal.
    assert len({id(each.forward.__code__) for each in (model, first, second)}) == 3
    x = SMALL.tensor(5, SMALL.width)
    with torch.no_grad():
        torch.testing.assert_close(first(x), model(x))
    assert first.get_parameter("up") is model.get_parameter("up")
