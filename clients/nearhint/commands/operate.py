"""`nearhint pin | unpin | rollback | history | quarantine | release`: the operator's hand."""

from __future__ import annotations

from collections.abc import Sequence

import click

from nearhint.cli_output import counted, print_json, table, talk, when
from nearhint.commands.options import (
    actor,
    address_option,
    connected,
    examples,
    exits,
    json_option,
)
from nearhint.commands.pins import pins_json, print_pins
from nearhint.commands.sizes import read_dims
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2, types_pb2
from nearhint_rules.beyond import own_hints

target_option = click.option(
    "--target",
    default="",
    metavar="ID",
    help="The Target, or the first digits of it, where the Kernel has Tables for several.",
)
at_option = click.option("--at", help="Sizes, by the Kernel's symbols: k0=64,k1=1024.")
variant_option = click.option(
    "--variant", metavar="ID|SCHEDULE", help="A Variant: 4 digits of its identity, or its Schedule."
)


@click.command(
    epilog=examples(
        "nearhint pin 3fa9 --variant 77c0 --at k0=64,k1=1024", "nearhint pin 3fa9 --fallback"
    )
)
@click.argument("kernel")
@at_option
@variant_option
@click.option("--fallback", is_flag=True, help="Pin the original ops.")
@target_option
@address_option
@json_option
@exits
def pin(
    kernel: str,
    at: str | None,
    variant: str | None,
    fallback: bool,
    target: str,
    address: str | None,
    as_json: bool,
) -> None:
    """Fix what runs for KERNEL: a Variant, or the original ops.

    At the bucket of --at, or at all sizes. A Variant runs where its Guard holds. A pin stays until
    `nearhint unpin`, over tuning and restarts; it goes if its Variant is rejected or quarantined.
    """
    if (variant is None) != fallback:
        raise click.UsageError("give either --variant or --fallback")
    request = admin_service_pb2.PinVariantRequest(
        kernel=kernel, at=_at(at), target_id=target, actor=actor()
    )
    if variant is None:
        request.fallback = True
    else:
        request.variant = variant
    with connected(address) as connection:
        answer = connection.pin_variant(request)
    _pins(answer.table, as_json=as_json)


@click.command(epilog=examples("nearhint unpin 3fa9 --at k0=64,k1=1024", "nearhint unpin 3fa9"))
@click.argument("kernel")
@at_option
@target_option
@address_option
@json_option
@exits
def unpin(kernel: str, at: str | None, target: str, address: str | None, as_json: bool) -> None:
    """Take the pin of KERNEL off at the bucket of --at; without it, all of its pins."""
    request = admin_service_pb2.UnpinVariantRequest(
        kernel=kernel, at=_at(at), target_id=target, actor=actor()
    )
    with connected(address) as connection:
        answer = connection.unpin_variant(request)
    _pins(answer.table, as_json=as_json)


@click.command(
    epilog=examples("nearhint rollback 3fa9 --to 1742", "nearhint rollback 3fa9 --to 1742 --json")
)
@click.argument("kernel")
@click.option(
    "--to",
    "generation",
    type=click.IntRange(min=1, max=2**62 - 1),
    required=True,
    help="The generation.",
)
@target_option
@address_option
@json_option
@exits
def rollback(kernel: str, generation: int, target: str, address: str | None, as_json: bool) -> None:
    """Publish the Table again that KERNEL had at a generation, its pins as well.

    `nearhint history` lists those that are kept. Tuning goes on from it. What was rejected or
    quarantined since does not come back.
    """
    request = admin_service_pb2.RollBackTableRequest(
        kernel=kernel, generation=generation, target_id=target, actor=actor()
    )
    with connected(address) as connection:
        answer = connection.roll_back_table(request)
    each = convert.table_from_proto(answer.table)
    if as_json:
        left_out = list(answer.left_out)
        print_json({**_head(answer.table), "restored": generation, "left_out": left_out})
        return
    table(
        ["kernel", "target", "restored #", "now generation #", "variants #", "hints #", "pins #"],
        [
            (
                each.kernel[:12],
                each.target[:12],
                generation,
                each.generation,
                len(each.variants),
                len(own_hints(each)),
                len(each.pins),
            )
        ],
    )
    for line in answer.left_out:
        talk(f"left out: {line}")


@click.command(epilog=examples("nearhint history 3fa9", "nearhint history 3fa9 --json"))
@click.argument("kernel")
@target_option
@address_option
@json_option
@exits
def history(kernel: str, target: str, address: str | None, as_json: bool) -> None:
    """List the generations of KERNEL's Tables that are kept, and what operators did to it.

    Who did it is what the command said: over a unix socket the daemon cannot tell.
    """
    request = admin_service_pb2.ListGenerationsRequest(kernel=kernel, target_id=target)
    with connected(address) as connection:
        answer = connection.list_generations(request)
    if as_json:
        print_json(
            {
                "generations": [_generation_json(each) for each in answer.generations],
                "acts": [_act_json(each) for each in answer.acts],
            }
        )
        return
    table(
        ["generation #", "published", "target", "tier", "hints #", "what changed"],
        [
            (
                each.generation,
                when(each.published_at_s),
                each.target_id[:12],
                f"T{each.tier}",
                each.hints,
                each.change,
            )
            for each in answer.generations
        ],
        title="generations that are kept",
    )
    table(
        ["change #", "when", "who", "what", "target", "subject", "detail"],
        [
            (
                each.seq,
                when(each.at_s),
                each.actor,
                each.kind,
                each.target_id[:12],
                each.subject[:12] or "original ops",
                each.detail,
            )
            for each in answer.acts
        ],
        title="acts",
    )


