"""Folders in Hugging Face layout: logits equal transformers', and every kind of damage is told with its path (T11)."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from recguide.models.checkpoint import fingerprint_folder, fingerprint_tensors
from recguide.models.config import from_hf
from recguide.models.loader import load_model
from tests.helpers import make_engine, random_adapter, small_model

SHAPE = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "tie_word_embeddings": True,
    "bos_token_id": None, "eos_token_id": 299, "initializer_range": 0.3,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 16}
VARIANTS = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "head_dim apart from hidden / heads": {"head_dim": 6},
    "one K/V head": {"num_key_value_heads": 1},
    "no grouping": {"num_key_value_heads": 4, "head_dim": 8},
    "rope theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
    "yarn": {"rope_parameters": YARN},
    "yarn, factor 1": {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    "rms eps": {"rms_norm_eps": 1e-2},
}
TOKENS = [(7 * i + i * i) % 300 for i in range(60)]  # beyond the 16 positions YaRN starts from


def write(folder, shard="5GB", **changes):
    """A random Llama saved by transformers, with a tokenizer of bytes beside it. Returns transformers' model."""
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**(SHAPE | changes)))
    for name, value in llama.named_parameters():
        if "norm" in name:
            value.data.normal_(1, 0.1)
    llama.save_pretrained(folder, max_shard_size=shard)
    tokenizer(folder)
    return llama.eval()


def tokenizer(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "model")
    return tmp_path / "model"


def load(folder):
    return load_model(str(folder), dtype="float32", adapter=None)


def engine_logprobs(model, tokens):
    """Log probabilities of ``tokens[1:]`` and the greedy choice at each place, through the engine's own step."""
    engine = make_engine(model, max_concurrency=1)
    found = []
    plain = model.backbone.logits
    model.backbone.logits = lambda hidden: found.append(plain(hidden)) or found[-1]
    for end in range(1, len(tokens) + 1, 7):
        engine.generate([tokens[:end]], SamplingParams(max_new_tokens=1, eos_ids=()))
    del model.backbone.logits
    return torch.cat(found), list(range(0, len(tokens), 7))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(tmp_path, variant):
    llama, model = write(tmp_path, **VARIANTS[variant]), load(tmp_path)
    with torch.no_grad():
        theirs = llama(torch.tensor([TOKENS])).logits[0]
    mine, places = engine_logprobs(model, TOKENS)
    torch.testing.assert_close(mine, theirs[places], atol=1e-4, rtol=1e-4)


def test_shards_load_as_one_file_does(tmp_path):
    write(tmp_path / "one")
    write(tmp_path / "many", shard="10KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one, many = load(tmp_path / "one"), load(tmp_path / "many")
    assert torch.equal(engine_logprobs(one, TOKENS)[0], engine_logprobs(many, TOKENS)[0])


def test_t11_an_adapter_beside_the_weights_is_no_weight(folder):
    before = fingerprint_folder(folder)
    random_adapter(small_model(rank=0)).save(folder, {})
    assert fingerprint_folder(folder) == before
    load(folder)


def test_eos_of_the_generation_config_wins(folder):
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert load(folder).config.eos_ids == (7, 8)
    path.write_text("{}")
    assert load(folder).config.eos_ids == (299,)


def test_the_fingerprint_knows_the_weights_and_not_their_dtype(folder, tmp_path):
    first = load(folder).fingerprint
    assert load_model(str(folder), dtype="bfloat16", adapter=None).fingerprint == first
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"][3] += 0.01
    save_file(tensors, path)
    assert load(folder).fingerprint != first


def test_in_memory_fingerprints_differ_by_value_shape_and_name():
    a = {"x": torch.ones(4, 2)}
    others = [{"x": torch.ones(2, 4)}, {"y": torch.ones(4, 2)}, {"x": torch.ones(4, 2) * 2}]
    assert len({fingerprint_tensors(t) for t in [a, *others]}) == 4
    assert fingerprint_tensors({"x": torch.ones(4, 2).bfloat16()}) == fingerprint_tensors(a)


def edit(path, **changes):
    raw = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))


