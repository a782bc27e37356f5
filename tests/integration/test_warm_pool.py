"""What a pool of processes compiles, this process finds in Inductor's caches."""

from __future__ import annotations

import shutil

import pytest
import torch
from tests.benchmarks.compiled_call import copy_of
from tests.benchmarks.gpu_sweep_cases import sweeps_of
from tests.benchmarks.sweeps import marked, starts_of
from tests.benchmarks.warm_pool import (
    WarmPool,
    cache_counts,
    inductor_cache,
    units_of,
)
from torch._inductor import config

TITLE, AT = "argmax f32 [1021]", (509, 1021)
WITHOUT_HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.timeout(300)
def test_what_a_pool_has_compiled_is_found_in_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    # Faster for few graphs; torch reads the variable once, which was before this test.
    monkeypatch.setenv(WITHOUT_HEADERS, "0")
    monkeypatch.setattr(config, "cpp_cache_precompile_headers", False)
    (sweep,) = (each for each in sweeps_of("b") if each.title == TITLE)
    units = units_of({sweep: [AT]}, "b")
    with inductor_cache(), torch.no_grad():
        for hits, misses in ((0, 2), (2, 0)):
            with WarmPool(units, device="cpu", processes=2) as pool:
                warmed = pool.wait(timeout_s=240).facts()
            assert warmed["problems"] == {}
            assert (warmed["done"], warmed["hits"], warmed["misses"]) == (2, hits, misses)
        torch._dynamo.reset()
        before = cache_counts()
        dynamic = torch.compile(copy_of(sweep.function), backend="inductor", dynamic=False)
        for sizes in (*starts_of(sweep, sweep.compiled_at), AT):
            arguments = sweep.case(sizes).arguments()
            found = dynamic(*marked(sweep, arguments, "b"))
            torch.testing.assert_close(found, sweep.function(*arguments))
        assert cache_counts() == (before[0] + 1, before[1])
