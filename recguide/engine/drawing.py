"""From the logits of a step to tokens: which row decides what, the draws and signals, and the drafts they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from torch import Tensor

from recguide.engine.accept import branch_came_true
from recguide.engine.layout import Segment
from recguide.engine.plan import Branch, RequestPlan
from recguide.engine.request import Draft, Request
from recguide.engine.sampling import Row, draw
from recguide.kernels.signals import signals
from recguide.models.chain import Chained


@dataclass(slots=True)
class Work:
    """One request in one step: its plan (None while only prefilling) and its rows."""

    request: Request
    plan: RequestPlan | None
    segment: Segment


class Drawn:
    """What was drawn for the logits ``rows`` of a step, trunk rows first: per row its token, whether its logits were
    finite, and log probabilities where asked for; of draft rows (from ``first_draft`` on) the two best tokens and their
    probabilities where ``signals`` are wanted, and their ``entropy``, too. ``verifier_entropy`` is of trunk rows, or
    empty. ``chained``: what the chain chose neighbouring draft rows from, by the row behind."""

    def __init__(self, rows: Sequence[Row], first_draft: int, *, signals: bool, entropy: bool = False):
        count = len(rows)
        self.rows, self.first_draft, self.with_signals, self.with_entropy = rows, first_draft, signals, entropy
        self.tokens, self.finite = [0] * count, [True] * count
        self.logprobs, self.filtered = [0.0] * count, [0.0] * count
        self.top1, self.top2, self.entropy = [0.0] * count, [0.0] * count, [0.0] * count
        self.best_ids: list[list[int]] = [[]] * count
        self.verifier_entropy: list[float] = []
        self.chained: dict[int, tuple[Chained, slice]] = {}

    def draw(self, places: Sequence[int], logits: Tensor) -> None:
        """Draw for the rows at ``places``, in order, from their logits [len(places), vocab]."""
        draws = draw(logits, [self.rows[i] for i in places])
        self.put(places, draws.tokens, draws.finite)
        if draws.logprobs is not None:
            for i, before, after in zip(places, draws.logprobs, draws.filtered_logprobs, strict=True):
                self.logprobs[i], self.filtered[i] = before, after
        skip = sum(i < self.first_draft for i in places)
        if self.with_signals and skip < len(places):
            made = signals(logits[skip:], entropy=self.with_entropy)
            entropy = [] if made.entropy is None else made.entropy.tolist()
            self.put_signals(places[skip:], made.ids.tolist(), made.probabilities.tolist(), entropy)

    def put(self, places: Sequence[int], tokens: Sequence[int], finite: Sequence[bool]) -> None:
        for i, token, good in zip(places, tokens, finite, strict=True):
            self.tokens[i], self.finite[i] = token, good

    def put_signals(
        self, places: Sequence[int], best: list[list[int]], probabilities: list[list[float]], entropy: list[float]
    ) -> None:
        """Keep signals of draft rows: the two best of the vocabulary, their probabilities, and entropy where asked."""
        for i, ids, (first, second) in zip(places, best, probabilities, strict=True):
            self.best_ids[i], self.top1[i], self.top2[i] = ids, first, second
        if entropy:
            for i, spread in zip(places, entropy, strict=True):
                self.entropy[i] = spread

    def add_verifier(self, logits: Tensor) -> None:
        """Keep the entropy of the next trunk rows."""
        self.verifier_entropy += signals(logits, entropy=True).entropy.tolist() if len(logits) else []

    def confidence(self, row: int) -> float:
        """The probability of a draft row's token; 0 where it is neither of the two best, or not finite."""
        best = zip(self.best_ids[row], (self.top1[row], self.top2[row]), strict=True)
        return next((p for token, p in best if token == self.tokens[row]), 0.0) if self.finite[row] else 0.0


def rows_to_draw(work: Sequence[Work]) -> tuple[list[Row], int]:
    """Rows in logits order: every request's scored trunk rows, then every branch's masks; and where these begin."""
    rows = [row for item in work if item.segment.scored for row in _trunk_rows(item)]
    first_draft = len(rows)
    for item in work:
        for branch in item.segment.branches:
            rows += _branch_rows(item.request, branch)
    return rows, first_draft


