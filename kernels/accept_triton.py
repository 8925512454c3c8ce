"""Acceptance of a whole step in Triton: one program a request."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .accept import Accepted, StepDrafts
from .backend import launching

NONE = tl.constexpr(2**30)  # no branch


@triton.jit(do_not_specialize=["width"])
def accept_fwd_kernel(
    drafts_ptr, draft_starts_ptr, drawn_ptr, trunks_ptr, parents_ptr, firsts_ptr, unconditional_ptr, branch_starts_ptr,
    lengths_ptr, tokens_ptr, reused_ptr, width, MOST: tl.constexpr, BRANCHES: tl.constexpr,
):  # fmt: skip
    """lengths[i] = the first j with drafts[j] != drawn[j]; tokens[i] = drawn[0..lengths[i]]; reused[i] = the first
    branch with parent = lengths[i] + 1 that needs no first token or begins with drawn[lengths[i]]."""
    request = tl.program_id(0)
    start, trunk = tl.load(draft_starts_ptr + request), tl.load(trunks_ptr + request)
    count = tl.load(draft_starts_ptr + request + 1) - start
    place = tl.arange(0, MOST)
    drawn = tl.load(drawn_ptr + trunk + place, mask=place <= count, other=-1)
    draft = tl.load(drafts_ptr + start + place, mask=place < count, other=-1)
    length = tl.min(tl.where((place < count) & (draft == drawn), MOST, place))
    tl.store(lengths_ptr + request, length.to(tl.int64))
    kept = tl.where(place <= length, drawn, -1)
    tl.store(tokens_ptr + request * width + place, kept, mask=place < width)

    emitted = tl.load(drawn_ptr + trunk + length)
    first_branch = tl.load(branch_starts_ptr + request)
    branches = tl.load(branch_starts_ptr + request + 1) - first_branch
    number = tl.arange(0, BRANCHES)
    there, branch = number < branches, first_branch + number
    first = tl.load(firsts_ptr + branch, mask=there, other=0)
    guess = tl.load(drawn_ptr - 1 - first, mask=there & (first < 0), other=-1)
    first = tl.where(first < 0, guess, first)
    free = tl.load(unconditional_ptr + branch, mask=there, other=0) != 0
    true = there & (tl.load(parents_ptr + branch, mask=there, other=0) == length + 1) & (free | (first == emitted))
    reused = tl.min(tl.where(true, number, NONE))
    tl.store(reused_ptr + request, tl.where(reused == NONE, -1, reused).to(tl.int64))


def accept_triton(step: StepDrafts, most: int, most_branches: int) -> Accepted:
    """``accept`` in Triton."""
    requests, device = len(step.trunks), step.drawn.device
    lengths, reused = (torch.empty(requests, dtype=torch.int64, device=device) for _ in range(2))
    tokens = torch.empty(requests, most + 1, dtype=torch.int64, device=device)
    if requests:
        widths = triton.next_power_of_2(most + 1), triton.next_power_of_2(max(most_branches, 1))
        with launching(device):
            accept_fwd_kernel[(requests,)](*step, lengths, tokens, reused, most + 1, *widths, num_warps=1)
    return Accepted(lengths, tokens, reused)
