"""Settings: flags > `NEARHINT_*` environment > TOML file > defaults, each with its origin.

A setting is a field of `Config`; its row in the field's metadata says how text becomes a value.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from nearhint_daemon.errors import InvalidConfiguration
from nearhint_rules.ladder import HINT_BUDGET
from nearhint_rules.table import HINT_LIMIT

ENVIRONMENT_PREFIX = "NEARHINT_"
FILE_VARIABLE = "NEARHINT_CONFIG"
UNIX_SCHEME = "unix:"
SOCKET_PATH_LIMIT_BYTES = 107
"""What fits into `sockaddr_un.sun_path` with its final zero, unix(7)."""

_INTEGER = re.compile(r"\s*-?[0-9]{1,19}\s*")
_DEVICE = re.compile(r"cpu|cuda:(0|[1-9][0-9]{0,2})")
FILE_LIMIT_BYTES = 1 << 20


Parse = Callable[[object], object]


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value becomes a setting's, and between what it may be, where it is a number."""

    parse: Parse
    allowed: str = ""


def _count(low: int, high: int) -> Kind:
    def parse(value: object) -> int:
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be an integer from {low} to {high}")
        return value

    return Kind(parse, f"{low} to {high}")


def _number(low: float, high: float, what: str = "a number") -> Kind:
    allowed = f"{low:g} to {high:.0f}"

    def parse(value: object) -> float:
        try:
            parsed = float(value) if isinstance(value, int | float | str) else math.nan
        except (ValueError, OverflowError):
            parsed = math.nan
        if isinstance(value, bool) or not low <= parsed <= high:
            raise ValueError(f"must be {what} from {allowed}")
        return parsed

    return Kind(parse, allowed)


_DAY_S = 86_400.0
_seconds = _number(0.0, _DAY_S, "a number of seconds")
_positive_seconds = _number(1.0, _DAY_S, "a number of seconds")
_share = _number(0.0, 1.0)


def _one_of(*names: str) -> Kind:
    def parse(value: object) -> str:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return str(value)

    return Kind(parse)


def _path(value: object) -> Path:
    """Absolute: errors and reproducers name files below it to who is somewhere else."""
    if not isinstance(value, Path | str) or not str(value) or "\0" in str(value):
        raise ValueError("must be a path")
    if str(value).startswith("~"):  # a shell leaves that in --state-dir=~/x
        raise ValueError("must be a path without ~, which is left as it is here")
    try:
        return Path(value).absolute()
    except OSError:  # somebody removed it
        raise ValueError("must be absolute: there is no working directory") from None


def _address(value: object) -> str:
    if not isinstance(value, str) or not value.startswith(UNIX_SCHEME) or "\0" in value:
        raise ValueError("must be unix:PATH: the daemon listens on a unix socket only")
    path = value.removeprefix(UNIX_SCHEME).removeprefix("//")
    if not path.startswith("/"):
        raise ValueError("must be unix: and an absolute path")
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT_BYTES:
        raise ValueError(f"must have a path of at most {SOCKET_PATH_LIMIT_BYTES} bytes")
    return UNIX_SCHEME + path


