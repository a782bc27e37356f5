"""A real daemon serves functions on a real device: graphs, streams, threads, scalars, mutations."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.served import (
    OTHER_ROWS,
    ROWS,
    WIDTH,
    Tensor,
    block,
    captured,
    client_of,
    close,
    random,
    serving,
    settled,
    tuned,
)

from nearhint.demo.daemon import DemoDaemon
from nearhint.session import counters
from nearhint_torch.runner import watch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

JOIN_S = 60.0


def scaled(x: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    """One launch; `scale` is a number that lives on the host."""
    return torch.nn.functional.gelu(x + bias) * scale


def step(cache: Tensor, x: Tensor) -> Tensor:
    """Writes into what it was given, as a key-value cache is written."""
    cache.mul_(0.5)
    cache.add_(x)
    return torch.nn.functional.gelu(cache)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoDaemon]:
    with serving(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture(autouse=True)
def client(daemon: DemoDaemon, tmp_path: Path) -> Iterator[None]:
    with client_of(daemon, tmp_path / "cache"):
        yield


def test_a_function_is_served_at_t2_without_a_word_to_the_daemon() -> None:
    others = random(WIDTH), random(WIDTH, WIDTH)
    kernel = tuned(block, *others)
    before = counters.on_this_thread()
    with watch() as reports:
        for rows in (*ROWS, OTHER_ROWS):
            x = random(rows, WIDTH)
            assert close(kernel(x, *others), block(x, *others))
    assert [report.tiers for report in reports] == [(0, 0, 2)] * 4
    assert counters.on_this_thread() == before


@pytest.mark.parametrize("rows", [ROWS[1], OTHER_ROWS])
def test_a_captured_graph_replays_on_new_inputs(rows: int) -> None:
    others = random(WIDTH), random(WIDTH, WIDTH)
    kernel = tuned(block, *others)
    x = random(rows, WIDTH)
    graph, out = captured(kernel, x, *others)
    for _ in range(3):
        fresh = random(rows, WIDTH)
        x.copy_(fresh)
        graph.replay()
        torch.cuda.synchronize()
        assert close(out, block(fresh, *others))


def test_threads_on_streams_of_their_own_do_not_disturb_each_other() -> None:
    others = random(WIDTH), random(WIDTH, WIDTH)
    kernel = tuned(block, *others)
    wrong: list[Any] = []

    def work() -> None:
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            with torch.cuda.stream(stream):
                for turn in range(60):
                    rows = (*ROWS, OTHER_ROWS)[turn % 4]
                    x = random(rows, WIDTH)
                    if not close(kernel(x, *others), block(x, *others)):
                        wrong.append(rows)
        except Exception as error:
            wrong.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    assert wrong == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_an_rms_norm_takes_the_epsilon_that_its_op_takes(dtype: torch.dtype) -> None:
    """One op on a GPU, which has an epsilon of its own where none is given."""

    def normed(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm((x * 1e-3).to(dtype), (WIDTH,), weight)

    weight = random(WIDTH).to(dtype)
    kernel = tuned(normed, weight)
    x = random(OTHER_ROWS, WIDTH)
    with watch() as reports:
        got = kernel(x, weight)
    ulp = torch.finfo(dtype).eps
    assert torch.allclose(got, normed(x, weight), rtol=4 * ulp, atol=0.0)
    assert [report.tiers for report in reports] == [(0, 0, 1)]


def test_numbers_on_the_host_reach_the_kernel_in_each_call() -> None:
    bias = random(WIDTH)
    kernel = tuned(scaled, bias, torch.tensor(1.5))
    x = random(OTHER_ROWS, WIDTH)
    for value in (1.5, -2.0, 0.0):
        scale = torch.tensor(value)
        with watch() as reports:
            got = kernel(x, bias, scale)
        assert close(got, scaled(x, bias, scale))
        assert [report.tiers[0] for report in reports] == [0]


def test_numbers_that_are_no_size_reach_the_kernel_in_each_call() -> None:
    def shifted(x: Tensor, number: int) -> Tensor:
        places = torch.arange(number, number + x.shape[1], device=x.device)
        return torch.sin(x * number) / (number / 2 + 1) + places

    kernel = torch.compile(shifted, backend="nearhint", dynamic=True)
    x = random(OTHER_ROWS, WIDTH)
    kernel(x, 3)
    settled()
    for number in (3, 7, -5, 2**20):
        with watch() as reports:
            got = kernel(x, number)
        assert close(got, shifted(x, number))
        assert [report.tiers[0] for report in reports] == [0]


def test_what_is_written_in_place_is_not_copied() -> None:
    kernel = tuned(step, dynamic=("cache", "x"))
    cache, x = random(OTHER_ROWS, WIDTH), random(OTHER_ROWS, WIDTH)
    expected_cache, address = cache.clone(), cache.data_ptr()
    for _ in range(3):
        expected = step(expected_cache, x)
        assert close(kernel(cache, x), expected)
        assert close(cache, expected_cache)
    assert cache.data_ptr() == address


def composed(x: Tensor) -> tuple[Tensor, ...]:
    """What is made of other operations, one by one."""
    y = x.flip(1)
    return (
        torch.deg2rad(x), torch.isposinf(x), torch.isneginf(x), torch.sinc(x),
        torch.special.entr(x), torch.tan(x), torch.sinh(x), torch.cosh(x), torch.asinh(x),
        torch.acosh(x), torch.atanh(x), torch.logaddexp2(x, y), torch.hypot(x, y),
        torch.heaviside(x, y), torch.fmax(x, y), torch.fmin(x, y),
    )  # fmt: skip


def bordered(x: Tensor) -> tuple[Tensor, ...]:
    """Borders of what is around, each between others; and ops that have rows of their own."""
    image = x.relu()[None, None]
    pad = torch.nn.functional.pad
    return (
        pad(image, (3, 2, 1, 4), mode="reflect") * 2 + 1,
        pad(image, (3, 2, 1, 4), mode="replicate") - image.new_ones(()),
        torch.remainder(7.5, x + 0.25),
        torch.special.xlog1py(x, image[0, 0]),
        image.sum((0, 2)),
    )


def resampled(x: Tensor) -> Tensor:
    """One of torch's ops between others, whose sizes go through floats."""
    wide = torch.nn.functional.interpolate(x.relu()[None, None], scale_factor=1.5, mode="bilinear")
    return wide.relu() + 1


