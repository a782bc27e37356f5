"""Canonical bytes and identities: length-framed, domain-separated, the same in every process.

A value is a frozen dataclass, a tuple, str, bytes, int, float, bool or None. Floats are framed by
their bits (so 0.0 and -0.0 differ), and every value carries a type tag (so 1, True and 1.0
differ). A dataclass field whose metadata has `identity=False` takes no part.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import fields, is_dataclass

_LENGTH = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")


def _frame(tag: bytes, payload: bytes) -> bytes:
    return tag + _LENGTH.pack(len(payload)) + payload


def encode(value: object) -> bytes:
    """The canonical bytes of `value`; raises `TypeError` for a type that has none."""
    match value:
        case None:
            return _frame(b"n", b"")
        case bool():
            return _frame(b"b", b"1" if value else b"0")
        case int():
            return _frame(b"i", str(value).encode())
        case float():
            return _frame(b"f", _DOUBLE.pack(value))
        case str():
            return _frame(b"s", value.encode())
        case bytes():
            return _frame(b"y", value)
        case tuple():
            return _frame(b"t", b"".join(map(encode, value)))
        case _ if is_dataclass(value) and not isinstance(value, type):
            kept = [
                encode(getattr(value, field.name))
                for field in fields(value)
                if field.metadata.get("identity", True)
            ]
            return _frame(b"d", encode(type(value).__name__) + b"".join(kept))
        case _:
            raise TypeError(f"{type(value).__name__} has no canonical form")


def identity(domain: str, value: object) -> str:
    """sha256, in hex, of `value` within `domain` (e.g. `"program"`): 64 lower-case digits."""
    return hashlib.sha256(_frame(b"D", domain.encode()) + encode(value)).hexdigest()


def content_hash(data: bytes) -> str:
    """sha256, in hex, of raw bytes: the name of an Artifact."""
    return hashlib.sha256(data).hexdigest()
