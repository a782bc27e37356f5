"""Calls that have no memory to launch on, each of which would crash the process that makes it.

python -m tests.unit.torch.addressless_calls FOLDER

Prints the name of each as it begins, and what came of it: nothing, or an error's first line.
`FOLDER` is for binaries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.unit.torch.compiled_session import Compiled
from tests.unit.torch.fake_session import FakeSession
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import nearhint
import nearhint_torch.backend as backend
import nearhint_torch.serving as serving
from nearhint_torch.errors import NoMemory

Tensor = torch.Tensor


def function(x: Tensor) -> Tensor:
    """What every case compiles: one Kernel."""
    return (x * 2 + 1).softmax(-1)


def without_arguments() -> Tensor:
    """Intermediates, and nothing that is given."""
    return torch.arange(8, dtype=torch.float32).mul(2).add(1).softmax(-1)


def compiled(of: Callable[..., Any] = function) -> Callable[..., Any]:
    """Captures that the cases share would hide what one of them does at first."""
    torch.compiler.reset()
    made: Callable[..., Any] = torch.compile(of, backend=backend.nearhint, dynamic=True)
    return made


def fake(x: Tensor, *, mode: FakeTensorMode | None = None) -> Tensor:
    """A tensor like `x` that has no memory."""
    made: Tensor = (mode or FakeTensorMode()).from_tensor(x)
    return made


def assert_fake(found: Tensor, x: Tensor) -> None:
    """`found` is what ops on fake tensors give."""
    assert isinstance(found, FakeTensor)
    assert found.shape == x.shape


def fake_argument(x: Tensor) -> None:
    """After a capture on real tensors; then real tensors once more."""
    run = compiled()
    run(x)
    assert_fake(run(fake(x)), x)
    torch.testing.assert_close(run(x), function(x))


def fake_argument_of_the_capture(x: Tensor) -> None:
    """A fake tensor is what the first call brings."""
    run = compiled()
    with FakeTensorMode() as mode:
        assert_fake(run(fake(x, mode=mode)), x)
    torch.testing.assert_close(run(x), function(x))


def fake_mode_over_real_tensors(x: Tensor) -> None:
    """Results are fake, since a mode is asked what ops give."""
    run = compiled()
    run(x)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert_fake(run(x), x)


def fake_mode_without_arguments(x: Tensor) -> None:
    """No argument says that a mode is there."""
    run = compiled(without_arguments)
    torch.testing.assert_close(run(), without_arguments())
    with FakeTensorMode():
        assert_fake(run(), without_arguments())
    torch.testing.assert_close(run(), without_arguments())


def fake_tensors_in_a_wrapper(x: Tensor) -> None:
    """The wrapper's type is that of the capture; what is in it is not."""
    run = compiled()
    twice: Callable[..., Any] = TwoTensor
    found = run(twice(x, x.clone()))
    torch.testing.assert_close(found.a, function(x))
    mode = FakeTensorMode()
    assert_fake(run(twice(fake(x, mode=mode), fake(x, mode=mode))).a, x)


def fake_argument_of_a_kernel(x: Tensor) -> None:
    """Through the interface for one function."""
    run = nearhint.kernel(function, dynamic={"x": {0: "rows"}})
    run(x)
    assert_fake(run(fake(x)), x)


def freed_argument(x: Tensor) -> None:
    """A shard's memory, given back by whoever manages it: eager reads it and crashes."""
    run = compiled()
    run(x)
    given = x.clone()
    given.untyped_storage().resize_(0)
    try:
        run(given)
    except NoMemory:
        return
    raise AssertionError("a kernel has read memory that was freed")


CASES = (
    fake_argument,
    fake_argument_of_the_capture,
    fake_mode_over_real_tensors,
    fake_mode_without_arguments,
    fake_tensors_in_a_wrapper,
    fake_argument_of_a_kernel,
    freed_argument,
)


def main(folder: Path) -> None:
    """Runs the cases with real Kernels in a session that no daemon is behind."""
    session: Any = FakeSession(Compiled(folder).snapshot)
    setattr(serving, "session_for", lambda address, device, device_index: session)  # noqa: B010
    with torch.no_grad():
        for case in CASES:
            print(case.__name__, end=":", flush=True)
            try:
                case(torch.randn(3, 8))
            except Exception as error:
                print(f"{type(error).__name__} {error}".splitlines()[0], flush=True)
            else:
                print(flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
