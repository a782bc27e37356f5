"""Devices that this daemon verifies and measures on, and whether it may now.

A device may be serving models: its policy, `always`, `idle` or `never`, is asked before each job.
`idle` means that no client serves on it, as they say (`presence.py`), and, for the CPU, a load
average below `IDLE_LOAD` of the CPUs; for a GPU, a utilisation of at most
`IDLE_UTILISATION_PERCENT` by its driver's tool (unknown counts as busy). What is read so holds for
`SPELL_S`, for our own use would show in the next. A client that begins to serve ends what can be
done again, as does a policy that forbids it; so does, of a refinement, what is more urgent.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nearhint_daemon import logs
from nearhint_daemon.errors import InvalidRequest, NoDevice
from nearhint_daemon.jobs import Priority
from nearhint_daemon.store import Store, Writing
from nearhint_daemon.store.rows import DevicePolicyRow, EventRow
from nearhint_daemon.traffic.presence import Presence
from nearhint_daemon.turns import Order, Turns
from nearhint_daemon.unbroken import to_its_end
from nearhint_daemon.workers import wire
from nearhint_daemon.workers.errors import DeviceWanted, WorkersError, WorkerStartFailed
from nearhint_proto import convert
from nearhint_proto.v1 import worker_pb2
from nearhint_rules.target import CudaDevice, Device

POLICIES = ("always", "idle", "never")
IDLE_LOAD = 0.5
IDLE_UTILISATION_PERCENT = 5
IDLE_POLL_S = 1.0
UTILISATION_LIMIT_S = 10.0
"""How long a driver's tool may take to answer."""
SPELL_S = 2.0
HELLO_RETRY_S = 15.0
CPU = "cpu"
CUDA = "cuda"
VISIBLE = "CUDA_VISIBLE_DEVICES"
DEVICE_NODES = Path("/dev")

IsIdle = Callable[[str], Awaitable[bool]]
"""Whether nothing runs on the CPU, or on the GPU at a place of the bus."""


class Bench(Protocol):
    """The bench workers, one a device."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices' names."""
        ...

    async def hello(self, device: str | None = None) -> worker_pb2.Pong:
        """What a worker runs on, as it was when it was ready."""
        ...

    async def look(self, device: str) -> worker_pb2.Pong:
        """What a worker runs on now."""
        ...

    async def run(
        self,
        request: worker_pb2.WorkerRequest,
        *,
        timeout_s: float,
        device: str | None = None,
    ) -> worker_pb2.WorkerResponse:
        """Runs one job."""
        ...

    def interrupt(self, device: str) -> None:
        """Asks the job of now to give way, if it can."""
        ...


@dataclass
class _Slot:
    name: str
    turns: Turns
    policy: str
    device: Device | None = None
    address: str = ""
    """Of a GPU its place on the bus: its number here says nothing where only some are visible."""
    problem: str = ""
    is_looked_at: bool = False
    """What it is may have changed, and its worker is being asked."""
    looked_at_s: float = float("-inf")
    idle_until_s: float = float("-inf")
    """What was read last says so."""
    is_busy: bool = False
    """What was read last says so; for `idle`."""
    held_by: Order = ()
    """Whose turn it is."""
    is_wanted: bool = False
    """By somebody else than the one whose turn it is."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device as it is now; `device` is None until its worker has answered."""

    name: str
    device: Device | None
    policy: str
    problem: str


