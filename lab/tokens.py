"""Rounds of one request as text: each token coloured, underlined and marked by its fate, with what was known of it.

Pure functions from what a watcher kept to HTML; nothing here knows of widgets.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from itertools import groupby

from recguide.lab.watch import Round

from recguide.engine.drawing import branch_kind
from recguide.engine.request import Draft
from recguide.models.tokenizer import Tokenizer

FATES = {
    "accepted": "accepted draft",
    "correction": "correction: the verifier's token where a draft was wrong",
    "bonus": "bonus: the verifier's token behind a draft that was right to its end",
    "plain": "plain token: nothing was drafted",
    "rejected": "rejected draft",
    "unread": "draft not reached or not verified",
}
MARKS = {"accepted": "✓", "correction": "↺", "bonus": "+", "plain": "·", "rejected": "✗", "unread": "?"}


def legend() -> str:
    """What the colours and marks mean."""
    items = (
        f'<span><span class="rg-token rg-{fate}" title="{html.escape(text)}">{MARKS[fate]}</span> '
        f"{html.escape(text.split(':')[0])}</span>"
        for fate, text in FATES.items()
    )
    return f'<div class="rg-legend">{"".join(items)}</div>'


def rounds_html(rounds: Sequence[Round], tokenizer: Tokenizer) -> str:
    """The newest round last; each with its plan in words, and a line of tokens. Plain steps in a row share a line."""
    return "".join(
        _line(list(group), tokenizer) if plain else "".join(_line([r], tokenizer) for r in group)
        for plain, group in groupby(rounds, _plain)
    )


def _plain(r: Round) -> bool:
    return r.outcome.plan.verify == 0 and not r.outcome.plan.branches


def _line(rounds: Sequence[Round], tokenizer: Tokenizer) -> str:
    note = plan_words(rounds[0])
    if len(rounds) > 1:
        note = f"steps {rounds[0].step} to {rounds[-1].step}: 1 token each"
    shown = "".join(token for r in rounds for token in _tokens(r, tokenizer))
    return (
        f'<div class="rg-round"><div class="rg-note">{html.escape(note)}</div>'
        f'<div class="rg-tokens">{shown}</div></div>'
    )


def plan_words(r: Round) -> str:
    """The plan and what came of it: ``step 12: 4 verified, 2 kept; continuation used``."""
    plan, outcome = r.outcome.plan, r.outcome
    if plan.verify is None:
        return f"step {r.step}: {plan.branches[0].drafts} drafted"
    words = f"step {r.step}: {plan.verify} verified, {outcome.kept} kept" if plan.verify else f"step {r.step}: 1 token"
    kinds = [branch_kind(branch, plan.verify) for branch in plan.branches]
    for number, kind in enumerate(kinds):
        words += f"; {kind} {'used' if number == outcome.reused else 'lost'}"
    return words


def fates(r: Round) -> Iterator[tuple[int, str, int | None]]:
    """(token, fate, its place in the held draft or None), in reading order; rejected drafts come before what replaced
    them."""
    outcome, verify = r.outcome, r.outcome.plan.verify
    drafts = list(outcome.held.tokens) if outcome.held else []
    if verify is None:
        return
    accepted = len(outcome.emitted) - 1
    for place, token in enumerate(outcome.emitted[: outcome.kept]):
        if place < accepted:
            yield token, "accepted", place
            continue
        if place < min(verify, len(drafts)):
            yield drafts[place], "rejected", place
        yield token, _own(place, verify), None
    for place in range(accepted + (accepted < verify), len(drafts)):
        yield drafts[place], "unread", place


def _own(place: int, verify: int) -> str:
    """The fate of the verifier's own token."""
    if not verify:
        return "plain"
    return "bonus" if place == verify else "correction"


def _tokens(r: Round, tokenizer: Tokenizer) -> Iterator[str]:
    for token, fate, place in fates(r):
        chance = f"{r.survival[place]:.0%}" if place is not None and place < len(r.survival) else "&nbsp;"
        tip = html.escape("\n".join(_facts(r, fate, place, token, tokenizer)))
        yield (
            f'<span class="rg-token rg-{fate}" tabindex="0">{html.escape(_shown(token, tokenizer))}'
            f'<small>{MARKS[fate]} {chance}</small><span class="rg-tip">{tip}</span></span>'
        )


def _shown(token: int, tokenizer: Tokenizer) -> str:
    return tokenizer.decode([token]).replace("\n", "⏎").replace("\t", "⇥") or "∅"


def _facts(r: Round, fate: str, place: int | None, token: int, tokenizer: Tokenizer) -> Iterator[str]:
    """What hovering or focusing a token tells."""
    yield f"{_shown(token, tokenizer)!r} (id {token}): {FATES[fate]}"
    draft: Draft | None = r.outcome.held
    if place is None or draft is None:
        return
    if place < len(draft.top1):
        yield f"draft's best: p = {draft.top1[place]:.3f}"
    if place < len(draft.second):
        runner_up = draft.top1[place] - draft.margin[place]
        yield f"second best: {_shown(draft.second[place], tokenizer)!r}, p = {runner_up:.3f}"
        yield f"margin {draft.margin[place]:.3f}"
    if place < len(draft.entropy):
        yield f"entropy {draft.entropy[place]:.2f} nats"
    if place < len(r.survival):
        source = "the controller" if r.learned else "top-1 probabilities multiplied"
        yield f"predicted survival {r.survival[place]:.1%} ({source})"
    source = "left of a rejected draft" if draft.kind == "tail" else f"from a {draft.kind} branch"
    yield f"{source}, place {place + 1} of {len(draft.tokens)}"
