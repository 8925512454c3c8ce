"""Nemotron-Labs-Diffusion as published: the engine against the plain reference, on tiny checkpoints in that layout."""

import json
from collections import Counter

import pytest
import torch
from safetensors.torch import save_file

from recguide.bench.lossless import audit
from recguide.engine.cache import KVCache, StepAttention
from recguide.engine.engine import LOGIT_ROWS
from recguide.engine.layout import Segment, build_layout
from recguide.engine.plan import Branch
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from recguide.models.config import Conventions, from_hf
from recguide.models.loader import BUNDLED_ADAPTER, load_model
from recguide.trace.reader import read_trace
from recguide.trace.recorder import Recorder
from tests.helpers import assert_clean, make_engine
from tests.model_folder import save_tokenizer
from tests.nld_reference import (
    Reference,
    Thinking,
    adapter_config,
    random_lora,
    random_tensors,
    text,
    tiny_config,
)

CONFIG = tiny_config()
TENSORS = random_tensors(CONFIG, seed=1)
LORA = random_lora(CONFIG, seed=2)
SCALE = adapter_config()["lora_alpha"] / adapter_config()["r"]
PROMPTS = [[(7 * i + 3 * j * j + j) % 99 + 1 for j in range(size)] for i, size in enumerate((1, 2, 9, 17, 40, 70))]
BLOCKS = (1, 2, 4, 8, 32)
TOKENS = 30


def write(folder, config=CONFIG, tensors=TENSORS, lora=LORA):
    """A checkpoint in the published layout, its adapter inside."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    save_tokenizer(folder)
    if lora is not None:
        adapter = folder / BUNDLED_ADAPTER
        adapter.mkdir()
        save_file({name: value.contiguous() for name, value in lora.items()}, adapter / "adapter_model.safetensors")
        (adapter / "adapter_config.json").write_text(json.dumps(adapter_config()))
    return folder


def load(folder, **options):
    return load_model(str(folder), dtype="float32", **options)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The same model with its bundled adapter and without."""
    folder = write(tmp_path_factory.mktemp("nld") / "model")
    return {True: load(folder), False: load(folder, adapter=None)}


@pytest.fixture(scope="module")
def references():
    return {True: Reference(CONFIG, TENSORS, LORA, SCALE), False: Reference(CONFIG, TENSORS)}


def params(**changes):
    return SamplingParams(**({"max_new_tokens": TOKENS} | changes))


def run(model, policy, prompt, **changes):
    return make_engine(model, policy, max_concurrency=1).generate([prompt], params(**changes))[0]


def test_the_bundled_adapter_is_found_and_has_no_mask_embedding(models):
    adapter = models[True].adapter
    assert (adapter.config.rank, adapter.config.scale, adapter.mask_embedding) == (4, SCALE, None)
    assert models[True].fallbacks == []
    assert "no draft adapter" in models[False].fallbacks[0]


def test_t11_shape_and_tokens_come_from_the_config(models):
    config = models[True].config
    assert config.head_dim * config.num_heads != config.hidden_size
    assert (config.mask_id, config.eos_ids, config.block_size, config.tie_embeddings) == (100, (11,), 8, False)
    assert config.yarn.attention_factor == 1.0
    assert (config.query_scale.beta, config.query_scale.original_max_positions) == (0.1, 16)


# -- logits ----------------------------------------------------------------------------------------------------


def engine_logits(model, cached, trunk, branches):
    """Logits of every trunk row and every mask row behind ``cached`` tokens, by the engine's own layout and cache."""
    config, backbone = model.config, model.backbone
    cache = KVCache(config, 1, 256, 256, backbone.dtype, backbone.device)
    slot = cache.take()
    for first in range(0, len(cached), 7):  # prefill in pieces
        piece = tuple(cached[first : first + 7])
        layout = build_layout([Segment(slot, first, piece, 0)], config.mask_id)
        backbone.forward(layout.tokens, layout.positions, StepAttention(cache, layout, config))
        cache.commit(slot, len(piece))
    segment = Segment(slot, len(cached), tuple(trunk), len(trunk), 0, tuple(branches))
    layout = build_layout([segment], config.mask_id)
    hidden = backbone.forward(
        layout.tokens,
        layout.positions,
        StepAttention(cache, layout, config),
        first_draft_row=layout.first_draft_row,
        mask_rows=layout.mask_rows,
        adapter=model.fused_adapter,
    )
    logits = backbone.logits(hidden[layout.logit_rows])
    return logits[layout.trunk_logits[0]], [logits[part] for part in layout.branch_logits[0]]


