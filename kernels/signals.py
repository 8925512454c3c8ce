"""Signals of logits rows: the two best tokens, their probabilities, margin and entropy. The torch reference."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Signals(NamedTuple):
    """Per row: ids and probabilities of the two best tokens [rows, 2], and the entropy in nats [rows] or None."""

    ids: Tensor
    probabilities: Tensor
    entropy: Tensor | None


def signals(logits: Tensor, *, entropy: bool = False) -> Signals:
    """Top-2 ids, probabilities and optionally entropy of ``logits`` [rows, vocab]; float32 arithmetic."""
    wide = logits.float()
    best, ids = wide.topk(2, -1)
    normaliser = wide.logsumexp(-1, keepdim=True)
    probabilities = (best - normaliser).exp()
    if not entropy:
        return Signals(ids, probabilities, None)
    logs = wide - normaliser
    # a token of probability 0 adds nothing; 0 * -inf would be NaN
    spread = torch.where(logs.isinf(), 0.0, logs.exp() * logs).sum(-1)
    return Signals(ids, probabilities, -spread)
