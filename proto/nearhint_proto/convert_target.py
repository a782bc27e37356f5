"""Devices and Targets between domain and wire."""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_proto.convert_expr import check_count, check_size, check_text
from nearhint_proto.v1 import types_pb2 as pb
from nearhint_rules.errors import InvalidMessage
from nearhint_rules.target import CpuDevice, CudaDevice, Device, Target

TEXT_LIMIT = 256
FEATURE_LIMIT = 256
TOOL_LIMIT = 32


def texts_from_proto(values: Sequence[str], limit: int, field: str) -> tuple[str, ...]:
    """At most `limit` short texts; raises `InvalidMessage`."""
    check_count(values, limit, field)
    return tuple(
        check_text(value, TEXT_LIMIT, f"{field}[{position}]")
        for position, value in enumerate(values)
    )


def device_to_proto(device: Device) -> pb.Device:
    """The message of a device."""
    match device:
        case CpuDevice(model, features, libc):
            return pb.Device(cpu=pb.CpuDevice(model=model, features=features, libc=libc))
        case CudaDevice():
            return pb.Device(
                cuda=pb.CudaDevice(
                    model=device.model,
                    capability=device.capability,
                    multiprocessors=device.multiprocessors,
                    memory_bytes=device.memory_bytes,
                    driver=device.driver,
                    power_limit_w=device.power_limit_w,
                    mig_profile=device.mig_profile,
                )
            )


def device_from_proto(message: pb.Device, *, field: str = "device") -> Device:
    """The device, its instruction sets sorted; raises `InvalidMessage`."""
    match message.WhichOneof("kind"):
        case "cpu":
            cpu = message.cpu
            features = texts_from_proto(cpu.features, FEATURE_LIMIT, f"{field}.features")
            return CpuDevice(
                model=check_text(cpu.model, TEXT_LIMIT, f"{field}.model"),
                features=tuple(sorted(set(features))),
                libc=check_text(cpu.libc, TEXT_LIMIT, f"{field}.libc"),
            )
        case "cuda":
            cuda = message.cuda
            return CudaDevice(
                model=check_text(cuda.model, TEXT_LIMIT, f"{field}.model"),
                capability=cuda.capability,
                multiprocessors=cuda.multiprocessors,
                memory_bytes=check_size(cuda.memory_bytes, f"{field}.memory_bytes"),
                driver=check_text(cuda.driver, TEXT_LIMIT, f"{field}.driver"),
                power_limit_w=cuda.power_limit_w,
                mig_profile=check_text(cuda.mig_profile, TEXT_LIMIT, f"{field}.mig_profile"),
            )
        case None:
            raise InvalidMessage(field, "no device")


def target_to_proto(target: Target) -> pb.Target:
    """The message of a Target."""
    return pb.Target(device=device_to_proto(target.device), toolchain=target.toolchain)


def target_from_proto(message: pb.Target, *, field: str = "target") -> Target:
    """The Target; raises `InvalidMessage`."""
    return Target(
        device=device_from_proto(message.device, field=f"{field}.device"),
        toolchain=texts_from_proto(message.toolchain, TOOL_LIMIT, f"{field}.toolchain"),
    )
