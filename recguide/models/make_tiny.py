"""Random tiny checkpoints in the layout a model family is published in, for tests and for reports of faults."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file
from torch import Tensor

from recguide.errors import RecGuideError
from recguide.models.adapter import PEFT_PREFIX
from recguide.models.config import NEMOTRON, from_hf
from recguide.models.loader import BUNDLED_ADAPTER, random_weights

FAMILIES = ("nld",)
NLD_CONFIG = {
    "model_type": NEMOTRON,
    "architectures": ["NemotronLabsDiffusionModel"],
    "vocab_size": 384,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 11,
    "pad_token_id": None,
    "mask_token_id": 100,
    "block_size": 32,
    "dlm_paradigm": "bidirectional",
    "torch_dtype": "bfloat16",
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
NLD_TEMPLATE = (
    "{%- if messages[0]['role'] != 'system' %}<|im_start|>system\n<|im_end|>\n{% endif %}"
    "{%- for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{%- if enable_thinking %}<think>\n{% else %}<think></think>{% endif %}{% endif %}"
)
SPECIAL = {0: "<unk>", 1: "<s>", 10: "<|im_start|>", 11: "<|im_end|>", 12: "<think>", 13: "</think>", 100: "<mask>"}
FIRST_BYTE = 120
LORA_RANK, LORA_ALPHA = 8, 32


def make_tiny(family: str, folder: Path, seed: int = 0, max_shard_size: str = "5GB", **config: object) -> None:
    """Write a random checkpoint of ``family`` with its adapter and a tokenizer of bytes. ``config`` overrides keys."""
    if family not in FAMILIES:
        raise RecGuideError(f"family {family!r} is unknown; known: {', '.join(FAMILIES)}")
    if folder.exists() and any(folder.iterdir()):
        raise RecGuideError(f"{folder}: is not empty; give a new folder")
    raw = NLD_CONFIG | config
    model = from_hf(raw)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    weights = random_weights(model, seed, 0.3)
    weights["model.embed_tokens.weight"][:, 0] += 1.0  # every row leans the same way: drafts are right now and then
    named = {published(name): value.to(torch.bfloat16) for name, value in weights.items()}
    save_torch_state_dict(named, folder, max_shard_size=max_shard_size)
    _write_adapter(folder / BUNDLED_ADAPTER, {n: v for n, v in named.items() if "o_proj" in n}, seed)
    _write_tokenizer(folder)


def published(name: str) -> str:
    """The name Nemotron-Labs-Diffusion publishes a tensor under."""
    return name.replace("model.", "encoder.", 1).replace("lm_head.", "diffusion_head.", 1)


def _write_adapter(folder: Path, projections: dict[str, Tensor], seed: int) -> None:
    """A random LoRA on the projections given, PEFT layout, float32 as published."""
    generator = torch.Generator().manual_seed(seed + 1)
    tensors = {}
    for name, weight in projections.items():
        stem = PEFT_PREFIX + name.removesuffix(".weight")
        out, into = weight.shape
        tensors[f"{stem}.lora_A.weight"] = torch.randn(LORA_RANK, into, generator=generator) / into**0.5
        tensors[f"{stem}.lora_B.weight"] = 0.02 * torch.randn(out, LORA_RANK, generator=generator)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "r": LORA_RANK,
        "lora_alpha": LORA_ALPHA,
        "target_modules": ["o_proj"],
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _write_tokenizer(folder: Path) -> None:
    """Bytes as tokens, behind the special tokens at their published ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {SPECIAL.get(i, f"<SPECIAL_{i}>"): i for i in range(FIRST_BYTE)}
    vocabulary |= {letter: FIRST_BYTE + i for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL.values()])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": NLD_TEMPLATE}) + "\n")
