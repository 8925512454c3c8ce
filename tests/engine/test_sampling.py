"""Noise, filters and draws, each against its plain definition; statistics with fixed seeds (T13)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from recguide.engine.sampling import Row, SamplingParams, draw, filtered, gumbel, penalised
from recguide.errors import RecGuideError
from tests.helpers import agreeing_model, make_engine, run, small_model

CPU = torch.device("cpu")


def noise(seed, position, vocab=1000):
    return gumbel(seed, position, None, vocab, CPU)


def uniform(seed, position, vocab=1000):
    """Undo the two logarithms."""
    return (-(-noise(seed, position, vocab).double()).exp()).exp()


def chi_square_holds(observed, expected, sigmas=4.5):
    """Pearson's statistic below a limit that chance passes once in 300,000 (Wilson-Hilferty)."""
    observed, expected = torch.as_tensor(observed).double(), torch.as_tensor(expected).double()
    statistic = ((observed - expected) ** 2 / expected).sum().item()
    freedom = len(observed) - 1
    deviation = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return deviation < sigmas


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31), st.lists(st.integers(0, 999), min_size=1, max_size=20))
def test_noise_is_a_function_of_seed_position_and_token(seed, position, ids):
    whole = noise(seed, position)
    noise(seed ^ 1, position + 1)
    assert torch.equal(gumbel(seed, position, torch.tensor(ids), 1000, CPU), whole[ids])
    assert torch.equal(noise(seed, position, 50000)[:1000], whole)
    assert whole.isfinite().all()


@pytest.mark.parametrize("bit", [0, 1, 31, 32, 33, 62])
def test_every_bit_of_the_seed_counts(bit):
    assert (noise(5, 7) != noise(5 ^ (1 << bit), 7)).float().mean() > 0.99


@pytest.mark.parametrize("sample", [
    lambda: torch.stack([uniform(0, t) for t in range(100)]),  # along the vocabulary
    lambda: torch.stack([uniform(0, t, 3)[:1] for t in range(20000)]),  # along positions
    lambda: torch.stack([uniform(s, 40, 3)[:1] for s in range(20000)]),  # along seeds
    lambda: torch.stack([uniform(s << 32, 40, 3)[:1] for s in range(20000)]),  # along high seed bits
], ids=["tokens", "positions", "seeds", "high seeds"])  # fmt: skip
def test_uniforms_are_uniform(sample):
    u = sample().flatten()
    counts = torch.histc(u, 64, 0, 1)
    assert chi_square_holds(counts, torch.full((64,), len(u) / 64))


@pytest.mark.parametrize("other", [(0, 1, 0), (1, 0, 0), (1 << 32, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 0)])
def test_neighbours_are_independent(other):
    """8 x 8 table of uniforms at (seed, position, token) and at a neighbour of it."""
    seed, position, token = other
    first = torch.stack([uniform(3, 2 * t, 501)[:500] for t in range(100)]).flatten()
    second = torch.stack([uniform(3 + seed, 2 * t + position, 501)[token : token + 500] for t in range(100)]).flatten()
    cells = (first * 8).long() * 8 + (second * 8).long()
    assert chi_square_holds(torch.bincount(cells, minlength=64), torch.full((64,), len(first) / 64))


def test_noise_has_the_gumbel_distribution():
    values = torch.cat([noise(9, t) for t in range(100)]).double()
    assert values.mean().item() == pytest.approx(0.5772, abs=5 * 1.2825 / math.sqrt(len(values)))
    assert values.std().item() == pytest.approx(math.pi / math.sqrt(6), abs=0.02)
    for quantile in (0.01, 0.1, 0.5, 0.9, 0.99):
        share = (values < -math.log(-math.log(quantile))).double().mean().item()
        assert share == pytest.approx(quantile, abs=5 * math.sqrt(quantile * (1 - quantile) / len(values)))


def survivors(logits, **params):
    kept = filtered(logits, Row(SamplingParams(**({"temperature": 1.0} | params)), 0))
    ids = range(len(logits)) if kept.ids is None else kept.ids.tolist()
    return dict(zip(ids, kept.scores.tolist(), strict=True))


