"""Cases that run together and are compared on the device; on the CPU, as torch allows."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.workers.building import (
    activation,
    attention_weights,
    column_sums,
    compiled,
    default_source,
    doubled,
    hand_written,
    lowered,
    norm,
)

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_daemon.workers import cuda_runs, cuda_subject, sent_references
from nearhint_daemon.workers.bench_worker import Bench
from nearhint_daemon.workers.cuda_runs import CudaRuns
from nearhint_daemon.workers.elements import FLOATS, STORAGE, Array, encode
from nearhint_daemon.workers.errors import DeviceBroken, DeviceWanted, OutOfMemory
from nearhint_daemon.workers.reference import Expected
from nearhint_daemon.workers.sent_references import WORDS, comparable
from nearhint_daemon.workers.serve import WorkerState
from nearhint_daemon.workers.subjects import CpuSubject
from nearhint_daemon.workers.verify import (
    Ran,
    References,
    Verdict,
    cases,
    element_errors,
    judged,
    verify,
)
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules import program as pr
from nearhint_rules.guard import ALWAYS

LARGE = (1 << 20) + 3
"""A size that is neither small nor known whole."""


@dataclass
class OnHost:
    """A binary of the CPU, launched as one of a device is."""

    subject: CpuSubject
    band: torch.Tensor | None = None
    scalars: Sequence[int] = ()
    device: str = "cpu"
    launches: int = 0

    def launch(
        self, dims: Sequence[int], addresses: Sequence[int], scalars: Sequence[float]
    ) -> torch.Tensor | None:
        assert not scalars
        self.launches += 1
        self.subject._kernel.bind_exactly(dims, threads=1)(addresses)
        return self.band


def by_hand(body: str, folder: Path) -> CpuSubject:
    return CpuSubject(*compiled(hand_written(body), folder))


def both(kernel: ir.Kernel, subject: CpuSubject, hint: int) -> tuple[Verdict, Verdict]:
    """What is said of a binary by cases in memory of their own, and by those of a device."""
    hints = [dict.fromkeys(kernel.symbols, hint)]
    alone, together = (
        verify(kernel, subject, ALWAYS, hints, threads=5, seed=1, references=References(), runs=how)
        for how in (None, CudaRuns("cpu").of(OnHost(subject)))
    )
    return alone, together


def all_of(kernel: ir.Kernel, subject: CpuSubject, hint: int, runs: CudaRuns) -> list[Ran]:
    references, hints = References(), [dict.fromkeys(kernel.symbols, hint)]
    wanted = [
        (case, references.get(kernel, case.sizes, seed=1, draw=case.draw))
        for case in cases(kernel, ALWAYS, hints, threads=5, can_shift=True)
    ]
    return list(runs.of(OnHost(subject))(kernel, iter(wanted)))


@pytest.mark.parametrize(
    "program", [norm(), activation(), attention_weights(), column_sums()], ids=lambda p: p.id[:6]
)
@pytest.mark.parametrize("hint", [24, 300])
def test_what_is_right_is_said_to_be_where_it_ran(
    program: pr.Program, hint: int, tmp_path: Path
) -> None:
    kernel, _ = lowered(program)
    subject = CpuSubject(*compiled(default_source(kernel), tmp_path))
    alone, together = both(kernel, subject, hint)
    assert (together.problem, together.cases) == ("", alone.cases)
    assert together.worst_error == pytest.approx(alone.worst_error)
    assert not any(ran.buffers for ran in all_of(kernel, subject, hint, CudaRuns("cpu")))


@pytest.mark.parametrize("hint", [1000, LARGE])
@pytest.mark.parametrize(
    "body",
    [
        "for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;",
        "for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2.001f;",
        "for (int64_t i = 0; i < n - 1; i++) y[i] = x[i] * 2;",
        "for (int64_t i = 0; i < n / 8 * 8; i++) y[i] = x[i] * 2;",
        "for (int64_t i = 0; i < n; i++) y[i] = x[n - 1 - i] * 2;",
        "for (int64_t i = 0; i <= n; i++) y[i] = i < n ? x[i] * 2 : 7;",
        "for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2; y[-1] = 0;",
        "for (int64_t i = 0; i < n; i++) y[i] = isnan(x[i]) ? 0 : x[i] * 2;",
        "for (int64_t i = 0; i < n; i++) y[i] = isinf(x[i]) ? 3e38f : x[i] * 2;",
        "for (int64_t i = 0; i < n; i++) y[i] = n > 900 && i == 899 ? 0 : x[i] * 2;",
        f"for (int64_t i = 0; i < n; i++) y[i] = i == {LARGE - 1} ? 0 : x[i] * 2;",
        "for (int64_t i = 0; i < n; i++) if (i % 300000 != 299999) y[i] = x[i] * 2;",
        "for (int64_t i = 0; i < n; i++) y[i] = x[i] * ((uintptr_t)y % 64 ? 3 : 2);",
        "for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2; ((float *)x)[n - 1] = 0;",
    ],
)
def test_each_kind_of_mistake_is_found_as_by_cases_alone(
    body: str, hint: int, tmp_path: Path
) -> None:
    if "(float *)x" in body:  # alone, inputs cannot be written
        found = verify(
            doubled(),
            by_hand(body, tmp_path),
            ALWAYS,
            [{"k0": hint}],
            threads=1,
            seed=1,
            references=References(),
            runs=CudaRuns("cpu").of(OnHost(by_hand(body, tmp_path))),
        )
        assert (found.problem.startswith("writes beside parameter 0"), found.is_damaging) == (
            True,
            True,
        )
        return
    alone, together = both(doubled(), by_hand(body, tmp_path), hint)
    assert together == alone


def test_a_mistake_at_one_size_alone_sends_no_other_case_to_the_host(tmp_path: Path) -> None:
    wrong = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * (n == 241 ? 3 : 2);", tmp_path)
    seen = 0
    for ran in all_of(doubled(), wrong, 1000, CudaRuns("cpu")):
        is_wrong = ran.case.sizes.dims["k0"] == 241
        assert bool(ran.buffers) == is_wrong == bool(judged(doubled(), ran, seed=1).problem)
        seen += is_wrong
    assert seen >= 2


def test_what_lies_between_stores_must_stay_as_it_was(tmp_path: Path) -> None:
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction) (params (in f32) (out f32))
          (body (load 0 p0) (add f32 0 0) (store 1 (* 3 p0) 1)))
    """)
    tidy = by_hand("for (int64_t i = 0; i < n; i++) y[3 * i] = x[i] * 2;", tmp_path)
    untidy = by_hand(
        "for (int64_t i = 0; i < n; i++) { y[3 * i] = x[i] * 2; if (i) y[3 * i - 1] = 0; }",
        tmp_path,
    )
    for hint in (1000, LARGE):
        assert both(kernel, tidy, hint)[1].problem == ""
        alone, together = both(kernel, untidy, hint)
        assert together == alone
        assert "where no store is" in together.problem


