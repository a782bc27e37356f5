"""How property tests run: no deadline an example, since the machines that test are busy."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "nearhint",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("nearhint")
