"""Captures kept in a folder, read again and served by a real daemon on a real device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.gpu.served import (
    FIRST,
    OTHER_ROWS,
    ROWS,
    WIDTH,
    block,
    client_of,
    close,
    random,
    serving,
    settled,
)
from torch import Tensor, nn
from torch._dynamo.utils import counters as torchs

from nearhint.demo.daemon import DemoDaemon
from nearhint.session import counters
from nearhint_torch import CompiledAhead, compile_ahead, watch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]


class Model(nn.Module):
    """Two launches with a matrix product between them, and a table that it keeps."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(WIDTH, device=FIRST))
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, device=FIRST) / WIDTH)
        self.register_buffer("table", torch.randn(WIDTH, device=FIRST))

    def forward(self, x: Tensor) -> Tensor:
        return block(x, self.bias, self.weight) * self.table


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoDaemon]:
    with serving(tmp_path_factory.mktemp("kept")) as found:
        yield found


@pytest.fixture(autouse=True)
def client(daemon: DemoDaemon, tmp_path: Path) -> Iterator[None]:
    with client_of(daemon, tmp_path / "cache"), torch.no_grad():
        yield


def read_again(model: nn.Module, folder: Path) -> CompiledAhead:
    """The model from its folder, where calls at `ROWS` have it captured and tuned before."""
    first = compile_ahead(model, folder)
    for rows in ROWS:
        x = random(rows, WIDTH)
        assert close(first(x), model(x))
    settled()
    torch.compiler.reset()
    return compile_ahead(model, folder)


def test_what_is_read_is_served_at_once(tmp_path: Path) -> None:
    model = Model().eval()
    served = read_again(model, tmp_path)
    before, traced = counters.seen(), torchs["stats"]["calls_captured"]
    for rows in (*ROWS, OTHER_ROWS):
        x = random(rows, WIDTH)
        with watch() as reports:
            result = served(x)
        assert close(result, model(x))
        assert [report.tiers for report in reports] == [(0, 0, 2)]
    assert torchs["stats"]["calls_captured"] == traced
    assert counters.seen()["captures"] == before["captures"]


def test_another_dtype_is_another_capture(tmp_path: Path) -> None:
    served = read_again(Model().eval(), tmp_path)
    half = Model().eval().half()
    x = random(33, WIDTH).half()
    result = compile_ahead(half, tmp_path)(x)
    assert torch.allclose(result.float(), half(x).float(), rtol=1e-2, atol=1e-2)
    assert served(random(33, WIDTH)).dtype == torch.float32
    assert len(list(tmp_path.glob("*.capture"))) == 2


def test_what_was_read_replays_in_a_graph_of_the_device(tmp_path: Path) -> None:
    model = Model().eval()
    served = read_again(model, tmp_path)
    x = random(OTHER_ROWS, WIDTH)
    served(x)
    graph: torch.cuda.CUDAGraph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = served(x)
    x.copy_(random(OTHER_ROWS, WIDTH))
    graph.replay()
    torch.cuda.synchronize()
    assert close(out, model(x))
