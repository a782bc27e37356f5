"""What `nearhint warmup` is given to warm up."""

from __future__ import annotations

import pytest
from tests.unit.client.cli_cases import run

from nearhint.exit_codes import ExitCode


@pytest.mark.parametrize("source", ["manifest.yaml", "manifest", "my_model", "m:", "m:f()"])
def test_what_is_neither_a_manifest_nor_an_entry_is_not_asked_for_sizes(source: str) -> None:
    result = run("warmup", source)
    assert result.exit_code == ExitCode.USAGE
    assert f"must be MANIFEST.toml or MODULE:ENTRY, got '{source}'" in result.stderr
