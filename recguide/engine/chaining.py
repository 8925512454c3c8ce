"""Which draft rows hang together, and their choice one after the other where the adapter has a chain.

Rows of one branch are drafted side by side. The chain then goes along them: each row's candidates are scored again
with the two tokens before it, as drawn so far, and drawn with the row's own noise. Verifier rows are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from recguide.engine.drawing import Drawn, Work
from recguide.engine.plan import Branch
from recguide.engine.sampling import Row, draw
from recguide.models.chain import Chain


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring draft rows ``first`` to ``first + count - 1`` of a step's logits rows.

    ``two_before`` and ``before`` are the tokens in front of what the first row predicts. ``head`` is the plain row
    that decides ``before`` in this very step, or None where it is known.
    """

    first: int
    count: int
    head: int | None
    two_before: int
    before: int | None


def runs_of(work: Sequence[Work], trunks: Sequence[slice], branches: Sequence[list[slice]], adapted: bool) -> list[Run]:
    """The runs of a step. ``trunks`` and ``branches`` are logits rows by request; ``adapted``: known tokens of
    branches take the adapter too, so that their rows are drafts."""
    runs = []
    for item, trunk, parts in zip(work, trunks, branches, strict=True):
        for branch, part in zip(item.segment.branches, parts, strict=True):
            if not (branch.known or branch.threshold):  # drafting of several forwards chooses by probability
                runs.append(_run(item, trunk, branch, part, adapted))
    return [run for run in runs if run.count]


def _run(item: Work, trunk: slice, branch: Branch, part: slice, adapted: bool) -> Run:
    request = item.request
    drafts = request.draft.tokens if request.draft else []

    def token(place: int) -> int:
        """The token that this branch assumes at a place, counted from the seed (0); before the text, its first."""
        return drafts[place - 1] if place > 0 else request.tokens[max(place - 1, -len(request.tokens))]

    parent = branch.parent
    if branch.token is None and branch.shift:
        return Run(part.start, branch.masks, trunk.start + parent - 1, token(parent - 1), None)
    if branch.token is None:
        return Run(part.start, branch.masks, None, token(parent - 2), token(parent - 1))
    if branch.shift and not adapted:
        return Run(part.start + 1, branch.masks, part.start, branch.token, None)
    return Run(part.start, part.stop - part.start, None, token(parent - 1), branch.token)


def pieces(rows: int, parts: Sequence[slice], limit: int) -> list[slice]:
    """Cut ``rows`` logits rows into pieces of at most ``limit``, never inside one of ``parts`` that is no longer."""
    inside = {row for part in parts if part.stop - part.start <= limit for row in range(part.start + 1, part.stop)}
    cuts = [0]
    while cuts[-1] < rows:
        end = min(cuts[-1] + limit, rows)
        while end in inside:
            end -= 1
        cuts.append(end)
    return [slice(a, b) for a, b in pairwise(cuts)]


def choose_along(
    chain: Chain, runs: Sequence[Run], logits: Tensor, hidden: Tensor, rows: Sequence[Row], first: int, drawn: Drawn
) -> None:
    """Score the rows of ``runs`` again in ``logits`` [piece, vocab], in place; all but the candidates become -inf.

    ``hidden`` [piece, hidden] and ``rows`` are of the same piece, which begins at logits row ``first``; ``drawn``
    holds the rows before the piece, and every run lies inside it.
    """
    mine = [run for run in runs if first <= run.first < first + len(rows)]
    if not mine:
        return
    places = torch.tensor([run.first - first + i for run in mine for i in range(run.count)], device=logits.device)
    ids, base = chain.candidates(logits[places])
    starts = [sum(run.count for run in mine[:i]) for i in range(len(mine))]
    before = _befores(mine, logits, rows, first, drawn)
    two_before = [run.two_before for run in mine]
    logits[places] = float("-inf")
    for level in range(max(run.count for run in mine)):
        live = [i for i, run in enumerate(mine) if run.count > level]
        at = torch.tensor([starts[i] + level for i in live], device=logits.device)
        tokens = torch.tensor([[before[i], two_before[i]] for i in live], device=logits.device)
        scores = chain.scores(ids[at], base[at], hidden[places[at]], tokens[:, 0], tokens[:, 1])
        logits[places[at][:, None], ids[at]] = scores.to(logits.dtype)
        if level + 1 < max(run.count for run in mine):
            numbers = [mine[i].first - first + level for i in live]
            made = draw(logits[numbers], [rows[n] for n in numbers]).tokens
            for i, token in zip(live, made, strict=True):
                before[i], two_before[i] = token, before[i]


def _befores(runs: Sequence[Run], logits: Tensor, rows: Sequence[Row], first: int, drawn: Drawn) -> list[int]:
    """The token before each run: known, drawn in an earlier piece, or drawn here from its head's row."""
    heads = sorted({run.head - first for run in runs if run.head is not None and run.head >= first})
    made = dict(zip(heads, draw(logits[heads], [rows[i] for i in heads]).tokens, strict=True)) if heads else {}
    return [
        run.before if run.head is None else made[run.head - first] if run.head >= first else drawn.tokens[run.head]
        for run in runs
    ]
