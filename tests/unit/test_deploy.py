"""Every setting, flag, path, port, metric and label in deploy/ is one that the code has."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from nearhint import config as client_config
from nearhint_daemon import config as settings
from nearhint_daemon.cli import main as nearhintd
from nearhint_daemon.cli import serve
from nearhint_daemon.directories import SOCKET_DIRECTORY_MODE, STATE_MODE
from nearhint_daemon.exit_codes import ExitCode
from nearhint_daemon.metrics import RESTART_REASONS, Metrics
from nearhint_daemon.server import service_methods

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SETTINGS_FILE = DEPLOY / "nearhintd.toml"
EXPOSURE_LIMIT = 30
"""Tenths of the exposure that `systemd-analyze security` finds: 2.4 with what the unit forbids."""


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text_of(name)))


def config() -> settings.Config:
    return settings.load({}, environment={}, file=SETTINGS_FILE).config


def unit() -> dict[str, list[str]]:
    """The unit's keys with their values; each may stand several times."""
    found: dict[str, list[str]] = {}
    for line in text_of("systemd/nearhintd.service").splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def daemonset() -> dict[str, Any]:
    return next(each for each in documents("kubernetes/daemonset.yaml") if "spec" in each)


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = daemonset()["spec"]["template"]["spec"]
    return spec


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container.get("env", [])}


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"not run: {name} is not here")
    return found


# ------------------------------------------------------------------------------------- settings
def test_the_file_of_settings_is_understood_and_says_nothing_twice() -> None:
    given = tomllib.loads(SETTINGS_FILE.read_text(encoding="utf-8"))
    loaded = settings.load({}, environment={}, file=SETTINGS_FILE)
    assert {name for name, origin in loaded.origins.items() if origin != "default"} == set(given)
    assert loaded.warnings == ()
    assert loaded.config.metrics_port > 0, "nothing could scrape it"
    assert loaded.config.device_policy == "idle"


# -------------------------------------------------------------------------------------- systemd
def test_the_unit_starts_the_daemon_with_the_file_of_settings() -> None:
    (line,) = unit()["ExecStart"]
    program, command, *arguments = shlex.split(line)
    assert (Path(program).name, nearhintd.commands[command]) == ("nearhintd", serve)
    assert serve.make_context(command, list(arguments)).params["file"] == Path(
        "/etc", *unit()["ConfigurationDirectory"], SETTINGS_FILE.name
    )


def test_the_unit_makes_the_folders_that_the_daemon_asks_for() -> None:
    keys = unit()
    assert config().state_dir == Path("/var/lib", *keys["StateDirectory"])
    assert config().socket_path.parent == Path("/run", *keys["RuntimeDirectory"])
    assert [int(mode, 8) for mode in keys["StateDirectoryMode"]] == [STATE_MODE]
    assert [int(mode, 8) for mode in keys["RuntimeDirectoryMode"]] == [SOCKET_DIRECTORY_MODE]


def test_the_sockets_folder_outlasts_the_daemon() -> None:
    """A container has mounted this one: of a new folder under that name it would see nothing."""
    assert unit().get("RuntimeDirectoryPreserve") == ["yes"]


def test_the_unit_waits_until_the_daemon_has_drained() -> None:
    (limit_s,) = unit()["TimeoutStopSec"]
    assert float(limit_s) >= config().drain_delay_s + config().drain_timeout_s + 15.0


def test_the_unit_starts_again_what_drained_for_a_sighup() -> None:
    """It ends with 0 then, as `kill -HUP` is sent for new settings, and stayed away for good."""
    assert unit()["Restart"] == ["always"]


def test_the_unit_does_not_start_again_what_cannot_start() -> None:
    (codes,) = unit()["RestartPreventExitStatus"]
    assert [int(code) for code in codes.split()] == [ExitCode.USAGE, ExitCode.REFUSED]


def test_the_unit_runs_as_the_user_that_is_made() -> None:
    made = re.findall(r"^u (\w+) ", text_of("systemd/nearhint.sysusers.conf"), re.MULTILINE)
    assert (unit()["User"], unit()["Group"]) == (made, made)


