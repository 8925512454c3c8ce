"""Signals against plain softmax in float64."""

import torch
from recguide.kernels.signals import signals


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


def test_bfloat16_logits_are_widened_before_arithmetic():
    logits = (torch.randn(4, 200, generator=torch.Generator().manual_seed(1)) * 3).bfloat16()
    made = signals(logits, entropy=True)
    torch.testing.assert_close(made.probabilities, signals(logits.float()).probabilities, atol=0, rtol=0)
