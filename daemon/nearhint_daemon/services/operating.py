"""The calls of AdminService by which operators decide what runs: pins, rollbacks, quarantine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby, islice

from nearhint_daemon.core import Core
from nearhint_daemon.errors import InvalidRequest, KernelUnknown
from nearhint_daemon.operating.history import change
from nearhint_daemon.operating.named import DIGITS, no_table
from nearhint_daemon.services.boundary import Context
from nearhint_daemon.services.requests import read_namespace, read_sizes, read_text
from nearhint_daemon.store import Reading, queries
from nearhint_daemon.store.rows import (
    ActRow,
    KernelRow,
    QuarantinedVariantRow,
    QuarantineRow,
    TableRow,
    TargetRow,
)
from nearhint_daemon.store.store import DAEMON
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2 as pb
from nearhint_proto.v1 import types_pb2
from nearhint_rules.beyond import own_hints
from nearhint_rules.table import Table

PREFIX = re.compile(r"[0-9a-f]{4,64}")
TARGET_PREFIX = re.compile(r"[0-9a-f]{0,64}")
NAME_LIMIT = 4096
REASON_LIMIT = 500
ACTS_LIMIT = 200
LISTED_LIMIT = 1000
GENERATION_LIMIT = 2**62
_WHERE_LISTED = "`nearhint kernels` lists them"
NOBODY = "unknown"
"""Who did what nobody signed. A unix socket's gRPC tells the daemon no uid of its peer."""


class OperatingCalls:
    """What operators decide."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def PinVariant(  # noqa: N802 - the protocol's name
        self, request: pb.PinVariantRequest, context: Context
    ) -> pb.PinVariantResponse:
        """Pins a Variant or the Fallback."""
        kernel = await self.find(read_namespace(request.namespace), request.kernel)
        subject = request.WhichOneof("subject")
        if subject is None or (subject == "fallback" and not request.fallback):
            raise InvalidRequest("must name a Variant or say the Fallback", field="variant")
        table = await self._core.interventions.pin(
            kernel,
            _name(request.variant) if subject == "variant" else None,
            at=read_sizes(request.at, field="at") if request.HasField("at") else None,
            target=_target(request.target_id),
            actor=_actor(request.actor),
        )
        return pb.PinVariantResponse(table=convert.table_to_proto(table))

    async def UnpinVariant(  # noqa: N802 - the protocol's name
        self, request: pb.UnpinVariantRequest, context: Context
    ) -> pb.UnpinVariantResponse:
        """Takes pins off."""
        kernel = await self.find(read_namespace(request.namespace), request.kernel)
        table = await self._core.interventions.unpin(
            kernel,
            at=read_sizes(request.at, field="at") if request.HasField("at") else None,
            target=_target(request.target_id),
            actor=_actor(request.actor),
        )
        return pb.UnpinVariantResponse(table=convert.table_to_proto(table))

    async def RollBackTable(  # noqa: N802 - the protocol's name
        self, request: pb.RollBackTableRequest, context: Context
    ) -> pb.RollBackTableResponse:
        """Publishes an earlier Table again."""
        kernel = await self.find(read_namespace(request.namespace), request.kernel)
        if not 0 < request.generation < GENERATION_LIMIT:
            raise InvalidRequest("must be the number of a generation", field="generation")
        done = await self._core.interventions.roll_back(
            kernel,
            request.generation,
            target=_target(request.target_id),
            actor=_actor(request.actor),
        )
        return pb.RollBackTableResponse(
            table=convert.table_to_proto(done.table), left_out=done.left_out
        )

    async def ListGenerations(  # noqa: N802 - the protocol's name
        self, request: pb.ListGenerationsRequest, context: Context
    ) -> pb.ListGenerationsResponse:
        """The generations that are kept, and what was done to the Kernel."""
        namespace = read_namespace(request.namespace)
        kernel = await self.find(namespace, request.kernel)
        target = _target(request.target_id)

        def read(reading: Reading) -> tuple[list[pb.Generation], list[pb.Act]]:
            rows = queries.tables_kept(reading, namespace, kernel.id)
            acts = queries.acts_on(reading, namespace, kernel.id, target=target, limit=ACTS_LIMIT)
            return (
                _generations(row for row in rows if row.target.startswith(target)),
                [_act(row) for row in acts],
            )

        generations, acts = await self._core.store.read(read)
        if target and not generations and not acts:
            raise no_table(self._core.tables.of_kernel(namespace, kernel.id))
        return pb.ListGenerationsResponse(generations=generations, acts=acts)

    async def QuarantineVariant(  # noqa: N802 - the protocol's name
        self, request: pb.QuarantineVariantRequest, context: Context
    ) -> pb.QuarantineVariantResponse:
        """Bars a Variant."""
        kernel = await self.find(read_namespace(request.namespace), request.kernel)
        reason = read_text(request.reason, field="reason", limit=REASON_LIMIT)
        if not reason.strip():
            raise InvalidRequest("must say why", field="reason")
        done = await self._core.interventions.quarantine(
            kernel,
            _name(request.variant),
            reason=reason,
            target=_target(request.target_id),
            actor=_actor(request.actor),
        )
        return pb.QuarantineVariantResponse(
            quarantined=_quarantined(done.row),
            table=None if done.table is None else convert.table_to_proto(done.table),
            retuning=done.retuning,
        )

    async def ReleaseVariant(  # noqa: N802 - the protocol's name
        self, request: pb.ReleaseVariantRequest, context: Context
    ) -> pb.ReleaseVariantResponse:
        """Lifts an operator's quarantine."""
        kernel = await self.find(read_namespace(request.namespace), request.kernel)
        done = await self._core.interventions.release(
            kernel,
            _name(request.variant),
            target=_target(request.target_id),
            actor=_actor(request.actor),
        )
        return pb.ReleaseVariantResponse(released=_quarantined(done.row), retuning=done.retuning)

    async def ListQuarantine(  # noqa: N802 - the protocol's name
        self, request: pb.ListQuarantineRequest, context: Context
    ) -> pb.ListQuarantineResponse:
        """What operators barred, and what the daemon gave up on."""
        namespace = read_namespace(request.namespace)
        kernel = (await self.find(namespace, request.kernel)).id if request.kernel else ""
        target = _target(request.target_id)

        folder_of = self._core.quarantine.folder_of

        def read(reading: Reading) -> list[pb.QuarantinedVariant]:
            barred = queries.quarantined_variants(
                reading, namespace, kernel, target=target, limit=LISTED_LIMIT
            )
            mine = (
                message
                for row in queries.quarantined_keys(reading)
                for space, message in [_given_up(row, folder_of(row))]
                if space == namespace
                and kernel in ("", message.kernel)
                and message.target_id.startswith(target)
            )
            both = [*map(_quarantined, barred), *islice(mine, LISTED_LIMIT)]
            if not both:
                _check_known(reading, target)
            return sorted(both, key=lambda each: -each.at_s)[:LISTED_LIMIT]

        return pb.ListQuarantineResponse(quarantined=await self._core.store.read(read))

    async def find(self, namespace: str, prefix: str) -> KernelRow:
        """The Kernel whose identity starts so; raises `InvalidRequest` or `KernelUnknown`."""
        if not PREFIX.fullmatch(prefix):
            problem = "must be 4 to 64 hex digits, as a Kernel's identity begins"
            raise InvalidRequest(problem, field="kernel", hint=_WHERE_LISTED)
        rows = await self._core.store.read(
            lambda reading: queries.kernels_with_prefix(reading, namespace, prefix)
        )
        match rows:
            case []:
                raise KernelUnknown("no Kernel of that name", field="kernel")
            case [row]:
                return row
            case _:
                problem = "several Kernels start so; give more digits"
                raise InvalidRequest(problem, field="kernel", hint=_WHERE_LISTED)