def plain_survivors(logits, temperature, top_k, top_p, min_p):
    """The definitions, on a sorted list: best k; smallest head that reaches p; at least min_p of the best."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    order = order[:top_k] if top_k else order
    weights = [math.exp((logits[i] - logits[order[0]]) / temperature) for i in order]
    total, head, size = sum(weights), 0.0, 0
    while size < len(order) and head < top_p:
        head, size = head + weights[size] / total, size + 1
    size = len(order) if top_p == 1 else size
    return {i for i, w in zip(order[:size], weights, strict=False) if w >= min_p}


LOGITS = st.lists(st.integers(-400, 400), min_size=2, max_size=40, unique=True).map(lambda xs: [x / 40 for x in xs])


@given(
    LOGITS, st.sampled_from([0.3, 1.0, 2.7]), st.integers(0, 12), st.sampled_from([0.1, 0.5, 0.83, 1.0]),
    st.sampled_from([0.0, 0.011, 0.4]),
)  # fmt: skip
@settings(max_examples=300)
def test_filters_keep_what_their_definitions_keep(logits, temperature, top_k, top_p, min_p):
    kept = survivors(torch.tensor(logits), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert set(kept) == plain_survivors(logits, temperature, top_k, top_p, min_p)
    assert all(score == pytest.approx(logits[i] / temperature, abs=1e-4) for i, score in kept.items())


def test_top_p_edges():
    halves = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    assert set(survivors(halves, top_p=0.49)) == {0}
    assert set(survivors(halves, top_p=0.51)) == {0, 1}
    assert set(survivors(halves, top_p=1e-9)) == {0}
    assert set(survivors(halves, top_p=1.0)) == {0, 1, 2, 3}
    assert set(survivors(torch.tensor([0.0, float("-inf"), -1.0]), top_p=0.999999)) == {0, 2}


def test_top_p_looks_beyond_the_first_sorted_piece():
    """A flat distribution over 2000 tokens: half of it needs 1000 of them, more than the 256 sorted at first."""
    flat = torch.linspace(0, 1e-3, 2000)
    assert len(survivors(flat, top_p=0.5)) == pytest.approx(1000, abs=2)


def test_top_k_beyond_the_vocabulary_keeps_all():
    assert len(survivors(torch.randn(7), top_k=1000)) == 7


@given(LOGITS, st.lists(st.integers(0, 60), max_size=12), st.sampled_from([0.5, 1.2, 2.0]))
def test_penalty_equals_the_one_of_transformers(logits, context, penalty):
    scores = torch.tensor(logits)
    known = [t for t in context if t < len(logits)]  # ids past the vocabulary, a virtual mask, count for nothing
    expected = scores
    if known:
        expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([known]), scores[None].clone())[0]
    assert torch.equal(penalised(scores, context, penalty), expected)


@pytest.mark.parametrize("params", [{}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}])
def test_draws_are_distributed_as_filtered_softmax(params):
    logits = torch.tensor([1.0, 0.3, -0.5, 2.0, 0.0, -2.0, 1.1, 0.9])
    kept = survivors(logits, **params)
    wanted = torch.tensor(list(kept.values())).double().softmax(0) * 6000
    sampler = SamplingParams(**({"temperature": 1.0, "seed": 123} | params))
    tokens = [draw(logits[None], [Row(sampler, position)]).tokens[0] for position in range(6000)]
    assert set(tokens) <= set(kept)
    assert chi_square_holds([tokens.count(i) for i in kept], wanted)


def test_greedy_is_argmax_and_ignores_filters():
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(2))
    params = SamplingParams(temperature=0, top_k=3, top_p=0.2, min_p=0.5)
    assert draw(logits, [Row(params, i) for i in range(50)]).tokens == logits.argmax(-1).tolist()


def test_a_low_temperature_is_nearly_greedy():
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(2))
    params = SamplingParams(temperature=1e-6, seed=1)
    assert draw(logits, [Row(params, i) for i in range(50)]).tokens == logits.argmax(-1).tolist()


def test_rows_do_not_disturb_each_other():
    logits = torch.randn(40, 30, generator=torch.Generator().manual_seed(3))
    kinds = [{}, {"temperature": 0.9}, {"temperature": 0.9, "top_p": 0.5}, {"repetition_penalty": 2.0}]
    rows = [Row(SamplingParams(seed=i, **kinds[i % 4]), i, [1, 2, i % 30]) for i in range(40)]
    alone = [draw(logits[i : i + 1], [row]).tokens[0] for i, row in enumerate(rows)]
    assert draw(logits, rows).tokens == alone


@pytest.mark.parametrize("damage", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_told(damage):
    logits = torch.zeros(3, 6)
    logits[1, 4] = damage
    rows = [Row(SamplingParams(temperature=0.8, seed=0, logprobs=True), i) for i in range(3)]
    assert draw(logits, rows).finite == [True, False, True]


PARAMS = [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 0.7}, {"temperature": 0.8, "repetition_penalty": 1.4}]


@pytest.mark.parametrize("params", PARAMS)
def test_logprobs_equal_log_softmax(params):
    logits = torch.randn(20, 30, generator=torch.Generator().manual_seed(4)) * 3
    rows = [Row(SamplingParams(seed=1, logprobs=True, **params), i, [1, 2, 3]) for i in range(20)]
    made = draw(logits, rows)
    for i, row in enumerate(rows):
        assert made.logprobs[i] == pytest.approx(logits[i].double().log_softmax(0)[made.tokens[i]].item(), abs=1e-5)
        kept = survivors(penalised(logits[i], row.context, row.params.repetition_penalty), **params)
        after = kept[made.tokens[i]] - torch.tensor(list(kept.values())).logsumexp(0).item()
        assert made.filtered_logprobs[i] == pytest.approx(after if params else made.logprobs[i], abs=1e-5)


@pytest.mark.parametrize("spec", ["ar", "linear:8", "quadratic:4", "overlap:8:1"])
def test_one_logprob_for_each_kept_token_and_the_same_for_every_policy(spec):
    """Drafted tokens report the verifier's probability, not 0.0; nothing is reported beyond a cut."""
    params = {"max_new_tokens": 40, "temperature": 0.8, "seed": 4, "logprobs": True, "eos_ids": (0, 4)}
    expected = run(small_model(), "ar", [1, 2, 3], **params)
    made = run(small_model(), spec, [1, 2, 3], **params)
    assert len(made.logprobs) == len(made.filtered_logprobs) == len(made.output) == len(expected.output)
    assert made.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert made.filtered_logprobs == pytest.approx(expected.filtered_logprobs, abs=1e-4)
    assert max(made.logprobs) < 0


