"""C with OpenMP, for CPUs."""
