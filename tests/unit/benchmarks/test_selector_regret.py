"""The figures of `selector_regret.py`, and that the default rule is the one that they favour."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.benchmarks import selector_regret
from tests.benchmarks.synthetic_costs import kernels

from nearhint_proto.convert import table_to_proto
from nearhint_rules.choice import FALLBACK
from nearhint_rules.selectors import DEFAULT_SELECTOR, SELECTORS


def case() -> selector_regret.Case:
    kernel = next(iter(kernels()))
    return selector_regret.synthetic(kernel, hints=8, cutoff=4, rng=random.Random(1))


def test_an_account_has_the_regret_against_the_fastest_that_may_run() -> None:
    truth = selector_regret.Truth((16,), {0: 110.0, 1: 100.0, FALLBACK: 200.0})
    account = selector_regret.Account()
    for variant in (1, 0, FALLBACK):
        account.enter(case(), truth, variant, 0.5)
    figures = account.summary()
    assert account.regrets == pytest.approx([0.0, 0.1, 1.0])
    assert figures["worst_regret"] == figures["p95_regret"] == 1.0
    assert figures["geomean_of_oracle"] == pytest.approx((1 / 1.1 / 2) ** (1 / 3))
    assert figures["stated_regret"] == 0.5
    assert (figures["slower_than_default"], figures["slower_than_fallback"]) == (1, 0)


def test_recorded_matrices_are_read(tmp_path: Path) -> None:
    made = case()
    entry = {
        "title": made.title,
        "table": table_to_proto(made.table).SerializeToString().hex(),
        "fallback": made.fallback,
        "held_out": [
            {
                "dims": list(truth.dims),
                "variants_ns": {
                    str(at): time for at, time in truth.times_ns.items() if at != FALLBACK
                },
                "fallback_ns": truth.times_ns[FALLBACK],
            }
            for truth in made.held_out
        ],
    }
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps({"kernels": [entry]}))
    assert list(selector_regret.recorded(path)) == [made]


def test_the_default_rule_gives_least_away_on_the_cost_model() -> None:
    rng = random.Random(20261121)
    cases = [selector_regret.synthetic(kernel, hints=16, cutoff=4, rng=rng) for kernel in kernels()]
    found = selector_regret.measure(cases)
    regrets = {
        name: selector_regret.total(accounts).summary()["mean_regret"]
        for name, accounts in found.items()
    }
    assert set(regrets) == set(SELECTORS)
    assert min(regrets, key=regrets.__getitem__) == DEFAULT_SELECTOR
