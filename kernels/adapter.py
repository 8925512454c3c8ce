"""The draft adapter's product on some of a step's rows, so that one forward serves trunk and branch rows.

A CPU has a faster way with its prepacked weights (``recguide.models.adapter``), which is no part of this.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .backend import choose


def add_low_rank(out: Tensor, x: Tensor, down: Tensor, up: Tensor, first: int) -> Tensor:
    """out[first:] += (x[first:] down^T) up^T, in place; returns ``out``.

    out [rows, outputs], x [rows, inputs], down [rank, inputs], up [outputs, rank], of one dtype and device. Rows before
    ``first`` are neither read nor written. Differentiable only in the torch version, which is taken where gradients
    are wanted.
    """
    learning = torch.is_grad_enabled() and any(t.requires_grad for t in (out, x, down, up))
    if choose(out.device).triton and not learning:
        from .adapter_triton import add_low_rank_triton

        return add_low_rank_triton(out, x, down, up, first)
    (out if first == 0 else out[first:]).add_(F.linear(F.linear(x[first:], down), up))
    return out