def reference_logits(reference, known, masks, seed):
    """Logits of the ``masks`` behind ``known``; the rows from ``seed`` on form the block and have the adapter."""
    rows = len(known) + masks
    allowed = torch.ones(rows, rows, dtype=torch.bool).tril()
    allowed[seed:] = True
    logits = reference.logits([*known, *[100] * masks], range(rows), allowed, torch.arange(rows) >= seed)
    return logits[len(known) :]


def close(mine, theirs):
    keep = [i for i in range(theirs.shape[1]) if i != 100]
    torch.testing.assert_close(mine[:, keep], theirs[:, keep], atol=1e-4, rtol=0)
    assert mine[:, 100].eq(float("-inf")).all()


@pytest.mark.parametrize("adapter", [True, False])
@pytest.mark.parametrize("size", [1, 5, 15, 16, 17, 31, 33, 90])
def test_t12_logits_of_every_kind_of_row_equal_the_reference(models, references, adapter, size):
    """The original length is 16: YaRN is on everywhere, the query scale steps at every 16th position."""
    model, reference = models[adapter], references[adapter]
    known = [(5 * i + i * i) % 99 + 1 for i in range(size + 6)]
    cached, trunk = known[: size - 1], known[size - 1 :]
    branches = [Branch(0, trunk[0], 7), Branch(3, 42, 5), Branch(len(trunk), None, 6), Branch(2, None, 3)]
    verify, drafts = engine_logits(model, cached, trunk, branches)
    causal = torch.ones(len(known), len(known), dtype=torch.bool).tril()
    close(verify, reference.logits(known, range(len(known)), causal)[size - 1 :])
    behind = [cached + trunk[:3] + [42], known, known[: size + 1]]
    close(drafts[0], reference_logits(reference, known[:size], 7, size - 1))
    close(drafts[1], reference_logits(reference, behind[0], 5, len(behind[0]) - 1))
    close(drafts[2], reference_logits(reference, behind[1], 6, len(behind[1])))
    close(drafts[3], reference_logits(reference, behind[2], 3, len(behind[2])))


# -- generation, round by round ----------------------------------------------------------------------------------


def rounds_with_drafts(rounds):
    return [(len(r.drafted), r.accepted) for r in rounds if r.drafted]


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_ar_equals_the_reference(models, references, prompt):
    assert run(models[True], "ar", prompt).output == references[True].ar(prompt, TOKENS)


@pytest.mark.parametrize("adapter", [True, False])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_linear_equals_the_reference_round_by_round(models, references, adapter, block, prompt):
    rounds = references[adapter].linear(prompt, TOKENS, block)
    first = rounds[0].emitted  # the published loop begins with an AR token, which is the first seed
    if first == [CONFIG["eos_token_id"]]:
        pytest.skip("the text ends at its first token")
    request = run(models[adapter], f"linear:{block}", prompt + first, max_new_tokens=TOKENS - 1)
    assert first + request.output == text(rounds)
    assert request.accepted_history == rounds_with_drafts(rounds)
    assert request.stats.forwards == sum(r.forwards for r in rounds[1:])


@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("prompt", PROMPTS[1:4], ids=len)
def test_drafting_in_several_forwards_equals_the_reference(models, references, threshold, prompt):
    rounds = references[True].linear(prompt, TOKENS, 8, threshold)
    first = rounds[0].emitted
    request = run(models[True], f"linear:8:{threshold}", prompt + first, max_new_tokens=TOKENS - 1)
    assert first + request.output == text(rounds)
    assert request.accepted_history == rounds_with_drafts(rounds)
    assert request.stats.forwards == sum(r.forwards for r in rounds[1:])
    assert threshold < 1 or max(r.forwards for r in rounds) == 8  # one mask a forward, and the verification


@pytest.mark.parametrize("adapter", [True, False])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("prompt", PROMPTS[:5], ids=len)
def test_t18_quadratic_equals_the_reference_round_by_round(models, references, adapter, block, prompt):
    rounds = references[adapter].quadratic(prompt, TOKENS, block)
    request = run(models[adapter], f"quadratic:{block}", prompt)
    assert request.output == text(rounds)
    assert request.accepted_history == rounds_with_drafts(rounds)
    assert request.stats.forwards == len(rounds)


