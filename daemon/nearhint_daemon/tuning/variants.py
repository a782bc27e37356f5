"""Variants: built once for each (Kernel, Schedule, Target, compiler version), verified once.

What fails is kept as rejected, with the reason, and never gets near a Table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from nearhint_daemon import logs
from nearhint_daemon.errors import (
    ArtifactCorrupt,
    ArtifactUnknown,
    BudgetSpent,
    TableChanged,
    WorkerRefused,
)
from nearhint_daemon.operating.quarantine import Quarantine
from nearhint_daemon.store import Store, Writing
from nearhint_daemon.store.rows import KernelRow, VariantRow
from nearhint_daemon.tuning import budgets
from nearhint_daemon.turns import Order
from nearhint_daemon.workers.errors import WorkerLost
from nearhint_daemon.workshop import Workshop
from nearhint_proto import convert
from nearhint_proto.v1 import types_pb2
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.canonical import content_hash, identity
from nearhint_rules.errors import RulesError
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.table import Variant
from nearhint_rules.target import Target

AnswerT = TypeVar("AnswerT", pb.Compiled, pb.Verdict)
VariantKey = tuple[str, str, str, str, str]
LOST = "its binary was lost and cannot be restored"
"""Why a Variant is rejected that cannot be made again."""


def variant_id(kernel: str, target: str, schedule: str, artifact: str) -> str:
    """A Variant's identity: Kernel, Target, Schedule and the binary's hash."""
    return identity("nearhint.variant.v1", (kernel, target, schedule, artifact))


class Variants:
    """Builds and verifies Variants, one of a key at a time however many ask."""

    def __init__(
        self,
        store: Store,
        workshop: Workshop,
        quarantine: Quarantine,
        *,
        compiler_version: str,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._workshop = workshop
        self._quarantine = quarantine
        self._compiler_version = compiler_version
        self._clock = clock
        self._flights: dict[tuple[str, VariantKey], asyncio.Task[VariantRow]] = {}

    async def built(
        self, kernel: KernelRow, schedule: str, target: Target, *, order: Order
    ) -> VariantRow:
        """The Variant, compiled if it never was; its state may be "rejected"."""
        key = self._key(kernel, schedule, target)
        row = self._store.read_now(lambda reading: reading.get(VariantRow, *key))
        if row is None:
            barred = self._unless_barred(self._unbuilt(kernel, schedule, target))
            if barred.problem:
                return barred
            row = await self._single_flight(
                ("build", key), lambda: self._build(kernel, schedule, target, order=order)
            )
        return self._unless_barred(row)

    async def verified(
        self,
        row: VariantRow,
        kernel: KernelRow,
        target: Target,
        sizes: Mapping[str, int],
        *,
        threads: int,
        order: Order,
    ) -> VariantRow:
        """The Variant once it was compared with its IR; its state may be "rejected".

        It stays "compiled" where its Guard allows none of the sizes that it could be run at.
        """
        key = self._key(kernel, row.schedule, target)
        while True:
            row = self._store.read_now(lambda reading: reading.get(VariantRow, *key)) or row
            row = self._unless_barred(row)
            if row.state != "compiled":
                return row
            found = await self._single_flight(
                ("verify", key),
                partial(
                    self._verify,
                    row,
                    kernel,
                    target,
                    sizes,
                    threads=threads,
                    order=order,
                ),
            )
            if found.state != "compiled" or not _may_run(row, sizes):
                return found  # else it was another's attempt, at sizes that are not its own

    async def candidate(self, row: VariantRow) -> pb.Candidate:
        """The Variant as a worker gets it; raises `ArtifactCorrupt` or `ArtifactUnknown`."""
        message = types_pb2.Variant.FromString(row.message)
        binary = await self._store.get_artifact(row.artifact)
        return pb.Candidate(
            id=row.id,
            binary=pb.BinaryCandidate(
                artifact=message.artifact, binary=binary, guard=message.guard
            ),
        )

    async def at_hand(
        self, row: VariantRow, kernel: KernelRow, target: Target
    ) -> pb.Candidate | None:
        """The same, its binary made again where it was lost; None where it cannot be.

        Raises `TableChanged` where it makes room as soon as it is there.
        """
        try:
            return await self.candidate(row)
        except (ArtifactCorrupt, ArtifactUnknown):
            if not await self.restored(row, kernel, target):
                return None
        try:
            return await self.candidate(row)
        except (ArtifactCorrupt, ArtifactUnknown):
            raise TableChanged("the binary of a Variant made room again and again") from None

    async def reject(self, row: VariantRow, problem: str) -> VariantRow:
        """Keeps that a Variant that was never served must not be used, and why."""
        rejected = replace(row, state="rejected", problem=problem[:1000])
        await self._store.write(lambda tx: tx.put(rejected))
        logs.warning("variant_rejected", kernel=row.kernel, schedule=row.schedule, problem=problem)
        return rejected

    def is_barred(self, row: VariantRow) -> bool:
        """Whether an operator quarantined it."""
        return self._quarantine.bar_on(row) is not None

    async def restored(self, row: VariantRow, kernel: KernelRow, target: Target) -> bool:
        """Compiles a Variant whose binary was lost; whether the very same bytes came out.

        Another release's compiler may refuse its Schedule. What was forgotten with its binary is
        known again.
        """
        try:
            compiled = await self._workshop.compile(kernel.ir, row.schedule, target, order=(0, 0))
        except WorkerRefused as refusal:
            logs.warning("not_restored", schedule=row.schedule, problem=str(refusal))
            return False
        if content_hash(compiled.binary) != row.artifact:
            return False
        await self._store.put_artifact(compiled.binary)
        key = (row.namespace, row.kernel, row.target, row.schedule, row.compiler_version)

        def know(tx: Writing) -> None:
            if tx.get(VariantRow, *key) is None:
                tx.put(row)

        await self._store.write(know)
        return True

    def _key(self, kernel: KernelRow, schedule: str, target: Target) -> VariantKey:
        return (kernel.namespace, kernel.id, target.id, schedule, self._compiler_version)

    def _unless_barred(self, row: VariantRow) -> VariantRow:
        """The Variant, rejected for as long as an operator bars it; what is stored stays."""
        bar = self._quarantine.bar_on(row)
        if bar is None:
            return row
        problem = f"quarantined by {bar.actor}: {bar.reason}"
        return replace(row, state="rejected", problem=problem)

    async def _single_flight(
        self, key: tuple[str, VariantKey], work: Callable[[], Awaitable[VariantRow]]
    ) -> VariantRow:
        while True:
            task = self._flights.get(key)
            # One that has just ended was another's: to take part in it again and again would let
            # nobody in, whoever takes it away included.
            if task is None or task.done():
                task = asyncio.ensure_future(work())
                self._flights[key] = task
                task.add_done_callback(lambda done: self._land(key, done))
            try:
                # Whoever asked first may go away; the others' answer comes all the same.
                return await asyncio.shield(task)
            except BudgetSpent:
                budgets.check()  # it was another's: now it is ours

    def _land(self, key: tuple[str, VariantKey], task: asyncio.Task[VariantRow]) -> None:
        if self._flights.get(key) is task:
            del self._flights[key]
        if not task.cancelled():
            task.exception()  # seen by those who wait; nobody may be left

    def _unbuilt(self, kernel: KernelRow, schedule: str, target: Target) -> VariantRow:
        namespace, kernel_id, target_id, _, version = self._key(kernel, schedule, target)
        return VariantRow(
            namespace=namespace,
            kernel=kernel_id,
            target=target_id,
            schedule=schedule,
            compiler_version=version,
            id="",
            artifact="",
            message=b"",
            state="rejected",
            problem="",
            created_at_s=self._clock(),
        )

    async def _build(
        self, kernel: KernelRow, schedule: str, target: Target, *, order: Order
    ) -> VariantRow:
        row = self._unbuilt(kernel, schedule, target)
        compiled = await self._attempt(
            row, lambda: self._workshop.compile(kernel.ir, schedule, target, order=order)
        )
        if isinstance(compiled, VariantRow):
            return compiled
        try:
            artifact = convert.artifact_from_proto(compiled.artifact)
            guard = convert.guard_from_proto(compiled.guard)
        except RulesError as error:
            return await self.reject(row, f"the worker's answer is invalid: {error}")
        sha256 = content_hash(compiled.binary)
        if artifact.sha256 != sha256 or artifact.size_bytes != len(compiled.binary):
            return await self.reject(row, "the binary does not have the announced hash")
        await self._store.put_artifact(compiled.binary)
        variant = Variant(
            variant_id(row.kernel, row.target, schedule, sha256), schedule, guard, artifact
        )
        built = replace(
            row,
            id=variant.id,
            artifact=sha256,
            message=convert.variant_to_proto(variant).SerializeToString(),
            state="compiled",
        )
        await self._store.write(lambda tx: tx.put(built))
        return built

    async def _verify(
        self,
        row: VariantRow,
        kernel: KernelRow,
        target: Target,
        sizes: Mapping[str, int],
        *,
        threads: int,
        order: Order,
    ) -> VariantRow:
        candidate = await self.at_hand(row, kernel, target)
        if candidate is None:
            return await self.reject(row, LOST)
        verdict = await self._attempt(
            row,
            lambda: self._workshop.verify(
                kernel.ir,
                candidate,
                sizes,
                threads=threads,
                device=target.device,
                order=order,
                check=lambda: self._quarantine.check([row]),
            ),
        )
        if isinstance(verdict, VariantRow):
            return verdict
        if not verdict.is_ok and not verdict.cases and not _may_run(row, sizes):
            return replace(row, problem=verdict.problem)  # it may at other hints
        if not verdict.is_ok:
            files = {"kernel.ir": kernel.ir, "schedule.txt": row.schedule}
            folder = self._quarantine.keep_rejected(quarantine_key(row), files)
            return await self.reject(row, f"wrong: {verdict.problem}; reproducer: {folder}")
        verified = replace(row, state="verified")
        await self._store.write(lambda tx: tx.put(verified))
        return verified

    async def _attempt(
        self, row: VariantRow, work: Callable[[], Awaitable[AnswerT]]
    ) -> AnswerT | VariantRow:
        """The answer, or the rejected row; after a lost worker until the key is given up."""
        while True:
            try:
                return await work()
            except WorkerRefused as refusal:
                folder = self._quarantine.keep_rejected(quarantine_key(row), refusal.reproducer)
                return await self.reject(row, f"{refusal}; reproducer: {folder}")
            except WorkerLost as loss:
                key = quarantine_key(row)
                given_up = await self._quarantine.lost(key, kind="variant", loss=loss)
            if given_up is not None:
                problem = f"{given_up.reason}; reproducer: {given_up.reproducer}"
                return await self.reject(row, problem)


def _may_run(row: VariantRow, sizes: Mapping[str, int]) -> bool:
    """Whether the sizes are what a Variant needs."""
    guard = types_pb2.Variant.FromString(row.message).guard
    return size_facts_hold(convert.guard_from_proto(guard), sizes)


def quarantine_key(row: VariantRow) -> str:
    """The key under which a Variant is given up that ended its workers."""
    return f"variant/{row.namespace}/{row.kernel}/{row.target}/{row.schedule}"
