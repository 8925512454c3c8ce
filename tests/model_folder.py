"""A small model as a folder in Hugging Face layout, saved by ``transformers`` and ``tokenizers`` themselves."""

from __future__ import annotations

import json
from pathlib import Path

from recguide.bench.prompts import load_prompts
from recguide.models.config import ModelConfig
from tests.helpers import small_weights

VOCABULARY = 400
END = 1
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def save_model(path: Path, max_positions: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "head_dim": 16}
    config = LlamaConfig(
        **shape,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_positions,
        eos_token_id=END,
        tie_word_embeddings=False,
    )
    sizes = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "tie_embeddings": False}
    model = LlamaForCausalLM(config)
    model.load_state_dict(small_weights(ModelConfig(**shape, **sizes), seed=3))
    model.save_pretrained(path)


def save_tokenizer(path: Path) -> None:
    """Byte pairs learned from the project's own prompts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((p.as_messages()[-1]["content"] for p in load_prompts()), trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
