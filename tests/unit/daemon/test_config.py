from __future__ import annotations

import re
from pathlib import Path

import pytest

from nearhint import config as client_config
from nearhint_daemon import config as settings
from nearhint_daemon.errors import InvalidConfiguration


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "nearhint.toml"
    file.write_text('threads = 1\nqueue_limit = 100\nlog_level = "debug"\n')
    environment = {"NEARHINT_THREADS": "2", "NEARHINT_QUEUE_LIMIT": "200", "PATH": "/bin"}
    loaded = settings.load({"threads": "3"}, environment=environment, file=file)
    config = loaded.config
    assert (config.threads, config.queue_limit, config.log_level) == (3, 200, "debug")
    assert config.device_policy == "always"
    assert loaded.origins["threads"] == "flag --threads"
    assert loaded.origins["queue_limit"] == "environment NEARHINT_QUEUE_LIMIT"
    assert loaded.origins["log_level"] == f"file {file}"
    assert loaded.origins["device_policy"] == "default"


def test_an_unknown_setting_is_an_error_that_names_the_likely_one(tmp_path: Path) -> None:
    file = tmp_path / "nearhint.toml"
    file.write_text("treads = 1\n")
    with pytest.raises(InvalidConfiguration, match="did you mean threads"):
        settings.load({}, environment={}, file=file)
    with pytest.raises(InvalidConfiguration, match="did you mean metrics_port"):
        settings.load({}, environment={"NEARHINT_METRIC_PORT": "1"})


@pytest.mark.parametrize("name", ["CONFIG", "ADDRESS", "THREADS"])
def test_a_variable_that_is_empty_is_not_set(name: str) -> None:
    loaded = settings.load({}, environment={f"NEARHINT_{name}": ""})
    assert loaded == settings.load({}, environment={})


def test_variables_of_the_client_are_let_pass() -> None:
    read = frozenset(re.findall(r"^(NEARHINT_[A-Z_]+) ", client_config.__doc__ or "", re.MULTILINE))
    assert len(read) == 4
    loaded = settings.load({}, environment=dict.fromkeys(read - {"NEARHINT_ADDRESS"}, "1"))
    assert loaded.warnings == ()
    assert settings.load({}, environment={"NEARHINT_OTHER": "1"}).warnings != ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metrics_port", "70000"),
        ("metrics_port", "http"),
        ("address", "localhost:50051"),
        ("address", "unix:relative"),
        ("address", f"unix:/{'x' * 107}"),
        ("metrics_port", "--5"),
        ("metrics_port", "²"),
        ("metrics_port", "9" * 5000),
        ("state_dir", "~/nearhint"),
        ("state_dir", "~"),
        ("devices", "gpu"),
        ("devices", "cpu,cpu"),
        ("devices", "cuda:²"),
        ("devices", "cuda:00"),
        ("measure_budget_s", "-1"),
        ("measure_budget_s", "nan"),
        ("measure_budget_s", 10**400),
        ("regret_share", "1.5"),
        ("regret_share", "nan"),
        ("regret_share", "little"),
        ("regret_share", 10**400),
        ("device_policy", "sometimes"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_origin(name: str, value: object) -> None:
    with pytest.raises(InvalidConfiguration, match=f"{name} = .* must "):
        settings.load({name: value}, environment={})


@pytest.mark.parametrize(
    "content",
    [
        b"threads =",
        b"\xff",
        f"a = {'[' * 5000}".encode(),
        f"threads = {'9' * 5000}".encode(),
        b"#" * (settings.FILE_LIMIT_BYTES + 1),
    ],
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "nearhint.toml"
    file.write_bytes(content)
    with pytest.raises(InvalidConfiguration, match=r"nearhint\.toml: "):
        settings.load({}, environment={}, file=file)


def test_a_state_directory_is_named_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ("state", Path("state")):
        loaded = settings.load({"state_dir": given}, environment={})
        assert loaded.config.state_dir == tmp_path / "state"


def test_a_working_directory_that_is_gone_names_no_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InvalidConfiguration, match="state_dir = 'state' must be absolute"):
        settings.load({"state_dir": "state"}, environment={})


def test_a_unix_address_may_have_slashes() -> None:
    config = settings.load({"address": "unix:///run/x.sock"}, environment={}).config
    assert config.socket_path == Path("/run/x.sock")
