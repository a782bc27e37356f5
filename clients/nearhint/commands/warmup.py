"""`nearhint warmup`: tunes models for the sizes they will see, before the first user comes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from nearhint import config, extras
from nearhint.commands.options import (
    SECONDS,
    address_option,
    check_enabled,
    examples,
    exits,
    open_connection,
)
from nearhint.commands.sizes import Sizes, read_sizes, read_sizes_file
from nearhint.errors import InvalidSetting
from nearhint.exit_codes import ExitCode
from nearhint.session import count_no_traffic
from nearhint.warmup.asking import Asking
from nearhint.warmup.manifest import (
    DEFAULT_BUDGET_S,
    EFFORTS,
    Manifest,
    ModelSpec,
    is_device,
    read_duration,
    read_manifest,
)
from nearhint.warmup.output import STDOUT, Outputs
from nearhint.warmup.targets import read_device

CLIENT_ID = "nearhint warmup"


@click.command(
    epilog=examples(
        "nearhint warmup manifest.toml --html report.html",
        "nearhint warmup manifest.toml --dry-run",
        "nearhint warmup manifest.toml --compile-only --target h100.json",
        "nearhint warmup my_model:warm_up --sizes 'batch=1,8;tokens=16,64'",
        "nearhint warmup my_model:warm_up --sizes-file sizes.txt --budget 10m --device cuda",
    )
)
@click.argument("source", metavar="MANIFEST.toml|MODULE:ENTRY")
@click.option("--sizes", help="Sizes by axis, all combinations: 'batch=1,8;tokens=16,64'.")
@click.option(
    "--sizes-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with one such line for each group of sizes.",
)
@click.option("--device", help="cpu, cuda or cuda:N; else the manifest's, else cpu.")
@click.option("--effort", type=click.Choice(EFFORTS), help="Else the manifest's, else full.")
@click.option("--budget", help="Give up after so long: seconds, or like 90s, 10m, 1h30m.")
@click.option("--budget-s", type=SECONDS, help="The same, in seconds.")
@click.option("--dry-run", is_flag=True, help="Say what would be asked for; measure nothing.")
@click.option("--compile-only", is_flag=True, help="Compile for the --target; measure nothing.")
@click.option(
    "--target",
    "target_files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A device elsewhere, as `nearhint policy DEVICE --json` prints it; else the manifest's.",
)
@click.option(
    "--json", "json_to", is_flag=False, flag_value=STDOUT, help="JSON to a file, or - for stdout."
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A page with plots, in one file.",
)
@address_option
@exits
def warmup(
    source: str,
    sizes: str | None,
    sizes_file: Path | None,
    device: str | None,
    effort: str | None,
    budget: str | None,
    budget_s: float | None,
    dry_run: bool,
    compile_only: bool,
    target_files: tuple[Path, ...],
    json_to: str | None,
    html: Path | None,
    address: str | None,
) -> ExitCode:
    """Tune models for the sizes they will see, before the first user comes.

    A manifest (TOML) names models, their sizes and how hard to try; MODULE:ENTRY names a function
    that returns a nearhint_torch.WarmUp: the model, its arguments, and which of their axes are
    dynamic. Returns when every Kernel is measured or the budget is spent, with what was gained;
    exit code 7 if something failed or is left. Run it again to go on: no finished measurement is
    repeated. Needs nearhint[torch].
    """
    check_enabled(address)
    points: list[Sizes] = read_sizes(sizes) if sizes else []
    if sizes_file is not None:
        points += read_sizes_file(sizes_file)
    manifest = _manifest(source, points)
    manifest = _overridden(manifest, device=device, effort=effort)
    seconds = _budget_s(budget, budget_s)
    if seconds is not None:
        manifest = replace(manifest, budget_s=seconds)
    targets = tuple(map(read_device, target_files)) or manifest.targets
    if compile_only and (dry_run or html is not None):
        raise InvalidSetting(name="--compile-only", expected="without --dry-run, --html", value="")
    if compile_only and not targets:
        raise InvalidSetting(name="--compile-only", expected="given a --target", value="")
    if target_files and not compile_only:
        raise InvalidSetting(name="--target", expected="given with --compile-only", value="")
    if dry_run and html is not None:
        raise InvalidSetting(name="--dry-run", expected="without --html", value="")
    outputs = Outputs(json=json_to or "", html=html)
    outputs.check()
    if address is not None:
        # The backend in this process takes its daemon from the environment, as in a server.
        config.socket_path(address)
        os.environ["NEARHINT_ADDRESS"] = address
    count_no_traffic()
    module = extras.load("nearhint_torch.warmup", what="nearhint warmup", extra="torch")
    asking = Asking(
        lambda: open_connection(address),
        client_id=CLIENT_ID,
        clock=time.monotonic,
        wait=time.sleep,
    )
    if compile_only:
        return ExitCode(module.compile_only(manifest, asking, outputs, targets=targets))
    act = module.dry_run if dry_run else module.run
    return ExitCode(act(manifest, asking, outputs))


def _manifest(source: str, points: Sequence[Sizes]) -> Manifest:
    """The manifest in a file, or the one that MODULE:ENTRY and sizes stand for."""
    if source.endswith(".toml"):
        if points:
            raise InvalidSetting(
                name="--sizes and --sizes-file", expected="in the manifest", value=source
            )
        return read_manifest(Path(source))
    if not source.partition(":")[2].isidentifier():
        expected = "MANIFEST.toml or MODULE:ENTRY"
        raise InvalidSetting(name="what to warm up", expected=expected, value=source)
    if not points:
        raise InvalidSetting(name="--sizes or --sizes-file", expected="given", value="")
    listed = tuple({tuple(point.items()): point for point in points}.values())
    return Manifest(
        source=source,
        models=(ModelSpec(name=source, entry=source, listed=listed),),
        budget_s=DEFAULT_BUDGET_S,
    )


def _overridden(manifest: Manifest, *, device: str | None, effort: str | None) -> Manifest:
    models = manifest.models
    if device is not None:
        if not is_device(device):
            raise InvalidSetting(name="--device", expected="cpu, cuda or cuda:N", value=device)
        models = tuple(replace(model, devices=(device,)) for model in models)
    if effort is not None:
        models = tuple(replace(model, effort=effort) for model in models)
    return replace(manifest, models=models)


def _budget_s(budget: str | None, budget_s: float | None) -> float | None:
    if budget is None:
        return budget_s
    if budget_s is not None:
        raise InvalidSetting(name="--budget", expected="given without --budget-s", value=budget)
    number = budget.removesuffix("s")
    value: object = float(number) if number.replace(".", "", 1).isdecimal() else budget
    seconds = read_duration(value)
    if seconds is None:
        expected = "above 0: seconds, or like 90s, 10m, 1h30m"
        raise InvalidSetting(name="--budget", expected=expected, value=budget)
    return seconds
