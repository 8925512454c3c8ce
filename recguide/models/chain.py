"""The chain: drafts of one block choose their tokens one after the other, each knowing the two before it.

The masks of a block are drafted side by side in one forward, so none knows what the others choose. The chain adds that
at the very end: a small map takes a mask's hidden state and the two tokens before it, and moves the hidden state that
the head scores. It costs two small products a position, and scores only the ``CANDIDATES`` best tokens of each mask.
Sequential heads over shared features are the idea of Hydra (Ankner et al. 2024); here they refine a diffusion draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recguide.kernels import native
from recguide.kernels.signals import best
from recguide.models.linear import Linear
from recguide.models.norm import RMSNorm

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

    @torch.no_grad()
    def start_from(self, known: ChainFactors) -> None:
        """Do what ``known``, of at most this rank, does; further ranks add nothing yet."""
        self.down[: known.rank] = known.down
        self.up[:, : known.rank] = known.up
        self.up[:, known.rank :] = 0


class Chained(NamedTuple):
    """What draft rows choose their tokens from: the candidates' logits [rows, candidates] before the chain, their ids,
    and what the rows' own hidden states add to the chain [rows, rank]."""

    base: Tensor
    ids: Tensor
    lead: Tensor

    def part(self, rows: slice | Tensor) -> Chained:
        return Chained(*(column[rows] for column in self))


class Chain:
    """The factors in the dtype they run in, and the head's weight [vocab, hidden] for the scores of candidates."""

    def __init__(self, factors: ChainFactors, embedding: Tensor, head: Tensor, *, pack: bool):
        self.embedding, self.head = embedding, head
        width = embedding.shape[1]
        own, tokens = factors.down.to(head).split((width, 2 * width), 1)
        self.own, self.tokens = Linear(own, pack), Linear(tokens, pack)
        self.up = Linear(factors.up.to(head), pack)
        self._norm = RMSNorm(torch.ones(width, device=head.device, dtype=head.dtype), torch.finfo(torch.float32).eps)
        self._native = None
        if self.tokens.native and self.up.native:
            maps = self.tokens.weight, self.up.weight
            self._native = native.ChainWeights(embedding, head, *maps, self._norm.wide, self._norm.eps)

    @property
    def vocab(self) -> int:
        return len(self.head)

    def lead(self, hidden: Tensor) -> Tensor:
        """What masks' hidden states [rows, hidden] add to the chain, whatever the tokens before them; [rows, rank]."""
        return self.own(self._norm(hidden))

    def move(self, lead: Tensor, before: Tensor) -> Tensor:
        """What to add to the hidden states that ``lead`` came from [rows, hidden]. ``before`` int64 [rows, 2]: the last
        token before each, and the one in front of that."""
        seen = self._norm(F.embedding(before.flatten(), self.embedding)).view(len(before), -1)
        return self.up(F.silu(self.tokens(seen) + lead))

    def candidates(self, logits: Tensor, hidden: Tensor) -> Chained:
        """The best tokens of rows with these logits [rows, vocab] and hidden states, for the chain to choose among."""
        return Chained(*best(logits, min(CANDIDATES, logits.shape[1])), self.lead(hidden))

    def scores(self, chained: Chained, before: Tensor) -> Tensor:
        """The candidates' logits [rows, candidates] once the tokens before them are known; float32."""
        if self._takes(len(before)):
            return native.chain_scores(self._native, chained.lead, chained.base, chained.ids, before)
        moved = self.move(chained.lead, before)
        return chained.base + torch.bmm(moved[:, None], F.embedding(chained.ids, self.head).mT)[:, 0]

    def follow(
        self, chained: Chained, counts: Sequence[int], befores: Sequence[Sequence[int]]
    ) -> tuple[list[list[int]], list[list[float]]] | None:
        """``native.chain_follow``; None where the C kernels do not do it."""
        if not self._takes(len(counts)):
            return None
        return native.chain_follow(self._native, chained.lead, chained.base, chained.ids, counts, befores)

    def _takes(self, rows: int) -> bool:
        """Whether the C kernels score so many rows at a time."""
        return self._native is not None and rows <= native.GROUP and not torch.is_grad_enabled()
