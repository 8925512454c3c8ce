"""Rounds as text: every token of the text once, with the fate it had, and nothing that is not escaped."""

import re

import pytest
from recguide.lab.tokens import FATES, fates, legend, plan_words, rounds_html
from recguide.lab.watch import Watcher

from recguide.engine.sampling import SamplingParams
from tests.helpers import make_engine, small_model

MODEL = small_model()


def watched(spec, tokens=30):
    engine = make_engine(MODEL, spec)
    watcher = Watcher()
    engine.observer = watcher
    [request] = engine.generate([[1, 2, 3]], SamplingParams(max_new_tokens=tokens, seed=0))
    return request, watcher


@pytest.mark.parametrize("spec", ["ar", "linear:4", "ar-row:5", "overlap:6:1", "quadratic:3", "explore"])
def test_the_kept_tokens_are_the_text(spec):
    request, watcher = watched(spec)
    kept = [token for r in watcher.rounds for token, fate, _ in fates(r) if fate not in ("rejected", "unread")]
    assert kept == request.output
    found = [fate for r in watcher.rounds for _, fate, _ in fates(r)]
    assert found.count("accepted") == request.stats.num_accepted_draft_tokens
    assert set(found) <= set(FATES)


def test_rejected_drafts_stand_before_what_replaced_them():
    _, watcher = watched("linear:6")
    for r in watcher.rounds:
        names = [fate for _, fate, _ in fates(r)]
        for place, name in enumerate(names):
            assert (name == "correction") == (place > 0 and names[place - 1] == "rejected")


def test_html_is_escaped_and_reachable_by_keyboard():
    class Tokenizer:
        def decode(self, ids):
            return f"<i>{ids[0]}&"

    _, watcher = watched("overlap:5:1")
    page = rounds_html(list(watcher.rounds), Tokenizer())
    assert "<i>" not in page
    assert page.count('tabindex="0"') == page.count('class="rg-token ') > 0
    assert page.count('<span class="rg-tip">') == page.count('class="rg-token ')
    for fact in ("margin", "entropy", "second best", "predicted survival"):
        assert fact in page


def test_plain_steps_share_a_line():
    _, watcher = watched("ar", 12)
    page = rounds_html(list(watcher.rounds), MODEL.tokenizer)
    assert page.count("rg-round") == 1
    assert "steps 0 to 11: 1 token each" in page


def test_plans_in_words():
    _, watcher = watched("overlap:5:1", 60)
    words = [plan_words(r) for r in watcher.rounds]
    assert any(
        re.fullmatch(r"step \d+: \d verified, \d kept(; (correction|continuation) (used|lost))+", w) for w in words
    )
    assert any("used" in w for w in words)


def test_fates_differ_in_more_than_colour():
    assert len(set(re.findall(r"rg-(\w+)\" title", legend()))) == len(FATES)
    assert len(set(re.findall(r">(.)</span> ", legend()))) == len(FATES)
