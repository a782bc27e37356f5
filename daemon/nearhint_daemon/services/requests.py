"""What requests hold: read within bounds, or refused by the name of the field that is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_daemon.errors import InvalidRequest
from nearhint_daemon.services.boundary import below
from nearhint_daemon.workers.limits import THREADS_LIMIT
from nearhint_proto import convert
from nearhint_proto.v1 import types_pb2
from nearhint_rules.errors import RulesError
from nearhint_rules.program import SIZE_LIMIT

NAMESPACE_LIMIT = 128
TEXT_LIMIT = 256
KERNELS_LIMIT = 1024
DIMS_LIMIT = 256
"""As many symbols as a Program may have; a Kernel has no more."""
PAGE_SIZE = 100
PAGE_LIMIT = 1000


def read_sizes(message: types_pb2.SizeHint, *, field: str) -> dict[str, int]:
    """Sizes by symbol; raises `InvalidRequest` naming the field."""
    try:
        return convert.size_hint_from_proto(message, field=field)
    except RulesError as error:
        raise below("", error) from None


def read_dims(dims: Sequence[int], *, field: str) -> tuple[int, ...]:
    """A Kernel's sizes; raises `InvalidRequest` naming the one that is none, or for too many."""
    at_most(DIMS_LIMIT, len(dims), "sizes", field=field)
    for position, size in enumerate(dims):
        if size >= SIZE_LIMIT:
            raise InvalidRequest(f"{size} is not below 2^62", field=f"{field}[{position}]")
    return tuple(dims)


def read_text(text: str, *, field: str, limit: int = TEXT_LIMIT) -> str:
    """Short printable text; raises `InvalidRequest` naming the field."""
    if len(text) > limit or not (text.isprintable() or not text):
        raise InvalidRequest(f"must be at most {limit} printable characters", field=field)
    return text


def read_namespace(text: str) -> str:
    """A namespace; raises `InvalidRequest`."""
    return read_text(text, field="namespace", limit=NAMESPACE_LIMIT)


def read_threads(threads: int) -> int:
    """A number of threads, 0 for the daemon's own; raises `InvalidRequest`."""
    at_most(THREADS_LIMIT, threads, "threads", field="threads")
    return threads


def read_kernels(kernels: Sequence[str]) -> Sequence[str]:
    """Identities of Kernels; raises `InvalidRequest` for more than a call may name."""
    at_most(KERNELS_LIMIT, len(kernels), "kernels a call", field="kernels")
    return kernels


def read_page_size(wanted: int) -> int:
    """How long a page is: as wanted, within the limit."""
    return min(wanted or PAGE_SIZE, PAGE_LIMIT)


def at_most(limit: int, count: int, what: str, *, field: str) -> None:
    """Raises `InvalidRequest` where there are more of them."""
    if count > limit:
        raise InvalidRequest(f"at most {limit} {what}", field=field)
