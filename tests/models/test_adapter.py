"""The draft adapter: files, faults, PEFT's own reading of them, and that it touches draft rows only (T6)."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, LoraModel, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from recguide.models.adapter import MASK_KEY, AdapterConfig, DraftAdapter, load_adapter
from recguide.models.chain import Chain
from tests.helpers import SMALL, make_engine, random_adapter, small_model, small_weights

MODEL = small_model(rank=0)
FILE, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture
def folder(tmp_path):
    random_adapter(MODEL).save(tmp_path / "adapter", {"training": "{}"})
    return tmp_path / "adapter"


def load(folder):
    return load_adapter(folder, SMALL, MODEL.fingerprint)


def causal(q, k, v):
    """Plain causal attention of one text."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.transpose(0, 1), *(x.repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
    scores = (q @ k.transpose(1, 2)) * q.shape[-1] ** -0.5
    rows = q.shape[1]
    scores = scores.masked_fill(torch.ones(rows, rows).triu(1).bool(), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


def logits(model, tokens, **rest):
    ids, positions = torch.tensor(tokens), torch.arange(len(tokens))
    return model.backbone.logits(model.backbone.forward(ids, positions, lambda _, q, k, v: causal(q, k, v), **rest))


def test_what_is_saved_is_loaded(folder):
    saved, loaded = random_adapter(MODEL), load(folder)
    assert loaded.config == saved.config
    for name, value in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.bfloat16().float()), name
    assert not any(p.requires_grad for p in loaded.parameters())
    assert sorted(p.name for p in folder.iterdir()) == [CONFIG, FILE]


@pytest.mark.parametrize("targets", [("q_proj",), ("k_proj", "up_proj"), ("o_proj", "down_proj", "v_proj")])
def test_any_subset_of_targets(tmp_path, targets):
    adapter = DraftAdapter(SMALL, AdapterConfig(rank=2, alpha=3, targets=targets), MODEL.fingerprint)
    for parameter in adapter.parameters():
        parameter.data.normal_(0, 0.2).copy_(parameter.data.bfloat16())
    adapter.save(tmp_path, {})
    loaded = load(tmp_path)
    made = logits(MODEL, [1, 2, 3], first_draft_row=0, adapter=loaded.fused(torch.float32, torch.device("cpu")))
    assert torch.equal(made, peft_logits(tmp_path, [1, 2, 3], made))


@pytest.mark.parametrize("layers", [(0,), (1,)])
def test_some_layers_only(tmp_path, layers):
    adapter = DraftAdapter(SMALL, AdapterConfig(rank=2, alpha=3, layers=layers), MODEL.fingerprint)
    for parameter in adapter.parameters():
        parameter.data.normal_(0, 0.2).copy_(parameter.data.bfloat16())
    adapter.save(tmp_path, {})
    loaded = load(tmp_path)
    assert loaded.config == adapter.config
    fused = loaded.fused(torch.float32, torch.device("cpu"))
    assert [bool(maps) for maps in fused.layers] == [0 in layers, 1 in layers]
    made = logits(MODEL, [1, 2, 3], first_draft_row=0, adapter=fused)
    assert torch.equal(made, peft_logits(tmp_path, [1, 2, 3], made))


def test_layers_beyond_the_model_are_refused(folder):
    raw = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(raw | {"layers_to_transform": [2]}))
    with pytest.raises(RecGuideError, match=r"adapter layer 2 is unknown; the model has 0\.\.1"):
        load(folder)


def test_a_start_from_fewer_ranks_and_other_targets_takes_what_fits():
    known = random_adapter(MODEL)
    config = AdapterConfig(rank=6, alpha=6 * known.config.scale, targets=("q_proj", "up_proj"), layers=(1,))
    grown = DraftAdapter(SMALL, config, MODEL.fingerprint)
    grown.start_from(known)
    rank = known.config.rank
    for key, value in grown.factors.items():
        theirs = known.factors[key]
        if key.endswith("|A"):
            assert torch.equal(value[:rank], theirs)
        else:
            assert torch.equal(value[:, :rank], theirs) and not value[:, rank:].any()
    if grown.mask_embedding is not None:
        assert torch.equal(grown.mask_embedding, known.mask_embedding)


