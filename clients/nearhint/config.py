"""Settings of the client, read once from the environment.

NEARHINT_ADDRESS      unix:PATH; unset: the socket under /run/nearhint if it is there
NEARHINT_CACHE_DIR    artifacts; unset: nearhint under $XDG_CACHE_HOME or ~/.cache, or for who has
                      no home a folder of their own under /tmp
NEARHINT_DISABLE      1: every call runs the original ops
NEARHINT_TRUSTED_UID  user ids, with commas: they too may own the daemon's socket
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nearhint.errors import InvalidSetting

DEFAULT_SOCKET = Path("/run/nearhint/nearhint.sock")
MAX_SOCKET_PATH_BYTES = 107
"""What fits into `sockaddr_un.sun_path` on Linux, unix(7)."""
UID_DIGITS = 10
PREFIX = "NEARHINT_"
NAMES = ("ADDRESS", "CACHE_DIR", "DISABLE", "TRUSTED_UID")
SIMILAR = 0.75
"""How alike, by `difflib`, the name of a variable and of a setting are where that was meant."""
HOMELESS = Path("/tmp")
"""Where the cache of a user without a home is: `trust` refuses what somebody else put there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How this process uses nearhint; `address` None means that there is no daemon to ask.

    `retry_spread_s` is the longest first pause before a lost daemon is asked again: processes
    spread over it.
    """

    address: str | None
    cache_dir: Path
    cache_limit_bytes: int = 1 << 30
    trusted_uids: frozenset[int] = frozenset()
    retry_spread_s: float = 6.0
    is_disabled: bool = False


def socket_path(address: str) -> Path:
    """The path in `unix:PATH`; raises `InvalidSetting` for any other kind of address.

    >>> socket_path("unix:/run/nearhint/nearhint.sock")
    PosixPath('/run/nearhint/nearhint.sock')
    """
    scheme, _, rest = address.partition(":")
    if rest.startswith("//"):
        rest = rest[2:]
    path = Path(rest)
    if scheme != "unix" or "\0" in rest or not path.is_absolute():
        raise InvalidSetting(
            name="the address", expected="unix:PATH with an absolute path", value=address
        )
    check_length(path, value=address)
    return path


def check_length(path: Path, *, value: object) -> None:
    """Raises `InvalidSetting`, which shows `value`, where no socket can be at this path."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise InvalidSetting(
            name="the address",
            expected=f"a socket path of at most {MAX_SOCKET_PATH_BYTES} bytes, links resolved",
            value=value,
        )


def from_environment(environment: Mapping[str, str] | None = None) -> Config:
    """The settings in `environment` (default: the process's); raises `InvalidSetting`."""
    variables = os.environ if environment is None else environment
    address = variables.get("NEARHINT_ADDRESS") or None
    if address is not None:
        socket_path(address)
    elif _may_be_there(DEFAULT_SOCKET):
        address = f"unix:{DEFAULT_SOCKET}"
    return Config(
        address=address,
        cache_dir=_cache_dir(variables),
        trusted_uids=_trusted_uids(variables.get("NEARHINT_TRUSTED_UID", "")),
        is_disabled=_switch("NEARHINT_DISABLE", variables.get("NEARHINT_DISABLE", "")),
    )


def misspelt(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that are no settings, but nearly; by each what was meant.

    The daemon's have the same prefix, and are not among them.

    >>> misspelt({"NEARHINT_DISABLED": "1", "NEARHINT_STATE_DIR": "/x"})
    {'NEARHINT_DISABLED': 'NEARHINT_DISABLE'}
    """
    variables = os.environ if environment is None else environment
    found: dict[str, str] = {}
    for variable in sorted(variables):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=SIMILAR)
            found.update((variable, PREFIX + meant) for meant in near)
    return found


def without_daemon() -> Config:
    """Settings under which nobody is asked: what is left when the environment makes no sense."""
    return Config(address=None, cache_dir=_cache_dir({}), is_disabled=True)


def _may_be_there(path: Path) -> bool:
    """Whether there is something, or this user may not look: who connects is told why not."""
    try:
        return path.exists()
    except PermissionError:
        return True


def _cache_dir(variables: Mapping[str, str]) -> Path:
    given = variables.get("NEARHINT_CACHE_DIR")
    if given:
        if not Path(given).is_absolute():
            raise InvalidSetting(
                name="NEARHINT_CACHE_DIR", expected="an absolute path", value=given
            )
        return Path(given)
    base = variables.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "nearhint"
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return HOMELESS / f"nearhint-{os.geteuid()}"
    return Path(home) / ".cache" / "nearhint"


def _trusted_uids(text: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) <= UID_DIGITS for part in parts):
        raise InvalidSetting(
            name="NEARHINT_TRUSTED_UID", expected="user ids with commas", value=text
        )
    return frozenset(int(part) for part in parts)


def _switch(name: str, text: str) -> bool:
    if text in {"", "0"}:
        return False
    if text == "1":
        return True
    raise InvalidSetting(name=name, expected="0 or 1", value=text)
