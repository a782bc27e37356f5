"""Captures kept in a folder: another process reads what one has traced, and only what fits."""

from __future__ import annotations

import collections
import copy
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.unit.torch.cases import CASES, Case
from tests.unit.torch.compiled_session import Compiled
from tests.unit.torch.conftest import Install
from tests.unit.torch.test_real_kernels import assert_close
from torch import Tensor, nn
from torch._dynamo.exc import TorchRuntimeError
from torch._dynamo.utils import counters as torchs
from torch._subclasses import FakeTensorMode
from torch.nn import functional
from torch.torch_version import TorchVersion
from torch.utils import _pytree as pytree

import nearhint_torch.saved as saved
from nearhint.session import counters
from nearhint_torch import compile_ahead, watch
from nearhint_torch.adapter import has_hooks
from nearhint_torch.adapter.ahead import Ahead, capture_ahead, read_ahead
from nearhint_torch.errors import NotKept, SavedByAnother

KEPT = CASES[::4]
GUARDED = frozenset(
    (
        "a diagonal of a part", "blocks", "channels in turns", "gates", "images rolled", "pools",
        "random steps", "scan by halves", "turned into a border",
    )
)  # fmt: skip
"""Cases of which torch's guards ask for a capture each of some sizes."""
EVENTS = ("captures", "captures_read", "capture_not_kept", "capture_outdated", "capture_unreadable")


class Block(nn.Module):
    """A norm, a product and a function that it holds: what guards leave out is in all of them."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = functional.gelu) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 8)
        self.activation = activation

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return self.activation(self.up(self.norm(x))) * scale


class Seen:
    """What has happened since it was made, by name."""

    def __init__(self) -> None:
        self._before = counters.seen()

    def __call__(self) -> dict[str, int]:
        now = counters.seen()
        grown = {name: now.get(name, 0) - self._before.get(name, 0) for name in EVENTS}
        return {name: count for name, count in grown.items() if count}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def test_what_one_has_captured_another_reads_and_serves(
    session: Install, compiled: Compiled, tmp_path: Path
) -> None:
    model, seen = Block().eval(), Seen()
    session(compiled.snapshot)
    first, aot = compile_ahead(model, tmp_path), torchs["aot_autograd"]["total"]
    for rows in (3, 5):
        x = torch.randn(rows, 8)
        assert_close(first(x), model(x))
    assert seen() == {"captures": 1}
    assert torchs["aot_autograd"]["total"] == aot + 1, "the norm's epsilon is known beforehand"
    torch.compiler.reset()
    fake = session(compiled.snapshot)
    traced = torchs["stats"]["calls_captured"]
    second = compile_ahead(model, tmp_path)
    for rows in (4, 9):
        x = torch.randn(rows, 8)
        with watch() as reports:
            assert_close(second(x), model(x))
        t0, _, t2 = reports[0].tiers
        assert t2 > 0
        assert t0 == 0
    assert seen() == {"captures": 1, "captures_read": 1}
    assert torchs["stats"]["calls_captured"] == traced
    assert len(fake.handles) == 1
    assert fake.handles[0].waits_s, "a capture that was read waits for its Plan as others do"


@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.name)
def test_a_capture_that_was_read_does_what_eager_does(
    session: Install, compiled: Compiled, case: Case
) -> None:
    session(compiled.snapshot)
    content = capture_ahead(
        case.function, case.arguments(6, 4), {}, dynamic=True, options={}
    ).content()
    torch.compiler.reset()
    kept = read_ahead(content, case.function)
    assert kept is not None
    for sizes in ((6, 4),) if case.name in GUARDED else ((6, 4), (3, 5), (7, 9)):
        torch.manual_seed(0)
        given = case.arguments(*sizes)
        torch.manual_seed(0)
        same = case.arguments(*sizes)
        assert kept.fits(given, {})
        results, wanted = kept.run(given, {}), case.function(*same)
        for ours, theirs in zip(
            pytree.tree_leaves((results, given)), pytree.tree_leaves((wanted, same)), strict=True
        ):
            assert_close(ours, theirs)


def test_a_call_that_fits_none_is_captured_too(session: Install, tmp_path: Path) -> None:
    session(lambda program: None)
    model, seen = Block().eval(), Seen()
    served = compile_ahead(model, tmp_path)
    for x in (torch.randn(3, 8), torch.randn(1, 8), torch.randn(2, 3, 8), torch.randn(5, 8)):
        assert torch.equal(served(x), model(x))
    assert torch.equal(served(torch.ones(3, 8), scale=0.5), model(torch.ones(3, 8), scale=0.5))
    made = seen()["captures"]
    assert made >= 3, "of one row, and of three dims, a guard does not let the first serve"
    again = compile_ahead(model, tmp_path)
    for x in (torch.randn(2, 3, 8), torch.randn(1, 8), torch.randn(4, 8)):
        assert torch.equal(again(x), model(x))
    assert seen()["captures"] == made


def scaled(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x.sin() * factor


def decorated(call: Callable[..., Any]) -> Callable[..., Any]:
    """As libraries of models wrap a `forward`: the function that they close over has no name."""

    @functools.wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return wrapper


class Outputs(collections.OrderedDict[str, Tensor]):
    """Results by name."""


class Decorated(Block):
    """Returns what torch makes by a module that it gives a name of this process's own."""

    @decorated
    def forward(self, x: Tensor, *, scale: float = 1.0) -> Any:
        hidden = self.activation(self.up(self.norm(x))) * scale
        return Outputs(hidden=hidden, rows=hidden.sum(-1))


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.12",
    reason="torch 2.11 cannot write what it knows of the defaults of a decorated function",
)
def test_a_decorated_forward_and_its_results_by_name(session: Install, tmp_path: Path) -> None:
    session(lambda program: None)
    seen, model = Seen(), Decorated().eval()
    for rows in (3, 5):
        x = torch.randn(rows, 8)
        results, wanted = compile_ahead(model, tmp_path)(x=x), model(x=x)
        assert type(results) is Outputs
        assert list(results) == list(wanted)
        assert all(torch.equal(results[name], wanted[name]) for name in wanted)
        torch.compiler.reset()
    assert seen() == {"captures": 1, "captures_read": 1}


