"""The loop IR's legality as a table of rules, run before and after each pass and on every parse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from nearhint_compiler.errors import InvalidKernel
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES

_Rule: TypeAlias = Callable[[ir.Kernel], Iterator[str]]
SPACE_RANK_LIMIT = 8


def check_kernel(kernel: ir.Kernel) -> ir.Kernel:
    """Returns `kernel`; raises `InvalidKernel` naming the first rule that it breaks."""
    for name, rule in RULES:
        for problem in rule(kernel):
            raise InvalidKernel(f"{name}: {problem}")
    return kernel


def _symbols_are_k0_k1(kernel: ir.Kernel) -> Iterator[str]:
    if kernel.symbols != tuple(f"k{number}" for number in range(len(kernel.symbols))):
        yield f"symbols {kernel.symbols}"
    for extent in (*kernel.pointwise, *kernel.reduction):
        for name in ex.symbols_of(extent):
            if name not in kernel.symbols:
                yield f"extent uses {name}"


def _spaces_are_small(kernel: ir.Kernel) -> Iterator[str]:
    if max(len(kernel.pointwise), len(kernel.reduction)) > SPACE_RANK_LIMIT:
        yield f"more than {SPACE_RANK_LIMIT} dims"
    for extent in (*kernel.pointwise, *kernel.reduction):
        if isinstance(extent, ex.Int) and extent.value < 1:
            yield f"extent {extent.value}"


def _params_are_ordered(kernel: ir.Kernel) -> Iterator[str]:
    order = {"in": 0, "scalar": 0, "out": 1}
    roles = [order.get(param.role, -1) for param in kernel.params]
    if -1 in roles or roles != sorted(roles):
        yield "inputs and scalars come before outputs"
    for param in kernel.params:
        if param.dtype not in DTYPES:
            yield f"dtype {param.dtype}"
    stored = {node.param for node in kernel.body if isinstance(node, ir.Writing)}
    outputs = {place for place, param in enumerate(kernel.params) if param.role == "out"}
    if stored != outputs:
        yield f"outputs {sorted(outputs)}, stored {sorted(stored)}"


def _operands_come_before(kernel: ir.Kernel) -> Iterator[str]:
    for position, node in enumerate(kernel.body):
        for operand in ir.operands_of(node):
            if not 0 <= operand < position or isinstance(kernel.body[operand], ir.Writing):
                yield f"node {position} uses {operand}"


def _indices_use_loop_variables(kernel: ir.Kernel) -> Iterator[str]:
    known = {
        *kernel.symbols,
        *(f"p{number}" for number in range(len(kernel.pointwise))),
        *(f"r{number}" for number in range(len(kernel.reduction))),
    }
    for position, node in enumerate(kernel.body):
        if isinstance(node, ir.Indexed):
            for name in ex.symbols_of(node.index):
                if name not in known:
                    yield f"node {position} indexes with {name}"
        if isinstance(node, ir.Placed):
            for name in ex.symbols_of(node.stride, node.size):
                if name not in kernel.symbols:
                    yield f"node {position} has places by {name}"


def _params_are_used_by_role(kernel: ir.Kernel) -> Iterator[str]:
    wanted = {
        **dict.fromkeys((ir.Load, ir.Gather, ir.Former), "in"),
        **dict.fromkeys((ir.Scatter, ir.Store), "out"),
        ir.Scalar: "scalar",
    }
    for position, node in enumerate(kernel.body):
        if isinstance(node, ir.Reading | ir.Writing):
            inside = 0 <= node.param < len(kernel.params)
            if not inside or kernel.params[node.param].role != wanted[type(node)]:
                yield f"node {position} uses parameter {node.param}"


def _dtypes_fit(kernel: ir.Kernel) -> Iterator[str]:
    dtypes = ir.dtypes_of(kernel)
    for position, node in enumerate(kernel.body):
        match node:
            case ir.Op(name, dtype, operands):
                rule = ir.OPS[name]
                given = [dtypes[operand] for operand in operands]
                if len(given) != rule.arity:
                    yield f"node {position}: {name} of {len(given)} operands"
                elif not _op_fits(name, rule, dtype, given):
                    yield f"node {position}: {name} {dtype} of {given}"
            case ir.Reduce(kind, dtype, operand):
                if dtype not in ir.REDUCTIONS.get(kind, ()) or dtypes[operand] != dtype:
                    yield f"node {position}: reduce {kind} {dtype} of {dtypes[operand]}"
            case ir.Arg(kind, dtype, operand, _):
                allowed = ir.REDUCTIONS[kind] if kind in ir.ARGS else ()
                if dtype not in allowed or dtypes[operand] != dtype:
                    yield f"node {position}: arg {kind} {dtype} of {dtypes[operand]}"
            case ir.Scan(kind, dtype, operand):
                if dtype not in ir.SCANS.get(kind, ()) or dtypes[operand] != dtype:
                    yield f"node {position}: scan {kind} {dtype} of {dtypes[operand]}"
            case ir.Scatter(kind, dtype, param):
                stored = kernel.params[param].dtype
                is_narrow = dtype == "f32" and stored in ("f16", "bf16")
                if dtype not in ir.SCATTERS.get(kind, ()) or not (stored == dtype or is_narrow):
                    yield f"node {position}: scatter {kind} {dtype} into {stored}"
                if [dtypes[each] for each in ir.operands_of(node)] != ["i64", dtype, dtype]:
                    yield f"node {position}: scatter {kind} {dtype} of {dtypes[node.value]}"
            case ir.Gather():
                if dtypes[node.place] != "i64":
                    yield f"node {position}: a place that is {dtypes[node.place]}"
            case ir.Store(param, _, value):
                if dtypes[value] != kernel.params[param].dtype:
                    yield f"node {position}: stores {dtypes[value]}"
            case ir.Const(dtype, bits):
                if dtype not in DTYPES or bits >= 1 << (8 * DTYPES[dtype]):
                    yield f"node {position}: {bits:#x} is no {dtype}"
            case _:
                continue


def _reductions_have_loops(kernel: ir.Kernel) -> Iterator[str]:
    for position, node in enumerate(kernel.body):
        match node:
            case ir.Arg(_, _, _, index):
                if not kernel.reduction:
                    yield f"node {position}: arg without a reduction space"
                if any(name[0] == "p" for name in ex.symbols_of(index)):
                    yield f"node {position}: an arg's index is the same in all rows"
            case ir.Reduce():
                if not kernel.reduction:
                    yield f"node {position}: reduce without a reduction space"
            case ir.Scan():
                if len(kernel.reduction) != 1:
                    yield f"node {position}: scan over {len(kernel.reduction)} loops"
            case _:
                continue


def _op_fits(name: str, rule: ir.OpRule, dtype: str, given: list[str]) -> bool:
    if name == "where":
        return given == ["bool", dtype, dtype] and dtype in rule.operands
    if any(operand not in rule.operands or operand != given[0] for operand in given):
        return False
    return {"same": dtype == given[0], "bool": dtype == "bool", "any": dtype in DTYPES}[rule.result]


def _stores_match_their_space(kernel: ir.Kernel) -> Iterator[str]:
    varies = ir.per_element(kernel)
    for position, node in enumerate(kernel.body):
        if isinstance(node, ir.Store):
            in_index = any(map(ir.is_reduction_variable, ex.symbols_of(node.index)))
            if varies[node.value] and not in_index:
                yield f"node {position} stores an element once a row"


def _scatters_are_alone(kernel: ir.Kernel) -> Iterator[str]:
    writing = [node for node in kernel.body if isinstance(node, ir.Writing)]
    for position, node in enumerate(kernel.body):
        if isinstance(node, ir.Former) and not any(
            isinstance(each, ir.Scatter) for each in writing
        ):
            yield f"node {position}: what was there before nothing is written to"
        if not isinstance(node, ir.Scatter):
            continue
        if len(writing) > 1 or any(isinstance(each, ir.Reducing | ir.Scan) for each in kernel.body):
            yield f"node {position}: a scatter beside others"
        if any(map(ir.is_reduction_variable, ex.symbols_of(node.index))):
            yield f"node {position}: a scatter by {ex.to_text(node.index)}"
        if ir.varying(kernel)[node.base]:
            yield f"node {position}: a base that varies"


RULES: tuple[tuple[str, _Rule], ...] = (
    ("symbols are k0, k1, ...", _symbols_are_k0_k1),
    ("spaces are small and not empty", _spaces_are_small),
    ("parameters are ordered and all outputs are stored", _params_are_ordered),
    ("operands come before their uses", _operands_come_before),
    ("parameters are used by their role", _params_are_used_by_role),
    ("indices use loop variables and symbols", _indices_use_loop_variables),
    ("dtypes fit the op table", _dtypes_fit),
    ("reductions have loops", _reductions_have_loops),
    ("stores match their space", _stores_match_their_space),
    ("scatters are alone", _scatters_are_alone),
)
