"""A process of its own: `python -m nearhint.demo.second ROLE OPTIONS`, JSON on stdout.

ROLE is `capture`, which times the first call with a backend that only captures, or `serve`, which
times it with nearhint and then encodes every pair once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import click

from nearhint.demo.options import DemoOptions
from nearhint.demo.text import Batch
from nearhint.errors import NearhintError


class SecondProcessFailed(NearhintError):
    """A process that the demo started ended badly."""

    code = "SECOND_PROCESS_FAILED"
    template = "the {role} process ended with {code}: {problem}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a new process saw: its first call, and the launches by tier of all its calls.

    `without_plan` are calls that no Plan served.
    """

    first_call_s: float
    first_tiers: dict[str, int]
    tiers: dict[str, int]
    without_plan: int


def ask(role: str, options: DemoOptions, *, environment: Mapping[str, str]) -> Answer:
    """Runs this module in a new process and returns what it found."""
    done = subprocess.run(
        [sys.executable, "-m", "nearhint.demo.second", role, options.as_text()],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SecondProcessFailed(role=role, code=done.returncode, problem=done.stderr[-2000:])
    return Answer(**json.loads(done.stdout.splitlines()[-1]))


def main(role: str, options: DemoOptions) -> Answer:
    """What a new process sees."""
    from nearhint.demo import models
    from nearhint.demo.tiers import served

    encoder = models.Encoder(
        device=options.device, precision=options.precision, directory=options.model
    )
    batches = encoder.batches(options.pairs)
    first = encoder.tokenise(first_batch(batches))
    models.warm_up_capture()
    encoder.compile("nearhint" if role == "serve" else models.capture_only())
    start = time.perf_counter()
    answer = served(lambda: encoder.forward(first))
    first_call_s = time.perf_counter() - start
    every = [answer]
    if role == "serve":
        every += [served(partial(encoder.encode, batch.sentences)) for batch in batches]
    return Answer(
        first_call_s=first_call_s,
        first_tiers=answer.tiers,
        tiers={name: sum(each.tiers[name] for each in every) for name in answer.tiers},
        without_plan=sum(each.without_plan for each in every),
    )


def first_batch(batches: Sequence[Batch]) -> Batch:
    """The batch of the first call: of several sentences, and with more tokens than sentences.

    The last one where none is such.
    """
    good = (batch for batch in batches if batch.batch >= 4 and batch.tokens > batch.batch)
    return next(good, batches[-1])


if __name__ == "__main__":
    _, chosen, text = sys.argv
    result = json.dumps(asdict(main(chosen, DemoOptions.from_text(text))))
    click.echo(result)
    sys.stdout.flush()
    # No thread of torch's or gRPC's has anything left to do that is worth waiting for.
    os._exit(0)
