"""Tasks: one hint of one Kernel to be tuned, with sizes at which the Fallback gives that hint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from nearhint_daemon.errors import HintTooLarge, HintUnreachable
from nearhint_daemon.programs import Programs
from nearhint_daemon.store.rows import FallbackRow, JobRow, KernelRow
from nearhint_daemon.tables import TableKey
from nearhint_daemon.tuning.tuning_jobs import WHY, near_of
from nearhint_daemon.turns import Order
from nearhint_daemon.workshop import Workshop
from nearhint_proto import convert
from nearhint_proto.v1 import program_pb2, types_pb2
from nearhint_rules import expr as ex
from nearhint_rules.companions import odd_below
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.hints import stepped_witness
from nearhint_rules.metrics import Dims
from nearhint_rules.plan import Fallback
from nearhint_rules.target import Target

FAR = 16
"""What odd sizes make is far from a hint's size if it is off by more than one part in so many."""


@dataclass(frozen=True, slots=True)
class Task:
    """One hint of a Kernel on a Target, beside a Fallback whose symbols have `sizes`.

    `asked` are the Kernel's sizes that the hint was asked for. `why` says for what it is, if it is
    nobody's hint.
    """

    kernel: KernelRow
    target: Target
    fallback: FallbackRow
    sizes: Mapping[str, int]
    dims: tuple[int, ...]
    threads: int
    order: Order
    stage: int
    asked: tuple[int, ...] = ()
    why: str = ""

    @property
    def table_key(self) -> TableKey:
        """The Table that it is for."""
        return (self.kernel.namespace, self.kernel.id, self.target.id)

    @property
    def named_dims(self) -> dict[str, int]:
        """The hint by the Kernel's symbols."""
        return dict(zip(self.kernel.symbols.split(), self.dims, strict=True))

    @property
    def named_asked(self) -> dict[str, int]:
        """The sizes that asked by the Kernel's symbols; the hint's where that is not known."""
        return dict(zip(self.kernel.symbols.split(), self.asked or self.dims, strict=True))


def needed_bytes(kernel: KernelRow, sizes: Mapping[str, int]) -> int:
    """Bytes that a Kernel reads and writes at sizes of its symbols."""
    moved = (types_pb2.Expr.FromString(each) for each in (kernel.bytes_read, kernel.bytes_written))
    return sum(ex.evaluate(convert.expr_from_proto(each), sizes) for each in moved)


class Tasks:
    """Makes them of jobs."""

    def __init__(self, programs: Programs, workshop: Workshop) -> None:
        self._programs = programs
        self._workshop = workshop

    def odd_sizes(self, row: JobRow, payload: Mapping[str, Any]) -> OddSizes:
        """What finds sizes beside the hints that a job is about."""
        kernel = self._programs.kernel(row.namespace, payload["kernel"])
        stored = self._programs.fallback(row.namespace, payload["fallback"])
        fallback = convert.fallback_from_proto(program_pb2.Fallback.FromString(stored.message))
        return OddSizes(kernel, fallback, partial(near_of, payload))

    async def of(
        self,
        row: JobRow,
        payload: Mapping[str, Any],
        *,
        dims: Sequence[int] | None = None,
        near: Mapping[str, int] | None = None,
    ) -> Task:
        """The task of a job, at `dims` instead of its own hint if given, which are `near` these
        sizes of the Fallback's symbols if those are given.

        Raises `HintUnreachable`, and `HintTooLarge` where measuring would take too much memory.
        """
        kernel = self._programs.kernel(row.namespace, payload["kernel"])
        fallback_row = self._programs.fallback(row.namespace, payload["fallback"])
        target = self._programs.target(payload["target"])
        fallback = convert.fallback_from_proto(
            program_pb2.Fallback.FromString(fallback_row.message)
        )
        await self._workshop.devices.wait_for(target.device)  # or it is compiled for in vain
        wanted = tuple(dims or payload["dims"])
        near = near or near_of(payload, wanted)
        sizes, reached = reach(fallback, near, wanted)
        task = Task(
            kernel=kernel,
            target=target,
            fallback=fallback_row,
            sizes=sizes,
            dims=reached,
            threads=payload["threads"],
            order=(row.priority, row.stage),
            stage=row.stage,
            asked=asked_dims(fallback, near),
            why=payload.get(WHY, ""),
        )
        if needed_bytes(kernel, task.named_dims) > self._workshop.limits.measure_memory_bytes:
            raise HintTooLarge("the hint's tensors would take more memory than measuring may use")
        return task