def test_an_element_that_its_input_excuses_is_excused(tmp_path: Path) -> None:
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise k0) (reduction) (params (in f32) (out f32))
          (body (load 0 p0) (const f32 0x3eaaaaab) (div f32 0 1) (floor f32 2) (store 1 p0 3)))
    """)
    right = by_hand("for (int64_t i = 0; i < n; i++) y[i] = floorf(x[i] / (1.0f / 3));", tmp_path)
    alone, together = both(kernel, right, 20_000)
    assert (together.problem, together.cases) == ("", alone.cases)


def test_the_second_variant_of_a_kernel_finds_what_the_first_had_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    put = sent_references._Block.put

    def counted(block: sent_references._Block, content: Array) -> torch.Tensor:
        sent.append(content.size)
        return put(block, content)

    monkeypatch.setattr(sent_references._Block, "put", counted)
    runs, references = CudaRuns("cpu"), References()
    right = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", tmp_path)
    wrong = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 3;", tmp_path)
    counts: list[int] = []
    for subject, is_right in ((right, True), (wrong, False), (right, True)):
        found = verify(
            doubled(),
            subject,
            ALWAYS,
            [{"k0": 64}, {"k0": LARGE}],
            threads=5,
            seed=1,
            references=references,
            runs=runs.of(OnHost(subject)),
        )
        assert (found.problem == "") == is_right
        counts.append(len(sent))
    assert counts[0] == counts[1] == counts[2] > 10
    runs.clear()
    assert runs._references.size_bytes == 0


def test_where_the_device_is_full_what_was_sent_is_given_back() -> None:
    state = WorkerState()
    bench, runs = Bench("cuda:0", state, ""), CudaRuns("cpu")
    bench._cuda_runs = runs
    case = next(cases(doubled(), ALWAYS, [], threads=5, can_shift=True))
    runs._references.of(doubled(), [References().get(doubled(), case.sizes, seed=1, draw="normal")])
    assert runs._references.size_bytes > 0

    def verify_variant(request: pb.WorkerRequest) -> pb.WorkerResponse:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(OutOfMemory):
        bench._watched(verify_variant, keeps_references=True)(pb.WorkerRequest())
    assert runs._references.size_bytes == 0
    assert not state.is_damaged


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (DeviceWanted("a client began to serve"), DeviceWanted),
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory),
        (ValueError("no such op"), ValueError),
    ],
)
def test_what_a_failed_job_held_is_let_go_before_memory_is_given_back(
    raised: Exception, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    given_back: list[bool] = []
    monkeypatch.setattr(
        cuda_subject, "release_memory", lambda: given_back.append(held[0]() is None)
    )

    def measure_hint(request: pb.WorkerRequest) -> pb.WorkerResponse:
        inputs = torch.zeros(8)
        held.append(weakref.ref(inputs))
        with cuda_subject.device_errors():
            raise raised

    state = WorkerState()
    with pytest.raises(told):
        Bench("cuda:0", state, "")._watched(measure_hint)(pb.WorkerRequest())
    assert given_back == [True]
    assert not state.is_damaged


@pytest.mark.parametrize("hint", [64, LARGE])
def test_who_writes_to_what_others_are_compared_with_breaks_the_device(
    hint: int, tmp_path: Path
) -> None:
    right = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", tmp_path)
    runs, references = CudaRuns("cpu"), References()
    wanted = [
        (case, references.get(doubled(), case.sizes, seed=1, draw="normal"))
        for case in list(cases(doubled(), ALWAYS, [{"k0": hint}], threads=5, can_shift=True))[-2:]
    ]

    @dataclass
    class Spoiling(OnHost):
        """Writes one byte of a reference."""

        def launch(
            self, dims: Sequence[int], addresses: Sequence[int], scalars: Sequence[float]
        ) -> torch.Tensor | None:
            found = super().launch(dims, addresses, scalars)
            runs._references._blocks[0]._bytes[-1] = 1
            return found

    assert not any(ran.buffers for ran in runs.of(OnHost(right))(doubled(), iter(wanted)))
    with pytest.raises(DeviceBroken, match="not given"):
        list(runs.of(Spoiling(right))(doubled(), iter(wanted)))


@pytest.mark.parametrize("hint", [64, LARGE])
def test_who_writes_behind_a_workspace_breaks_the_device(hint: int, tmp_path: Path) -> None:
    subject = by_hand("for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2;", tmp_path)
    for value, is_broken in ((0xFF, False), (0xFE, True)):
        band = torch.full((16,), 0xFF, dtype=torch.uint8)
        band[7] = value
        launcher = OnHost(subject, band=band)
        references = References()
        wanted = [
            (case, references.get(doubled(), case.sizes, seed=1, draw="normal"))
            for case in list(cases(doubled(), ALWAYS, [{"k0": hint}], threads=5, can_shift=True))[
                -2:
            ]
        ]
        runs = CudaRuns("cpu").of(launcher)(doubled(), iter(wanted))
        if is_broken:
            with pytest.raises(DeviceBroken):
                list(runs)
        else:
            assert len(list(runs)) == 2


@pytest.mark.parametrize("dtype", list(STORAGE))
def test_elements_are_compared_as_by_the_host(dtype: str) -> None:
    """Numbers, NaN, infinities and what overflows, each beside each; tolerances of all kinds."""
    if dtype in FLOATS:
        numbers = np.array([0.0, -0.0, 1.0, 1.001, -1.0, 2e-3, 440.0, 6e4, 3.3e38])
        wanted = np.concatenate((numbers, [np.nan, np.inf, -np.inf, 1e300]))
        stored = encode(dtype, wanted)
    else:
        stored = np.array([0, 1, 1, 0, 1], STORAGE[dtype])
        wanted = stored
    allowed = np.array([0.0, 1e-3, 0.5, np.inf])
    pairs = [(found, value, limit) for found in stored for value in wanted for limit in allowed]
    found = np.array([pair[0] for pair in pairs], stored.dtype)
    expected = Expected(
        np.arange(len(pairs)),
        np.array([pair[1] for pair in pairs], wanted.dtype),
        np.array([pair[2] for pair in pairs]),
    )
    ours = cuda_runs._errors(
        dtype,
        torch.from_numpy(found.view(WORDS[found.dtype.itemsize][1])),
        torch.from_numpy(comparable(dtype, expected)),
        torch.from_numpy(expected.allowed),
    ).numpy()
    np.testing.assert_array_equal(ours, element_errors(dtype, found, expected))
