"""The second set of functions, and the fifth to the fourteenth: each is right, and few Kernels."""

from __future__ import annotations

import pytest
from tests.benchmarks.gpu_dry_run import few_sizes
from tests.benchmarks.gpu_numerics import in_float64
from tests.benchmarks.gpu_sweep_cases import sweeps_of
from tests.benchmarks.sweeps import Sweep
from tests.unit.compiler.frontend.running import check

from nearhint_daemon.workers.interpreter import Casts
from nearhint_rules.plan import Launch, RunNodes

KERNELS = {
    "join": 0,
    "lower_triangle": 0,
    "mean_pool": 2,
    "attention_pool": 2,
    "balance": 2,
    "state_step": 2,
    "gated_residual": 2,
    "merged_attention": 2,
    "nibbles_of_groups": 2,
    "chunk_decays": 3,
    "decays_and_keys": 2,
    "latent_keys": 2,
    "limited_routing": 4,
    "rotary_of_places": 2,
    "biased_by_distance": 2,
    "response_norm": 3,
    "accepted_drafts": 2,
    "nvfp4": 2,
    "factored_step": 4,
    "decoded_boxes": 2,
    "last_tokens": 2,
    "moved_codes": 3,
    "nearest": 2,
    "joined_streams": 3,
    "timed_group_norm": 2,
    "clipped_together": 7,
    "policy_loss": 2,
    "harmonics": 2,
    "page_scores": 2,
    "keys_of_two_bits": 2,
    "turned_rows_i8": 2,
    "similarity_of_windows": 2,
    "radial_basis": 2,
    "attended_neighbours": 2,
    "rolling": 2,
    "ctc_step": 2,
    "pair_interactions": 3,
    "symmetric_contrast": 3,
    "deltas_of_features": 2,
    "seasonal_residuals": 2,
    "balanced_colours": 3,
    "edges": 2,
    "box_means": 3,
    "points_and_normals": 2,
    "rays_composed": 3,
    "chamfer": 5,
    "lennard_jones": 3,
    "mixture_shares": 3,
    "count_losses": 2,
    "ensemble_scores": 2,
    "advantages": 3,
    "survival_losses": 2,
    "triangle_sides": 3,
    "zero_points_i4": 3,
    "verified_tokens": 2,
    "keys_and_values_i8": 2,
    "gated_heads_normed": 2,
    "router_losses": 5,
    "gathered_and_combined": 2,
    "rms_norm_gradients": 2,
    "packed_geglu_backward": 2,
    "group_norm_gradients": 2,
    "scores_and_bias_gradients": 2,
    "adamw_and_average": 2,
    "preference_loss": 2,
    "private_gradient": 2,
    "attention_of_channels": 2,
    "attentive_statistics": 2,
    "chunk_gates": 4,
    "mxfp4": 2,
    "rotary_of_both": 2,
    "mean_cross_entropy": 2,
    "layer_norm_gradients": 2,
    "experts_counted": 2,
    "neighbours_rotated_at_places": 2,
}
"""Where it is not one: eager joins as fast as anything; a mask is summed once for all columns, and
so are weights, and what is heavy of all rows; what is needed of a row is known when it was read.
Rows are chosen between, and a row of rows' results is a row of another Kernel. Tensors of other
shapes are summed apart, and scaled so.
"""
JOINED = {
    "join",
    "lower_triangle",
    "reversed_cumsum",
    "patches",
    "limited_routing",
    "verified_tokens",
    "logs_of_choices",
    "mean_cross_entropy",
}
"""What eager turns round, cuts, joins or looks up on a CPU, as fast as any Kernel; what is sorted;
a size more one, which a Fallback takes; a number of classes, of which labels are smoothed.
"""
STEPPED = {
    "likely_tokens",
    "quantised_norm",
    "quantised_swiglu",
    "quantised_squares",
    "frequencies_penalised",
    "swiglu_blocks_f8",
    "blocks_f8_by_powers",
    "mx_of_biased_transposed",
    "blocks_f8_of_columns",
}
"""What has steps, but is no integer: the next number of eight bits, a least probability."""
ROUNDED = {"nvfp4"}
"""What has steps behind what is rounded to few bits."""


@pytest.mark.parametrize(
    "sweep",
    [
        sweep
        for name in (
            "others",
            "strided",
            "served",
            "mixed",
            "trained",
            "deployed",
            "composed",
            "applied",
            "everyday",
            "kindred",
            "adjacent",
        )
        for sweep in sweeps_of("a", name)
    ],
    ids=lambda sweep: sweep.title,
)
def test_each_other_function_is_right_and_one_kernel(sweep: Sweep) -> None:
    arguments = sweep.case(few_sizes(sweep, "a")).arguments()
    wide = sweep.rounding or sweep.name in STEPPED
    # Only in float64 are integers, to which floats were rounded, the same on both sides.
    casts = Casts.ROUND_EACH if sweep.name in ROUNDED else Casts.ROUND_GIVEN
    lowered = check(sweep.function, *(in_float64(arguments) if wide else arguments), casts=casts)
    launches = [step for step in lowered.plan.steps if isinstance(step, Launch)]
    assert len(launches) == KERNELS.get(sweep.name, 1)
    has_nodes = any(isinstance(step, RunNodes) for step in lowered.plan.steps)
    assert has_nodes == (sweep.name in JOINED)