def test_the_unit_forbids_no_device() -> None:
    """ProtectClock does, with systemd 249: it allows the clock's device, and so no other one."""
    assert not unit().keys() & {"DeviceAllow", "DevicePolicy", "PrivateDevices", "ProtectClock"}


def test_systemd_finds_little_that_the_unit_could_still_forbid() -> None:
    command = [tool("systemd-analyze"), "security", "--offline=true"]
    ended = subprocess.run(
        [*command, f"--threshold={EXPOSURE_LIMIT}", DEPLOY / "systemd" / "nearhintd.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-500:] + ended.stderr


# ------------------------------------------------------------------------- container, Kubernetes
def test_the_image_has_what_it_is_built_of() -> None:
    sources = re.findall(r"^COPY (?!--from)(.+) \S+$", text_of("container/Containerfile"), re.M)
    names = [name for line in sources for name in line.split()]
    assert names
    assert [name for name in names if not (DEPLOY.parent / name).exists()] == []


def test_the_image_serves_with_the_file_of_settings() -> None:
    lines = text_of("container/Containerfile")
    (place,) = re.findall(r"^COPY deploy/nearhintd.toml (\S+)$", lines, re.M)
    assert f"{settings.FILE_VARIABLE}={place}" in lines
    (verbs,) = re.findall(r"^CMD (\[.*\])$", lines, re.M)
    assert [nearhintd.commands[verb] for verb in json.loads(verbs)] == [serve]


def test_the_image_is_built_by_the_name_that_the_manifests_have() -> None:
    first, *_ = re.findall(r"-t (\S+)", text_of("container/Containerfile"))
    named = {each["image"] for each in (*pod()["initContainers"], *pod()["containers"])}
    assert named == {first}


def test_the_image_and_the_manifests_have_one_user() -> None:
    (user,) = re.findall(r"^USER (\d+):\d+$", text_of("container/Containerfile"), re.M)
    (daemon,) = pod()["containers"]
    assert daemon["securityContext"]["runAsUser"] == int(user)
    (guest,) = documents("kubernetes/inference.yaml")
    assert guest["spec"]["securityContext"]["supplementalGroups"] == [int(user)]
    assert environment(guest["spec"]["containers"][0])["NEARHINT_TRUSTED_UID"] == user


def test_pods_meet_at_the_daemons_socket() -> None:
    (guest,) = documents("kubernetes/inference.yaml")
    (server,) = guest["spec"]["containers"]
    variables = environment(server)
    read = set(re.findall(r"^(NEARHINT_\w+) ", client_config.__doc__ or "", re.MULTILINE))
    assert variables.keys() <= read
    assert variables["NEARHINT_ADDRESS"] == config().address
    folder = str(config().socket_path.parent)
    for spec in (pod(), guest["spec"]):
        (name,) = [
            each["name"]
            for each in spec["volumes"]
            if each.get("hostPath", {}).get("path") == folder
        ]
        mounts = {each["name"]: each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
        assert mounts[name] == folder


def test_probes_ask_for_paths_that_are_answered_at_the_port_that_is_set() -> None:
    from nearhint_daemon import lifecycle

    (daemon,) = pod()["containers"]
    probes = [daemon[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    assert {probe["port"] for probe in probes} == {config().metrics_port}
    routes = lifecycle._routes(None)  # type: ignore[arg-type]
    assert {probe["path"] for probe in probes} <= routes.keys()
    assert pod()["hostNetwork"], "127.0.0.1 has to be the node's for a probe"


def test_a_pod_has_the_time_to_drain() -> None:
    limit_s = pod()["terminationGracePeriodSeconds"]
    assert limit_s >= config().drain_delay_s + config().drain_timeout_s + 15.0


# ------------------------------------------------------------------------- Prometheus and Grafana
@pytest.fixture(scope="module")
def series() -> dict[str, dict[str, set[str]]]:
    """Every series' name, and the values of its labels."""
    metrics = Metrics(version="test", compiler_version="test")
    metrics.add_methods(service_methods())
    found: dict[str, dict[str, set[str]]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def alerts() -> list[dict[str, Any]]:
    (file,) = documents("prometheus/alerts.yaml")
    return [rule for group in file["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text_of("grafana/nearhint.json"))["panels"]
    return found


def expressions() -> list[str]:
    """What is asked of Prometheus."""
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*(rule["expr"] for rule in alerts()), *shown]


SCRAPED = frozenset({"instance", "job"})
"""Labels that Prometheus adds."""


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_label_and_value_is_the_daemons(
    expression: str, series: dict[str, dict[str, set[str]]]
) -> None:
    names = re.findall(r"(nearhint_\w+)(?:\{([^}]*)\})?", expression)
    assert names or expression.startswith("up{")
    every: set[str] = set()
    for name, selectors in names:
        assert name in series
        every |= series[name].keys()
        for label, pattern in re.findall(r'(\w+)(?:=~|!=|=)"([^"]*)"', selectors):
            if label not in SCRAPED:
                assert set(pattern.split("|")) <= series[name][label], (name, label)
    for grouping in re.findall(r"by \(([^)]*)\)", expression):
        assert {label.strip() for label in grouping.split(",")} <= every | SCRAPED


def test_every_alert_has_a_section_of_the_runbook_and_no_other_has() -> None:
    sections = re.findall(r"^## (\w+)$", text_of("runbook.md"), re.MULTILINE)
    assert sections == [rule["alert"] for rule in alerts()]
    for rule in alerts():
        assert rule["annotations"]["runbook_url"] == f"runbook.md#{rule['alert'].lower()}"
        assert rule["annotations"].keys() >= {"summary", "description"}
        assert rule["labels"]["severity"] in {"page", "ticket"}


def test_the_runbook_asks_the_daemon_that_the_unit_starts() -> None:
    first = text_of("runbook.md").partition("$ nearhint ")[0]
    assert f"$ export NEARHINT_TRUSTED_UID=$(id -u {unit()['User'][0]})" in first
    (line,) = unit()["ExecStart"]
    (shown,) = re.findall(r"`nearhintd (config show .*?)`", text_of("runbook.md"))
    assert "--config " + shlex.split(line)[-1] in shown


def test_every_event_in_the_runbook_is_one_that_is_logged() -> None:
    events = re.findall(r"`([a-z]+_[a-z_]+|quarantined)`", text_of("runbook.md"))
    events = [name for name in events if name not in settings.SETTINGS and "nearhint" not in name]
    events = [name for name in events if name not in RESTART_REASONS]
    logged = "".join(
        path.read_text(encoding="utf-8") for path in (DEPLOY.parent / "daemon").rglob("*.py")
    )
    assert len(events) > 4
    assert [name for name in events if f'("{name}"' not in logged] == []


def test_every_alert_is_tested_where_it_fires() -> None:
    (file,) = documents("prometheus/alerts_test.yaml")
    asked = [each for test in file["tests"] for each in test["promql_expr_test"]]
    firing = {
        re.findall(r'alertname="(\w+)"', sample["labels"])[0]
        for each in asked
        for sample in each["exp_samples"]
    }
    assert firing == {rule["alert"] for rule in alerts()}
    assert any(each["exp_samples"] == [] for each in asked)


def test_alerts_fire_where_they_should_and_nowhere_else() -> None:
    ended = subprocess.run(
        [tool("promtool"), "test", "rules", DEPLOY / "prometheus" / "alerts_test.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_prometheus_scrapes_the_port_that_is_set() -> None:
    (file,) = documents("prometheus/scrape.yaml")
    (job,) = file["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{config().metrics_port}"]}]
    assert f'up{{job="{job["job_name"]}"}}' in alerts()[0]["expr"]
    assert all((DEPLOY / "prometheus" / name).exists() for name in file["rule_files"])


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"


def test_the_readme_has_every_file() -> None:
    (table,) = re.findall(r"(?:^\|.*\n)+", text_of("README.md"), re.MULTILINE)
    named = set(re.findall(r"`([^`]+)`", table))
    there = {
        path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*") if path.is_file()
    } - {"README.md"}
    assert named == there
