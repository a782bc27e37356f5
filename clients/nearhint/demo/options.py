"""What the demo can be asked for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

PAIRS: tuple[tuple[int, int], ...] = (
    (1, 12), (1, 23), (1, 40), (1, 64), (1, 110),
    (2, 17), (2, 60), (3, 28), (4, 14), (4, 44), (4, 96), (5, 21), (6, 52),
    (8, 11), (8, 33), (8, 72), (12, 25), (13, 18), (16, 16), (16, 36), (16, 58),
    (20, 30), (24, 13), (24, 41), (32, 10), (32, 26), (32, 38),
)  # fmt: skip
"""(batch, tokens) to encode; tokens are brought to the nearest length that real sentences have."""
GPU_PAIRS: tuple[tuple[int, int], ...] = (
    *PAIRS, (32, 100), (64, 26), (64, 58), (64, 110), (128, 40), (128, 96),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """`device` is "cpu" or "cuda"; `compare` is "" or "inductor".

    `model` is a directory as sentence-transformers saves one; empty: all-MiniLM-L6-v2 from its
    package. `sizes` are the (batch, tokens) to encode; empty: those of the device. `budget_s` is
    for the whole demo, which has fewer interleaved timings of a pair than `repetitions`, and less
    time for tuning than `settle_timeout_s`, where that is what is left.
    """

    device: str = "cpu"
    compare: str = ""
    model: str = ""
    sizes: tuple[tuple[int, int], ...] = ()
    budget_s: float = 270.0
    repetitions: int = 21
    settle_timeout_s: float | None = None

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The (batch, tokens) that the device is shown at."""
        return self.sizes or (PAIRS if self.device == "cpu" else GPU_PAIRS)

    @property
    def precision(self) -> str:
        """What the model computes in: torch's name of a dtype."""
        return "float32" if self.device == "cpu" else "float16"

    def as_text(self) -> str:
        """For another process.

        >>> DemoOptions.from_text(DemoOptions(sizes=((4, 16),)).as_text()).pairs
        ((4, 16),)
        """
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> DemoOptions:
        """The inverse of `as_text`."""
        fields: dict[str, Any] = json.loads(text)
        sizes = tuple((batch, tokens) for batch, tokens in fields.pop("sizes"))
        return cls(sizes=sizes, **fields)
