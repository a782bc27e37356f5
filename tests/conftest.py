"""What every test may use: the `gpu` marker, and golden files with `--update-golden`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
NOT_RUN = "not run: needs a CUDA device, there is none"

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files instead of comparing with them",
    )


def has_gpu() -> bool:
    """Whether a CUDA device answers; asks torch only where the driver's tool is installed."""
    if shutil.which("nvidia-smi") is None:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or has_gpu():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=NOT_RUN))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists what was not run, by the reports: tests may be collected in other processes."""
    not_run = [
        report.nodeid
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and NOT_RUN in report.longrepr[2]
    ]
    if not not_run:
        return
    terminalreporter.section("not run: no CUDA device")
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
