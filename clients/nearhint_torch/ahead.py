"""A model whose captures are kept in a folder: a process traces only what none before it has.

What a new process pays for its first call is mostly torch's tracing, whoever compiles then. By
torch's `aot_compile` a capture is kept with its guards, and the Program in it is all that the
daemon needs to be asked for Kernels.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nearhint.config import from_environment
from nearhint.session import counters
from nearhint.trust import trusted_directory
from nearhint.version import VERSION
from nearhint_torch.adapter import captures_limit, has_addresses, has_hooks, is_watched
from nearhint_torch.errors import is_from_outside
from nearhint_torch.serving import is_disabled, tell

SUFFIX = ".capture"
REFUSED = ".refused"
"""Of a note that a model's captures cannot be kept, so that no other process tries; it says why."""
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


def compile_ahead(
    model: torch.nn.Module | Callable[..., Any],
    folder: str | os.PathLike[str],
    *,
    dynamic: bool = True,
    options: Mapping[str, Any] | None = None,
) -> CompiledAhead:
    """`torch.compile(model, backend="nearhint", dynamic=dynamic)`, with its captures in `folder`.

    A call that fits none of them is captured and written there. What cannot be kept (a graph with
    breaks, gradients, a module with hooks) is compiled by `torch.compile` as ever; files that this
    process cannot use (another version of torch, of Python or of nearhint, source that has changed
    since) are left alone. The folder may be read-only. Its files are code that is run: one that
    others may write to is not used, with a warning.

    `options` are the backend's. What globals a model's code reads is taken as it was when it was
    captured; its attributes and its source are not.
    """
    return CompiledAhead(model, Path(folder), dynamic=dynamic, options=options or {})