class OddSizes:
    """Finds a Kernel's sizes beside others, where sizes of its Fallback's symbols are odd.

    `near_of` has sizes of those symbols close to which some of the Kernel's are; `near` has those
    that were found, by the Kernel's.
    """

    def __init__(
        self, kernel: KernelRow, fallback: Fallback, near_of: Callable[[Dims], Mapping[str, int]]
    ) -> None:
        self._exprs = dict(zip(kernel.symbols.split(), fallback.dims, strict=True))
        self._fallback = fallback
        self._near_of = near_of
        self.near: dict[Dims, Mapping[str, int]] = {}

    def __call__(self, dims: Dims, names: Collection[str]) -> Dims | None:
        """The sizes beside `dims` where all that makes these of the Kernel's symbols is odd."""
        try:
            sizes, reached = reach(self._fallback, self._near_of(dims), dims)
        except HintUnreachable:
            return None
        if reached != dims:
            return None
        ranges = self._fallback.program.ranges()
        for name in ex.symbols_of(*(self._exprs[each] for each in names)):
            if sizes[name] % 2 == 0:
                low, high = ranges.get(name, (1, None))
                below = odd_below(sizes[name])
                sizes[name] = below if below >= low else sizes[name] + 1
                if high is not None and sizes[name] > high:
                    return None
        try:
            self._make_up(sizes, dims, names)
            found = tuple(ex.evaluate(expr, sizes) for expr in self._exprs.values())
        except InvalidExpression:
            return None
        self.near[found] = sizes
        return found

    def _make_up(self, sizes: dict[str, int], dims: Dims, names: Collection[str]) -> None:
        """Moves the largest of those that make a size where a small one is far from itself as odd.

        Three planes of 4 are a quarter less than 4 of 4, and beside no hint.
        """
        ranges = self._fallback.program.ranges()
        for (name, expr), wanted in zip(self._exprs.items(), dims, strict=True):
            made_of = ex.symbols_of(expr)
            value = ex.evaluate(expr, sizes)
            if name not in names or len(made_of) < 2 or FAR * abs(wanted - value) <= wanted:
                continue
            largest = max(made_of, key=lambda each: (sizes[each], each))
            moved = sizes[largest] * odd_below(wanted) // max(1, value) | 1
            low, high = ranges.get(largest, (1, None))
            if moved >= low and (high is None or moved <= high):
                sizes[largest] = moved


def asked_dims(fallback: Fallback, near: Mapping[str, int]) -> tuple[int, ...]:
    """A Kernel's sizes at sizes of its Fallback's symbols; none where those give none."""
    try:
        dims = tuple(ex.evaluate(expr, near) for expr in fallback.dims)
    except InvalidExpression:
        return ()
    return dims if all(size >= 1 for size in dims) else ()


def reach(
    fallback: Fallback, near: Mapping[str, int], wanted: Sequence[int]
) -> tuple[dict[str, int], tuple[int, ...]]:
    """Sizes of the Fallback's symbols that give a hint, and the hint that they really give.

    Raises `HintUnreachable`.
    """
    ranges = fallback.program.ranges()
    sizes = stepped_witness(fallback.dims, near, ranges, tuple(wanted))
    for name, (low, _) in ranges.items():
        sizes.setdefault(name, max(1, low))
    try:
        dims = tuple(ex.evaluate(expr, sizes) for expr in fallback.dims)
    except InvalidExpression as error:
        raise HintUnreachable(str(error)) from None
    if any(size < 1 for size in dims):
        raise HintUnreachable("no sizes of the Fallback give this hint")
    return sizes, dims
