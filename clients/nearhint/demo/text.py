"""Real English text: sentences of Python's own documentation, in batches of given lengths."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_BREAK = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_WORDS = re.compile(r"[A-Za-z][A-Za-z'-]*")
_PASSAGE_SENTENCES = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentences that are encoded together; `tokens` is the length that they are padded to."""

    batch: int
    tokens: int
    sentences: tuple[str, ...]


def sentences() -> list[str]:
    """The sentences of `pydoc_data.topics`, in order, without repetitions or program text."""
    from pydoc_data.topics import topics

    found: dict[str, None] = {}
    for topic in sorted(topics):
        for paragraph in topics[topic].split("\n\n"):
            if paragraph.startswith(("   ", "**")) or "::=" in paragraph:
                continue
            for sentence in _BREAK.split(" ".join(paragraph.split())):
                if len(_WORDS.findall(sentence)) >= 3 and sentence[-1] in ".!?":
                    found[sentence] = None
    return list(found)


def batches(
    pairs: Sequence[tuple[int, int]], *, count_tokens: Callable[[Sequence[str]], list[int]]
) -> list[Batch]:
    """A batch for each (batch, tokens) pair, of sentences of nearly the wanted length.

    The longest has the wanted number of tokens, or the nearest that real text has; the others are
    the next shorter ones, as in a server that sorts by length.
    """
    texts = sentences()
    # Passages of neighbouring sentences give the longer lengths.
    passages = [
        " ".join(texts[start : start + count])
        for count in range(2, _PASSAGE_SENTENCES)
        for start in range(0, len(texts) - count, 7 * count)
    ]
    every = [*texts, *passages]
    by_length = sorted(zip(count_tokens(every), every, strict=True), key=lambda item: item[0])
    lengths = [length for length, _ in by_length]
    made: dict[tuple[int, int], Batch] = {}
    for size, wanted in pairs:
        nearest = min(lengths, key=lambda length: (abs(length - wanted), length))
        end = len(lengths) - lengths[::-1].index(nearest)
        chosen = list(itertools.islice(reversed(by_length[:end]), size))
        made.setdefault((size, nearest), Batch(size, nearest, tuple(text for _, text in chosen)))
    return list(made.values())