def chained(rank):
    return DraftAdapter(SMALL, AdapterConfig(rank=4, alpha=8, chain=rank), MODEL.fingerprint)


def test_a_chain_of_more_ranks_starts_by_doing_what_the_smaller_one_does():
    known, grown = random_adapter(MODEL, chain=3), chained(5)
    grown.start_from(known)
    hidden, before = torch.randn(6, SMALL.hidden_size), torch.randint(0, SMALL.vocab_size, (6, 2))
    head = torch.randn(SMALL.vocab_size, SMALL.hidden_size)
    chains = [Chain(a.chain, head, head, pack=False) for a in (known, grown)]
    moved = [chain.move(chain.lead(hidden), before) for chain in chains]
    assert moved[0].abs().max() > 1e-4
    torch.testing.assert_close(moved[1], moved[0])


def test_a_chain_of_fewer_ranks_cannot_start_from_a_larger_one():
    with pytest.raises(RecGuideError, match="start from a chain of rank 5: this one has 3"):
        chained(3).start_from(chained(5))


def peft_logits(folder, tokens, like=None):
    """transformers' Llama with the folder's adapter put in by PEFT. With ``like``: that, when it is equal to 1e-4."""
    config = LlamaConfig(
        vocab_size=13, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    base = LlamaForCausalLM(config)
    base.load_state_dict(small_weights())
    raw = json.loads((folder / CONFIG).read_text())
    tuned = LoraModel(base, LoraConfig(**{k: v for k, v in raw.items() if k != "peft_type"}), "default")
    stored = {k: v.float() for k, v in load_file(folder / FILE).items() if k != MASK_KEY}
    # `base_model.` is the PeftModel around it, which a bare LoraModel does not have
    report = set_peft_model_state_dict(tuned, {k.removeprefix("base_model."): v for k, v in stored.items()})
    assert not report.unexpected_keys
    assert not [k for k in report.missing_keys if "lora" in k]
    with torch.no_grad():
        theirs = tuned(torch.tensor([tokens])).logits[0]
    if like is None:
        return theirs
    torch.testing.assert_close(like, theirs, atol=1e-4, rtol=0)
    return like


def test_peft_reads_the_files_and_computes_the_same(folder):
    tokens = [3, 1, 4, 1, 5, 9]
    fused = load(folder).fused(torch.float32, torch.device("cpu"))
    made = logits(MODEL, tokens, first_draft_row=0, adapter=fused)
    torch.testing.assert_close(made, peft_logits(folder, tokens), atol=1e-4, rtol=0)
    assert (made - logits(MODEL, tokens)).abs().max() > 0.1


@given(st.integers(0, 8), st.integers(0, 100))
def test_t06_rows_before_the_first_draft_row_are_plain(split, seed):
    """Causal rows: those before the split cannot even see an adapted key, so they are bit for bit the plain ones."""
    fused = random_adapter(MODEL, seed=seed).fused(torch.float32, torch.device("cpu"))
    tokens = [(seed + i) % 13 for i in range(8)]
    made, plain = logits(MODEL, tokens, first_draft_row=split, adapter=fused), logits(MODEL, tokens)
    torch.testing.assert_close(made[:split], plain[:split], atol=1e-5, rtol=0)
    assert split == 8 or (made[split:] - plain[split:]).abs().max() > 1e-3


@pytest.mark.parametrize("split", [0, 3, 8])
def test_factors_that_ride_on_the_weights_compute_the_same(split):
    adapter, tokens = random_adapter(MODEL, seed=3), [(5 * i) % 13 for i in range(8)]
    device = torch.device("cpu")
    apart = adapter.fused(torch.float32, device)
    riding = adapter.fused(torch.float32, device, [layer.maps for layer in MODEL.backbone.layers])
    made, expected = (logits(MODEL, tokens, first_draft_row=split, adapter=fused) for fused in (riding, apart))
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)
    assert riding.layers[0]["qkv"].down.out_features > apart.layers[0]["qkv"].down.out_features