def reshape(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(31)
    save_file(tensors, folder / "model.safetensors")


def drop(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


DAMAGES = {
    "no config": ("config.json", lambda f: (f / "config.json").unlink()),
    "config cut": ("config.json", lambda f: cut(f / "config.json", 20)),
    "config a list": ("config.json", lambda f: (f / "config.json").write_text("[]")),
    "config no text": ("config.json", lambda f: (f / "config.json").write_bytes(b"\xff\xfe")),
    "no weights": ("safetensors", lambda f: (f / "model.safetensors").unlink()),
    "weights cut": ("model.safetensors", lambda f: cut(f / "model.safetensors", 5000)),
    "header cut": ("model.safetensors", lambda f: cut(f / "model.safetensors", 40)),
    "weights empty": ("model.safetensors", lambda f: cut(f / "model.safetensors", 0)),
    "wrong shape": ("model.norm.weight", reshape),
    "tensor missing": ("model.layers.1.mlp.up_proj.weight", drop),
    "no tokenizer": ("tokenizer.json", lambda f: (f / "tokenizer.json").unlink()),
    "tokenizer cut": ("tokenizer.json", lambda f: cut(f / "tokenizer.json", 100)),
    "other type": ("model_type 'gpt2'", lambda f: edit(f / "config.json", model_type="gpt2")),
    "biases": ("biases", lambda f: edit(f / "config.json", attention_bias=True)),
    "key missing": ("hidden_size", lambda f: edit(f / "config.json", hidden_size=None)),
    "other rope": ("'llama3'", lambda f: edit(f / "config.json", rope_parameters={"rope_type": "llama3"})),
    "heads that do not divide": ("num_heads 4", lambda f: edit(f / "config.json", num_key_value_heads=3)),
    "odd head_dim": ("head_dim", lambda f: edit(f / "config.json", head_dim=15)),
    "index without a map": ("index.json", lambda f: (f / "model.safetensors.index.json").write_text("{}")),
    "shard missing": (
        "part-2.safetensors",
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-2.safetensors"}}'),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_told_in_one_line(folder, damage):
    word, change = DAMAGES[damage]
    change(folder)
    with pytest.raises(RecGuideError) as caught:
        load(folder)
    text = str(caught.value)
    assert word in text
    assert str(folder) in text or "config.json" in text or word.startswith(("num_heads", "head_dim"))
    assert "\n" not in text


def test_names_that_lead_nowhere(tmp_path, monkeypatch):
    for name in ("nonsense", str(tmp_path / "gone"), "./gone"):
        with pytest.raises(RecGuideError, match="neither"):
            load_model(name)
    with pytest.raises(RecGuideError, match="dtype 'int4' is unknown; known: bfloat16"):
        load_model("nonsense", dtype="int4")


def test_r8_a_model_without_an_adapter_says_so(folder):
    assert "no draft adapter" in load(folder).fallbacks[0]


def test_an_adapter_for_the_folder_is_attached(folder, tmp_path):
    bare = load(folder)
    random_adapter(bare).save(tmp_path / "adapter", {})
    model = load_model(str(folder), dtype="float32", adapter=tmp_path / "adapter")
    assert (model.fallbacks, model.adapter_path) == ([], tmp_path / "adapter")
    request = make_engine(model, "linear:4").generate([[1, 2]], SamplingParams(max_new_tokens=12))[0]
    assert request.output == make_engine(bare).generate([[1, 2]], SamplingParams(max_new_tokens=12))[0].output
    shutil.rmtree(tmp_path / "adapter")
    with pytest.raises(RecGuideError, match="not found"):
        load_model(str(folder), dtype="float32", adapter=tmp_path / "adapter")


def test_a_real_mask_token_is_read_and_never_scored(folder):
    edit(folder / "config.json", mask_token_id=17)
    model = load(folder)
    assert model.config.mask_id == 17
    assert model.backbone.logits(torch.randn(3, 32))[:, 17].tolist() == [float("-inf")] * 3


def test_transformers_4_spellings_of_rope():
    old = {k: v for k, v in SHAPE.items() if v is not None} | {"model_type": "llama"}
    scaling = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
    made = from_hf(old | {"rope_theta": 1e6, "rope_scaling": scaling})
    assert (made.rope_theta, made.yarn.factor, made.yarn.original_max_positions) == (1e6, 8.0, 16)
