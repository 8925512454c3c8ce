"""Tensor operations, each with a torch reference and a Triton version. Knows nothing of requests."""
