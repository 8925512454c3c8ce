"""Acceptance of a whole step on the device: accepted lengths, committed tokens, and which branch came true.

The rule is ``recguide.engine.accept``'s, for all requests at once and without a look at the values on the host. End of
text, stop strings and budgets are not known here: they cut what is committed afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .backend import choose


class StepDrafts(NamedTuple):
    """What a step verifies, as int64 tensors on one device; ``starts`` have one more entry than there are requests.

    ``drafts`` [drafts] are the draft tokens of all requests, ``drawn`` the tokens of all logits rows: a request with k
    drafts has k + 1 of them from ``trunks`` [requests] on. Per branch: its parent, its first token (a token id, or
    -1 - r where logits row r drew it), and whether it is used whatever its first token is.
    """

    drafts: Tensor
    draft_starts: Tensor
    drawn: Tensor
    trunks: Tensor
    parents: Tensor
    firsts: Tensor
    unconditional: Tensor
    branch_starts: Tensor


class Accepted(NamedTuple):
    """Per request: how many drafts were accepted, the accepted ones and the verifier's own token behind them
    [requests, most + 1] (-1 beyond), and the number of the first branch that came true among its own (-1: none)."""

    lengths: Tensor
    tokens: Tensor
    reused: Tensor


def accept(step: StepDrafts, most: int, most_branches: int) -> Accepted:
    """Accept a step's drafts; int64 results on the device of ``step``.

    ``most`` and ``most_branches`` bound the drafts and branches of one request, known from the plans.
    """
    if choose(step.drawn.device).triton:
        from .accept_triton import accept_triton

        return accept_triton(step, most, most_branches)
    return accept_reference(step, most)


def accept_reference(step: StepDrafts, most: int) -> Accepted:
    """``accept`` in torch."""
    device = step.drawn.device
    counts = step.draft_starts.diff()
    place = torch.arange(most + 1, device=device)
    rows = (step.trunks[:, None] + place).clamp(max=len(step.drawn) - 1)
    drawn = step.drawn[rows]  # [requests, most + 1]
    lengths = _leading(step, drawn[:, :most], counts, place[:most])
    tokens = drawn.where(place <= lengths[:, None], -1)
    return Accepted(lengths, tokens, _first_true(step, lengths, drawn))


def _leading(step: StepDrafts, drawn: Tensor, counts: Tensor, place: Tensor) -> Tensor:
    """How many drafts in a row equal what the verifier drew."""
    if not len(step.drafts):
        return torch.zeros_like(counts)
    drafts = step.drafts[(step.draft_starts[:-1, None] + place).clamp(max=len(step.drafts) - 1)]
    equal = (drafts == drawn) & (place < counts[:, None])
    return equal.long().cumprod(1).sum(1)


def _first_true(step: StepDrafts, lengths: Tensor, drawn: Tensor) -> Tensor:
    """The first branch whose parent is the accepted part and whose first token is the verifier's."""
    none = torch.full_like(lengths, len(step.parents))
    if len(step.parents):
        number = torch.arange(len(step.parents), device=lengths.device)
        owner = torch.searchsorted(step.branch_starts, number, right=True) - 1
        first = torch.where(step.firsts < 0, step.drawn[(-1 - step.firsts).clamp(min=0)], step.firsts)
        emitted = drawn.gather(1, lengths[:, None])[:, 0][owner]
        true = (step.parents == lengths[owner] + 1) & (step.unconditional.bool() | (first == emitted))
        none = none.scatter_reduce(0, owner, number.where(true, len(number)), "amin")
    return torch.where(none < len(step.parents), none - step.branch_starts[:-1], -1)