def test_t18_a_whole_round_has_one_row_for_each_draft_and_mask(models):
    engine = make_engine(models[True], "quadratic:8", max_concurrency=1)
    engine.submit(PROMPTS[2], params(eos_ids=()))
    engine.step()
    engine.step()
    assert engine.last_step.rows == 8 * 9


def test_drafts_are_accepted_and_rejected_and_the_adapter_changes_how_many(references):
    """Or the comparisons above would prove little."""
    accepted = {a: [r.accepted for p in PROMPTS for r in references[a].linear(p, TOKENS, 8)[1:]] for a in (True, False)}
    assert 0 in accepted[True] and 7 in accepted[True]
    assert accepted[True] != accepted[False]


# -- tests named after NLD.md 7.2 --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def biased(tmp_path_factory):
    """A model whose best token is the mask nearly everywhere."""
    tensors = dict(TENSORS)
    head = tensors["diffusion_head.weight"].clone()
    head[100] = 3 * head.abs().max() * torch.sign(head.mean(0)) + head.mean(0)
    tensors["diffusion_head.weight"] = head
    return tensors, load(write(tmp_path_factory.mktemp("biased") / "model", tensors=tensors))


@pytest.mark.parametrize("policy", ["linear:8", "linear:8:0.3", "linear:8:1", "quadratic:4", "overlap:8:1", "ar-row:4"])
def test_t01_the_mask_is_never_drafted_nor_emitted_and_drafting_ends(biased, policy):
    tensors, model = biased
    reference = Reference(CONFIG, tensors, LORA, SCALE)
    prompt = PROMPTS[3]
    causal = torch.ones(len(prompt), len(prompt), dtype=torch.bool).tril()
    assert (reference.logits(prompt, range(len(prompt)), causal).argmax(-1) == 100).any()
    engine = make_engine(model, policy, max_concurrency=1)
    request = engine.submit(prompt, params())
    for _ in range(400):
        engine.step()
        drafted = [*(request.draft.tokens if request.draft else []), *request.known]
        assert 100 not in [*request.output, *drafted]
        if request.finished:
            break
    assert request.output == reference.ar(prompt, TOKENS)


@pytest.mark.parametrize("policy", ["ar", "linear:8", "linear:8:0.5", "quadratic:4", "overlap:8"])
def test_t02_a_seed_that_is_the_mask_id_stays_the_seed(models, references, policy):
    prompt = [5, 6, 100]
    request = run(models[True], policy, prompt)
    assert request.output == references[True].ar(prompt, TOKENS)
    if policy == "linear:8":
        rounds = references[True].linear(prompt[:2], 3, 8)  # for its drafting alone
        drafted, _ = references[True]._draft(prompt, 7, 0.0)
        engine = make_engine(models[True], policy, max_concurrency=1)
        other = engine.submit(prompt, params())
        engine.step()
        assert other.draft.tokens == drafted
        assert rounds


@pytest.mark.parametrize("budget", [1, 2, 7, 8, 9])
@pytest.mark.parametrize("policy", ["linear:8", "linear:8:0.5", "quadratic:8", "overlap:8", "ar-row:8", "window:4:8"])
def test_t03_budgets_are_exact(models, references, policy, budget):
    engine = make_engine(models[True], policy, max_concurrency=1)
    request = engine.submit(PROMPTS[2], params(max_new_tokens=budget, eos_ids=()))
    while not request.finished:
        engine.step()
    reference = Reference(CONFIG, TENSORS, eos_ids=())
    assert request.output == reference.ar(PROMPTS[2], budget)
    assert_clean(engine)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_t04_t14_mixed_blocks_in_one_batch_write_what_each_writes_alone(models, temperature):
    policies = ["linear:2", "quadratic:4", "linear:8:0.4", "overlap:8:1", "ar-row:5", "linear:32", "ar"]
    each = [params(temperature=temperature, seed=i, max_new_tokens=12 + i) for i in range(len(PROMPTS))]
    alone = [
        run(models[False], "ar", p, temperature=temperature, seed=i, max_new_tokens=12 + i).output
        for i, p in enumerate(PROMPTS)
    ]
    engine = make_engine(models[True], policies[0], max_concurrency=4)
    requests = [engine.submit(prompt, p) for prompt, p in zip(PROMPTS, each, strict=True)]
    step = 0
    while not engine.idle:
        engine.set_policy(policies[step % len(policies)])
        engine.step()
        step += 1
    assert [r.output for r in requests] == alone
    assert_clean(engine)


