"""Printing and parsing Kernels: the grammar of `ir.nodes`, one body node a line.

The text is canonical, so it is also what a Kernel's identity is computed from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from nearhint_compiler.errors import InvalidKernel
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.canonical import identity
from nearhint_rules.errors import InvalidExpression

_TOKEN = re.compile(r"[()]|[^\s()]+")
_Tree: TypeAlias = "str | list[_Tree]"


def kernel_id(kernel: ir.Kernel) -> str:
    """sha256 of the canonical text: the Kernel's identity."""
    return identity("nearhint.kernel.v1", print_kernel(kernel))


def print_kernel(kernel: ir.Kernel) -> str:
    """The Kernel in the grammar of `ir.nodes`, ending in a newline."""
    params = " ".join(f"({param.role} {param.dtype})" for param in kernel.params)
    lines = [
        f"(kernel (symbols{_spaced(kernel.symbols)})",
        f"  (pointwise{_spaced(map(ex.to_text, kernel.pointwise))})",
        f"  (reduction{_spaced(map(ex.to_text, kernel.reduction))})",
        f"  (params {params})",
        "  (body",
        *(f"    {_print_node(node)}" for node in kernel.body),
    ]
    return "\n".join(lines) + "))\n"


def _spaced(items: Iterator[str] | tuple[str, ...]) -> str:
    return "".join(f" {item}" for item in items)


def _print_node(node: ir.BodyNode) -> str:
    match node:
        case ir.Load(param, index):
            return f"(load {param} {ex.to_text(index)})"
        case ir.Gather(param, index, stride, size, place):
            texts = " ".join(map(ex.to_text, (index, stride, size)))
            return f"(gather {param} {texts} {place})"
        case ir.Scalar(param):
            return f"(scalar {param})"
        case ir.Const(dtype, bits):
            return f"(const {dtype} {bits:#x})"
        case ir.Iota(index):
            return f"(iota {ex.to_text(index)})"
        case ir.Op(name, dtype, operands):
            return f"({name} {dtype}{_spaced(tuple(map(str, operands)))})"
        case ir.Reduce(kind, dtype, operand):
            return f"(reduce {kind} {dtype} {operand})"
        case ir.Arg(kind, dtype, operand, index):
            return f"(arg {kind} {dtype} {operand} {ex.to_text(index)})"
        case ir.Scan(kind, dtype, operand):
            return f"(scan {kind} {dtype} {operand})"
        case ir.Former(param):
            return f"(former {param})"
        case ir.Scatter(kind, dtype, param, index, stride, size):
            texts = " ".join(map(ex.to_text, (index, stride, size)))
            given = " ".join(map(str, ir.operands_of(node)))
            return f"(scatter {kind} {dtype} {param} {texts} {given})"
        case ir.Store(param, index, value):
            return f"(store {param} {ex.to_text(index)} {value})"


def parse_kernel(text: str) -> ir.Kernel:
    """The Kernel that `print_kernel` printed; raises `InvalidKernel` for anything else."""
    tokens = _TOKEN.findall(text)
    tree, end = _read(tokens, 0)
    if end != len(tokens):
        raise InvalidKernel("text after the kernel")
    try:
        match tree:
            case [
                "kernel",
                ["symbols", *symbols],
                ["pointwise", *pointwise],
                ["reduction", *reduction],
                ["params", *params],
                ["body", *body],
            ]:
                return ir.Kernel(
                    symbols=tuple(ex.symbol(_word(name)).name for name in symbols),
                    pointwise=tuple(map(_expr, pointwise)),
                    reduction=tuple(map(_expr, reduction)),
                    params=tuple(map(_param, params)),
                    body=tuple(map(_node, body)),
                )
            case _:
                raise InvalidKernel("not of the form (kernel (symbols ...) (pointwise ...) ...)")
    except InvalidExpression as error:
        raise InvalidKernel(str(error)) from error


def _read(tokens: list[str], start: int) -> tuple[_Tree, int]:
    stack: list[list[_Tree]] = []
    for position in range(start, len(tokens)):
        token = tokens[position]
        if token == "(":
            stack.append([])
        elif not stack:
            break
        elif token == ")":
            closed = stack.pop()
            if not stack:
                return closed, position + 1
            stack[-1].append(closed)
        else:
            stack[-1].append(token)
    raise InvalidKernel("unbalanced parentheses")


def _word(tree: _Tree) -> str:
    if not isinstance(tree, str):
        raise InvalidKernel("a list where a word is wanted")
    return tree


def _number(tree: _Tree) -> int:
    word = _word(tree)
    if not re.fullmatch(r"\d{1,9}", word):
        raise InvalidKernel(f"not a position: {word[:20]!r}")
    return int(word)


def _unparse(tree: _Tree) -> str:
    return tree if isinstance(tree, str) else f"({' '.join(map(_unparse, tree))})"


def _expr(tree: _Tree) -> ex.Expr:
    return ex.parse(_unparse(tree))


def _param(tree: _Tree) -> ir.Param:
    match tree:
        case [("in" | "scalar" | "out") as role, str() as dtype]:
            return ir.Param(role, dtype)
        case _:
            raise InvalidKernel(f"not a parameter: {_unparse(tree)[:60]!r}")


def _node(tree: _Tree) -> ir.BodyNode:
    match tree:
        case ["load", param, index]:
            return ir.Load(_number(param), _expr(index))
        case ["gather", param, index, stride, size, place]:
            return ir.Gather(
                _number(param), _expr(index), _expr(stride), _expr(size), _number(place)
            )
        case ["scalar", param]:
            return ir.Scalar(_number(param))
        case ["const", str() as dtype, str() as bits] if re.fullmatch(r"0x[0-9a-f]{1,16}", bits):
            return ir.Const(dtype, int(bits, 16))
        case ["iota", index]:
            return ir.Iota(_expr(index))
        case ["reduce", str() as kind, str() as dtype, operand]:
            return ir.Reduce(kind, dtype, _number(operand))
        case ["arg", str() as kind, str() as dtype, operand, index]:
            return ir.Arg(kind, dtype, _number(operand), _expr(index))
        case ["scan", str() as kind, str() as dtype, operand]:
            return ir.Scan(kind, dtype, _number(operand))
        case ["former", param]:
            return ir.Former(_number(param))
        case ["scatter", str() as kind, str() as dtype, param, index, stride, size, *operands] if (
            len(operands) == 3
        ):
            where = (_expr(index), _expr(stride), _expr(size))
            numbers = [_number(operand) for operand in operands]
            return ir.Scatter(kind, dtype, _number(param), *where, *numbers)
        case ["store", param, index, value]:
            return ir.Store(_number(param), _expr(index), _number(value))
        case [str() as name, str() as dtype, *operands] if name in ir.OPS:
            return ir.Op(name, dtype, tuple(map(_number, operands)))
        case _:
            raise InvalidKernel(f"not a body node: {_unparse(tree)[:60]!r}")