class Devices:
    """All devices of this daemon."""

    def __init__(
        self,
        bench: Bench,
        store: Store,
        *,
        default_policy: str,
        clock: Callable[[], float],
        presence: Presence,
        monotonic: Callable[[], float] = time.monotonic,
        is_idle: IsIdle | None = None,
    ) -> None:
        self._bench = bench
        self._store = store
        self._clock = clock
        self._presence = presence
        self._monotonic = monotonic
        presence.on_change = self._presence_changed
        self._is_idle = is_idle or _is_idle
        self._slots = {name: _Slot(name, Turns(1), default_policy) for name in bench.devices}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Reads the kept policies, and asks each worker what it runs on."""
        for slot in self._slots.values():
            row = self._store.read_now(
                lambda reading, name=slot.name: reading.get(DevicePolicyRow, name)  # type: ignore[misc]
            )
            if row is not None:
                slot.policy = row.policy
            self._begin(self._meet(slot))

    async def stop(self) -> None:
        """Stops asking."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def states(self) -> tuple[DeviceState, ...]:
        """Every device as it is now."""
        return tuple(
            DeviceState(slot.name, slot.device, slot.policy, slot.problem)
            for slot in self._slots.values()
        )

    async def set_policy(self, device: str, policy: str, *, actor: str) -> None:
        """Sets and keeps the policy of a device; "cuda" means every CUDA device.

        A measurement under way that it forbids gives way, if it can. Raises `InvalidRequest` for an
        unknown device or policy.
        """
        if policy not in POLICIES:
            raise InvalidRequest(f"must be one of {', '.join(POLICIES)}", field="policy")
        chosen = [
            slot
            for name, slot in self._slots.items()
            if name == device or (device == CUDA and name.startswith("cuda:"))
        ]
        if not chosen:
            known = ", ".join(self._slots) or "none"
            raise InvalidRequest(f"no device of that name here (known: {known})", field="device")
        now = self._clock()

        def keep(tx: Writing) -> None:
            for slot in chosen:
                tx.put(DevicePolicyRow(slot.name, policy, actor, now))
                tx.append(EventRow(0, "device_policy", slot.name, policy, actor, now))

        async def keep_and_follow() -> None:
            await self._store.write(keep)
            for slot in chosen:
                slot.policy = policy
                slot.idle_until_s = float("-inf")
                slot.is_busy = False
                logs.info("device_policy", device=slot.name, policy=policy, actor=actor)
                if slot.held_by and self._is_shut(slot):
                    self._interrupt(slot)
            self._announce()

        await to_its_end(keep_and_follow())

    def require(self, device: Device) -> None:
        """Raises `NoDevice` if no device here is, or may turn out to be, of this kind."""
        slots = self._slots.values()
        if any(slot.device == device or self._may_match(slot, device) for slot in slots):
            return
        # The power limit of a GPU is a part of it, and may be changed while it is used.
        late_s = self._monotonic() - HELLO_RETRY_S
        changed = [
            slot
            for slot in slots
            if isinstance(slot.device, CudaDevice) and slot.looked_at_s <= late_s
        ]
        if not isinstance(device, CudaDevice) or not changed:
            raise NoDevice("no device of this daemon matches the Target")
        for slot in changed:
            slot.is_looked_at, slot.looked_at_s = True, self._monotonic()
            self._begin(self._look(slot))

    async def may_use(self, device: Device) -> bool:
        """Whether the policy of a device of exactly this kind allows work on it now."""
        slots = [slot for slot in self._slots.values() if slot.device == device]
        return any([await self._may_run(slot) for slot in slots])

    def is_held_up(self, device: Device) -> bool:
        """Whether work on a device of exactly this kind waits for a policy, by what is known."""
        slots = [slot for slot in self._slots.values() if slot.device == device]
        return bool(slots) and all(self._is_shut(slot) for slot in slots)

    async def wait_for(self, device: Device) -> tuple[str, ...]:
        """Waits until a device of exactly this kind has answered: the names of those that have.

        Raises `NoDevice` if there is none.
        """
        while True:
            changed = self._changed
            names = tuple(s.name for s in self._slots.values() if s.device == device)
            if names:
                return names
            self.require(device)
            await changed.wait()

    @asynccontextmanager
    async def turn(self, device: Device, order: Order) -> AsyncGenerator[str, None]:
        """Holds the first device of exactly this kind (by waiting line) whose policy allows it.

        A refinement that holds it gives way, if it can, to what is more urgent. Raises `NoDevice`
        if there is none, or none any more.
        """
        while True:
            slot = await self._allowed(device)
            if order < (Priority.REFINEMENT,) <= slot.held_by:
                self._interrupt(slot)
            async with slot.turns.take(order):
                # The policy may have changed while this was waiting, and the device as well.
                if slot.device == device and await self._may_run(slot):
                    slot.held_by, slot.is_wanted = order, False
                    try:
                        yield slot.name
                    finally:
                        slot.held_by = ()
                    return

    async def run(
        self, name: str, request: worker_pb2.WorkerRequest, *, timeout_s: float
    ) -> worker_pb2.WorkerResponse:
        """Runs one job on a device whose turn is held.

        One that gives way is not begun once somebody else wants the device.
        """
        slot = self._slots[name]
        if slot.is_wanted and request.measure_hint.gives_way:
            return wire.refused(request, DeviceWanted())
        try:
            response = await self._bench.run(request, timeout_s=timeout_s, device=name)
        except WorkerStartFailed as error:  # the device may be gone
            _set_unusable(slot, error)
            raise
        slot.problem = ""
        return response

    def _begin(self, asking: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(asking)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _interrupt(self, slot: _Slot) -> None:
        slot.is_wanted = True
        self._bench.interrupt(slot.name)

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _allowed(self, device: Device) -> _Slot:
        """The one of this kind with the shortest line that may be used, as soon as one may.

        Which there are is asked each time: some may answer later than others.
        """
        while True:
            changed = self._changed
            slots = [self._slots[name] for name in await self.wait_for(device)]
            for slot in sorted(slots, key=lambda slot: slot.turns.waiting() + bool(slot.held_by)):
                if await self._may_run(slot):
                    return slot
            if all(slot.policy == "never" for slot in slots):
                await changed.wait()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_POLL_S):
                    await changed.wait()

    async def _may_run(self, slot: _Slot) -> bool:
        if slot.policy != "idle":
            return slot.policy == "always"
        if slot.device is not None and self._presence.is_serving(slot.device):
            return False
        if self._monotonic() >= slot.idle_until_s:
            slot.is_busy = not await self._is_idle(slot.address)
            if slot.is_busy:
                return False
            slot.idle_until_s = self._monotonic() + SPELL_S
        return True

    def _is_shut(self, slot: _Slot) -> bool:
        if slot.policy != "idle":
            return slot.policy == "never"
        return slot.is_busy or (slot.device is not None and self._presence.is_serving(slot.device))

    def _presence_changed(self, device: Device) -> None:
        """A client began to serve on such a device, or the last one has ended."""
        if self._presence.is_serving(device):
            for slot in self._slots.values():
                if slot.device == device and slot.policy == "idle":
                    slot.idle_until_s = float("-inf")
                    self._interrupt(slot)
        self._announce()

    @staticmethod
    def _may_match(slot: _Slot, device: Device) -> bool:
        is_cuda = isinstance(device, CudaDevice)
        is_met = slot.is_looked_at or (slot.device is None and not slot.problem)
        return is_met and slot.name.startswith(CUDA) == is_cuda

    async def _meet(self, slot: _Slot) -> None:
        while slot.device is None:
            try:
                pong = await self._bench.hello(slot.name)
            except WorkersError as error:
                _set_unusable(slot, error)
                self._announce()
                await asyncio.sleep(HELLO_RETRY_S)
                continue
            self._met(slot, pong)
            logs.info("device_ready", device=slot.name, ready_s=round(pong.ready_s, 2))

    async def _look(self, slot: _Slot) -> None:
        """Asks a worker anew what it runs on."""
        before = slot.device
        try:
            pong = await self._bench.look(slot.name)
        except WorkersError as error:
            _set_unusable(slot, error)
        else:
            self._met(slot, pong)
            if slot.device != before:
                logs.info("device_changed", device=slot.name, before=before, now=slot.device)
        finally:
            slot.is_looked_at = False
            self._announce()

    def _met(self, slot: _Slot, pong: worker_pb2.Pong) -> None:
        slot.device = convert.device_from_proto(pong.device)
        slot.address = pong.bus_id or slot.name
        slot.problem = ""
        slot.looked_at_s = self._monotonic()
        self._announce()


