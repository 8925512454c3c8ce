"""Steps with drafts, the verifier's draws and branches, drawn by hypothesis, as the acceptance kernels take them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from recguide.kernels.accept import StepDrafts

TOKEN = st.integers(0, 3)  # few tokens, so that drafts are often right


@st.composite
def verified_steps(draw, most: int = 4) -> StepDrafts:
    """Requests with 0..6 drafts and 0..5 branches each; a branch's first token is known, or drawn by its own row."""
    drafts, draft_starts, drawn, trunks = [], [0], [], []
    firsts, parents, unconditional, branch_starts, guessed = [], [], [], [0], []
    for _ in range(draw(st.integers(1, most))):
        mine = draw(st.lists(TOKEN, max_size=6))
        trunks.append(len(drawn))
        drafts += mine
        drawn += draw(st.lists(TOKEN, min_size=len(mine) + 1, max_size=len(mine) + 1))
        draft_starts.append(len(drafts))
        for _ in range(draw(st.integers(0, 5))):
            parents.append(draw(st.integers(0, len(mine) + 1)))
            firsts.append(draw(TOKEN))
            guessed.append(draw(st.booleans()))
            unconditional.append(draw(st.booleans()))
        branch_starts.append(len(parents))
    for branch in (i for i, guess in enumerate(guessed) if guess):
        drawn.append(firsts[branch])
        firsts[branch] = -len(drawn)  # -1 - row
    whole = (drafts, draft_starts, drawn, trunks, parents, firsts)
    tensors = [torch.tensor(column, dtype=torch.int64) for column in whole]
    free = torch.tensor(unconditional, dtype=torch.bool)
    return StepDrafts(*tensors, free, torch.tensor(branch_starts))


def most_of(step: StepDrafts) -> tuple[int, int]:
    """The most drafts and branches of one request."""
    return int(step.draft_starts.diff().max()), int(step.branch_starts.diff().max())
