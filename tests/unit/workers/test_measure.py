"""Measuring runs binaries and original ops on the same tensors, both allocating their outputs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.unit.workers.building import (
    SYMBOLS,
    activation,
    compiled,
    default_source,
    lowered,
    node,
    norm,
    tensor,
)

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import print_kernel
from nearhint_daemon.workers import measure as measuring
from nearhint_daemon.workers.bench_worker import Bench
from nearhint_daemon.workers.clock import CpuClock
from nearhint_daemon.workers.contest import MIN_SAMPLES, Contestant
from nearhint_daemon.workers.errors import DeviceWanted, MemoryLimitExceeded, RequestInvalid
from nearhint_daemon.workers.inputs import size_bytes
from nearhint_daemon.workers.measure import (
    PLACES,
    UNTIMED,
    Entry,
    Result,
    _leave_imports_alone,
    measure,
    output_allocators,
    without_collector,
)
from nearhint_daemon.workers.serve import WorkerState
from nearhint_daemon.workers.subjects import CpuSubject
from nearhint_proto.convert import fallback_to_proto, size_hint_to_proto
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules import expr as ex
from nearhint_rules import program as pr
from nearhint_rules.guard import ALWAYS, Aligned, Divisible, Guard
from nearhint_rules.plan import Fallback

SIZES = {"s0": 3, "s1": 7}


def run(
    entries: list[Entry], limit_bytes: int = 1 << 30, *, of: pr.Program | None = None
) -> dict[str, Result]:
    kernel, fallback = lowered(of or norm())
    results = measure(
        kernel,
        fallback,
        SIZES,
        entries,
        CpuClock(cache="warm", threads=1, priority=""),
        threads=1,
        device="cpu",
        budget_s=0.05,
        memory_limit_bytes=limit_bytes,
        seed=1,
    )
    return {result.id: result for result in results}


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> CpuSubject:
    return CpuSubject(
        *compiled(default_source(lowered(norm())[0]), tmp_path_factory.mktemp("binary"))
    )


def test_binaries_and_ops_are_timed(subject: CpuSubject) -> None:
    found = run([Entry("default", subject, ALWAYS), Entry("ops", None, ALWAYS)])
    for result in found.values():
        assert result.problem == ""
        assert result.timing is not None
        assert result.timing.median_ns > 100
        assert result.timing.samples >= MIN_SAMPLES


def test_an_entry_whose_guard_does_not_hold_has_no_timing(subject: CpuSubject) -> None:
    found = run(
        [
            Entry("sizes", subject, Guard((Divisible(ex.symbol("k0"), 2),))),
            Entry("pointers", subject, Guard((Aligned(0, 1 << 30),))),
            Entry("broken", None, ALWAYS, problem="ARTIFACT_CORRUPT"),
            Entry("ops", None, ALWAYS),
        ]
    )
    assert "Guard" in found["sizes"].problem
    assert "Guard" in found["pointers"].problem
    assert found["broken"].problem == "ARTIFACT_CORRUPT"
    assert [name for name, result in found.items() if result.timing] == ["ops"]


def test_an_entry_that_there_was_no_time_for_has_no_timing(
    subject: CpuSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_protected(contestants: Sequence[Contestant], *_: object, **__: object) -> None:
        for contestant in contestants:
            contestant.samples = [100.0] if contestant.is_protected else []

    monkeypatch.setattr(measuring, "run_contest", only_protected)
    found = run(
        [
            Entry("default", subject, ALWAYS),
            Entry("other", subject, ALWAYS),
            Entry("ops", None, ALWAYS),
        ]
    )
    assert [name for name, result in found.items() if result.timing] == ["default", "ops"]
    assert {name: each.problem for name, each in found.items() if each.problem} == {
        "other": UNTIMED
    }


@pytest.mark.parametrize(("room", "places"), [(None, PLACES), (3, 3), (0, 1)])
def test_small_inputs_are_measured_at_several_places_of_memory(
    subject: CpuSubject, monkeypatch: pytest.MonkeyPatch, room: int | None, places: int
) -> None:
    """As many as there is room for: of one place alone it is chance which lines share a set."""
    if room is not None:
        needed = size_bytes(lowered(norm())[1].program, SIZES)
        monkeypatch.setattr(measuring, "PLACED_BYTES", room * needed)
    seen: list[tuple[int, ...]] = []
    caller = subject.caller

    def spying(dims: Any, inputs: Sequence[torch.Tensor], *rest: Any, **more: Any) -> Any:
        seen.append(tuple(tensor.data_ptr() for tensor in inputs))
        return caller(dims, inputs, *rest, **more)

    monkeypatch.setattr(subject, "caller", spying)
    found = run([Entry("default", subject, ALWAYS), Entry("ops", None, ALWAYS)])
    assert len(set(seen)) == len(seen) == places
    assert all(result.timing is not None for result in found.values())


def looked_up() -> pr.Program:
    """embedding(weight, ids + s1): places that are computed, of which a table of s0 has none."""
    s0, s1 = ex.symbol("s0"), ex.symbol("s1")
    ids, made = tensor(s1, dtype="i64"), tensor(s1, 16)
    return pr.Program(
        SYMBOLS,
        (tensor(s0, 16), ids),
        (
            node("add.Tensor", pr.Ref(1), s1, makes=(ids,)),
            node("embedding.default", pr.Ref(0), pr.Ref(2), makes=(made,)),
            node("mul.Tensor", pr.Ref(3), 2.0, makes=(made,)),
        ),
        (4,),
    )


def test_places_that_inputs_lead_out_of_a_table_are_no_reason_to_time_nothing(
    tmp_path: Path,
) -> None:
    """As the original ops beside it, the binary reads the nearest places that there are."""
    kernel, _ = lowered(looked_up())
    binary = CpuSubject(*compiled(default_source(kernel), tmp_path))
    found = run([Entry("default", binary, ALWAYS), Entry("ops", None, ALWAYS)], of=looked_up())
    assert [name for name, result in found.items() if result.timing] == ["default", "ops"]


def test_numbers_that_no_size_determines_are_drawn_for_binary_and_ops(tmp_path: Path) -> None:
    x = tensor(ex.symbol("s0"), ex.symbol("s1"))
    scaled = node("mul.Tensor", pr.Ref(0), pr.Ref(1), makes=(x,))
    program = pr.Program(SYMBOLS, (x, pr.IntType(None)), (scaled,), (2,))
    kernel, _ = lowered(program)
    binary = CpuSubject(*compiled(default_source(kernel), tmp_path))
    found = run([Entry("default", binary, ALWAYS), Entry("ops", None, ALWAYS)], of=program)
    assert [name for name, result in found.items() if result.timing] == ["default", "ops"]


def test_the_collector_never_looks_at_all_that_imports_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda *ages: done.append(f"collect {ages}"))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    _leave_imports_alone.cache_clear()
    for _ in range(2):
        with without_collector():
            assert not gc.isenabled()
            done.append("contest")
        assert gc.isenabled()
    young = f"collect {(1,)}"
    assert done == [young, "freeze", "collect ()", "contest", "collect ()", "contest"]


def test_a_hint_over_its_memory_is_refused(subject: CpuSubject) -> None:
    with pytest.raises(MemoryLimitExceeded):
        run([Entry("default", subject, ALWAYS)], limit_bytes=1000)


def test_what_is_timed_computes(subject: CpuSubject, tmp_path: Path) -> None:
    _, fallback = lowered(norm())
    x, y, weight, bias = torch.randn(21, 48), torch.randn(21, 48), torch.rand(48), torch.rand(48)
    allocators = output_allocators(fallback, SIZES, device="cpu")
    call = subject.caller((21,), [x, y, weight, bias], allocators, threads=2)
    made = call()
    assert isinstance(made, tuple)
    wanted = torch.nn.functional.layer_norm(x + y, (48,), weight, bias, 1e-5)
    torch.testing.assert_close(made[0].reshape(21, 48), wanted, rtol=1e-5, atol=1e-5)


def test_who_wants_the_device_while_a_measurement_is_being_prepared_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one of a worker imports torch before it times anything."""
    kernel, fallback = lowered(activation())
    bench = Bench("cpu", WorkerState(), "")

    class Slow(ModuleType):
        def __getattr__(self, name: str) -> object:
            if name == measure.__name__:
                bench.give_way(0, None)
            return getattr(measuring, name)

    monkeypatch.setitem(sys.modules, measuring.__name__, Slow(measuring.__name__))
    with pytest.raises(DeviceWanted):
        bench.measure_hint(giving_way(kernel, fallback))