def test_models_that_differ_where_torch_has_no_guard_are_told_apart(
    session: Install, tmp_path: Path
) -> None:
    session(lambda program: None)
    seen, x = Seen(), torch.randn(3, 8)
    compile_ahead(Block(functional.gelu).eval(), tmp_path)(x)
    other = Block(functional.relu).eval()
    assert torch.equal(compile_ahead(other, tmp_path)(x), other(x))
    part = Block(functional.gelu).eval()
    part.up = nn.Sequential(nn.Linear(8, 8), nn.Tanh())  # type: ignore[assignment]
    assert torch.equal(compile_ahead(part, tmp_path)(x), part(x))
    for factor in (2.0, 3.0):
        holder = Block(scaled(factor)).eval()
        assert torch.equal(compile_ahead(holder, tmp_path)(x), holder(x))
    holder = Block(functools.partial(torch.clamp, min=0.5)).eval()
    assert torch.equal(compile_ahead(holder, tmp_path)(x), holder(x))
    assert seen() == {"captures": 6}


def test_functions_of_one_name_are_told_apart(session: Install, tmp_path: Path) -> None:
    session(lambda program: None)
    seen, x = Seen(), torch.randn(3)
    calls: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.sin() + 1, lambda x: x.sin() + 2, lambda x: x.cos() + 1
    ]  # fmt: skip
    for call in calls:
        assert torch.equal(compile_ahead(call, tmp_path)(x), call(x))
    assert seen() == {"captures": 3}


def test_other_weights_are_served_by_the_same_capture(session: Install, tmp_path: Path) -> None:
    session(lambda program: None)
    seen, x = Seen(), torch.randn(3, 8)
    for _ in range(2):
        model = Block().eval()
        assert torch.equal(compile_ahead(model, tmp_path)(x), model(x))
    assert seen() == {"captures": 1, "captures_read": 1}


