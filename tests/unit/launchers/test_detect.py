"""The device half of a CPU Target, read from /proc/cpuinfo."""

from __future__ import annotations

import platform

from nearhint.launchers.detect import cpu_device, read_cpu

TWO_PROCESSORS = """processor\t: 0
model name\t: AMD  EPYC 9R14
flags\t\t: fpu sse4_2 avx2 fma avx512f made_up

processor\t: 1
model name\t: another
flags\t\t: fpu
"""


def test_the_first_processor_speaks_for_all() -> None:
    device = read_cpu(TWO_PROCESSORS)
    assert device.model == "AMD EPYC 9R14"
    assert device.features == tuple(
        sorted({platform.machine(), "sse4_2", "avx2", "fma", "avx512f"})
    )


def test_an_arm_processor_is_named_by_its_part() -> None:
    device = read_cpu("CPU implementer\t: 0x41\nFeatures\t: fp asimd sve\nCPU part\t: 0xd4f\n")
    assert device.model == "0x41 0xd4f"
    assert {"asimd", "sve"} < set(device.features)


def test_an_empty_description_is_still_a_device() -> None:
    assert read_cpu("").model == platform.machine()


def test_this_machine_is_detected_once() -> None:
    assert cpu_device() is cpu_device()
    assert platform.machine() in cpu_device().features
