"""Sampling with position-keyed noise (DESIGN section 5).

For request seed s and absolute position t the token is ``argmax_v(filtered[v] / T + g(s, t, v))`` with Gumbel noise
``g`` from a counter-based hash. A draw is a fixed function of the prefix and (s, t): block sizes, branches, trimming
and batch mates cannot change it, and a draft is accepted exactly while it equals the verifier's own draw.
"""

from __future__ import annotations

import math
import os
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from recguide.errors import RecGuideError
from recguide.kernels.noise import gumbel
from recguide.kernels.signals import greedy, sample


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is continued. Temperature 0 is greedy. ``seed`` None draws one and records it.

    After ``max_thinking_tokens`` output tokens without ``end_think_id``, that token is written (and fed) next, unless
    the text ends there.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    eos_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    max_thinking_tokens: int | None = None
    end_think_id: int | None = None

    def __post_init__(self) -> None:
        _require(isinstance(self.max_new_tokens, int) and self.max_new_tokens >= 1, self, "max_new_tokens", ">= 1")
        _require(0 <= self.temperature <= 100, self, "temperature", "0..100 (0 is greedy)")
        _require(isinstance(self.top_k, int) and self.top_k >= 0, self, "top_k", ">= 0 (0 is off)")
        _require(0 < self.top_p <= 1, self, "top_p", "(0, 1] (1 is off)")
        _require(0 <= self.min_p < 1, self, "min_p", "[0, 1) (0 is off)")
        _require(0 < self.repetition_penalty <= 100, self, "repetition_penalty", "(0, 100] (1 is off)")
        _require(not isinstance(self.stop, str) and all(self.stop), self, "stop", "a tuple of non-empty strings")
        thinking = self.max_thinking_tokens
        _require(thinking is None or thinking >= 0, self, "max_thinking_tokens", ">= 0, or None")
        if (thinking is None) != (self.end_think_id is None):
            raise RecGuideError("max_thinking_tokens and end_think_id go together; give both or none")
        if self.seed is None:
            object.__setattr__(self, "seed", int.from_bytes(os.urandom(4)))
        _require(isinstance(self.seed, int) and 0 <= self.seed < 2**63, self, "seed", "0..2**63-1")

    @property
    def greedy(self) -> bool:
        """True when a draw is the plain argmax of the logits."""
        return self.temperature == 0 and self.repetition_penalty == 1

    @property
    def unfiltered(self) -> bool:
        """True when a draw depends on all of the logits and the temperature alone."""
        off = self.top_k == 0 and self.top_p == 1 and self.min_p == 0 and self.repetition_penalty == 1
        return off and self.temperature > 0


def _require(holds: bool, params: SamplingParams, name: str, allowed: str) -> None:
    if not holds:
        raise RecGuideError(f"{name} is {getattr(params, name)!r}; allowed: {allowed}")


@dataclass(slots=True)
class Row:
    """One row to draw for: whose it is, which position it decides, the tokens before that position, and the token that
    takes the place of any drawn one but those in ``ends`` (None: the drawn one stays)."""

    params: SamplingParams
    position: int
    context: Sequence[int] = field(default_factory=tuple)
    forced: int | None = None
    ends: Container[int] = ()

    def settle(self, token: int) -> int:
        """What stands at the position when ``token`` was drawn."""
        return token if self.forced is None or token in self.ends else self.forced


@dataclass(slots=True)
class Draws:
    """Per row: the token, whether its logits were finite, and the token's log probabilities if asked for."""

    tokens: list[int]
    finite: list[bool]
    logprobs: list[float] | None
    filtered_logprobs: list[float] | None


