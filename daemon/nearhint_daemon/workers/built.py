"""What a toolchain makes of generated source."""

from __future__ import annotations

from dataclasses import dataclass

from nearhint_rules.artifact import LaunchMetadata


@dataclass(frozen=True, slots=True)
class Built:
    """A binary, how it is launched, and what the toolchain said."""

    binary: bytes
    launch: LaunchMetadata
    log: str = ""