def test_t06_the_adapter_changes_acceptance_and_not_the_text(models):
    made = {a: [run(models[a], "linear:8", p) for p in PROMPTS] for a in (True, False)}
    assert [r.output for r in made[True]] == [r.output for r in made[False]]
    assert [r.accepted_history for r in made[True]] != [r.accepted_history for r in made[False]]


@pytest.mark.parametrize("policy", ["linear:8", "quadratic:4", "overlap:8:1"])
def test_t08_any_of_several_ends_stops_the_text_wherever_it_falls(models, policy):
    output = run(models[True], "ar", PROMPTS[3], eos_ids=()).output
    for end in range(len(output)):
        eos = (output[end], 157)
        request = run(models[True], policy, PROMPTS[3], eos_ids=eos)
        assert request.output == output[: output.index(output[end]) + 1]
        assert request.finish_reason == "eos"


@pytest.mark.parametrize(
    "policy", ["ar", "linear:2", "linear:8", "linear:8:0.5", "quadratic:4", "overlap:8:1", "ar-row:6"]
)
@pytest.mark.parametrize("budget", [0, 1, 5, 12, 29])
def test_t09_the_end_of_thinking_that_is_fed_is_the_one_that_is_emitted(models, references, policy, budget):
    thinking = Thinking(budget, 77)
    for prompt in PROMPTS[:4]:
        expected = references[True].ar(prompt, TOKENS, thinking)
        request = run(models[True], policy, prompt, max_thinking_tokens=budget, end_think_id=77)
        assert request.output == expected
        assert len(expected) <= budget or 77 in expected[: budget + 1] or expected[-1] == 11


def test_t09_a_model_that_ends_its_thinking_itself_is_left_alone(models, references):
    output = run(models[True], "ar", PROMPTS[3], eos_ids=()).output
    ended = output[6]
    budget = {"max_thinking_tokens": output.index(ended) + 3, "end_think_id": ended, "eos_ids": ()}
    assert run(models[True], "linear:8", PROMPTS[3], **budget).output == output


def test_t09_the_log_probability_is_that_of_the_token_written(models):
    budget = {"max_thinking_tokens": 4, "end_think_id": 77}
    request = run(models[True], "linear:8", PROMPTS[3], eos_ids=(), logprobs=True, **budget)
    plain = run(models[True], "ar", PROMPTS[3], eos_ids=(), logprobs=True)
    assert request.output[4] == 77
    assert request.logprobs[:4] == pytest.approx(plain.logprobs[:4], abs=1e-4)
    assert request.logprobs[4] < plain.logprobs[4]
    assert len(request.logprobs) == len(request.output)


@pytest.mark.parametrize("change", [{"max_thinking_tokens": 3}, {"end_think_id": 3}])
def test_thinking_needs_both_its_numbers(change):
    with pytest.raises(RecGuideError, match="go together"):
        params(**change)
    with pytest.raises(RecGuideError, match="max_thinking_tokens is -1"):
        params(max_thinking_tokens=-1, end_think_id=3)


@pytest.mark.parametrize("steps", range(1, 9))
@pytest.mark.parametrize("policy", ["linear:8:0.5", "overlap:8:1", "quadratic:4"])
def test_t10_an_abort_at_any_step_leaves_nothing(models, policy, steps):
    engine = make_engine(models[True], policy, max_concurrency=2)
    first, second = (engine.submit(p, params(eos_ids=())) for p in PROMPTS[2:4])
    for _ in range(steps):
        engine.step()
    engine.abort(first)
    while not engine.idle:
        engine.step()
    assert first.finish_reason in ("abort", "length")
    assert second.output == run(models[True], "ar", PROMPTS[3], eos_ids=()).output
    assert_clean(engine)


def prefixed(name):
    return "language_model." + name.replace("encoder.", "model.")


@pytest.mark.parametrize(
    "rename",
    [prefixed, lambda n: "language_model." + n, lambda n: n.replace("encoder.", "language_model.model.")],
    ids=["repack", "encoder behind the prefix", "head without it"],
)
def test_t11_prefixed_repacks_load_as_the_published_layout_does(models, tmp_path, rename):
    tensors = {rename(name): value for name, value in TENSORS.items()}
    tensors |= {"vision_tower.patch.weight": torch.ones(2, 2), prefixed("encoder.rotary_emb.inv_freq"): torch.ones(8)}
    model = load(write(tmp_path / "model", tensors=tensors))
    assert run(model, "linear:8", PROMPTS[3]).output == run(models[True], "ar", PROMPTS[3]).output