def test_source_that_has_changed_is_captured_anew(
    session: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(lambda program: None)
    monkeypatch.syspath_prepend(str(tmp_path))
    seen, x = Seen(), torch.randn(3)

    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(term: str) -> ModuleType:
        part = f"def part(x):\n    return x.sin() + {term}\n"
        (tmp_path / "changing_model.py").write_text(f"{part}\n\ndef call(x):\n    return part(x)\n")
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, "changing_model", raising=False)
        return importlib.import_module("changing_model")

    for term in ("1.0", "2.5"):
        call = written(term).call
        assert torch.equal(compile_ahead(call, tmp_path / "kept")(x), call(x))
    assert seen() == {"captures": 2, "capture_outdated": 1}
    monkeypatch.delitem(sys.modules, "changing_model")


def test_what_is_no_capture_is_left_alone(session: Install, tmp_path: Path) -> None:
    session(lambda program: None)
    model, seen, x = Block().eval(), Seen(), torch.randn(3, 8)
    compile_ahead(model, tmp_path)(x)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    assert torch.equal(compile_ahead(model, tmp_path)(x), model(x))
    assert seen() == {"captures": 2, "capture_unreadable": 1}
    assert file.stat().st_size == 1000
    assert len(list(tmp_path.iterdir())) == 2


