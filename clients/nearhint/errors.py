"""Errors of the client: one class per cause, each with a stable code and a hint what to do.

None of them reaches a model: the session catches them, counts `reason` and stays at T0. They are
raised by `nearhint.connection` and `nearhint.artifacts` and reported by the command line.
"""

from __future__ import annotations

from typing import ClassVar


class NearhintError(Exception):
    """Base of all errors of the client; `code` is stable across releases.

    A field `hint`, as the daemon sends one, takes the place of the class's own. What is no UTF-8 in
    a path is escaped: a message can be written and sent wherever errors go.
    """

    code: ClassVar[str] = "CLIENT"
    template: ClassVar[str] = "{problem}"
    hint: ClassVar[str] = ""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        text = self.template.format(**fields)
        super().__init__(text.encode(errors="backslashreplace").decode())

    @property
    def reason(self) -> str:
        """The code in lower case: how counters name this cause."""
        return self.code.lower()

    def report(self) -> str:
        """One line for people: code, message, and what to do about it."""
        hint = self.fields.get("hint") or self.hint
        tail = f". {hint}" if hint else ""
        return f"{self.code}: {self}{tail}"


class InvalidSetting(NearhintError):
    """An environment variable or option has a value that means nothing."""

    code = "SETTING_INVALID"
    template = "{name} must be {expected}, got {value!r}"


class InvalidManifest(InvalidSetting):
    """A warm-up's manifest, or a file that it names, says something that means nothing."""

    code = "MANIFEST_INVALID"
    template = "{path}: {key}: {problem}"


class FileMissing(NearhintError):
    """A file that was named is not there, or cannot be read."""

    code = "FILE_MISSING"
    template = "{path}: {problem}"
    hint = "Correct the path; paths in a manifest start at its folder."


class OutputFailed(NearhintError):
    """A result cannot be written to the file that was named for it."""

    code = "OUTPUT_FAILED"
    template = "{path}: {problem}"
    hint = "The daemon keeps what was measured: asked again, it answers at once."


class Disabled(NearhintError):
    """The user switched nearhint off."""

    code = "DISABLED"
    template = "switched off by {name}"
    hint = "Unset it."


class UntrustedPath(NearhintError):
    """A socket or directory belongs to someone else, or others may write to it."""

    code = "PATH_UNTRUSTED"
    template = "{path}: {problem}"
    hint = (
        "It must belong to root, to you, or to a user in NEARHINT_TRUSTED_UID, "
        "and nobody else may write there."
    )


class DaemonUnreachable(NearhintError):
    """Nobody answers at the address."""

    code = "DAEMON_UNREACHABLE"
    template = "no daemon answers at {address}: {problem}"
    hint = "Start one with `nearhintd serve`, or set NEARHINT_ADDRESS."


class DaemonUnready(DaemonUnreachable):
    """The daemon answers, and says that it cannot do this now; `reason_code` is its own code."""

    code = "DAEMON_UNREADY"
    template = "{rpc} cannot be done now ({reason_code}): {problem}"
    hint = "Try again later; `nearhint status` lists the daemon's problems."


class DeadlineMissed(NearhintError):
    """The daemon did not answer in time: it is stopped, or has too much to do."""

    code = "DEADLINE_MISSED"
    template = "{rpc} took longer than {timeout_s:g} s"
    hint = "The daemon may be stopped, or busy: `nearhint status` says what it does."


TOO_LARGE = "TOO_LARGE"
"""In place of a code of the daemon's: a message is larger than gRPC is let carry."""


class Rejected(NearhintError):
    """The daemon refused the request; `reason_code` is its own code for why."""

    code = "REJECTED"
    template = "{rpc} was refused ({status}, {reason_code}): {problem}"

    @property
    def is_for_lack_of_room(self) -> bool:
        """Whether too much is there or under way: there will be room again."""
        is_exhausted = self.fields["status"] == "RESOURCE_EXHAUSTED"
        return is_exhausted and self.fields["reason_code"] != TOO_LARGE


class NotFound(NearhintError):
    """The daemon does not know what was asked for."""

    code = "NOT_FOUND"
    template = "{rpc} found nothing ({reason_code}): {problem}"
    hint = "`nearhint kernels` lists what the daemon knows."


class DaemonFailed(NearhintError):
    """The daemon broke while answering."""

    code = "DAEMON_FAILED"
    template = "{rpc} failed in the daemon ({status}): {problem}"
    hint = "The daemon's log has more."


class ProtocolSkew(NearhintError):
    """Client and daemon are too far apart in version."""

    code = "PROTOCOL_SKEW"
    template = "the daemon speaks protocol {low} to {high}, this client {own}"
    hint = "Bring both within one minor version of each other."


class InvalidAnswer(NearhintError):
    """The daemon's answer cannot be right; it is thrown away."""

    code = "ANSWER_INVALID"
    template = "{what}: {problem}"


class ArtifactCorrupt(NearhintError):
    """Bytes do not have the hash that they are named by."""

    code = "ARTIFACT_CORRUPT"
    template = "artifact {sha256}: {problem}"


class CacheUnusable(NearhintError):
    """The artifact cache cannot be read or written."""

    code = "CACHE_UNUSABLE"
    template = "{path}: {problem}"
    hint = "Set NEARHINT_CACHE_DIR to a directory of your own, mode 0700."


class MissingExtra(NearhintError, ImportError):
    """A part of nearhint that is installed as an extra is not there."""

    code = "EXTRA_MISSING"
    template = "{what} needs {module}, which is not installed"

    def __init__(self, *, what: str, module: str, extra: str) -> None:
        super().__init__(what=what, module=module, extra=extra)
        self.install = f"pip install 'nearhint[{extra}]'"

    def report(self) -> str:
        """One line for people, with the command that installs the extra."""
        return f"{self.code}: {self}: {self.install}"


LOST = (DaemonUnreachable, DeadlineMissed)
"""What says that nobody answers for now: the connection is given up, and tried again later."""
