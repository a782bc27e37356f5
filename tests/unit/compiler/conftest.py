"""What modules of many cases share: all of them interpreted in one process, once a module."""

from __future__ import annotations

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.triton_numerics import Results


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What the generated source of the module's `CASES` computes."""
    return numerics.run(request.module.CASES, tmp_path_factory.mktemp("cases"))
