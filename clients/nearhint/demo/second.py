"""A process of its own: `python -m nearhint.demo.second ROLE OPTIONS`, JSON on stdout.

ROLE is `capture`, which times the first call with a backend that only captures, or `serve`, which
times it with nearhint and then encodes once every pair that needs no other capture. A line on
stdin lets it begin, so that it may get ready while others run, and is timed while none does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

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
    """What a new process saw at its first call: how long it took, and launches by tier."""

    first_call_s: float
    first_tiers: dict[str, int]


@contextmanager
def started(
    role: str, options: DemoOptions, *, environment: Mapping[str, str]
) -> Generator[Callable[[], Answer]]:
    """Runs this module in a new process; what is yielded lets it begin, and has its answer."""
    command = [sys.executable, "-m", "nearhint.demo.second", role, options.as_text()]
    with subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:

        def answer() -> Answer:
            found, problem = process.communicate("begin\n")
            if process.returncode:
                raise SecondProcessFailed(
                    role=role, code=process.returncode, problem=problem[-2000:]
                )
            return Answer(**json.loads(found.splitlines()[-1]))

        try:
            yield answer
        finally:
            process.kill()


def main(role: str, options: DemoOptions, *, begin: Callable[[], str]) -> Answer | None:
    """What a new process sees; nothing where `begin` gives no line: who started it is gone."""
    from nearhint.demo import models
    from nearhint.demo.tiers import served

    encoder = models.Encoder(
        device=options.device, precision=options.precision, directory=options.model
    )
    batches = encoder.batches(options.pairs)
    first = first_batch(batches)
    features = encoder.tokenise(first)
    models.warm_up_capture()
    encoder.compile("nearhint" if role == "serve" else models.capture_only())
    if not begin():
        return None
    start = time.perf_counter()
    answer = served(lambda: encoder.forward(features))
    first_call_s = time.perf_counter() - start
    if role == "serve":
        for batch in of_one_capture(batches, first):
            encoder.encode(batch.sentences)
    return Answer(first_call_s=first_call_s, first_tiers=answer.tiers)


def first_batch(batches: Sequence[Batch]) -> Batch:
    """The batch of the first call: of several sentences, and with more tokens than sentences.

    The last one where none is such.
    """
    good = (batch for batch in batches if batch.batch >= 4 and batch.tokens > batch.batch)
    return next(good, batches[-1])


def of_one_capture(batches: Sequence[Batch], first: Batch) -> list[Batch]:
    """Those that the capture at `first` serves: a batch of 1 has one of its own."""
    return [batch for batch in batches if (batch.batch == 1) == (first.batch == 1)]


if __name__ == "__main__":
    _, chosen, text = sys.argv
    result = main(chosen, DemoOptions.from_text(text), begin=sys.stdin.readline)
    if result is not None:
        click.echo(json.dumps(asdict(result)))
        sys.stdout.flush()
    # No thread of torch's or gRPC's has anything left to do that is worth waiting for.
    os._exit(0)
