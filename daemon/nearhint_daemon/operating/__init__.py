"""Operating: what people decide about Kernels, and what is kept out of service."""
