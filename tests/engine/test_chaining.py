"""The chain: drafts that know the tokens before them. What is committed never changes, what is drafted does."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recguide.kernels.backend import choose
from safetensors.torch import load_file, save_file

from recguide.engine import engine as engine_module
from recguide.engine.chaining import Line, _follow, _level_by_level, pieces
from recguide.engine.drawing import draft_row
from recguide.engine.sampling import Row, SamplingParams, draw
from recguide.errors import RecGuideError
from recguide.models.adapter import load_adapter
from recguide.models.chain import Chain, Chained, ChainFactors
from tests.helpers import (
    SAMPLERS,
    assert_clean,
    make_engine,
    mixed_jobs,
    random_adapter,
    run,
    small_model,
)

PLAIN = small_model(rank=0)
JOBS = mixed_jobs(8)
EXPECTED = [make_engine(PLAIN).generate([prompt], params)[0].output for prompt, params in JOBS]


def chained(*, shift=1, adapt_tokens=False, rank=4, size=0.5):
    """A model whose chain moves drafts a lot."""
    model = small_model(rank=0)
    model.adapter = random_adapter(model, size=0.1, shift=shift, adapt_tokens=adapt_tokens, chain=rank)
    model.adapter.mask_embedding[0] = 1.0
    for parameter in model.adapter.chain.parameters():
        parameter.data.normal_(0, size)
    return model


CONVENTIONS = {"masks only": (1, False), "blocks": (1, True), "unshifted": (0, True)}
MODELS = {name: chained(shift=shift, adapt_tokens=tokens) for name, (shift, tokens) in CONVENTIONS.items()}


SPECS = (
    "linear:8", "ar-row:8", "ar-row:8:2", "ar-row:6:16", "window:2:32", "quadratic:4", "overlap:8:1", "explore",
    "recguide", "budget",
)  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("spec", SPECS)
def test_every_policy_writes_the_text_of_ar(spec, name):
    engine = make_engine(MODELS[name], spec)
    requests = engine.generate([p for p, _ in JOBS], [q for _, q in JOBS])
    assert [r.output for r in requests] == EXPECTED
    assert_clean(engine)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("spec", ["linear:6", "ar-row:5", "quadratic:4", "overlap:5:1"])
def test_logits_in_pieces_draft_the_same(spec, name, monkeypatch):
    whole = make_engine(MODELS[name], spec).generate([p for p, _ in JOBS], [q for _, q in JOBS])
    monkeypatch.setattr(engine_module, "LOGIT_ROWS", 7)
    cut = make_engine(MODELS[name], spec).generate([p for p, _ in JOBS], [q for _, q in JOBS])
    assert [r.accepted_history for r in cut] == [r.accepted_history for r in whole]


@pytest.mark.parametrize("spec", ["linear:6", "ar-row:5", "quadratic:4", "overlap:5:1"])
def test_a_chain_that_has_learned_nothing_drafts_as_without_one(spec):
    model, bare = chained(), chained()
    model.adapter.chain.up.data.zero_()
    bare.adapter.chain = None
    histories = [run(m, spec, [1, 2, 3], max_new_tokens=60).accepted_history for m in (model, bare)]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("sampler", ["greedy", "warm"])
def test_drafts_follow_the_formula_one_after_the_other(sampler):
    """The rows of a block of one request, computed again from scratch with the tokens that were drawn."""
    model, seen = MODELS["masks only"], []
    original = model.fused_adapter.chain.move

    def spy(hidden, before):
        seen.append(before.tolist())
        return original(hidden, before)

    engine = make_engine(model, "linear:6", max_concurrency=1)
    request = engine.submit([1, 2, 3], engine_params(sampler))
    while request.draft is None:
        model.fused_adapter.chain.move = spy
        seen.clear()
        engine.step()
    del model.fused_adapter.chain.move
    line = [request.tokens[-1], *request.draft.tokens]
    assert seen == [[[after, earlier]] for earlier, after in pairwise(line[:-1])]


def engine_params(sampler):
    return SamplingParams(max_new_tokens=40, seed=5, **SAMPLERS[sampler])


@pytest.mark.parametrize("sampler", ["greedy", "warm"])
def test_a_tail_is_what_the_chain_makes_of_the_same_masks_behind_the_tokens_committed(sampler):
    """Masks knew nothing of what was chosen before them: scored from scratch, the tail is the same."""
    model = MODELS["masks only"]
    engine = make_engine(model, "ar-row:8:3", max_concurrency=1)
    request = engine.submit([1, 2, 3], engine_params(sampler))
    chain, tails = model.fused_adapter.chain, 0
    while not request.finished:
        held = request.draft
        chained = held and held.chained
        engine.step()
        if request.draft is None or request.draft.kind != "tail":
            continue
        tails += 1
        given, accepted = request.accepted_history[-1]
        assert given == len(held.tokens) and accepted < given and held.chained is None
        part = chained.part(slice(len(chained.ids) - (given - accepted - 1), None))
        expected = from_scratch(chain, part, request, len(request.draft.tokens))
        assert request.draft.tokens == expected
    assert tails > 3


def from_scratch(chain, part, request, count):
    """``count`` tokens, one at a time, over the whole vocabulary."""
    tokens = list(request.tokens)
    for i in range(count):
        scores = chain.scores(part.part(slice(i, i + 1)), torch.tensor([[tokens[-1], tokens[-2]]]))
        logits = torch.full((1, chain.vocab), float("-inf")).scatter_(1, part.ids[i : i + 1], scores)
        tokens += draw(logits, [draft_row(request, len(tokens))]).tokens
    return tokens[len(request.tokens) :]


@pytest.mark.skipif(not choose(torch.device("cpu")).native, reason="no C kernels")
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.sampled_from([2, 7, 32]), st.integers(0, 99), st.data())
def test_best_choices_in_one_call_are_those_made_level_by_level(counts, candidates, seed, data):
    """Also where scores are equal, or not numbers."""
    torch.manual_seed(seed)
    rows, vocab = sum(counts), 60
    with torch.no_grad():
        factors = ChainFactors(32, 6)
        factors.up.normal_()
        chain = Chain(factors, torch.randn(vocab, 32).bfloat16(), torch.randn(vocab, 32).bfloat16(), pack=True)
        ids = torch.stack([torch.randperm(vocab)[:candidates] for _ in range(rows)])
        chained = Chained((4 * torch.randn(rows, candidates)).round(), ids, torch.randn(rows, 6).bfloat16())
        if data.draw(st.booleans()):
            chained.base[data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, candidates - 1))] = math.nan
        line = Line(counts, torch.randint(vocab, (len(counts), 2)).tolist())
        plain = [Row(SamplingParams(seed=0), 0)] * rows
        assert chain.follow(chained, counts, line.befores) is not None
        given = chain, chained, line, plain, torch.bfloat16
        made, expected = (choices(*given, signs=True, entropy=True) for choices in (_follow, _level_by_level))
    assert made.tokens == expected.tokens and made.finite == expected.finite
    for i in range(rows):
        if made.finite[i]:
            assert made.best[i][0] == made.tokens[i] != made.best[i][1]
            assert made.probabilities[i] == pytest.approx(expected.probabilities[i], rel=1e-4, abs=1e-6)
            assert made.entropy[i] == pytest.approx(expected.entropy[i], rel=1e-3, abs=1e-5)


def test_tails_are_at_most_as_long_as_asked_for_and_never_without_a_chain():
    def kinds(model, spec):
        engine = make_engine(model, spec, max_concurrency=1)
        request, seen = engine.submit([1, 2, 3], engine_params("greedy")), []
        while not request.finished:
            engine.step()
            if request.draft is not None:
                seen.append((request.draft.kind, len(request.draft.tokens)))
        return seen

    model, bare = MODELS["masks only"], chained()
    bare.adapter.chain = None
    lengths = [count for kind, count in kinds(model, "ar-row:8:2") if kind == "tail"]
    assert lengths and max(lengths) == 2
    assert not [kind for kind, _ in kinds(model, "ar-row:8") + kinds(bare, "ar-row:8:2") if kind == "tail"]


def test_an_adapter_turned_off_in_mid_draft_leaves_no_tail():
    engine = make_engine(MODELS["masks only"], "ar-row:8:2", max_concurrency=1)
    request = engine.submit([1, 2, 3], engine_params("greedy"))
    while request.draft is None:
        engine.step()
    engine.adapter_enabled = False
    engine.step()
    assert request.draft is None


def test_the_chain_changes_drafts_and_the_first_draft_stays_the_verifiers_own():
    model, bare = MODELS["masks only"], chained()
    bare.adapter.chain = None
    with_chain, without = (run(m, "linear:5", [1, 2, 3], max_new_tokens=60) for m in (model, bare))
    assert with_chain.output == without.output
    assert with_chain.accepted_history != without.accepted_history
    assert all(accepted >= 1 for _, accepted in with_chain.accepted_history)


def test_an_adapter_keeps_its_chain(tmp_path):
    model = MODELS["masks only"]
    model.adapter.save(tmp_path, {})
    loaded = load_adapter(tmp_path, model.config, model.fingerprint)
    assert loaded.config.chain == 4 and loaded.shape == "lora4x8+chain4"
    for ours, theirs in zip(model.adapter.chain.parameters(), loaded.chain.parameters(), strict=True):
        assert torch.equal(ours.to(torch.bfloat16).float(), theirs)


def test_a_chain_rank_that_is_none_is_refused(tmp_path):
    model = MODELS["masks only"]
    model.adapter.save(tmp_path, {})
    path = tmp_path / "adapter_model.safetensors"
    about = {"base_model_fingerprint": model.fingerprint, "draft_shift": "1", "adapt_tokens": "0"}
    tensors = load_file(path)
    save_file(tensors, path, about | {"chain_rank": "four"})
    with pytest.raises(RecGuideError, match="chain_rank"):
        load_adapter(tmp_path, model.config, model.fingerprint)
    save_file(tensors, path, about | {"chain_rank": "5"})
    with pytest.raises(RecGuideError, match=r"chain\.down is .* expected"):
        load_adapter(tmp_path, model.config, model.fingerprint)


@given(st.lists(st.integers(1, 12), max_size=12), st.integers(0, 20), st.integers(1, 10))
def test_pieces_cover_all_rows_and_keep_branches_whole(sizes, trunk, limit):
    parts, at = [], trunk
    for size in sizes:
        parts.append(slice(at, at + size))
        at += size
    cut = pieces(at, parts, limit)
    assert [row for piece in cut for row in range(piece.start, piece.stop)] == list(range(at))
    assert all(1 <= piece.stop - piece.start <= limit for piece in cut)
    for part in parts:
        if part.stop - part.start <= limit:
            assert any(piece.start <= part.start and part.stop <= piece.stop for piece in cut)