def test_t06_a_thousand_toggles_leave_the_weights_bit_identical():
    model = small_model()
    model.backbone.logits(torch.zeros(1, 32))
    weights = [t.clone() for t in tensors(model)]
    engine = make_engine(model, "overlap:2:1", max_concurrency=2)
    engine.submit([1, 2], SamplingParams(max_new_tokens=200, temperature=0.8, seed=1))
    engine.submit([3], SamplingParams(max_new_tokens=200, seed=2))
    for i in range(1000):
        engine.adapter_enabled = i % 2 == 0
        engine.step()
    assert all(torch.equal(a, b) for a, b in zip(weights, tensors(model), strict=True))


def tensors(model):
    """Everything a forward reads, packed weights as plain numbers."""
    backbone, found = model.backbone, []
    for layer in backbone.layers:
        found += [m.dense() for m in layer.maps.values()] + [layer.input_norm.weight, layer.post_norm.weight]
    fused = model.fused_adapter
    found += [m.dense() for maps in fused.layers for low in maps.values() for m in (low.down, low.up)]
    return [*found, backbone.embedding, backbone.norm.weight, backbone.head.dense(), fused.mask_embedding]


def test_an_adapter_of_another_model_is_refused(folder):
    with pytest.raises(RecGuideError, match="was trained for model") as caught:
        load_adapter(folder, SMALL, "0123456789abcdef")
    assert str(folder / FILE) in str(caught.value)


def test_an_adapter_without_an_owner_is_refused(folder):
    save_file(load_file(folder / FILE), folder / FILE)
    with pytest.raises(RecGuideError, match="was trained for model None"):
        load(folder)


def rewrite(folder, change):
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE, metadata={"base_model_fingerprint": MODEL.fingerprint})


def wrong_shape(tensors):
    tensors[next(n for n in tensors if n.endswith("lora_A.weight"))] = torch.zeros(3, 3)


DAMAGES = {
    "no weights": (FILE, lambda f: (f / FILE).unlink()),
    "no config": (CONFIG, lambda f: (f / CONFIG).unlink()),
    "a folder": (FILE, lambda f: ((f / FILE).unlink(), (f / FILE).mkdir())),
    "empty": (FILE, lambda f: (f / FILE).write_bytes(b"")),
    "truncated": (FILE, lambda f: (f / FILE).write_bytes((f / FILE).read_bytes()[:-100])),
    "header cut": (FILE, lambda f: (f / FILE).write_bytes((f / FILE).read_bytes()[:30])),
    "no safetensors": (FILE, lambda f: (f / FILE).write_bytes(b"PK\x03\x04" * 50)),
    "wrong shape": (FILE, lambda f: rewrite(f, wrong_shape)),
    "mask of another size": (FILE, lambda f: rewrite(f, lambda t: t.update({MASK_KEY: torch.zeros(31)}))),
    "tensor missing": (FILE, lambda f: rewrite(f, lambda t: t.pop(MASK_KEY))),
    "config cut": (CONFIG, lambda f: (f / CONFIG).write_text('{"r": 4,')),
    "config empty": (CONFIG, lambda f: (f / CONFIG).write_text("{}")),
    "config a list": (CONFIG, lambda f: (f / CONFIG).write_text("[1]")),
    "config no text": (CONFIG, lambda f: (f / CONFIG).write_bytes(b"\xff\xfe\x00")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_told_in_one_line_with_the_path(folder, damage):
    name, change = DAMAGES[damage]
    change(folder)
    with pytest.raises(RecGuideError) as caught:
        load(folder)
    assert str(folder / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_targets_are_refused(folder):
    raw = json.loads((folder / CONFIG).read_text()) | {"target_modules": ["q_proj", "lm_head"]}
    (folder / CONFIG).write_text(json.dumps(raw))
    with pytest.raises(RecGuideError, match="lm_head"):
        load(folder)
