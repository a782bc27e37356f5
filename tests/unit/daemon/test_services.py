"""What a request may say, its call reads: else a client asks for what nobody does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import MethodDescriptor

from nearhint_daemon import services
from nearhint_proto.v1 import (
    admin_service_pb2,
    artifact_service_pb2,
    kernel_service_pb2,
    operation_service_pb2,
    table_service_pb2,
)

FOLDER = Path(services.__file__).parent
Functions = dict[str, ast.AsyncFunctionDef | ast.FunctionDef]


def calls() -> Iterator[MethodDescriptor]:
    for module in (
        admin_service_pb2,
        artifact_service_pb2,
        kernel_service_pb2,
        operation_service_pb2,
        table_service_pb2,
    ):
        for service in module.DESCRIPTOR.services_by_name.values():
            yield from service.methods


def functions() -> Functions:
    return {
        node.name: node
        for path in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)
    }


def fields_read(name: str, known: Functions) -> set[str]:
    """The fields of `request` that a function reads, or one that it hands the request to."""
    found: set[str] = set()
    for node in ast.walk(known[name]):
        if isinstance(node, ast.Attribute) and is_request(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and any(map(is_request, node.args)):
            called = (
                node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            )
            if called in known:
                found |= fields_read(called, known)
    return found


def is_request(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "request"


@pytest.mark.parametrize("call", tuple(calls()), ids=lambda call: str(call.name))
def test_every_field_of_a_request_is_read(call: MethodDescriptor) -> None:
    assert {field.name for field in call.input_type.fields} <= fields_read(call.name, functions())