def draw(logits: Tensor, rows: Sequence[Row]) -> Draws:
    """Draw one token per row of ``logits`` [rows, vocab]."""
    best, tokens = greedy(logits)
    finite = [math.isfinite(value) for value in best.tolist()]
    chosen = tokens.tolist()
    with_logprobs = any(row.params.logprobs for row in rows)
    noisy = [i for i, row in enumerate(rows) if not row.params.greedy and finite[i]]
    plain = [] if with_logprobs else [i for i in noisy if rows[i].params.unfiltered]
    for i, token in zip(plain, _sample(logits, rows, plain), strict=True):
        chosen[i] = token
    kept = {i: filtered(logits[i], rows[i]) for i in noisy if with_logprobs or not rows[i].params.unfiltered}
    for i, candidates in kept.items():
        chosen[i] = _choose(candidates, rows[i])
    chosen = [row.settle(token) for token, row in zip(chosen, rows, strict=True)]
    if not with_logprobs:
        return Draws(chosen, finite, None, None)
    before = [_logprob(Candidates(None, logits[i].float()), token) for i, token in enumerate(chosen)]
    after = [_logprob(kept[i], token) if i in kept else before[i] for i, token in enumerate(chosen)]
    return Draws(chosen, finite, before, after)


def _sample(logits: Tensor, rows: Sequence[Row], places: list[int]) -> list[int]:
    """Draws of the rows at ``places``, which nothing filters, in one go."""
    if not places:
        return []
    drawn = [rows[i] for i in places]
    temperatures = torch.tensor([row.params.temperature for row in drawn])
    seeds = torch.tensor([row.params.seed for row in drawn])
    positions = torch.tensor([row.position for row in drawn])
    part = logits if len(places) == len(logits) else logits[places]
    return sample(part, temperatures, seeds, positions).tolist()


class Candidates(NamedTuple):
    """Tokens that survived the filters, and their scores; ids None: the whole vocabulary in order."""

    ids: Tensor | None
    scores: Tensor


def _logprob(candidates: Candidates, token: int) -> float:
    ids, scores = candidates
    if ids is not None and token not in ids:
        return float("-inf")  # a forced token that the filters removed
    score = scores[token] if ids is None else scores[ids == token][0]
    return float(score - scores.logsumexp(-1))


def _choose(candidates: Candidates, row: Row) -> int:
    ids, scores = candidates
    if row.params.temperature > 0:
        scores = scores + gumbel(row.params.seed, row.position, ids, len(scores), scores.device)
    best = scores.argmax()
    return int(best if ids is None else ids[best])


def filtered(logits: Tensor, row: Row) -> Candidates:
    """Penalty, temperature, top-k, top-p, min-p, in this order, on one row [vocab]; float32."""
    p = row.params
    scores = logits.float()
    if p.repetition_penalty != 1:
        scores = penalised(scores, row.context, p.repetition_penalty)
    if p.temperature == 0:
        return Candidates(None, scores)
    kept = Candidates(None, scores / p.temperature)
    if 0 < p.top_k < len(scores):
        best = kept.scores.topk(p.top_k)
        kept = Candidates(best.indices, best.values)
    if p.top_p < 1:
        kept = _nucleus(kept, p.top_p)
    if p.min_p > 0:
        # p / p_max >= min_p, without normalising
        strong = (kept.scores - kept.scores.max()).exp() >= p.min_p
        kept = Candidates(strong.nonzero()[:, 0] if kept.ids is None else kept.ids[strong], kept.scores[strong])
    return kept


def penalised(scores: Tensor, context: Sequence[int], penalty: float) -> Tensor:
    """Divide positive and multiply negative scores of tokens already in ``context`` (Keskar et al. 2019)."""
    seen = torch.tensor(sorted({t for t in context if t < len(scores)}), device=scores.device)
    if not len(seen):
        return scores
    old = scores[seen]
    return scores.index_put((seen,), torch.where(old > 0, old / penalty, old * penalty))


def _nucleus(kept: Candidates, top_p: float) -> Candidates:
    """The smallest set of tokens, best first, whose probabilities sum to at least ``top_p``."""
    ids, scores = kept
    total = scores.logsumexp(-1)
    for count in (min(256, len(scores)), len(scores)):  # sorting the whole vocabulary is slow and seldom needed
        best, index = scores.topk(count)
        before = (best - total).exp().cumsum(-1)
        if before[-1] >= top_p or count == len(scores):
            break
    size = int((before < top_p).sum()) + 1
    index = index[:size]
    return Candidates(index if ids is None else ids[index], best[:size])
