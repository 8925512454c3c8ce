"""Signals and draws in Triton against float64, and against the torch reference's own noise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recguide.kernels import signals_triton
from recguide.kernels.noise import gumbel
from recguide.kernels.signals import sample, signals

from tests.kernels.interpreted.guards import LIMIT, guarded, inside_poison, relative_error

DTYPE = st.sampled_from([torch.float32, torch.float16])
VOCAB = st.sampled_from([2, 3, 13, 300, 2048, 2049, 5000])


def logits_of(rows, vocab, dtype, seed, spread=4.0):
    """Distinct logits (so that ids are defined), between rows of NaN; one row in three has impossible tokens."""
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(rows)])
    values = (torch.linspace(-spread, spread, vocab) if vocab <= 1024 else torch.linspace(-15, 15, vocab))[ranks]
    values = values.to(dtype)
    for row in range(0, rows, 3):
        values[row, ranks[row] < vocab - 2] = float("-inf")
    wide = torch.full((rows, vocab + 5), float("nan"), dtype=dtype)
    return inside_poison(wide)[:, 2 : vocab + 2].copy_(values)


def exact(logits, mask_id):
    wide = logits.double()
    if mask_id is not None:
        wide[:, mask_id] = float("-inf")
    logs = wide.log_softmax(-1)
    entropy = -torch.where(logs.isinf(), 0.0, logs.exp() * logs).sum(-1)
    return wide.sort(dim=-1, descending=True, stable=True), wide.logsumexp(-1), entropy


@given(st.integers(1, 4), VOCAB, DTYPE, st.booleans(), st.integers(0, 3), st.booleans(), st.integers(0, 99))
@settings(max_examples=60)
def test_signals_equal_softmax_in_float64(rows, vocab, dtype, entropy, top_k, masked, seed):
    logits = logits_of(rows, vocab, dtype, seed)
    top_k, mask_id = min(top_k, vocab - 2), seed % vocab if masked and vocab > 3 else None
    with guarded():
        made = signals(logits, entropy=entropy, top_k=top_k, mask_id=mask_id)
    best, normaliser, spread = exact(logits, mask_id)
    limit = LIMIT[torch.float32]  # whatever the storage, arithmetic is in float32
    chances = best.values[:, :2] - normaliser[:, None]
    for row in range(rows):
        if chances[row, 1] > chances[row, 0] - 80 and (best.values[row, :3].diff() < 0).all():
            assert torch.equal(made.ids[row], best.indices[row, :2])
    assert (made.ids[:, 0] != made.ids[:, 1]).all() and ((made.ids >= 0) & (made.ids < vocab)).all()
    assert relative_error(made.probabilities, chances.exp()) < limit
    assert relative_error(made.margin, -chances.exp().diff()[:, 0]) < 2 * limit
    assert relative_error(made.logsumexp, normaliser) < limit
    if entropy:
        torch.testing.assert_close(made.entropy.double(), spread, atol=2e-6, rtol=limit)
    if top_k:
        assert torch.equal(made.top_logits.double(), best.values[:, :top_k])
        held = logits.double().gather(1, made.top_ids)
        possible = made.top_logits.isfinite()
        assert torch.equal(held[possible], made.top_logits.double()[possible])


def test_equal_logits_give_the_lowest_ids():
    made = signals(torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0]]))
    assert made.ids.tolist() == [[1, 2]]
    torch.testing.assert_close(made.probabilities[0, 0], made.probabilities[0, 1])


def test_a_row_with_one_possible_token_names_two():
    for vocab, only in ((4, 0), (4, 3), (5000, 4999)):
        logits = torch.full((1, vocab), float("-inf"))
        logits[0, only] = 2.0
        made = signals(logits, entropy=True)
        assert made.ids[0, 0] == only and made.ids[0, 1] != only and made.ids[0, 1] < vocab
        assert (made.probabilities[0].tolist(), made.entropy.tolist()) == ([1.0, 0.0], [0.0])


def test_a_row_that_is_not_finite_leaves_the_others_alone():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    expected = signals(logits, entropy=True)
    logits[1] = float("nan")
    made = signals(logits, entropy=True)
    assert ((made.ids >= 0) & (made.ids < 50)).all()
    for mine, theirs in zip(made[:4], expected[:4], strict=True):
        assert torch.equal(mine[::2], theirs[::2])


def test_no_rows():
    made = signals(torch.empty(0, 9), entropy=True)
    assert made.ids.shape == (0, 2) and made.entropy.shape == (0,)
    none = torch.empty(0, dtype=torch.int64)
    assert sample(torch.empty(0, 9), none.float(), none, none).shape == (0,)


@given(st.integers(1, 4), VOCAB, DTYPE, st.floats(0.05, 10), st.integers(0, 2**63 - 1), st.integers(0, 2**20))
@settings(max_examples=40)
def test_draws_are_the_argmax_with_the_references_noise(rows, vocab, dtype, temperature, seed, position):
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)).to(dtype)
    seeds = torch.tensor([(seed + i) % 2**63 for i in range(rows)])
    temperatures, positions = torch.full((rows,), temperature), position + torch.arange(rows)
    with guarded():
        made = sample(inside_poison(logits), temperatures, seeds, positions)
    for i in range(rows):
        noise = gumbel(int(seeds[i]), int(positions[i]), None, vocab, logits.device)
        scores = logits[i].double() / float(temperatures[i]) + noise.double()
        assert scores[made[i]] >= scores.max() - 1e-5 * scores.max().abs().clamp(min=1)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_is_read_in_parts_when_rows_are_few(monkeypatch, rows):
    monkeypatch.setattr(signals_triton, "BLOCK", 64)
    logits = logits_of(rows, 1000, torch.float32, 1)
    whole = signals(logits, entropy=True)
    monkeypatch.setattr(signals_triton, "processors", lambda device: 100)
    made = signals(logits, entropy=True)
    assert torch.equal(made.ids, whole.ids)
    torch.testing.assert_close(made.entropy, whole.entropy, atol=1e-6, rtol=1e-5)
