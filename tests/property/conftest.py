"""How property tests run: see `tests.property.examples`."""

from __future__ import annotations

from hypothesis import settings
from tests.property.examples import examples

settings.register_profile("nearhint", examples(100))
settings.load_profile("nearhint")
