"""How many examples a property test draws, and which: the same ones every time.

What lands depends on the change and not on luck. NEARHINT_EXPLORE=1 draws new examples each time,
NEARHINT_EXPLORE=20 twenty times as many of them. There is no deadline an example, since the
machines that test are busy.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

EXPLORE = int(os.environ.get("NEARHINT_EXPLORE", "0"))


def examples(count: int) -> settings:
    """Settings of a property test that is content with `count` examples."""
    return settings(
        max_examples=count * max(1, EXPLORE),
        derandomize=EXPLORE == 0,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def unshrunk(count: int) -> settings:
    """The same where an example that fails is told as it is: making it smaller takes minutes."""
    phases = [phase for phase in Phase if phase != Phase.shrink]
    return settings(examples(count), phases=phases)
