"""`nearhint` on the command line: data on stdout, talk on stderr, exit codes with a meaning.

0 ok   1 failed   2 usage   3 daemon unreachable   4 not found   5 integrity   6 refused
7 partial (work that left something)   130 interrupted   141 nobody reads on
"""

from __future__ import annotations

import click

from nearhint.cli_output import Commands
from nearhint.commands.demo import demo
from nearhint.commands.explain import explain
from nearhint.commands.operate import history, pin, quarantine, release, rollback, unpin
from nearhint.commands.options import examples
from nearhint.commands.regret import regret
from nearhint.commands.status import kernels, policy, status
from nearhint.commands.warmup import warmup
from nearhint.version import VERSION


@click.group(
    cls=Commands,
    epilog=examples(
        "nearhint status",
        "nearhint kernels --json",
        "nearhint explain 3fa9 --dims k0=4096,k1=384",
        "nearhint regret 3fa9 --sizes 200",
        "nearhint policy cuda:0 never",
        "nearhint pin 3fa9 --fallback",
        "nearhint demo",
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(VERSION, prog_name="nearhint")
def main() -> None:
    """Kernels tuned per shape, for models that are already deployed.

    Exit codes: 0 ok, 1 failed, 2 usage, 3 daemon unreachable, 4 not found, 5 integrity problem,
    6 refused, 7 partial, 130 interrupted, 141 nobody reads on (as after `| head`).
    """


_OPERATING = (pin, unpin, history, rollback, quarantine, release)
for _command in (status, kernels, explain, regret, policy, *_OPERATING, demo, warmup):
    main.add_command(_command)
