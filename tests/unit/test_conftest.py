"""Golden files and the `gpu` marker behave as tests/conftest.py promises."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

pytest_plugins = ["pytester"]


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project of its own whose conftest.py is ours, so that its golden folder is scratch."""
    pytester.makeini("[pytest]\nmarkers =\n    gpu(count=1): needs so many CUDA devices\n")
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    return pytester


def test_a_missing_golden_file_is_an_error_that_names_it(project: pytest.Pytester) -> None:
    project.makepyfile("def test_it(golden): golden('c/softmax.c', 'void f(void);')")
    result = project.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*golden/c/softmax.c is missing*--update-golden*"])


def test_update_writes_the_file_and_the_next_run_compares(project: pytest.Pytester) -> None:
    project.makepyfile("def test_it(golden): golden('a.txt', 'one')")
    project.runpytest("--update-golden").assert_outcomes(passed=1)
    assert (project.path / "golden" / "a.txt").read_text() == "one"
    project.runpytest().assert_outcomes(passed=1)
    (project.path / "golden" / "a.txt").write_text("two")
    project.runpytest().assert_outcomes(failed=1)


def test_a_golden_name_cannot_leave_the_folder(project: pytest.Pytester) -> None:
    project.makepyfile("def test_it(golden): golden('../a.txt', 'one')")
    project.runpytest("--update-golden").assert_outcomes(failed=1)
    assert not (project.path / "a.txt").exists()


def test_gpu_tests_are_reported_as_not_run(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    project.makepyfile("import pytest\n@pytest.mark.gpu\ndef test_it(): raise AssertionError")
    result = project.runpytest("-q")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["*not run: too few CUDA devices*", "not run *::test_it", "1 tests marked*"]
    )


def test_what_needs_more_devices_than_there_are_is_not_run(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    project.makepyfile(
        """
        import pytest

        @pytest.mark.gpu
        def test_one(): pass

        @pytest.mark.gpu(2)
        def test_two(): raise AssertionError
        """
    )
    result = project.inline_run("-q")
    result.assertoutcome(passed=1, skipped=1)
