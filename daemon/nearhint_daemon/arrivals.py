"""Programs as they arrive: parsed, checked and hashed, each content once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from nearhint_daemon.errors import InvalidRequest
from nearhint_daemon.recent import Recent
from nearhint_proto import convert
from nearhint_proto.v1 import program_pb2
from nearhint_rules.canonical import content_hash
from nearhint_rules.program import Program, canonical_names, canonicalise

REMEMBERED_LIMIT = 256
SMALL_BYTES = 2048
"""Messages up to this size are read on the event loop: that takes less than a change of thread."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A checked Program: its identity, and its canonical form as it is kept."""

    id: str
    message: bytes
    label: str


class Arrivals:
    """Reads Programs; one whose very bytes were read before is not read again."""

    def __init__(self) -> None:
        self._remembered = Recent[str, Arrived](REMEMBERED_LIMIT)

    async def read(self, message: program_pb2.Program) -> Arrived:
        """The Program; raises `InvalidProgram` or `InvalidRequest`, which name the field."""
        data = message.SerializeToString(deterministic=True)
        digest = content_hash(data)
        found = self._remembered.get(digest)
        if found is not None:
            return found
        if len(data) <= SMALL_BYTES:
            arrived = _read(message)
        else:
            arrived = await asyncio.to_thread(_read, message)
        return self._remembered.keep(digest, arrived)


def _read(message: program_pb2.Program) -> Arrived:
    program = convert.program_from_proto(message, field="program")
    check_names(program)
    program = canonicalise(program)
    kept = convert.program_to_proto(program).SerializeToString()
    return Arrived(program.id, kept, program.label)


def check_names(program: Program) -> None:
    """Raises `InvalidRequest` where the symbols are not numbered by first appearance.

    A Plan, and every hint, speaks of that numbering.
    """
    for name, canonical in canonical_names(program).items():
        if name != canonical:
            raise InvalidRequest(
                f"{name} must be named {canonical}: symbols are numbered by first appearance",
                field="program.symbols",
            )