def test_what_another_version_kept_is_refused(
    session: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(lambda program: None)

    def call(x: Tensor) -> Tensor:
        return x.sin() + 1

    kept = capture_ahead(call, (torch.randn(3),), {}, dynamic=True, options={})
    content = kept.content()
    monkeypatch.setattr(saved, "VERSION", "0.0.9")
    with pytest.raises(SavedByAnother, match=r"0\.0\.9"):
        read_ahead(content, call)


def test_a_folder_that_others_may_write_to_is_not_used(session: Install, tmp_path: Path) -> None:
    session(lambda program: None)
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    model, seen, x = Block().eval(), Seen(), torch.randn(3, 8)
    served = compile_ahead(model, folder)
    before = counters.seen().get("captures_unusable", 0)
    assert torch.equal(served(x), model(x))
    assert torch.equal(served(x), model(x))
    assert counters.seen()["captures_unusable"] == before + 1
    assert not list(folder.iterdir())
    assert seen() == {"captures": 1}, "by torch.compile, in this process alone"


def test_no_file_is_there_before_it_is_whole(
    session: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(lambda program: None)

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    model, seen, x = Block().eval(), Seen(), torch.randn(3, 8)
    served = compile_ahead(model, tmp_path)
    assert torch.equal(served(x), model(x))
    assert torch.equal(served(x), model(x))
    assert seen() == {"captures": 1}
    assert not list(tmp_path.iterdir())


def test_a_graph_with_breaks_is_compiled_as_ever_and_tried_once(
    session: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(lambda program: None)
    seen = Seen()

    def broken(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y + 1

    served = compile_ahead(broken, tmp_path)
    for rows in (3, 4, 5):
        x = torch.randn(rows, 2)
        assert torch.equal(served(x), broken(x))
    assert seen()["capture_not_kept"] == 1
    (note,) = tmp_path.iterdir()
    assert "graph_break" in note.read_text()
    again, x = compile_ahead(broken, tmp_path), torch.randn(6, 2)
    monkeypatch.setattr("nearhint_torch.adapter.ahead.capture_ahead", None)
    assert torch.equal(again(x), broken(x))
    assert seen()["capture_not_kept"] == 2, "told again, and not tried again"


def test_guards_that_would_not_hold_once_they_are_read_are_not_kept(
    session: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(lambda program: None)
    model, seen, x = Block().eval(), Seen(), torch.randn(3, 8)
    fits = Ahead.fits
    first: list[Ahead] = []

    def only_in_the_process_that_made_it(self: Ahead, args: Any, kwargs: Any) -> bool:
        first.append(self)
        return self is first[0] and fits(self, args, kwargs)

    monkeypatch.setattr(Ahead, "fits", only_in_the_process_that_made_it)
    served = compile_ahead(model, tmp_path)
    for _ in range(2):
        assert torch.equal(served(x), model(x))
    assert seen() == {"captures": 2, "capture_not_kept": 1}
    (note,) = tmp_path.iterdir()
    assert note.suffix == ".refused"


def test_a_call_that_fails_says_nothing_of_its_model(session: Install, tmp_path: Path) -> None:
    session(lambda program: None)
    model = Block().eval()
    served = compile_ahead(model, tmp_path)
    with pytest.raises((RuntimeError, TorchRuntimeError)):
        served(torch.randn(3, 7))
    assert not list(tmp_path.iterdir())
    for _ in range(2):
        x = torch.randn(3, 8)
        assert torch.equal(served(x), model(x))
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".capture"


def test_gradients_and_hooks_are_served_as_ever(session: Install, tmp_path: Path) -> None:
    session(lambda program: None)
    model = Block().eval()
    served, x = compile_ahead(model, tmp_path), torch.randn(3, 8)
    with torch.enable_grad():
        served(x).sum().backward()
    assert model.up.weight.grad is not None
    model.register_forward_hook(lambda *_: torch.zeros(1))
    assert torch.equal(served(x), torch.zeros(1))
    assert not list(tmp_path.iterdir())


def test_calls_that_compute_nothing_say_nothing_of_their_model(
    session: Install, tmp_path: Path
) -> None:
    session(lambda program: None)
    model = Block().eval()
    served, x = compile_ahead(model, tmp_path), torch.randn(3, 8)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert served(mode.from_tensor(x)).shape == (3, 8)
    assert not list(tmp_path.iterdir())
    with pytest.raises(TypeError):
        served(x, unknown=1)
    assert torch.equal(served(x), model(x))
    with pytest.raises(TypeError):
        served(x, unknown=1)
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".capture"


def test_what_traces_it_traces_the_model(session: Install, tmp_path: Path) -> None:
    session(lambda program: None)
    model = Block().eval()
    served, x = compile_ahead(model, tmp_path), torch.randn(3, 8)
    whole = torch.compile(lambda x: served(x) + 1, backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(x), model(x) + 1)
    assert not list(tmp_path.iterdir())


def test_it_has_what_its_model_has(tmp_path: Path) -> None:
    model = Block()
    served = copy.copy(compile_ahead(model, tmp_path))
    assert served.up is model.up
    assert len(list(served.parameters())) == 4
    with pytest.raises(AttributeError, match="unknown"):
        _ = served.unknown


def test_what_is_disabled_keeps_nothing(
    session: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(lambda program: None)
    monkeypatch.setenv("NEARHINT_DISABLE", "1")
    model, x = Block().eval(), torch.randn(3, 8)
    assert torch.equal(compile_ahead(model, tmp_path)(x), model(x))
    assert not list(tmp_path.iterdir())


def test_aot_compile_is_told_of_what_would_run_as_it_is(session: Install) -> None:
    session(lambda program: None)
    x = torch.randn(3, requires_grad=True)
    with torch.enable_grad(), pytest.raises(NotKept, match="gradients"):
        capture_ahead(lambda x: x.sin() + 1, (x,), {}, dynamic=True, options={})


def test_threads_that_call_at_once_capture_once(session: Install, tmp_path: Path) -> None:
    session(lambda program: None)
    model, seen = Block().eval(), Seen()
    served, ready, wrong = compile_ahead(model, tmp_path), threading.Barrier(3), []

    def call() -> None:
        x = torch.randn(3, 8)
        ready.wait()
        with torch.no_grad():
            if not torch.equal(served(x), model(x)):
                wrong.append(x)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert seen() == {"captures": 1}


def test_a_function_that_torch_keeps_itself_is_read_as_well(
    session: Install, compiled: Compiled, tmp_path: Path
) -> None:
    fake = session(compiled.snapshot)
    kept: Any = capture_ahead(Block().eval(), (torch.randn(3, 8),), {}, dynamic=True, options={})
    assert isinstance(kept, Ahead)
    (tmp_path / "file").write_bytes(kept.content())
    with (tmp_path / "file").open("rb") as file:
        loaded = torch.compiler.load_compiled_function(file, f_globals=globals())
    model, x = Block().eval(), torch.randn(5, 8)
    assert_close(loaded(model, x), model(x))
    assert len(fake.handles) == 2


def test_hooks_of_a_module_and_of_all() -> None:
    module = torch.nn.Linear(2, 2)
    assert not has_hooks(module)
    for register in (
        module.register_forward_hook,
        module.register_forward_pre_hook,
        torch.nn.modules.module.register_module_forward_hook,
        torch.nn.modules.module.register_module_forward_pre_hook,
    ):
        handle = register(lambda *_: None)
        assert has_hooks(module)
        handle.remove()
        assert not has_hooks(module)