def test_composed_functions_are_right_where_they_are_special() -> None:
    kernel = tuned(composed)
    points = [0.0, -0.0, 1e-30, 0.3, 0.5, 1.0, -1.0, 1.5, 3.0, -11.0, 80.0, 1e30]
    special = torch.tensor([*points, float("inf"), float("-inf"), float("nan"), 0.999_999])
    x = special.repeat(OTHER_ROWS * WIDTH // len(special)).reshape(OTHER_ROWS, WIDTH).cuda()
    x[1:] += random(OTHER_ROWS - 1, WIDTH)
    with watch() as reports:
        got = kernel(x)
    assert [report.tiers[0] for report in reports] == [0]
    torch.testing.assert_close(got, composed(x), rtol=2e-5, atol=1e-6, equal_nan=True)


def test_borders_are_computed_where_they_are_read() -> None:
    kernel = tuned(bordered)
    x = random(OTHER_ROWS, WIDTH)
    with watch() as reports:
        got = kernel(x)
    assert [report.tiers[0] for report in reports] == [0]
    torch.testing.assert_close(got, bordered(x), rtol=1e-5, atol=1e-5)


def test_an_op_whose_sizes_go_through_floats_stays_one() -> None:
    kernel = tuned(resampled)
    x = random(OTHER_ROWS, WIDTH)
    with watch() as reports:
        got = kernel(x)
    assert [report.tiers for report in reports] == [(0, 0, 2)]
    assert close(got, resampled(x))
