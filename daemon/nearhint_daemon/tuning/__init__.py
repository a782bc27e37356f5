"""Tuning: from a Kernel and a hint to Variants that are built, verified, timed and published."""
