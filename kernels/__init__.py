"""Tensor operations, each with a torch reference, and versions in Triton and in C. Knows nothing of requests."""
