"""Signals against plain softmax in float64."""

import pytest
import torch
from recguide.kernels.noise import gumbel
from recguide.kernels.signals import sample, signals


def test_two_best_and_entropy_equal_softmax():
    logits = torch.randn(9, 301, generator=torch.Generator().manual_seed(0)) * 4
    made, chances = signals(logits, entropy=True), logits.double().softmax(-1)
    best = chances.sort(-1, descending=True)
    assert torch.equal(made.ids, best.indices[:, :2])
    torch.testing.assert_close(made.probabilities.double(), best.values[:, :2], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(made.entropy.double(), -(chances * chances.log()).sum(-1), atol=1e-5, rtol=1e-5)
    assert signals(logits).entropy is None


def test_impossible_tokens_add_no_entropy():
    logits = torch.tensor([[1.0, 1.0, float("-inf"), float("-inf")]])
    made = signals(logits, entropy=True)
    torch.testing.assert_close(made.entropy, torch.tensor([2.0]).log())
    torch.testing.assert_close(made.probabilities, torch.tensor([[0.5, 0.5]]))


@pytest.mark.parametrize("vocab", [2, 3, 128, 300, 5000])
@pytest.mark.parametrize("rows", [1, 6])
def test_all_that_is_asked_for(vocab, rows):
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 4
    top_k, mask_id = min(5, vocab - 1), int(logits[0].argmax())
    before = logits.clone()
    made = signals(logits, entropy=True, top_k=top_k, mask_id=mask_id)
    assert torch.equal(logits, before)
    logits[:, mask_id] = float("-inf")
    logs, best = logits.double().log_softmax(-1), logits.sort(-1, descending=True)
    assert torch.equal(made.ids, best.indices[:, :2])
    assert torch.equal(made.top_ids, best.indices[:, :top_k])
    torch.testing.assert_close(made.top_logits, best.values[:, :top_k], atol=1e-6, rtol=0)
    torch.testing.assert_close(made.logsumexp.double(), logits.double().logsumexp(-1), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(made.margin.double(), margins(logs), atol=1e-6, rtol=1e-5)
    plain = -torch.where(logs.isinf(), 0.0, logs.exp() * logs).sum(-1)
    torch.testing.assert_close(made.entropy.double(), plain, atol=1e-5, rtol=1e-5)


def margins(logs):
    best = logs.exp().sort(-1, descending=True).values
    return best[:, 0] - best[:, 1]


def test_one_possible_token_names_two():
    for vocab, only in ((300, 299), (300, 0), (1000, 128)):
        logits = torch.full((2, vocab), float("-inf"))
        logits[:, only] = 1.0
        made = signals(logits, entropy=True)
        assert (made.ids[:, 0] == only).all() and (made.ids[:, 1] != only).all() and (made.ids < vocab).all()
        assert made.probabilities.tolist() == [[1.0, 0.0]] * 2
        assert made.entropy.tolist() == pytest.approx([0.0, 0.0], abs=1e-30)


def test_a_row_of_nan_leaves_the_others_alone():
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    expected = signals(logits, entropy=True)
    logits[1] = float("nan")
    made = signals(logits, entropy=True)
    assert torch.equal(made.ids[::2], expected.ids[::2]) and torch.equal(made.entropy[::2], expected.entropy[::2])
    assert ((made.ids >= 0) & (made.ids < 1000)).all()


@pytest.mark.parametrize(("vocab", "top_k"), [(1, 0), (5, 6), (5, -1)])
def test_what_cannot_be_asked_for(vocab, top_k):
    with pytest.raises(ValueError, match=f"top_k is {top_k} of a vocabulary of {vocab}"):
        signals(torch.zeros(1, vocab), top_k=top_k)


def test_draws_are_the_argmax_of_logits_and_noise():
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0))
    temperatures, seeds, places = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([1, 2**62, 3]), torch.tensor([0, 7, 9])
    made = sample(logits, temperatures, seeds, places)
    for i in range(3):
        noise = gumbel(int(seeds[i]), int(places[i]), None, 500, logits.device)
        assert made[i] == (logits[i] / temperatures[i] + noise).argmax()


def test_bfloat16_logits_are_widened_before_arithmetic():
    logits = (torch.randn(4, 200, generator=torch.Generator().manual_seed(1)) * 3).bfloat16()
    made = signals(logits, entropy=True)
    torch.testing.assert_close(made.probabilities, signals(logits.float()).probabilities, atol=0, rtol=0)