def _name(text: str) -> str:
    if len(text) < 4:
        raise InvalidRequest("must be 4 digits of an identity, or a Schedule", field="variant")
    return read_text(text, field="variant", limit=NAME_LIMIT)


def _target(text: str) -> str:
    if not TARGET_PREFIX.fullmatch(text):
        raise InvalidRequest("must be hex digits", field="target_id")
    return text


def _check_known(reading: Reading, target: str) -> None:
    """Raises `KernelUnknown` for the name of a Target unless one that is known starts so."""
    known = sorted(row.id for row in reading.where(TargetRow))
    if target and not any(each.startswith(target) for each in known):
        listed = ", ".join(each[:DIGITS] for each in known) or "none"
        problem = f"no Target of that name; known: {listed}"
        raise KernelUnknown(problem, field="target_id", hint="name one of these Targets")


def _actor(text: str) -> str:
    return read_text(text, field="actor") or NOBODY


def _generations(rows: Iterable[TableRow]) -> list[pb.Generation]:
    """Newest first; `rows` come by Target, the oldest first."""
    found: list[pb.Generation] = []
    for target, kept in groupby(rows, key=lambda row: row.target):
        before: Table | None = None
        for row in kept:
            table = convert.table_from_proto(types_pb2.Table.FromString(row.message))
            found.append(
                pb.Generation(
                    target_id=target,
                    generation=row.generation,
                    published_at_s=row.created_at_s,
                    tier=row.tier,
                    hints=len(own_hints(table)),
                    change=change(before, table),
                )
            )
            before = table
    return sorted(found, key=lambda each: -each.generation)


def _act(row: ActRow) -> pb.Act:
    return pb.Act(
        seq=row.seq,
        actor=row.actor,
        at_s=row.at_s,
        kind=row.kind,
        kernel=row.kernel,
        target_id=row.target,
        subject=row.subject,
        detail=row.detail,
    )


def _quarantined(row: QuarantinedVariantRow) -> pb.QuarantinedVariant:
    return pb.QuarantinedVariant(
        kernel=row.kernel,
        target_id=row.target,
        variant=row.variant,
        schedule=row.schedule,
        reason=row.reason,
        actor=row.actor,
        at_s=row.at_s,
    )


def _given_up(row: QuarantineRow, folder: str) -> tuple[str, pb.QuarantinedVariant]:
    """What was given up, with its reproducer's folder, and whose namespace it is.

    Of a Variant the key is variant/NAMESPACE/KERNEL/TARGET/SCHEDULE. All others, of Programs and of
    Fallbacks, are told as they are: KIND/NAMESPACE/HASH and what may follow.
    """
    key = row.key.removeprefix(f"{row.kind}/")
    # A namespace may hold slashes, as a Schedule may; the hashes between them do not.
    match = _VARIANT.fullmatch(key) if row.kind == "variant" else None
    if match is not None:
        namespace, kernel, target, schedule = match.groups()
    else:
        other = _OTHER.fullmatch(key)
        namespace = other[1] if other else ""
        kernel, target, schedule = "", "", f"{row.kind}/{key}"
    return namespace, pb.QuarantinedVariant(
        kernel=kernel,
        target_id=target,
        schedule=schedule,
        reason=row.reason,
        actor=DAEMON,
        at_s=row.created_at_s,
        reproducer=folder,
    )


_VARIANT = re.compile(r"(.*?)/([0-9a-f]{64})/([0-9a-f]{64})/(.*)", re.DOTALL)
_OTHER = re.compile(r"(.*?)/[0-9a-f]{64}(?:/.*)?", re.DOTALL)
