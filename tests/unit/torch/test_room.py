"""Room: what the machine, and the control groups that a process is in, leave of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nearhint_torch.room import free_bytes


def test_room_is_what_the_machine_and_the_container_have(tmp_path: Path) -> None:
    cpu, cgroup = torch.device("cpu"), tmp_path / "cgroup"
    assert free_bytes(cpu, proc=tmp_path, cgroup=cgroup) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4 kB\n")
    assert free_bytes(cpu, proc=tmp_path, cgroup=cgroup) == 4096
    cgroup.mkdir()
    (cgroup / "memory.current").write_text("1000\n")
    for limit, free in (("max", 4096), ("3000", 2000), ("900", 0)):
        (cgroup / "memory.max").write_text(f"{limit}\n")
        assert free_bytes(cpu, proc=tmp_path, cgroup=cgroup) == free


V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


@pytest.mark.parametrize(
    ("group", "folder", "names"),
    [
        ("0::{}", "", ("memory.max", "memory.current")),
        ("12:cpu,cpuacct:/\n4:memory:{}", "memory", V1),
        ("3:memory:{}", "memory", V1),
    ],
)
@pytest.mark.parametrize("path", ["/", "/docker/9f", "/batch.slice/job.scope"])
def test_the_limits_of_control_groups_of_both_versions_leave_less_room(
    tmp_path: Path, group: str, folder: str, names: tuple[str, str], path: str
) -> None:
    """A container is told the path that the machine has for it, and sees its own as the root."""
    cpu, root = torch.device("cpu"), tmp_path / "cgroup" / folder
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(f"{group.format(path)}\n")
    (tmp_path / "meminfo").write_text("MemAvailable:       9 kB\n")

    def limited(place: Path, limit: int) -> int | None:
        place.mkdir(parents=True, exist_ok=True)
        for name, count in zip(names, (limit, 1000), strict=True):
            (place / name).write_text(f"{count}\n")
        return free_bytes(cpu, proc=tmp_path, cgroup=tmp_path / "cgroup")

    assert limited(root, 9223372036854771712) == 9 * 1024
    assert limited(root, 6000) == 5000
    assert limited(root / path[1:], 4000) == 3000
    assert limited(root / path[1:], 500) == 0