def test_t11_a_stray_adapter_file_is_no_weight(tmp_path, models):
    folder = write(tmp_path / "model")
    save_file({"base_model.model.encoder.norm.weight": torch.zeros(48)}, folder / "adapter_model.safetensors")
    assert run(load(folder), "ar", PROMPTS[2]).output == run(models[True], "ar", PROMPTS[2]).output


@pytest.mark.parametrize("key", ["mask_token_id", "eos_token_id", "block_size", "head_dim"])
def test_what_the_class_defaults_get_wrong_must_be_in_the_config(key):
    with pytest.raises(RecGuideError, match=f"{key} is missing"):
        from_hf(CONFIG | {key: None})
    with pytest.raises(RecGuideError, match="mask_token_id is missing"):
        from_hf(CONFIG | {"mask_token_id": -1})


def test_a_sliding_window_is_refused():
    with pytest.raises(RecGuideError, match="sliding_window"):
        from_hf(CONFIG | {"sliding_window": 4096})


def test_a_text_config_inside_a_vision_config_is_read():
    inner = {k: v for k, v in CONFIG.items() if k != "model_type"}
    assert from_hf({"model_type": CONFIG["model_type"], "text_config": inner}) == from_hf(CONFIG)


def test_t12_yarn_without_rounding_is_another_rope():
    rope = CONFIG["rope_parameters"] | {"truncate": False}
    assert from_hf(CONFIG | {"rope_parameters": rope}).yarn.truncate is False
    assert from_hf(CONFIG).yarn.truncate is True


@pytest.mark.parametrize(
    "change", [{"use_rslora": True}, {"use_dora": True}, {"bias": "all"}, {"rank_pattern": {"x": 2}}]
)
def test_adapters_of_other_kinds_are_refused(tmp_path, change):
    folder = write(tmp_path / "model")
    path = folder / BUNDLED_ADAPTER / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RecGuideError, match=next(iter(change))):
        load(folder)


def test_an_adapter_from_elsewhere_that_names_no_model_is_noted(tmp_path):
    folder = write(tmp_path / "model")
    elsewhere = (folder / BUNDLED_ADAPTER).rename(tmp_path / "adapter")
    assert "names no model" in load(folder, adapter=elsewhere).fallbacks[0]


def test_t22_modes_in_any_order_on_one_engine(models):
    policies = ["ar", "linear:8", "quadratic:4", "linear:8:0.4", "overlap:8:1"]
    fresh = {p: run(models[True], p, PROMPTS[3]) for p in policies}
    engine = make_engine(models[True], max_concurrency=1)
    for policy in [*policies, *reversed(policies)]:
        engine.set_policy(policy)
        request = engine.generate([PROMPTS[3]], params())[0]
        assert request.output == fresh[policy].output
        assert request.accepted_history == fresh[policy].accepted_history


# -- conventions --------------------------------------------------------------------------------------------------


def with_conventions(folder, **values):
    return write(folder, config=CONFIG | {"recguide_conventions": values})


def test_conventions_are_those_of_the_released_code_unless_the_config_says_otherwise(models, tmp_path):
    assert models[True].config.conventions == Conventions()
    made = load(with_conventions(tmp_path / "model", seed_in_block=False, count_prefill=True)).config.conventions
    assert made == Conventions(seed_in_block=False, count_prefill=True)


@pytest.mark.parametrize("policy", ["linear:8", "linear:8:0.5", "window:4:8"])
def test_a_block_without_its_seed_is_drafted_behind_the_seeds_own_row(models, tmp_path, policy):
    model = load(with_conventions(tmp_path / "model", seed_in_block=False))
    engine = make_engine(model, policy, max_concurrency=1)
    request = engine.submit(PROMPTS[2], params())
    engine.step()
    assert request.generated == 1
    masks = 8 if policy.startswith("linear") else 4
    assert engine.last_step.draft_rows == masks
    while not request.finished:
        engine.step()
    assert request.output == run(models[True], "ar", PROMPTS[2]).output


