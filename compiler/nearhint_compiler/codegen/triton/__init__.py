"""Triton, for GPUs."""
