"""`nearhint status`, `nearhint kernels`, `nearhint policy`: what the daemon is doing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import click

from nearhint.cli_output import print_json, table, talk, tell
from nearhint.commands.options import (
    actor,
    address_option,
    connected,
    examples,
    exits,
    json_option,
)
from nearhint.errors import InvalidSetting
from nearhint.warmup.targets import device_json
from nearhint_proto.v1 import admin_service_pb2

POLICIES: Mapping[str, admin_service_pb2.DevicePolicy.ValueType] = {
    "always": admin_service_pb2.DEVICE_POLICY_ALWAYS,
    "idle": admin_service_pb2.DEVICE_POLICY_IDLE,
    "never": admin_service_pb2.DEVICE_POLICY_NEVER,
}
_POLICY_NAMES = {value: name for name, value in POLICIES.items()}
PAGE = 1000


@click.command(epilog=examples("nearhint status", "nearhint status --json | jq .devices"))
@address_option
@json_option
@exits
def status(address: str | None, as_json: bool) -> None:
    """Show the daemon: state, devices, queue, counts, problems."""
    with connected(address) as connection:
        info = connection.hello()
        answer = connection.get_status()
    counts = {
        "programs": answer.programs,
        "kernels": answer.kernels,
        "variants": answer.variants,
        "measurements": answer.measurements,
        "artifacts": answer.artifacts,
        "quarantined": answer.quarantined,
        "running_jobs": answer.running_jobs,
        "waiting_jobs": answer.waiting_jobs,
        "compiles_run": answer.compiles_run,
        "store_size_bytes": answer.store_size_bytes,
        "forgotten_programs": answer.forgotten_programs,
        "forgotten_kernels": answer.forgotten_kernels,
        "change_seq": answer.change_seq,
    }
    if as_json:
        print_json(
            {
                "state": answer.state,
                "version": info.version,
                "compiler_version": info.compiler_version,
                "daemon_id": info.daemon_id,
                "metrics_address": answer.metrics_address,
                "devices": [_device(device) for device in answer.devices],
                "queued_jobs": dict(answer.queued_jobs),
                **counts,
                "problems": list(answer.problems),
            }
        )
        return
    tell(f"nearhintd {info.version} is {answer.state}")
    if answer.metrics_address:
        tell(f"metrics at {answer.metrics_address}")
    _devices(answer.devices)
    queued = sum(answer.queued_jobs.values())
    table(["what", "#"], [*counts.items(), ("queued_jobs", queued)])
    for problem in answer.problems:
        talk(f"problem: {problem}")


@click.command(epilog=examples("nearhint kernels", "nearhint kernels --limit 20 --json"))
@click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="At most so many."
)
@address_option
@json_option
@exits
def kernels(limit: int, address: str | None, as_json: bool) -> None:
    """List the Kernels that the daemon knows, with the best tier that each has reached."""
    found: list[admin_service_pb2.KernelSummary] = []
    with connected(address) as connection:
        token = ""
        while len(found) < limit:
            page = connection.list_kernels(
                admin_service_pb2.ListKernelsRequest(
                    page_size=min(PAGE, limit - len(found)), page_token=token
                )
            )
            found += page.kernels
            token = page.next_page_token
            if not token or not page.kernels:
                break
    if token:
        talk(f"there are more than {len(found)}: --limit shows more")
    if as_json:
        print_json({"kernels": [kernel_json(kernel) for kernel in found], "has_more": bool(token)})
        return
    table(
        ["kernel", "title", "symbols", "tier", "hints #", "programs #", "why none"],
        [
            (
                kernel.id[:12],
                kernel.title,
                ", ".join(kernel.symbols),
                f"T{max(kernel.tiers.values(), default=0)}",
                kernel.hints,
                kernel.programs,
                kernel.reason,
            )
            for kernel in found
        ],
    )


@click.command(
    epilog=examples(
        "nearhint policy cpu", "nearhint policy cuda:0 never", "nearhint policy cuda idle"
    )
)
@click.argument("device")
@click.argument("policy", required=False, type=click.Choice(list(POLICIES)))
@address_option
@json_option
@exits
def policy(device: str, policy: str | None, address: str | None, as_json: bool) -> None:
    """Show or set whether DEVICE (cpu, cuda:0, or cuda for all) may be used to verify and measure.

    always: at any time. idle: while nothing else runs there. never: not at all; only Fallbacks and
    Tables measured elsewhere on the same Target serve.
    """
    with connected(address) as connection:
        if policy is None:
            every = connection.get_status().devices
        else:
            request = admin_service_pb2.SetDevicePolicyRequest(
                device=device, policy=POLICIES[policy], actor=actor()
            )
            every = connection.set_device_policy(request).devices
    devices = [each for each in every if device in {each.name, each.name.split(":")[0]}]
    if not devices:
        known = ", ".join(each.name for each in every) or "none"
        expected = f"a device of this daemon ({known})"
        raise InvalidSetting(name="DEVICE", expected=expected, value=device)
    if as_json:
        print_json({"devices": [_device(each) for each in devices]})
    else:
        _devices(devices)


def kernel_json(kernel: admin_service_pb2.KernelSummary) -> dict[str, object]:
    """A Kernel's line as JSON."""
    return {
        "id": kernel.id,
        "title": kernel.title,
        "symbols": list(kernel.symbols),
        "tiers": dict(kernel.tiers),
        "hints": kernel.hints,
        "programs": kernel.programs,
        "reason": kernel.reason,
    }


def _device(device: admin_service_pb2.DeviceStatus) -> dict[str, object]:
    kind = device.device.WhichOneof("kind")
    return {
        "name": device.name,
        "model": getattr(device.device, kind).model if kind else "",
        "target_id": device.target_id,
        "device": device_json(device.device),
        "policy": _POLICY_NAMES.get(device.policy, "unknown"),
        "is_worker_ready": device.is_worker_ready,
        "problem": device.problem,
    }


def _devices(devices: Iterable[admin_service_pb2.DeviceStatus]) -> None:
    rows = [_device(device) for device in devices]
    table(
        ["device", "model", "policy", "worker", "problem"],
        [
            (
                row["name"],
                row["model"],
                row["policy"],
                "ready" if row["is_worker_ready"] else "not ready",
                row["problem"],
            )
            for row in rows
        ],
    )
