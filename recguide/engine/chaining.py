"""Which draft rows hang together, and their choice one after the other where the adapter has a chain.

Rows of one branch are drafted side by side. The chain then goes along them: each row's candidates are scored again
with the two tokens before it, as drawn so far, and drawn with the row's own noise. Verifier rows are never touched.
When a draft is rejected, the chain may go along the rows behind once more, with the token that the verifier chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from recguide.engine.drawing import Drawn, Work, draft_row
from recguide.engine.plan import Branch
from recguide.engine.request import Draft, Request
from recguide.engine.sampling import Row, draw
from recguide.kernels.signals import signals
from recguide.models.chain import Chain, Chained


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


def draw_others(runs: Sequence[Run], logits: Tensor, first: int, drawn: Drawn) -> None:
    """Draw the rows of no run from their logits [piece, vocab]; the piece begins at logits row ``first``."""
    along = set(_rows_of(_inside(runs, first, len(logits))))
    places = [row for row in range(first, first + len(logits)) if row not in along]
    if places:
        drawn.draw(places, _picked(logits, places, first))


def choose_along(chain: Chain, runs: Sequence[Run], logits: Tensor, hidden: Tensor, first: int, drawn: Drawn) -> None:
    """Choose the rows of ``runs`` in a piece one after the other in every run, and keep what each was chosen from.

    ``logits`` [piece, vocab] and ``hidden`` [piece, hidden] begin at logits row ``first``; a run lies inside a piece or
    outside. The tokens before runs are known, or drawn by now.
    """
    mine = _inside(runs, first, len(logits))
    if not mine:
        return
    places = _rows_of(mine)
    chained = chain.candidates(*(_picked(x, places, first) for x in (logits, hidden)))
    befores = [[drawn.tokens[run.head] if run.before is None else run.before, run.two_before] for run in mine]
    line = Line([run.count for run in mine], befores)
    wanted = {"signs": drawn.with_signals, "entropy": drawn.with_entropy}
    made = _follow(chain, chained, line, [drawn.rows[place] for place in places], logits.dtype, **wanted)
    drawn.put(places, made.tokens, made.finite)
    if drawn.with_signals:
        drawn.put_signals(places, made.best, made.probabilities, made.entropy)
    for run, part in zip(mine, line.parts, strict=True):
        drawn.chained[run.first + run.count] = chained, part


def _picked(x: Tensor, places: Sequence[int], first: int) -> Tensor:
    """The rows at ``places`` (ascending) of x, which begins at row ``first``: a view where they are neighbours."""
    if places[-1] - places[0] + 1 == len(places):
        return x[places[0] - first : places[-1] - first + 1]  # a row of logits is long
    return x[torch.tensor(places, device=x.device) - first]


def _inside(runs: Sequence[Run], first: int, count: int) -> list[Run]:
    return [run for run in runs if first <= run.first < first + count]


def _rows_of(runs: Sequence[Run]) -> list[int]:
    return [run.first + i for run in runs for i in range(run.count)]


@dataclass(frozen=True, slots=True)
class Left:
    """A request, and what the places behind its new seed were chosen from when its last draft was made."""

    request: Request
    chained: Chained


def left_of(request: Request, held: Draft, accepted: int, most: int) -> Left | None:
    """What is left of a draft once ``accepted`` of its tokens and the verifier's own one behind them are committed: its
    next rows, ``most`` at most."""
    count = len(held.tokens) - accepted - 1
    if held.chained is None or min(count, most) < 1:
        return None
    first = len(held.chained.ids) - count
    return Left(request, held.chained.part(slice(first, first + min(count, most))))


def choose_tails(chain: Chain, left: Sequence[Left], dtype: torch.dtype, *, entropy: bool) -> None:
    """Give the requests new drafts, which cost no forward: masks that were drafted for these places, chosen again
    behind the tokens that the verifier put there. ``dtype`` is that of logits."""
    chained = Chained(*(torch.cat(column) for column in zip(*(part.chained for part in left), strict=True)))
    line = Line([len(part.chained.ids) for part in left], [part.request.tokens[-1:-3:-1] for part in left])
    rows = [
        draft_row(part.request, len(part.request.tokens) + i)
        for part, count in zip(left, line.counts, strict=True)
        for i in range(count)
    ]
    made = _follow(chain, chained, line, rows, dtype, signs=True, entropy=entropy)
    second = [next(t for t in pair if t != token) for pair, token in zip(made.best, made.tokens, strict=True)]
    top1 = [first for first, _ in made.probabilities]
    margin = [a - b for a, b in made.probabilities]
    for part, at in zip(left, line.parts, strict=True):
        signs = top1[at], margin[at], second[at], made.entropy[at]
        part.request.draft = Draft(made.tokens[at], "tail", *signs, part.chained)


@dataclass(frozen=True, slots=True)
class Line:
    """Rows of several drafts, one draft behind the other: their ``counts``, and the two tokens in front of each, the
    nearer one first."""

    counts: list[int]
    befores: list[list[int]]

    @property
    def starts(self) -> list[int]:
        return list(accumulate(self.counts, initial=0))

    @property
    def parts(self) -> list[slice]:
        return [slice(a, b) for a, b in pairwise(self.starts)]


class Choices(NamedTuple):
    """Per row: the token chosen, whether its score is finite, the two best tokens and their probabilities among the
    candidates (may be empty where no signals are wanted), and the entropy in nats (empty where it is not wanted)."""

    tokens: list[int]
    finite: list[bool]
    best: list[list[int]]
    probabilities: list[list[float]]
    entropy: list[float]


def _follow(
    chain: Chain, chained: Chained, line: Line, rows: Sequence[Row], dtype: torch.dtype, *, signs: bool, entropy: bool
) -> Choices:
    """The choices of all rows, each knowing the tokens chosen before it. Scores are rounded to ``dtype``, as logits."""
    found = chain.follow(chained, line.counts, line.befores) if _take_the_best(rows) else None
    if found is None:
        return _level_by_level(chain, chained, line, rows, dtype, signs=signs, entropy=entropy)
    best, figures = found
    finite = [good > 0 for *_, good in figures]
    spread = [f[2] for f in figures] if entropy else []
    return Choices([a for a, _ in best], finite, best, [f[:2] for f in figures], spread)


def _level_by_level(
    chain: Chain, chained: Chained, line: Line, rows: Sequence[Row], dtype: torch.dtype, *, signs: bool, entropy: bool
) -> Choices:
    """The same, the first rows of all drafts together, then the second ones."""
    scores = torch.empty(chained.ids.shape, dtype=dtype, device=chained.ids.device)
    tokens = [0] * len(rows)
    before, starts = list(line.befores), line.starts
    for level in range(max(line.counts)):
        live = [i for i, count in enumerate(line.counts) if count > level]
        numbers = [starts[i] + level for i in live]
        at = torch.tensor(numbers, device=scores.device)
        here = chained.part(at)
        made = chain.scores(here, torch.tensor([before[i] for i in live], device=scores.device)).to(dtype)
        scores[at] = made
        chosen = _chosen(made, here.ids, [rows[n] for n in numbers], chain.vocab)
        for i, number, token in zip(live, numbers, chosen, strict=True):
            before[i], tokens[number] = [token, before[i][0]], token
    finite = scores.amax(-1).isfinite().tolist()
    if not signs:
        return Choices(tokens, finite, [], [], [])
    made = signals(scores, entropy=entropy)
    best, spread = chained.ids.gather(1, made.ids).tolist(), made.entropy.tolist() if entropy else []
    return Choices(tokens, finite, best, made.probabilities.tolist(), spread)


def _take_the_best(rows: Sequence[Row]) -> bool:
    """Whether all rows take their best candidate."""
    return all(row.params.greedy and row.forced is None for row in rows)


def _chosen(scores: Tensor, ids: Tensor, rows: Sequence[Row], vocab: int) -> list[int]:
    """The draws of rows whose candidates [rows, candidates] have their scores."""
    if _take_the_best(rows):
        return ids.gather(1, scores.argmax(-1, keepdim=True))[:, 0].tolist()  # no need to look at the whole vocabulary
    logits = scores.new_full((len(rows), vocab), float("-inf")).scatter_(1, ids, scores)
    return draw(logits, rows).tokens
