"""What `nearhint explain` says about memory: bytes, bandwidths, and shares of what a copy reaches.

The bytes are the least that a Kernel can move, so the bandwidth of the original ops is that of the
Kernel that would take their time. More than the bandwidth of a copy means that a cache served.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nearhint.cli_output import table
from nearhint.commands.sizes import sizes_text
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2, types_pb2
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr
from nearhint_rules.table import HintRow, Table, Timing

NOT_KNOWN = "not known"
NOT_YET = "not known yet"
NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a Kernel reads and writes, over its symbols; None where the daemon does not say.

    An older daemon says only how many `moved`, both together. `copy_bytes_per_s` is by Target, what
    its device reads and writes in a second while it copies.
    """

    read: Expr | None
    written: Expr | None
    moved: Expr | None
    copy_bytes_per_s: Mapping[str, float]

    @staticmethod
    def of(answer: admin_service_pb2.ExplainKernelResponse) -> Traffic:
        """What a daemon said."""
        return Traffic(
            _expr(answer.bytes_read),
            _expr(answer.bytes_written),
            _expr(answer.bytes_moved),
            {
                target: copy.bytes_moved * NS / copy.timing.median_ns
                for target, copy in answer.copy_bandwidths.items()
                if copy.timing.median_ns
            },
        )

    def bytes_per_s(self, sizes: Mapping[str, int], timing: Timing) -> float | None:
        """The bandwidth of what took `timing` at `sizes`."""
        moved = bytes_at(self.moved, sizes)
        return None if moved is None or timing.median_ns <= 0 else moved * NS / timing.median_ns

    def share(self, target: str, bytes_per_s: float | None) -> float | None:
        """That bandwidth over the one that a copy on the Target reaches."""
        copied = self.copy_bytes_per_s.get(target)
        return None if copied is None or bytes_per_s is None else bytes_per_s / copied


def print_traffic(each: Table, traffic: Traffic) -> None:
    """A Table's bandwidths at each hint: the first-ranked Variant's and the original ops'."""
    copied = traffic.copy_bytes_per_s.get(each.target)
    table(
        ["hint", "bytes read #", "bytes written #", "runs", "GB/s #", "of a copy %"],
        [
            (
                sizes_text(sizes),
                _count(bytes_at(traffic.read, sizes)),
                _count(bytes_at(traffic.written, sizes)),
                name,
                _giga(reached := traffic.bytes_per_s(sizes, timing)),
                _percent(traffic.share(each.target, reached), is_measured=copied is not None),
            )
            for sizes, row in hints(each)
            for name, timing in _runs(each, row)
        ],
        title=f"memory on target {each.target[:12]}{_copying(copied)}",
    )


def hints(each: Table) -> Iterator[tuple[dict[str, int], HintRow]]:
    """A Table's hints with their sizes by symbol."""
    for row in each.hints:
        yield dict(zip(each.symbols, row.dims, strict=True)), row


def _copying(bytes_per_s: float | None) -> str:
    """How fast a device copies, which bandwidths are held against."""
    if bytes_per_s is None:
        return "; how fast a copy is there is not measured yet"
    return f", whose device copies at {_giga(bytes_per_s)} GB/s"


def copy_json(
    answer: admin_service_pb2.ExplainKernelResponse, traffic: Traffic, target: str
) -> dict[str, object] | None:
    """How fast the Target's device copies; None: not known yet."""
    if target not in traffic.copy_bytes_per_s:
        return None
    copy = answer.copy_bandwidths[target]
    return {
        "bytes_per_s": traffic.copy_bytes_per_s[target],
        "bytes_moved": copy.bytes_moved,
        "median_ns": copy.timing.median_ns,
        "relative_spread": copy.timing.spread,
        "samples": copy.timing.samples,
        "conditions": copy.conditions,
        "measured_at_s": copy.measured_at_s,
        "daemon_id": copy.daemon_id,
    }


def rate_json(
    traffic: Traffic, target: str, sizes: Mapping[str, int], timing: Timing
) -> dict[str, object]:
    """What a timing at sizes means for memory."""
    reached = traffic.bytes_per_s(sizes, timing)
    return {
        "achieved_bytes_per_s": reached,
        "share_of_copy_bandwidth": traffic.share(target, reached),
    }


def bytes_at(expr: Expr | None, sizes: Mapping[str, int]) -> int | None:
    """An expression's value at sizes; None where it, or a size, is not known."""
    if expr is None:
        return None
    try:
        return ex.evaluate(expr, sizes)
    except InvalidExpression:
        return None


def expr_json(expr: Expr | None) -> str | None:
    """Bytes over symbols."""
    return None if expr is None else ex.to_text(expr)


def text_at(expr: Expr | None, sizes: Mapping[str, int]) -> str:
    """`4 * k0 = 512`: bytes over symbols, and at sizes where they are given."""
    if expr is None:
        return NOT_KNOWN
    found = bytes_at(expr, sizes) if sizes else None
    return ex.to_formula(expr) + ("" if found is None else f" = {found:,}")


def _runs(each: Table, row: HintRow) -> Sequence[tuple[str, Timing]]:
    first = [(each.variants[at].schedule, timing) for at, timing in row.ranked[:1]]
    return [*first, *((f"original ops {name[:12]}", timing) for name, timing in row.fallbacks)]


def _expr(message: types_pb2.Expr) -> Expr | None:
    return None if message == types_pb2.Expr() else convert.expr_from_proto(message)


def _count(found: int | None) -> str:
    return NOT_KNOWN if found is None else f"{found:,}"


def _giga(bytes_per_s: float | None) -> str:
    return NOT_KNOWN if bytes_per_s is None else f"{bytes_per_s / 1e9:.4g}"


def _percent(share: float | None, *, is_measured: bool) -> str:
    if share is None:
        return NOT_KNOWN if is_measured else NOT_YET
    return f"{100 * share:.1f}"
