"""CPU schedules: which loop the lanes run along, how wide, and a few alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.target import CpuDevice, Target

_WIDE_DTYPES = ("f64", "i64")


def candidates(
    kernel: ir.Kernel, target: Target, dims: Mapping[str, int] | None = None
) -> tuple[Schedule, ...]:
    """See `nearhint_compiler.schedule.candidates`."""
    found = dict.fromkeys(_space(kernel, _lanes(kernel, target)))
    return tuple(found)


def _lanes(kernel: ir.Kernel, target: Target) -> int:
    """As many lanes as the widest dtype that is computed in leaves of a register."""
    features = target.device.features if isinstance(target.device, CpuDevice) else ()
    bits = 512 if "avx512f" in features else 256 if "avx2" in features else 128
    is_wide = any(dtype in _WIDE_DTYPES for dtype in ir.dtypes_of(kernel))
    return max(4, bits // (64 if is_wide else 32))


def _space(kernel: ir.Kernel, lanes: int) -> Iterator[Schedule]:
    widths = [lanes, *([lanes // 2] if lanes > 4 else [])]
    if not kernel.reduction:
        axis = _axis(kernel, "p", len(kernel.pointwise))
        for width in widths:
            for unroll in (2, 1):
                yield _schedule("cpu.pointwise", axis=axis, lanes=width, unroll=unroll, block=1024)
        return
    axis = _axis(kernel, "r", len(kernel.reduction))
    for width in widths:
        for unroll, stash in ((4, 8192), (2, 8192), (4, 0)):
            yield _schedule("cpu.rows", axis=axis, lanes=width, unroll=unroll, short=4, stash=stash)


def _schedule(family: str, **options: int) -> Schedule:
    return Schedule(family, tuple(options.items()))


def _axis(kernel: ir.Kernel, prefix: str, rank: int) -> int:
    """The loop along which most accesses are contiguous; the innermost of equals."""
    return max(
        range(max(rank, 1)), key=lambda number: (_score(kernel, f"{prefix}{number}"), number)
    )


def _score(kernel: ir.Kernel, variable: str) -> int:
    score = 0
    for node in kernel.body:
        if isinstance(node, ir.Load | ir.Store) and variable in ex.symbols_of(node.index):
            score += 1 if _stride(node.index, variable) == ex.ONE else -2
    return score


def _stride(index: Expr, variable: str) -> Expr:
    stepped = ex.substitute(index, {variable: ex.add(ex.symbol(variable), 1)})
    return ex.sub(stepped, index)