def test_prompt_forwards_count_where_the_convention_says_so(models, tmp_path):
    counting = load(with_conventions(tmp_path / "model", count_prefill=True))
    rates = []
    for model in (models[True], counting):
        engine = make_engine(model, "ar", max_concurrency=1, prefill_chunk=16)
        stats = engine.generate([PROMPTS[5]], params(max_new_tokens=10, eos_ids=()))[0].stats
        assert (stats.forwards, stats.prefill_forwards) == (10, 4)  # 69 tokens of prompt: 4 chunks, and 5 with the seed
        rates.append((stats.tokens_per_forward, engine.stats.requests.tokens_per_forward))
    assert rates == [(1.0, 1.0), (10 / 14, 10 / 14)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"draft_shift": 2}, "draft_shift is 2; supported: 0 or 1"),
        ({"exclude_mask": False}, "exclude_mask is False; supported: True"),
        ({"clamp_to_budget": False}, "clamp_to_budget is False; supported: True"),
        ({"seed": True}, "'seed' is unknown; known: clamp_to_budget"),
    ],
)
def test_conventions_the_engine_does_not_have_are_refused(values, words):
    with pytest.raises(RecGuideError, match=words):
        from_hf(CONFIG | {"recguide_conventions": values})


# -- more of NLD.md 7.2 on this layout ----------------------------------------------------------------------------


def test_t05_divergences_in_bfloat16_are_near_ties(tmp_path):
    model = load_model(str(write(tmp_path / "model")), dtype="bfloat16")
    each = [params(seed=i) for i in range(len(PROMPTS))]
    for found in audit(model, PROMPTS, ["linear:8", "quadratic:4", "overlap:8:1"], each, max_context=128):
        assert found.explained, found.divergences


@pytest.mark.parametrize("policy", ["ar", "linear:8", "linear:8:0.5", "quadratic:4", "overlap:8:1", "ar-row:6"])
def test_t07_the_cache_holds_all_but_the_last_token_after_every_step(models, policy):
    engine = make_engine(models[True], policy, max_concurrency=1)
    request = engine.submit(PROMPTS[3], params(eos_ids=()))
    while not request.finished:
        engine.step()
        if not request.finished:
            assert engine._cache.lengths[request.slot] == len(request.tokens) - 1


def test_t13_coupled_noise_accepts_more_than_independent_draws_and_writes_what_ar_writes(models, references):
    """The first draft behind one seed, over many seeds of noise: the coupling bound lies above the sum of p q."""
    prompt, count = PROMPTS[3], 300
    each = [params(seed=i, temperature=1.0, max_new_tokens=2, eos_ids=()) for i in range(count)]
    drafted = make_engine(models[True], "linear:2").generate([prompt] * count, each)
    plain = make_engine(models[True], "ar").generate([prompt] * count, each)
    assert [r.output for r in drafted] == [r.output for r in plain]
    accepted = sum(accepted for r in drafted for _, accepted in r.accepted_history) / count
    reference = references[True]
    causal = torch.ones(len(prompt), len(prompt), dtype=torch.bool).tril()
    p = reference.logits(prompt, range(len(prompt)), causal)[-1]
    q = reference_logits(reference, prompt, 1, len(prompt) - 1)[0]
    p[100] = q[100] = float("-inf")
    p, q = p.softmax(-1), q.softmax(-1)
    independent, distance = float((p * q).sum()), float((p - q).abs().sum() / 2)
    spread = 3 * (0.25 / count) ** 0.5
    assert accepted > independent + spread
    assert (1 - distance) / (1 + distance) - spread < accepted < 1 - distance + spread
    counts = torch.bincount(torch.tensor([r.output[0] for r in plain]), minlength=len(p))
    likely = p > 0.03
    assert ((counts / count - p)[likely].abs() < 4 * (p * (1 - p) / count).sqrt()[likely]).all()


@pytest.mark.parametrize("policy", ["linear:8", "linear:8:0.5", "quadratic:4", "overlap:8:1"])
def test_t17_rows_and_forwards_are_counted_as_they_ran(models, policy):
    engine = make_engine(models[True], policy, max_concurrency=1)
    request = engine.submit(PROMPTS[0], params(eos_ids=()))
    rows = steps = 0
    while not request.finished:
        engine.step()
        rows, steps = rows + engine.last_step.rows, steps + 1
    assert (request.stats.rows, request.stats.forwards) == (rows, steps)
    assert policy.startswith("linear") or steps <= TOKENS  # branches ride along: never more forwards than ar


