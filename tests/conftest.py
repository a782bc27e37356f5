"""What every test may use: the `gpu` marker, and golden files with `--update-golden`."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
NOT_RUN = "not run: too few CUDA devices"

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files instead of comparing with them",
    )


def gpus() -> int:
    """How many CUDA devices answer; asks torch only where the driver's tool is installed."""
    if shutil.which("nvidia-smi") is None:
        return 0
    import torch

    return torch.cuda.device_count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`gpu` is for one device, `gpu(2)` for two."""
    marked = [(item, mark) for item in items if (mark := item.get_closest_marker("gpu"))]
    here = gpus() if marked else 0
    for item, mark in marked:
        wanted = mark.args[0] if mark.args else 1
        if here < wanted:
            item.add_marker(pytest.mark.skip(reason=f"{NOT_RUN}: needs {wanted}, there are {here}"))


def pytest_collection_finish() -> None:
    """What is imported and collected stays to the end: no collection of garbage walks it again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists what was not run, by the reports: tests may be collected in other processes."""
    not_run = [
        report.nodeid
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and NOT_RUN in report.longrepr[2]
    ]
    if not not_run:
        return
    terminalreporter.section(NOT_RUN)
    for nodeid in not_run:
        terminalreporter.line(f"not run  {nodeid}")
    terminalreporter.line(f"{len(not_run)} tests marked gpu were not run")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden("c/softmax.c", text)`: the text must be that of tests/golden/c/softmax.c.

    With --update-golden the file is written instead. A file that is missing is an error: a test
    that compares with nothing would pass on anything.
    """
    update = bool(request.config.getoption("--update-golden"))

    def check(name: str, text: str) -> None:
        path = (GOLDEN / name).resolve()
        if not path.is_relative_to(GOLDEN.resolve()):
            raise ValueError(f"golden name {name!r} leads out of {GOLDEN}")
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(
                f"golden file {path} is missing: run pytest --update-golden, then review it"
            )
        assert text == path.read_text(encoding="utf-8"), (
            f"differs from {path}: if that is meant, run pytest --update-golden and review the diff"
        )

    return check