@pytest.mark.parametrize("spec", ["linear:4", "ar-row:4", "overlap:4:1", "quadratic:3"])
def test_t13_committed_tokens_are_distributed_as_the_softmax(spec):
    """Chain, trimming and branch reuse at temperature 1: 4000 tokens of a model with one known distribution."""
    model = agreeing_model()
    engine = make_engine(model, spec)
    params = [SamplingParams(max_new_tokens=200, temperature=1.0, seed=s) for s in range(20)]
    requests = engine.generate([[1, 2]] * 20, params)
    tokens = torch.tensor([t for r in requests for t in r.output])
    x = model.backbone.embedding[0]
    logits = model.backbone.logits(model.backbone.norm(x[None]))[0]
    assert chi_square_holds(torch.bincount(tokens, minlength=13), logits.double().softmax(0) * len(tokens))


def test_t13_shared_noise_accepts_more_than_independent_noise():
    """With the verifier's own noise a draft meets it more often than the sum of p*q, the match of two free draws."""
    p, q = (torch.randn(13, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    params = [SamplingParams(temperature=1.0, seed=0)]
    pairs = [draw(torch.stack((p, q)), [Row(params[0], t)] * 2).tokens for t in range(4000)]
    met = sum(a == b for a, b in pairs) / len(pairs)
    free = (p.softmax(0) * q.softmax(0)).sum().item()
    distance = (p.softmax(0) - q.softmax(0)).abs().sum().item() / 2
    error = 5 * math.sqrt(0.25 / len(pairs))
    assert met > free + error
    assert met > (1 - distance) / (1 + distance) - error


BAD = {
    "max_new_tokens": [0, -1, 1.5],
    "temperature": [-0.1, 101, float("nan")],
    "top_k": [-1, 0.5],
    "top_p": [0, -0.2, 1.01, float("nan")],
    "min_p": [-0.1, 1, float("nan")],
    "repetition_penalty": [0, -1, 101],
    "seed": [-1, 2**63, 1.5],
    "stop": ["text", ("",)],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in BAD.items() for v in values])
def test_bad_parameters_are_refused_in_one_line(name, value):
    with pytest.raises(RecGuideError) as caught:
        SamplingParams(**{name: value})
    text = str(caught.value)
    assert text.startswith(f"{name} is {value!r}; allowed: ")
    assert "\n" not in text


def test_a_drawn_seed_is_recorded_and_repeats_the_text():
    first = run(small_model(), "linear:4", [1, 2], max_new_tokens=30, temperature=1.0, seed=None)
    again = run(small_model(), "ar", [1, 2], max_new_tokens=30, temperature=1.0, seed=first.params.seed)
    assert first.output == again.output


def test_different_seeds_give_different_text():
    texts = {
        tuple(run(small_model(), "ar", [1, 2], max_new_tokens=20, temperature=1.0, seed=s).output) for s in range(8)
    }
    assert len(texts) == 8