def _set_unusable(slot: _Slot, error: WorkersError) -> None:
    slot.problem = f"its worker does not start: {error}"
    logs.warning("device_unusable", device=slot.name, problem=slot.problem)


async def _is_idle(address: str) -> bool:
    if address == CPU:
        return os.getloadavg()[0] <= IDLE_LOAD * len(os.sched_getaffinity(0))
    utilisation = await _gpu_utilisation(address)
    return utilisation is not None and utilisation <= IDLE_UTILISATION_PERCENT


async def _gpu_utilisation(bus_id: str) -> int | None:
    command = ("nvidia-smi", f"--id={bus_id}", "--query-gpu=utilization.gpu")
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            "--format=csv,noheader,nounits",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(UTILISATION_LIMIT_S):
            output, _ = await process.communicate()
    except TimeoutError:  # as where a device fell off its bus
        return None
    finally:
        if process.returncode is None:
            process.kill()
            with suppress(TimeoutError):  # what hangs in its driver may not even end then
                async with asyncio.timeout(IDLE_POLL_S):
                    await process.wait()
    text = output.decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else None


def default_names(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The CPU, and each CUDA device that the kernel's driver shows and the environment does not
    hide.
    """
    try:
        nodes = [node.name.removeprefix("nvidia") for node in DEVICE_NODES.glob("nvidia*")]
    except OSError:
        nodes = []
    count = sum(map(str.isdecimal, nodes))
    visible = environment.get(VISIBLE)
    if visible is not None:
        count = min(count, len(_named(visible, count=count)))
    return (CPU, *(f"cuda:{index}" for index in range(count)))


def _named(visible: str, *, count: int) -> list[str]:
    """What a `CUDA_VISIBLE_DEVICES` names: numbers below `count`, GPU-UUID and MIG-UUID.

    The driver sees those before the first that is none (CUDA C++ Programming Guide, "CUDA
    Environment Variables").
    """

    def is_one(name: str) -> bool:
        is_number = name.isdecimal() and int(name) < count
        return is_number or name.startswith(("GPU-", "MIG-"))

    return list(itertools.takewhile(is_one, map(str.strip, visible.split(","))))
