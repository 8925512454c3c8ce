"""The verifier's entropy of every committed token: kept for policies that ask, a property of the text alone."""

import pytest
import torch

from recguide.engine import engine as engine_module
from recguide.engine.sampling import SamplingParams
from recguide.policies.ar import Autoregressive
from tests.helpers import drain, make_engine, mixed_jobs, small_model

MODEL = small_model()
JOBS = mixed_jobs(12)


class Asking(Autoregressive):
    needs_verifier_entropy = True


def entropies(policy):
    engine = make_engine(MODEL, policy)
    return [r.verifier_entropy for r in engine.generate([p for p, _ in JOBS], [q for _, q in JOBS])]


def assert_close(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), atol=1e-4, rtol=1e-4)


def test_one_for_each_token_whatever_the_plan():
    expected = entropies(Asking())
    engine = make_engine(MODEL, Asking())
    made = engine.generate([p for p, _ in JOBS], [q for _, q in JOBS])
    assert [len(e) for e in expected] == [r.generated for r in made]
    assert all(0 <= e <= 2.57 for each in expected for e in each)  # ln 13
    assert_close(entropies("paper-adaptive:2/4/8"), expected)


def test_logits_made_in_pieces_give_the_same(monkeypatch):
    expected = entropies("paper-adaptive:2/4/8")
    monkeypatch.setattr(engine_module, "LOGIT_ROWS", 3)
    assert_close(entropies("paper-adaptive:2/4/8"), expected)


@pytest.mark.parametrize("spec", ["ar", "overlap:8", "budget", "ema-tiers", "tiers"])
def test_none_is_kept_where_no_one_asks(spec):
    assert not any(entropies(spec))


def test_it_is_kept_from_the_step_on_in_which_the_policy_asks():
    engine = make_engine(MODEL, "ar")
    request = engine.submit([1, 2, 3], SamplingParams(max_new_tokens=30, seed=0))
    for _ in range(10):
        engine.step()
    before = request.generated
    engine.set_policy("paper-adaptive")
    drain(engine)
    assert len(request.verifier_entropy) == request.generated - before == 20
