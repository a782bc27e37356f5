"""Functions that read or add up where data says, on a real daemon: served, or eager's error."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.integration.daemon_process import DaemonProcess, measuring_in

import nearhint
from nearhint import session
from nearhint.session import counters
from nearhint_torch.runner import watch

Tensor = torch.Tensor
SETTLE_S = 240.0

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with measuring_in(tmp_path_factory.mktemp("sums")) as process:
        yield process


@pytest.fixture(autouse=True)
def environment(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NEARHINT_ADDRESS", daemon.address)
    monkeypatch.setenv("NEARHINT_CACHE_DIR", str(daemon.folder / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.compiler.reset()
    yield
    session.shutdown()
    torch.compiler.reset()
    torch.set_num_threads(threads)


def combined(x: Tensor, weights: Tensor, places: Tensor) -> Tensor:
    """Rows times their weights, added up where they came from: experts' results by token."""
    made = torch.zeros(int(weights.shape[1]), x.shape[1])
    return made.index_add(0, places, x * weights[:, :1]) * 2


def touched(kept: Tensor, x: Tensor, places: Tensor) -> Tensor:
    return kept.scatter_add(1, places, x.exp())


def drawn(rows: int, tokens: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(rows, 96), torch.rand(rows, tokens), torch.randint(0, tokens, (rows,))


def elements(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(rows, 64), torch.randn(rows, 96), torch.randint(0, 64, (rows, 96))


@pytest.mark.parametrize(("function", "inputs"), [(combined, drawn), (touched, elements)])
def test_sums_at_places_are_tuned_and_served(
    function: Callable[..., Tensor], inputs: Callable[[int], tuple[Tensor, ...]]
) -> None:
    call = torch.compile(function, backend="nearhint", dynamic=True)
    with torch.no_grad():
        for rows in (40, 700):
            call(*inputs(rows))
        report = nearhint.settle(timeout_s=SETTLE_S)
        assert report.settled, report
        assert report.at_t2 or report.at_t0
        captures = counters.seen()["captures"]
        with watch() as reports:
            for rows in (40, 700, 33, 41, 650):
                given = inputs(rows)
                torch.testing.assert_close(call(*given), function(*given))
    assert counters.seen()["captures"] == captures
    assert not [launch.reason for each in reports for launch in each.launches if not launch.tier]


def chances(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1).gather(-1, labels[:, None]).squeeze(-1).exp()


def test_sizes_that_are_marked_one_by_one_are_served() -> None:
    """torch guards that there are no more labels than rows, and no more: there may be fewer."""
    call = torch.compile(chances, backend="nearhint")

    def marked(rows: int, labels: int) -> tuple[Tensor, Tensor]:
        given = torch.randn(rows, 300), torch.randint(0, 300, (labels,))
        for tensor in given:
            torch._dynamo.mark_dynamic(tensor, 0)
        return given

    with torch.no_grad():
        for rows in (40, 700):
            call(*marked(rows, rows))
        report = nearhint.settle(timeout_s=SETTLE_S)
        assert report.settled, report
        assert report.at_t2
        captures = counters.seen()["captures"]
        with watch() as reports:
            for rows, labels in ((40, 40), (700, 700), (640, 33), (41, 40)):
                given = marked(rows, labels)
                torch.testing.assert_close(call(*given), chances(*given))
    assert counters.seen()["captures"] == captures
    assert not [launch.reason for each in reports for launch in each.launches if not launch.tier]


def test_a_place_that_there_is_not_is_eager_s_error_and_spoils_nothing() -> None:
    call = torch.compile(combined, backend="nearhint", dynamic=True)
    x, weights, places = drawn(40)
    with torch.no_grad():
        call(x, weights, places)
        report = nearhint.settle(timeout_s=SETTLE_S)
        assert report.settled, report
        for wrong in (30, -1):
            for function in (combined, call):
                with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
                    function(x, weights, torch.full_like(places, wrong))
        torch.testing.assert_close(call(x, weights, places), combined(x, weights, places))