class CompiledAhead:
    """What `compile_ahead` returns; called as the model is, from any thread."""

    def __init__(
        self,
        model: torch.nn.Module | Callable[..., Any],
        folder: Path,
        *,
        dynamic: bool,
        options: Mapping[str, Any],
    ) -> None:
        self._model = model
        self._folder = folder
        self._dynamic = dynamic
        self._options = options
        self._kept: tuple[Any, ...] = ()
        self._unread: list[Path] | None = None
        self._captures_more = True
        self._lock = threading.Lock()
        self._compiled: Callable[..., Any] = torch.compile(
            model, backend="nearhint", dynamic=dynamic, options=dict(options)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One call of the model; what traces it traces the model."""
        if torch.compiler.is_dynamo_compiling():
            return self._model(*args, **kwargs)
        kept, refusal = self._fitting(args, kwargs), ""
        if kept is None and self._may_be_kept(args, kwargs):
            kept, refusal = self._found(args, kwargs)
        if kept is not None:
            return kept.run(args, kwargs)
        try:
            result = self._compiled(*args, **kwargs)
        except BaseException:
            self._captures_more |= bool(refusal)  # it was the call that failed
            raise
        if refusal:
            self._note_refusal(refusal)
        return result

    def _fitting(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return next((each for each in self._kept if each.fits(args, kwargs)), None)

    def __getattr__(self, name: str) -> Any:
        """The model's, as of what `torch.compile` returns."""
        if name == "_model":  # of one that is only being made, as by `copy`
            raise AttributeError(name)
        return getattr(self._model, name)

    def _may_be_kept(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call asks for nothing that a kept capture leaves out."""
        leaves = (each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor))
        if is_disabled() or is_watched() or not all(map(has_addresses, leaves)):
            return False
        if not isinstance(self._model, torch.nn.Module):
            return not torch.is_grad_enabled()
        if has_hooks(self._model):
            return False
        parameters = self._model.parameters()
        return not (torch.is_grad_enabled() and any(each.requires_grad for each in parameters))

    def _found(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        """What fits among the files not read yet, or what is captured now; or why neither does."""
        with self._lock:
            kept, refusal = self._fitting(args, kwargs), ""
            if self._unread is None:
                self._unread = self._files()
            while kept is None and self._unread:
                self._read(self._unread.pop())
                kept = self._fitting(args, kwargs)
            if kept is None and self._captures_more:
                kept, refusal = self._capture(args, kwargs)
                self._captures_more = kept is not None and len(self._kept) < captures_limit()
            return kept, refusal

    def _files(self) -> list[Path]:
        """Those of this model and these versions, the oldest last."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            trusted_uids = from_environment().trusted_uids
            self._folder = trusted_directory(self._folder, trusted_uids=trusted_uids)
            if self._note().exists():
                counters.event("capture_not_kept")
                self._captures_more = False
            return sorted(self._folder.glob(f"{self._key()}-*{SUFFIX}"), key=_age, reverse=True)
        except Exception as error:
            if is_from_outside(error):
                raise
            tell("captures_unusable", error)
            self._captures_more = False
            return []

    def _read(self, file: Path) -> None:
        try:
            ahead = importlib.import_module("nearhint_torch.adapter.ahead")
            kept = ahead.read_ahead(file.read_bytes(), self._model)
        except Exception as error:
            if is_from_outside(error):
                raise
            tell("capture_unreadable", error)
            return
        if kept is None:
            counters.event("capture_outdated")
            return
        counters.event("captures_read")
        self._kept = (*self._kept, kept)

    def _capture(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        """What the call is captured as, kept from now on; or None, and why it cannot be.

        What would not fit the very call once it is read is of no use to any process: each would
        capture it anew, and read what those before it had.
        """
        try:
            ahead = importlib.import_module("nearhint_torch.adapter.ahead")
            kept = ahead.capture_ahead(
                self._model, args, kwargs, dynamic=self._dynamic, options=self._options
            )
            content = kept.content()
            again = ahead.read_ahead(content, self._model)
        except Exception as error:
            if is_from_outside(error):
                raise
            tell("capture_not_kept", error)
            return None, f"{type(error).__name__}: {error}"
        if again is None or not (kept.fits(args, kwargs) and again.fits(args, kwargs)):
            counters.event("capture_not_kept")
            return None, "its guards do not hold for the call that it was made for"
        self._kept = (*self._kept, kept)
        try:
            self._write(content)
        except OSError as error:
            tell("capture_not_written", error)
        return kept, ""

    def _write(self, content: bytes) -> None:
        name = f"{self._key()}-{hashlib.sha256(content).hexdigest()[:16]}{SUFFIX}"
        self._write_to(self._folder / name, content)

    def _note(self) -> Path:
        return self._folder / f"{self._key()}{REFUSED}"

    def _note_refusal(self, reason: str) -> None:
        """Once the model has run all the same: what failed was its capture, not the call."""
        with contextlib.suppress(OSError):
            self._write_to(self._note(), reason.encode())

    def _write_to(self, path: Path, content: bytes) -> None:
        """All of it, or nothing: it gets its name once it is on the disk."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _key(self) -> str:
        """By which files of other models and other versions are told apart: guards leave these out.

        Torch keeps no guard on what class a module's part is of, nor on what function it holds.
        """
        ahead = importlib.import_module("nearhint_torch.adapter.ahead")
        parts = [
            VERSION,
            ahead.system(),
            str(self._dynamic),
            repr(sorted(self._options.items())),
        ]
        parts += _described(self._model)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _described(model: object) -> Iterator[str]:
    """A model's parts, their classes, and what plain values and functions each holds."""
    if not isinstance(model, torch.nn.Module):
        yield _told(model)
        return
    for path, part in model.named_modules():
        yield f"{path} {_told(type(part))} {part.extra_repr()}"
        for name, value in sorted(vars(part).items()):
            yield f"{name}={_told(value)}"


def _told(value: Any) -> str:
    """A plain value, a function with what it closes over, or of what class anything else is."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, FunctionType):
        cells = (cell.cell_contents for cell in value.__closure__ or ())
        given = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        parts = (value.__code__, *cells, *given)
        return f"{_name_of(value)}({', '.join(map(_told, parts))})"
    if isinstance(value, CodeType):  # of two lambdas in one place the name is the same
        return f"{value.co_code.hex()} {value.co_names} {[*map(_told, value.co_consts)]}"
    if isinstance(value, partial):
        parts = (value.func, *value.args, *value.keywords.values())
        return f"partial({', '.join(map(_told, parts))})"
    is_named = isinstance(value, (type, BuiltinFunctionType))
    return _name_of(value if is_named else type(value))


def _name_of(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _age(file: Path) -> int:
    return file.stat().st_mtime_ns
