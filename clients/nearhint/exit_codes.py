"""Exit codes of `nearhint`; the same numbers as `nearhintd`'s."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from nearhint import errors


class ExitCode(IntEnum):
    """What a command's exit status says."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    INTEGRITY = 5
    REFUSED = 6
    PARTIAL = 7
    INTERRUPTED = 130
    UNREAD = 141


BY_ERROR: Mapping[type[errors.NearhintError], ExitCode] = {
    errors.InvalidSetting: ExitCode.USAGE,
    errors.DaemonUnready: ExitCode.REFUSED,
    errors.DaemonUnreachable: ExitCode.UNREACHABLE,
    errors.DeadlineMissed: ExitCode.UNREACHABLE,
    errors.NotFound: ExitCode.NOT_FOUND,
    errors.FileMissing: ExitCode.NOT_FOUND,
    errors.ArtifactCorrupt: ExitCode.INTEGRITY,
    errors.InvalidAnswer: ExitCode.INTEGRITY,
    errors.UntrustedPath: ExitCode.REFUSED,
    errors.ProtocolSkew: ExitCode.REFUSED,
    errors.Rejected: ExitCode.REFUSED,
    errors.Disabled: ExitCode.REFUSED,
}
"""What an error means for whoever called the command, the first that fits; else FAILED."""


def exit_code(error: errors.NearhintError) -> ExitCode:
    """The exit code for an error. An argument that the daemon calls wrong is a usage error."""
    if isinstance(error, errors.Rejected) and error.fields.get("status") == "INVALID_ARGUMENT":
        return ExitCode.USAGE
    return next(
        (code for kind, code in BY_ERROR.items() if isinstance(error, kind)), ExitCode.FAILED
    )
