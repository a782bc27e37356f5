"""One pair of batch and tokens: both sides timed against each other, and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from nearhint.demo.closeness import NOTHING, closeness
from nearhint.demo.models import Embeddings, Encoder, Features
from nearhint.demo.report import Row
from nearhint.demo.text import Batch
from nearhint.demo.tiers import Served
from nearhint.demo.timing import interleaved_ms


@dataclass(frozen=True, slots=True)
class Pair:
    """A batch, as the model takes it, and what eager makes of it in float32."""

    batch: Batch
    features: Features
    reference: Embeddings


@dataclass(frozen=True, slots=True)
class Sides:
    """Encoders of the same model; `inductor` where that is compared."""

    eager: Encoder
    compiled: Encoder
    inductor: Encoder | None

    @property
    def by_name(self) -> Mapping[str, Encoder]:
        """Those that there are."""
        named = {"eager": self.eager, "nearhint": self.compiled, "inductor": self.inductor}
        return {name: encoder for name, encoder in named.items() if encoder is not None}


def row(
    pair: Pair,
    sides: Sides,
    *,
    repetitions: int,
    call: Callable[[Callable[[], object]], Served],
    synchronise: Callable[[], object],
) -> Row:
    """What the pair comes to; `call` makes a call and says what served it."""
    found: list[Embeddings] = []
    answer = call(lambda: found.append(sides.compiled.embed(pair.features)))
    alone = sides.eager.embed(pair.features)
    times_ms = interleaved_ms(
        {name: partial(side.forward, pair.features) for name, side in sides.by_name.items()},
        repetitions=repetitions,
        synchronise=synchronise,
    )
    by_sentence, by_token = NOTHING, NOTHING
    if found:
        by_sentence = closeness(found[0].sentences, pair.reference.sentences)
        by_token = closeness(found[0].tokens, pair.reference.tokens)
    return Row(
        batch=pair.batch.batch,
        tokens=pair.batch.tokens,
        repetitions=repetitions,
        eager_ms=times_ms["eager"],
        nearhint_ms=times_ms["nearhint"],
        inductor_ms=times_ms.get("inductor"),
        max_abs_diff=by_sentence.max_abs_diff,
        cosine=by_sentence.cosine,
        token_max_abs_diff=by_token.max_abs_diff,
        token_cosine=by_token.cosine,
        eager_max_abs_diff=closeness(alone.sentences, pair.reference.sentences).max_abs_diff,
        eager_token_max_abs_diff=closeness(alone.tokens, pair.reference.tokens).max_abs_diff,
        tiers=answer.tiers,
        hints=answer.hints,
    )
