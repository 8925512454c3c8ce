"""Which draft rows hang together, and their choice one after the other where the adapter has a chain.

Rows of one branch are drafted side by side. The chain then goes along them: each row's candidates are scored again
with the two tokens before it, as drawn so far, and drawn with the row's own noise. Verifier rows are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

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
    places = [run.first - first + i for run in mine for i in range(run.count)]
    starts = list(accumulate((run.count for run in mine), initial=0))
    flat = torch.tensor(places, device=logits.device)
    base, ids = chain.candidates(logits[flat])
    states = hidden[flat]
    before = [
        [token, run.two_before] for run, token in zip(mine, _befores(mine, logits, rows, first, drawn), strict=True)
    ]
    logits[flat] = float("-inf")
    longest = max(run.count for run in mine)
    for level in range(longest):
        live = [i for i, run in enumerate(mine) if run.count > level]
        numbers = [starts[i] + level for i in live]
        at = torch.tensor(numbers, device=logits.device)
        seen = torch.tensor([before[i] for i in live], device=logits.device)
        scores = chain.scores(base[at], ids[at], states[at], seen).to(logits.dtype)
        logits[flat[at][:, None], ids[at]] = scores
        if level + 1 < longest:
            tokens = _chosen(scores, ids[at], logits, [places[n] for n in numbers], rows)
            for i, token in zip(live, tokens, strict=True):
                before[i] = [token, before[i][0]]


def _chosen(scores: Tensor, ids: Tensor, logits: Tensor, places: list[int], rows: Sequence[Row]) -> list[int]:
    """The draws of rows whose candidates [rows, candidates] have their scores."""
    drawn_for = [rows[place] for place in places]
    if all(row.params.greedy and row.forced is None for row in drawn_for):
        return ids.gather(1, scores.argmax(-1, keepdim=True))[:, 0].tolist()  # no need to look at the whole vocabulary
    return draw(logits[places], drawn_for).tokens


def _befores(runs: Sequence[Run], logits: Tensor, rows: Sequence[Row], first: int, drawn: Drawn) -> list[int]:
    """The token before each run: known, drawn in an earlier piece, or drawn here from its head's row."""
    heads = sorted({run.head - first for run in runs if run.head is not None and run.head >= first})
    made = dict(zip(heads, draw(logits[heads], [rows[i] for i in heads]).tokens, strict=True)) if heads else {}
    return [
        run.before if run.head is None else made[run.head - first] if run.head >= first else drawn.tokens[run.head]
        for run in runs
    ]
