"""Is every policy's text the text of ``ar``? First divergences, and whether each is a near-tie of the arithmetic.

In float32 there should be none. In bfloat16 the products of one row and of many rows differ in their last bits, and
where two tokens are nearly tied the argmax may flip; from there on the texts differ. A divergence is a near-tie when
the two tokens' logits, computed once more over the common prefix, are within a few rounding steps of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from recguide.engine.cache import KVCache, StepAttention
from recguide.engine.engine import Engine
from recguide.engine.layout import Segment, build_layout
from recguide.engine.request import Request, raise_failed
from recguide.engine.sampling import Row, SamplingParams, filtered, gumbel
from recguide.models.loader import Model

NEAR_TIE_STEPS = 4
"""Rounding steps of the dtype, at the size of the logits, that still count as a tie."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Where a policy's text leaves that of ``ar``. ``gap`` is the difference of the two tokens' final scores (logits,
    or logits over temperature plus noise), ``tolerance`` what rounding explains. A text that ends where the other goes
    on has no token there (None) and an infinite gap."""

    policy: str
    prompt: int
    position: int
    expected: int | None
    found: int | None
    gap: float
    tolerance: float

    @property
    def near_tie(self) -> bool:
        return self.gap <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The comparison of one policy: how many texts were equal, and the first divergence of each other one."""

    policy: str
    texts: int
    divergences: list[Divergence]

    @property
    def explained(self) -> bool:
        return all(d.near_tie for d in self.divergences)


def audit(
    model: Model,
    prompts: Sequence[list[int]],
    policies: Sequence[str],
    params: Sequence[SamplingParams],
    *,
    concurrency: int = 16,
    max_context: int | None = None,
    on_policy: Callable[[str], None] = lambda _: None,
    on_text: Callable[[], None] = lambda: None,
) -> list[Audit]:
    """Compare every policy with ``ar`` at concurrency 1, on the same requests. ``on_text`` is called for each text."""

    def run(policy: str, level: int) -> list[Request]:
        on_policy(policy)
        engine = Engine(model, policy, max_concurrency=level, max_context=max_context)
        requests = engine.generate(prompts, params, lambda delta: on_text() if delta.finish_reason else None)
        raise_failed(requests)
        return requests

    expected = run("ar", 1)
    audits = []
    for policy in policies:
        pairs = zip(expected, run(policy, concurrency), strict=True)
        found = [_divergence(model, policy, number, a, b) for number, (a, b) in enumerate(pairs)]
        audits.append(Audit(policy=policy, texts=len(found), divergences=[d for d in found if d is not None]))
    return audits


def _divergence(model: Model, policy: str, number: int, expected: Request, found: Request) -> Divergence | None:
    a, b = expected.output, found.output
    if a == b:
        return None
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    prefix = expected.prompt + a[:at]
    x, y = (text[at] if at < len(text) else None for text in (a, b))
    scores, tolerance = _scores(model, prefix, expected.params)
    return Divergence(
        policy=policy,
        prompt=number,
        position=at,
        expected=x,
        found=y,
        gap=float("inf") if x is None or y is None else abs(float(scores[x] - scores[y])),
        tolerance=tolerance,
    )


@torch.inference_mode()
def _scores(model: Model, prefix: list[int], params: SamplingParams) -> tuple[torch.Tensor, float]:
    """What the next token of ``prefix`` is the argmax of, [vocab], and the size of rounding on that scale."""
    logits = next_logits(model, prefix)
    row = Row(params, len(prefix), prefix)
    ids, kept = filtered(logits, row)
    scores = torch.full((len(logits),), float("-inf"), device=logits.device)
    if params.temperature > 0:
        kept = kept + gumbel(params.seed, row.position, ids, len(kept), kept.device)
    scores[slice(None) if ids is None else ids] = kept
    step = torch.finfo(model.backbone.dtype).eps * float(logits.abs().max())
    return scores, NEAR_TIE_STEPS * step / (params.temperature or 1.0)


def next_logits(model: Model, prefix: list[int]) -> torch.Tensor:
    """Logits [vocab] float32 behind ``prefix``, from one causal forward over all of it."""
    config, backbone = model.config, model.backbone
    cache = KVCache(config, 1, len(prefix), 0, backbone.dtype, backbone.device)
    layout = build_layout([Segment(0, 0, tuple(prefix), 1)], config.mask_id).to(backbone.device)
    hidden = backbone.forward(layout.tokens, layout.positions, StepAttention(cache, layout, config))
    return backbone.logits(hidden[layout.logit_rows])[0].float()
