"""Warm-up jobs: a manifest of models and sizes, tuned before the first user comes.

    manifest -> captured Programs (nearhint_torch) -> points -> jobs of the daemon -> report -> page

The daemon's jobs are durable and nothing is kept here, so a job that is run again, after any kill,
asks for what is not met and repeats no measurement. May import: nearhint, nearhint_rules,
nearhint_proto; click and rich. Not torch: what captures is `nearhint_torch.warmup`.
"""

from __future__ import annotations
