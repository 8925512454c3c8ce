"""The chain: drafts of one block choose their tokens one after the other, each knowing the two before it.

The masks of a block are drafted side by side in one forward, so none knows what the others choose. The chain adds that
at the very end: a small map takes a mask's hidden state and the two tokens before it, and moves the hidden state that
the head scores. It costs two small products a position, and scores only the ``CANDIDATES`` best tokens of each mask.
Sequential heads over shared features are the idea of Hydra (Ankner et al. 2024); here they refine a diffusion draft.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recguide.kernels.signals import signals
from recguide.models.linear import Linear

CANDIDATES = 32


class ChainFactors(nn.Module):
    """Trainable ``down`` [rank, 3 x hidden] and ``up`` [hidden, rank]; as made, the chain changes nothing."""

    def __init__(self, hidden: int, rank: int):
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, 3 * hidden) / (3 * hidden) ** 0.5)
        self.up = nn.Parameter(torch.zeros(hidden, rank))

    @property
    def rank(self) -> int:
        return len(self.down)


class Chain:
    """The factors in the dtype they run in, and the head's weight [vocab, hidden] for the scores of candidates."""

    def __init__(self, factors: ChainFactors, embedding: Tensor, head: Tensor, *, pack: bool):
        self.embedding, self.head = embedding, head
        self.down = Linear(factors.down.to(head), pack)
        self.up = Linear(factors.up.to(head), pack)

    def move(self, hidden: Tensor, before: Tensor, two_before: Tensor) -> Tensor:
        """What to add to ``hidden`` [rows, hidden] for the tokens before each row, int64 [rows]."""
        parts = (hidden, F.embedding(before, self.embedding), F.embedding(two_before, self.embedding))
        seen = torch.cat([F.rms_norm(part, part.shape[-1:]) for part in parts], -1)
        return self.up(F.silu(self.down(seen)))

    def candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Ids [rows, candidates] and logits of the best tokens of each row, which the chain chooses among."""
        best = signals(logits, top_k=min(CANDIDATES, logits.shape[1]))
        return best.top_ids, best.top_logits

    def scores(self, ids: Tensor, logits: Tensor, hidden: Tensor, before: Tensor, two_before: Tensor) -> Tensor:
        """The candidates' logits [rows, candidates] once the tokens before them are known."""
        moved = self.move(hidden, before, two_before)
        return logits + torch.bmm(F.embedding(ids, self.head), moved[:, :, None])[:, :, 0]