def _trunk_rows(item: Work) -> list[Row]:
    request, seed = item.request, len(item.request.tokens)
    drafts = item.segment.trunk[len(item.segment.trunk) - item.segment.scored + 1 :]
    rows = []
    for i in range(item.segment.scored):
        context = () if request.params.repetition_penalty == 1 else [*request.tokens, *drafts[:i]]
        rows.append(Row(request.params, seed + i, context, _forced(request, seed + i, drafts[:i]), request.eos_ids))
    return rows


def _branch_rows(request: Request, branch: Branch) -> list[Row]:
    first = len(request.tokens) - 1 + branch.parent + branch.shift
    return [draft_row(request, first + i) for i, wanted in enumerate(branch.scored) if wanted]


def draft_row(request: Request, position: int) -> Row:
    """A draft row draws for the position it predicts, with the same noise the verifier will use there."""
    context = () if request.params.repetition_penalty == 1 else request.tokens
    return Row(request.params, position, context, _forced(request, position), request.eos_ids)


def _forced(request: Request, position: int, drafts: Sequence[int] = ()) -> int | None:
    """The end of thinking, where the budget of thinking ends and the text so far has none."""
    p = request.params
    if p.max_thinking_tokens is None or position != len(request.prompt) + p.max_thinking_tokens:
        return None
    return None if p.end_think_id in (*request.output, *drafts) else p.end_think_id


def branch_kind(branch: Branch, verify: int | None) -> str:
    """draft, correction, continuation or open (DESIGN section 2)."""
    if branch.token is not None:
        return "draft" if branch.parent == 0 else "correction"
    return "continuation" if branch.parent == verify + 1 else "open"


def first_token(branch: Branch, part: slice, drawn: Drawn) -> int:
    """The token a branch assumes at its first position: its own, or what its first mask drew."""
    return drawn.tokens[part.start] if branch.token is None else branch.token


def draft_of(branch: Branch, part: slice, drawn: Drawn, kind: str) -> Draft:
    """Draft tokens behind the branch's first token, up to the first row whose logits are not finite (maybe none)."""
    rows = range(part.start + branch.guesses, part.stop)
    good = list(takewhile(lambda i: drawn.finite[i], rows))
    tokens = [drawn.tokens[i] for i in good]
    chained = None
    if part.stop in drawn.chained and len(good) == len(rows):
        whole, mine = drawn.chained[part.stop]
        chained = whole.part(mine)
    if not drawn.with_signals:
        return Draft(tokens, kind, chained=chained)
    second = [next(t for t in drawn.best_ids[i] if t != drawn.tokens[i]) for i in good]
    margin = [drawn.top1[i] - drawn.top2[i] for i in good]
    entropy = [drawn.entropy[i] for i in good] if drawn.with_entropy else []
    return Draft(tokens, kind, [drawn.top1[i] for i in good], margin, second, entropy, chained)


def reveal(branch: Branch, part: slice, drawn: Drawn) -> list[int | None]:
    """The branch's masks after one more forward: those of at least ``threshold`` probability are revealed, and always
    the surest (the first of equals), so that drafting ends. Rows whose logits are not finite stay masked."""
    known = list(branch.known or (None,) * branch.masks)
    places = [i for i, token in enumerate(known) if token is None]
    rows = range(part.start, part.stop)
    sure = [drawn.confidence(row) for row in rows]
    surest = max(range(len(sure)), key=sure.__getitem__)
    for i, (place, row) in enumerate(zip(places, rows, strict=True)):
        if drawn.finite[row] and (i == surest or sure[i] >= branch.threshold):
            known[place] = drawn.tokens[row]
    return known


def next_draft(
    item: Work, branches: Sequence[slice], drawn: Drawn, accepted: int, emitted: Sequence[int]
) -> tuple[Draft | None, int | None]:
    """The draft and the number of the first branch that came true, if any; counts branches drafted and reused."""
    stats, chosen, reused = item.request.stats, None, None
    for number, (branch, part) in enumerate(zip(item.plan.branches, branches, strict=True)):
        kind = branch_kind(branch, item.plan.verify)
        stats.branches_drafted[kind] += 1
        if chosen is None and branch_came_true(branch, first_token(branch, part, drawn), accepted, emitted):
            chosen, reused = draft_of(branch, part, drawn, kind), number
            stats.branches_reused[kind] += 1
    return chosen, reused