def _devices(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise ValueError("must be device names: cpu, cuda:0, …")
    parsed = tuple(str(name).strip() for name in names if str(name).strip())
    if not all(map(_DEVICE.fullmatch, parsed)):
        raise ValueError("must be device names: cpu, cuda:0, …")
    if len(set(parsed)) < len(parsed):
        raise ValueError("must name each device once")
    return parsed


def _row(kind: Kind | Parse, text: str) -> Mapping[str, Any]:
    if not isinstance(kind, Kind):
        kind = Kind(kind)
    return {"parse": kind.parse, "allowed": kind.allowed, "help": text}


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting of the daemon."""

    state_dir: Path = field(
        default=Path("/var/lib/nearhint"), metadata=_row(_path, "Where everything durable is kept.")
    )
    address: str = field(
        default="unix:/run/nearhint/nearhint.sock",
        metadata=_row(_address, "The socket to listen on, as unix:PATH."),
    )
    metrics_port: int = field(
        default=-1,
        metadata=_row(
            _count(-1, 65535), "Port of /metrics on 127.0.0.1; 0 picks a free one, -1 is off."
        ),
    )
    max_store_bytes: int = field(
        default=4 * 2**30,
        metadata=_row(_count(2**20, 2**62), "Bytes that database and artifacts may take."),
    )
    devices: tuple[str, ...] = field(
        default=(),
        metadata=_row(
            _devices,
            "Devices to verify and measure on, as cpu,cuda:0; empty: those that are found.",
        ),
    )
    compile_workers: int = field(
        default=0, metadata=_row(_count(0, 256), "Compile workers; 0: one for each CPU, at most 8.")
    )
    threads: int = field(
        default=0,
        metadata=_row(
            _count(0, 1024), "CPU threads to measure with where a client does not say; 0: all CPUs."
        ),
    )
    device_policy: str = field(
        default="always",
        metadata=_row(
            _one_of("always", "idle", "never"),
            "Policy of a device that has none stored: always, idle or never.",
        ),
    )
    measure_budget_s: float = field(
        default=1.0, metadata=_row(_seconds, "Seconds that timing one hint may take.")
    )
    measure_memory_bytes: int = field(
        default=2 * 2**30,
        metadata=_row(
            _count(2**20, 2**50),
            "Bytes that the tensors of one hint, or of a check in f64, may take.",
        ),
    )
    regret_share: float = field(
        default=0.005,
        metadata=_row(
            _share,
            "Share of the time in which idle devices may measure what selection loses; 0 is off.",
        ),
    )
    refine_share: float = field(
        default=0.05,
        metadata=_row(
            _share, "Share of idle time in which hot hints are refined; 0: they never are."
        ),
    )
    queue_limit: int = field(
        default=20_000,
        metadata=_row(_count(16, 1_000_000), "Jobs that may wait before more are refused."),
    )
    hint_budget: int = field(
        default=HINT_BUDGET,
        metadata=_row(
            _count(1, HINT_LIMIT),
            "Hints of a Kernel, for each Fallback, beyond which those without traffic go.",
        ),
    )
    traffic_half_life_s: float = field(
        default=600.0,
        metadata=_row(_positive_seconds, "Seconds after which a call counts half as traffic."),
    )
    forget_after_days: int = field(
        default=90,
        metadata=_row(
            _count(0, 36_500),
            "Days of running after which a Program that nobody asked for is forgotten; 0: never.",
        ),
    )
    drain_delay_s: float = field(
        default=0.0,
        metadata=_row(_seconds, "Seconds between NOT_SERVING and refusing new calls, on SIGTERM."),
    )
    drain_timeout_s: float = field(
        default=10.0, metadata=_row(_seconds, "Seconds that calls in flight may take then.")
    )
    log_format: str = field(
        default="console",
        metadata=_row(_one_of("console", "json"), "How logs are written: console or json."),
    )
    log_level: str = field(
        default="info",
        metadata=_row(
            _one_of("debug", "info", "warning", "error"),
            "The least that is logged: debug, info, warning or error.",
        ),
    )

    @property
    def socket_path(self) -> Path:
        """The path of the socket."""
        return Path(self.address.removeprefix(UNIX_SCHEME))


SETTINGS = {setting.name: setting for setting in fields(Config)}
CLIENT_VARIABLES = frozenset(
    {"NEARHINT_CACHE_DIR", "NEARHINT_DISABLE", "NEARHINT_TRUSTED_UID", FILE_VARIABLE}
)
"""Variables with the daemon's prefix that belong to the client, or name the file."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, where each value comes from, and what was not understood but is harmless."""

    config: Config
    origins: Mapping[str, str]
    warnings: tuple[str, ...]


def load(
    flags: Mapping[str, object],
    *,
    environment: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> Loaded:
    """Merges all sources; a flag that is None was not given, nor was a variable that is empty.

    Raises `InvalidConfiguration` naming the setting, its value and its origin.
    """
    values: dict[str, object] = {}
    origins = dict.fromkeys(SETTINGS, "default")
    warnings: list[str] = []
    variables = {variable: value for variable, value in environment.items() if value}
    path = file or (Path(variables[FILE_VARIABLE]) if FILE_VARIABLE in variables else None)
    if path is not None:
        for name, value in _read_file(path).items():
            _take(values, origins, name, value, f"file {path}")
    for variable, value in sorted(variables.items()):
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in CLIENT_VARIABLES:
            continue
        if name not in SETTINGS and not _similar(name):
            warnings.append(f"{variable} is no setting of nearhintd")
            continue
        _take(values, origins, name, value, f"environment {variable}")
    for name, value in flags.items():
        if value is not None:
            _take(values, origins, name, value, f"flag --{name.replace('_', '-')}")
    return Loaded(Config(**values), origins, tuple(warnings))  # type: ignore[arg-type]


def _read_file(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
        if len(data) > FILE_LIMIT_BYTES:
            raise InvalidConfiguration(f"{path}: more than {FILE_LIMIT_BYTES} bytes")
        return tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise InvalidConfiguration(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidConfiguration(f"{path}: {error}") from None


def _similar(name: str) -> str:
    return next(iter(difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.75)), "")


def _take(
    values: dict[str, object], origins: dict[str, str], name: str, value: object, origin: str
) -> None:
    setting = SETTINGS.get(name)
    if setting is None:
        similar = _similar(name)
        meant = f"; did you mean {similar}?" if similar else ""
        raise InvalidConfiguration(f"{origin}: unknown setting {name}{meant}", field=name)
    try:
        values[name] = setting.metadata["parse"](value)
    except ValueError as error:
        raise InvalidConfiguration(f"{origin}: {name} = {value!r} {error}", field=name) from None
    origins[name] = origin
