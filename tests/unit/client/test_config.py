"""Settings come from the environment, typed, and a value that means nothing says so."""

from __future__ import annotations

import os
import pwd
from pathlib import Path, PosixPath
from typing import NoReturn

import pytest
from tests.unit.client import doubling
from tests.unit.client.cli_cases import run

from nearhint import config, session
from nearhint.config import from_environment, socket_path
from nearhint.errors import InvalidSetting
from nearhint_daemon.config import CLIENT_VARIABLES, FILE_VARIABLE, SETTINGS


def test_nothing_set_means_the_cache_under_home_and_no_switches() -> None:
    settings = from_environment({"HOME": "/home/someone"})
    assert settings.cache_dir.parts[-2:] == (".cache", "nearhint")
    assert (settings.is_disabled, settings.trusted_uids) == (False, frozenset())


def test_everything_set() -> None:
    settings = from_environment(
        {
            "NEARHINT_ADDRESS": "unix:/run/x/n.sock",
            "NEARHINT_CACHE_DIR": "/var/cache/mine",
            "NEARHINT_DISABLE": "1",
            "NEARHINT_TRUSTED_UID": "7, 1000",
        }
    )
    assert settings.address == "unix:/run/x/n.sock"
    assert settings.cache_dir == Path("/var/cache/mine")
    assert settings.is_disabled
    assert settings.trusted_uids == frozenset({7, 1000})


def test_the_cache_follows_xdg() -> None:
    assert from_environment({"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/nearhint")
    assert from_environment({"XDG_CACHE_HOME": "relative"}).cache_dir.is_absolute()


@pytest.mark.parametrize("home", [None, "relative"])
def test_who_has_no_home_has_a_cache_that_does_not_depend_on_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    def nobody(uid: int) -> NoReturn:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", home)
    assert from_environment({}).cache_dir == Path(f"/tmp/nearhint-{os.geteuid()}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NEARHINT_ADDRESS", "localhost:1234"),
        ("NEARHINT_ADDRESS", "unix:relative/path"),
        ("NEARHINT_ADDRESS", "unix-abstract:name"),
        ("NEARHINT_ADDRESS", "unix:/" + "long/" * 30),
        ("NEARHINT_CACHE_DIR", "relative"),
        ("NEARHINT_DISABLE", "yes"),
        ("NEARHINT_TRUSTED_UID", "root"),
        ("NEARHINT_TRUSTED_UID", "9" * 5000),
    ],
)
def test_a_value_that_means_nothing_is_an_error_with_its_name(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        from_environment({name: value})
    assert caught.value.fields["value"] == value


class Hidden(PosixPath):
    """In a folder that only others may look into, as one of mode 0750; root may look anywhere."""

    def exists(self) -> bool:
        raise PermissionError(13, "Permission denied", str(self))


def test_a_default_socket_that_this_user_may_not_look_for_is_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config, "DEFAULT_SOCKET", Hidden("/run/nearhint/nearhint.sock"))
    assert from_environment({}).address == "unix:/run/nearhint/nearhint.sock"


def test_a_variable_that_is_nearly_a_setting_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(session.log, "warning", lambda text, *of: logged.append(text % of))
    monkeypatch.setenv("NEARHINT_DISABLED", "1")
    monkeypatch.setenv("NEARHINT_ADDRES", "unix:/run/x.sock")
    session.session_for(None, doubling.DEVICE)
    assert logged == [
        "setting_unknown NEARHINT_ADDRES; did you mean NEARHINT_ADDRESS?",
        "setting_unknown NEARHINT_DISABLED; did you mean NEARHINT_DISABLE?",
    ]
    told = run("status").stderr
    for line in logged:
        assert line.rpartition("; ")[2] in told


def test_no_setting_of_the_daemons_is_nearly_one_of_the_clients() -> None:
    daemons = {f"NEARHINT_{name.upper()}": "1" for name in (*SETTINGS, "config")}
    assert config.misspelt(daemons) == {}
    assert set(config.NAMES) == {
        variable.removeprefix(config.PREFIX) for variable in CLIENT_VARIABLES - {FILE_VARIABLE}
    } | {"ADDRESS"}


@pytest.mark.parametrize("address", ["unix:/a/b.sock", "unix:///a/b.sock"])
def test_both_spellings_of_a_unix_address(address: str) -> None:
    assert socket_path(address) == Path("/a/b.sock")
