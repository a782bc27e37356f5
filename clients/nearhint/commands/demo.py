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
    "--budget-s",
    type=SECONDS,
    default=270.0,
    show_default=True,
    help="Seconds for all of it, which decide how long is tuned and how often is timed.",
)
@click.option(
    "--settle-timeout-s",
    type=SECONDS,
    help="Go on with what is tuned after so many seconds, if the budget does not say so before.",
)
@click.option(
    "--repetitions",
    type=click.IntRange(min=1),
    default=21,
    show_default=True,
    help="Time each size so often, if the budget allows.",
)
@json_option
@exits
def demo(
    device: str,
    compare: str | None,
    model: str | None,
    sizes: str | None,
    budget_s: float,
    settle_timeout_s: float | None,
    repetitions: int,
    as_json: bool,
) -> ExitCode:
    """Encode real sentences of every length with a real model, through a daemon of its own.

    Cold, then warm, then from a second process, then after the daemon was killed and started
    again. What each phase found is printed when it ends. Needs nearhint[daemon,torch,demo].
    """
    check_enabled()
    module = extras.load("nearhint.demo", what="nearhint demo", extra="daemon,torch,demo")
    options = module.DemoOptions(
        device=device,
        compare=compare or "",
        model=model or "",
        sizes=read_pairs(sizes) if sizes else (),
        budget_s=budget_s,
        settle_timeout_s=settle_timeout_s,
        repetitions=repetitions,
    )
    report = module.run(options, tell=_keep if as_json else click.echo)
    if as_json:
        click.echo(module.as_json(report))
    return ExitCode.OK


def _keep(_found: str) -> None:
    """What a phase found is in the report, which is printed whole."""
