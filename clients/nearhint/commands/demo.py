"""`nearhint demo`: a real model on real sentences, through a daemon of its own."""

from __future__ import annotations

import click

from nearhint import extras
from nearhint.commands.options import SECONDS, check_enabled, examples, exits, json_option
from nearhint.commands.sizes import read_pairs
from nearhint.exit_codes import ExitCode


@click.command(
    epilog=examples(
        "nearhint demo",
        "nearhint demo --compare inductor --json",
        "nearhint demo --device cuda --model ./my-model --sizes 'batch=1,16;tokens=12,60'",
    )
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where."
)
@click.option(
    "--compare", type=click.Choice(["inductor"]), help="Also time torch.compile(dynamic=True)."
)
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False),
    help="A directory as sentence-transformers saves one; else all-MiniLM-L6-v2 from its package.",
)
@click.option(
    "--sizes",
    help="What to encode, all combinations: 'batch=1,8;tokens=16,64'; else a pinned list.",
)
@click.option(
    "--settle-timeout-s",
    type=SECONDS,
    default=600.0,
    show_default=True,
    help="Go on with what is tuned after so many seconds.",
)
@json_option
@exits
def demo(
    device: str,
    compare: str | None,
    model: str | None,
    sizes: str | None,
    settle_timeout_s: float,
    as_json: bool,
) -> ExitCode:
    """Encode real sentences of every length with a real model, through a daemon of its own.

    Cold, then warm, then from a second process, then after the daemon was killed and started
    again. Needs nearhint[daemon,torch,demo].
    """
    check_enabled()
    module = extras.load("nearhint.demo", what="nearhint demo", extra="daemon,torch,demo")
    options = module.DemoOptions(
        device=device,
        compare=compare or "",
        model=model or "",
        sizes=read_pairs(sizes) if sizes else (),
        settle_timeout_s=settle_timeout_s,
    )
    report = module.run(options)
    click.echo(module.as_json(report) if as_json else module.as_table(report))
    return ExitCode.OK