@click.command(
    epilog=examples(
        "nearhint quarantine 3fa9 --variant 77c0 --reason 'wrong for odd rows, ticket 12'",
        "nearhint quarantine --list",
    )
)
@click.argument("kernel", required=False)
@variant_option
@click.option("--reason", help="Why, for the record.")
@click.option("--list", "is_list", is_flag=True, help="List what is quarantined (of KERNEL).")
@target_option
@address_option
@json_option
@exits
def quarantine(
    kernel: str | None,
    variant: str | None,
    reason: str | None,
    is_list: bool,
    target: str,
    address: str | None,
    as_json: bool,
) -> None:
    """Bar a Variant of KERNEL: it is no longer built, measured or served, until it is released.

    It leaves the Table at once. If it was the default, another one that was measured takes its
    place; hints at which that was not measured are tuned again.
    """
    if is_list:
        if variant is not None or reason is not None:
            raise click.UsageError("--list takes neither --variant nor --reason")
        listing = admin_service_pb2.ListQuarantineRequest(kernel=kernel or "", target_id=target)
        with connected(address) as connection:
            rows = connection.list_quarantine(listing).quarantined
        # A daemon of an earlier version lists all.
        chosen = [row for row in rows if row.target_id.startswith(target)]
        _quarantined(chosen, title="quarantined", as_json=as_json)
        return
    if kernel is None or not variant or not reason:
        raise click.UsageError("give KERNEL, --variant and --reason, or --list")
    request = admin_service_pb2.QuarantineVariantRequest(
        kernel=kernel, variant=variant, reason=reason, target_id=target, actor=actor()
    )
    with connected(address) as connection:
        answer = connection.quarantine_variant(request)
    _quarantined(
        [answer.quarantined], title="quarantined", as_json=as_json, retuning=answer.retuning
    )


@click.command(
    epilog=examples(
        "nearhint release 3fa9 --variant 77c0", "nearhint release 3fa9 --variant 77c0 --json"
    )
)
@click.argument("kernel")
@click.option(
    "--variant",
    metavar="ID|SCHEDULE",
    required=True,
    help="A Variant: 4 digits of its identity, or its Schedule.",
)
@target_option
@address_option
@json_option
@exits
def release(kernel: str, variant: str, target: str, address: str | None, as_json: bool) -> None:
    """Lift the quarantine of a Variant of KERNEL; its hints are tuned again with it among them."""
    request = admin_service_pb2.ReleaseVariantRequest(
        kernel=kernel, variant=variant, target_id=target, actor=actor()
    )
    with connected(address) as connection:
        answer = connection.release_variant(request)
    _quarantined([answer.released], title="released", as_json=as_json, retuning=answer.retuning)


def _at(text: str | None) -> types_pb2.SizeHint | None:
    """Sizes as a message; none where the option is not given."""
    return None if text is None else convert.size_hint_to_proto(read_dims(text, option="--at"))


def _head(message: types_pb2.Table) -> dict[str, object]:
    each = convert.table_from_proto(message)
    return {
        "kernel": each.kernel,
        "target": each.target,
        "generation": each.generation,
        "default": each.variants[each.default].id if each.default >= 0 else None,
        "hints": [dict(zip(each.symbols, row.dims, strict=True)) for row in own_hints(each)],
        "pins": pins_json(each),
    }


def _pins(message: types_pb2.Table, *, as_json: bool) -> None:
    if as_json:
        print_json(_head(message))
        return
    print_pins(convert.table_from_proto(message))


def _quarantined(
    rows: Sequence[admin_service_pb2.QuarantinedVariant],
    *,
    title: str,
    as_json: bool,
    retuning: int | None = None,
) -> None:
    if as_json:
        queued = {} if retuning is None else {"retuning_jobs": retuning}
        print_json({"quarantined": [_quarantined_json(row) for row in rows], **queued})
        return
    table(
        ["kernel", "target", "variant", "schedule", "since", "who", "why", "reproducer"],
        [
            (
                row.kernel[:12],
                row.target_id[:12],
                row.variant[:12],
                row.schedule,
                when(row.at_s),
                row.actor,
                row.reason,
                row.reproducer,
            )
            for row in rows
        ],
        title=title,
    )
    if retuning:
        talk(f"{counted(retuning, 'job')} queued to tune again")


def _quarantined_json(row: admin_service_pb2.QuarantinedVariant) -> dict[str, object]:
    return {
        "kernel": row.kernel,
        "target": row.target_id,
        "variant": row.variant or None,
        "schedule": row.schedule,
        "reason": row.reason,
        "actor": row.actor,
        "at_s": row.at_s,
        "reproducer": row.reproducer,
    }


def _generation_json(each: admin_service_pb2.Generation) -> dict[str, object]:
    return {
        "target": each.target_id,
        "generation": each.generation,
        "published_at_s": each.published_at_s,
        "tier": each.tier,
        "hints": each.hints,
        "change": each.change,
    }


def _act_json(each: admin_service_pb2.Act) -> dict[str, object]:
    return {
        "seq": each.seq,
        "actor": each.actor,
        "at_s": each.at_s,
        "kind": each.kind,
        "kernel": each.kernel,
        "target": each.target_id,
        "subject": each.subject,
        "detail": each.detail,
    }