def giving_way(kernel: ir.Kernel, fallback: Fallback) -> pb.MeasureHint:
    """The original ops alone, which give way."""
    return pb.MeasureHint(
        kernel_ir=print_kernel(kernel),
        fallback=fallback_to_proto(fallback),
        sizes=size_hint_to_proto({"s0": 4}),
        candidates=[pb.Candidate(id="fallback", fallback=True)],
        cache="warm",
        budget_s=0.1,
        memory_limit_bytes=1 << 30,
        gives_way=True,
    )


def test_who_wants_the_device_just_before_a_measurement_is_read_is_heard_and_later_forgotten() -> (
    None
):
    bench = Bench("cpu", WorkerState(), "")
    jobs = bench.handlers()
    request = pb.WorkerRequest(measure_hint=giving_way(*lowered(activation())))
    bench.give_way(0, None)
    with pytest.raises(DeviceWanted):
        jobs["measure_hint"](request)
    assert jobs["measure_hint"](request).measured.candidates
    bench.give_way(0, None)
    with pytest.raises(RequestInvalid):  # another job's end, however it ends
        jobs["verify_variant"](
            pb.WorkerRequest(
                verify_variant=pb.VerifyVariant(kernel_ir=request.measure_hint.kernel_ir)
            )
        )
    assert jobs["measure_hint"](request).measured.candidates