def test_t19_logits_are_made_in_bounded_pieces(models, monkeypatch):
    model, sizes, plain = models[True], [], models[True].backbone.logits
    monkeypatch.setattr(model.backbone, "logits", lambda hidden: sizes.append(len(hidden)) or plain(hidden))
    engine = make_engine(model, "quadratic:16", max_concurrency=6)
    engine.generate(PROMPTS, params(eos_ids=()))
    assert max(sizes) <= LOGIT_ROWS
    assert engine.stats.rows > LOGIT_ROWS * engine.stats.steps / 2  # or there was nothing to cut


@pytest.mark.parametrize("policy", ["linear:8", "quadratic:4", "overlap:8:0.5"])
def test_t20_acceptance_does_not_depend_on_concurrency(models, policy):
    prompts = PROMPTS * 3
    histories = []
    for level in (1, 4, 16):
        engine = make_engine(models[True], policy, concurrency=level)
        histories.append([r.accepted_history for r in engine.generate(prompts, params())])
    assert histories[0] == histories[1] == histories[2]


def test_t21_an_end_in_one_request_leaves_the_drafting_of_the_others_alone(models):
    output = run(models[True], "ar", PROMPTS[2], eos_ids=()).output
    each = [params(max_new_tokens=20, eos_ids=(output[3],) if i == 2 else ()) for i in range(len(PROMPTS))]
    requests = make_engine(models[True], "linear:8:0.5").generate(PROMPTS, each)
    alone = [make_engine(models[True], "linear:8:0.5").generate([p], q)[0] for p, q in zip(PROMPTS, each, strict=True)]
    assert requests[2].finish_reason == "eos"
    assert [r.output for r in requests] == [r.output for r in alone]
    assert [r.accepted_history for r in requests] == [r.accepted_history for r in alone]
    assert not any(100 in r.output for r in requests)


def test_t15_a_new_request_starts_afresh_and_a_block_of_one_is_ar(models):
    engine = make_engine(models[False], "window:2:32", max_concurrency=1)
    first, second = engine.generate([PROMPTS[3], PROMPTS[3]], params(eos_ids=()))
    assert first.accepted_history == second.accepted_history
    assert first.accepted_history[0][0] == 1  # the smallest block drafts one token
    alone = run(models[True], "linear:1", PROMPTS[3], eos_ids=())
    assert (alone.stats.num_draft_tokens, alone.stats.forwards) == (0, TOKENS)


@pytest.mark.parametrize("policy", ["linear:8", "window:2:16", "overlap:8:0.5"])
def test_t15_crossing_a_concurrency_again_and_again_changes_no_block(models, policy):
    calm = make_engine(models[True], policy).generate(PROMPTS, params())
    engine = make_engine(models[True], policy, max_concurrency=6)
    requests = [engine.submit(prompt, params()) for prompt in PROMPTS]
    step = 0
    while not engine.idle:
        engine.set_concurrency(1 if step % 2 else 6)
        engine.step()
        step += 1
    assert [r.output for r in requests] == [r.output for r in calm]
    assert [r.accepted_history for r in requests] == [r.accepted_history for r in calm]


def test_t16_what_was_trimmed_or_not_reached_is_no_failure(models, tmp_path):
    """Drafts cut at random: acceptance of reached positions alone, which is what the statistics count."""
    engine = make_engine(models[True], "explore")
    with Recorder(engine, tmp_path / "run"):
        requests = engine.generate(PROMPTS * 4, [params(seed=i, eos_ids=()) for i in range(4 * len(PROMPTS))])
    positions = read_trace(tmp_path / "run").tables["draft_positions"].to_pylist()
    unseen = [p for p in positions if not p["reached"]]
    assert any(not p["verified"] for p in unseen)
    assert all(not p["accepted"] and p["correct"] is None for p in unseen)
    seen = Counter(p["position"] for p in positions if p["reached"])
    kept = Counter(p["position"] for p in positions if p["reached"] and p["accepted"])
    reached, accepted = Counter(), Counter()
    for request in requests:
        reached.update({j + 1: n for j, n in request.stats.reached.items()})
        accepted.update({j + 1: n for j, n in request.stats.kept_at.items() if n})
    cut = sum(r.stats.cut_tokens for r in requests)  # the end of a text hides a few comparisons from the statistics
    assert sum((seen - reached).values()) + sum((kept - accepted).values()) <= 2 * cut
    assert not (reached - seen) and not (accepted - kept)
