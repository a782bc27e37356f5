"""A daemon process whose workers answer at once: `python -m tests.integration.fake_daemon FLAGS`.

The flags are `nearhintd serve`'s. With FAKE_DELAY_S in the environment each job takes that long.
"""

from __future__ import annotations

import os
import sys

import click
from tests.integration.fake_workers import FakeBenchPool, FakeCompilePool

from nearhint_daemon import config as settings
from nearhint_daemon import logs
from nearhint_daemon.config import Config
from nearhint_daemon.core import Pools
from nearhint_daemon.errors import DaemonError
from nearhint_daemon.lifecycle import serve
from nearhint_daemon.metrics import Metrics


def make_pools(config: Config, metrics: Metrics) -> Pools:
    delay_s = float(os.environ.get("FAKE_DELAY_S", "0"))
    return Pools(FakeCompilePool(delay_s=delay_s), FakeBenchPool(delay_s=delay_s))


def main(arguments: list[str]) -> int:
    flags = {
        name.removeprefix("--").replace("-", "_"): value
        for name, value in zip(arguments[::2], arguments[1::2], strict=True)
    }
    config = settings.load(flags, environment={}).config
    logs.configure(log_format="json", level=config.log_level)
    try:
        return int(serve(config, make_pools=make_pools))
    except DaemonError as error:
        click.echo(f"nearhintd: {error}", err=True)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
