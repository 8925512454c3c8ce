"""Rotary tables against those of transformers, YaRN included, far beyond the original length (T12)."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from recguide.models.config import ModelConfig, YarnScaling, from_hf
from recguide.models.rope import inverse_frequencies, rotary_table, rotate

SHAPE = {
    "model_type": "llama",
    "vocab_size": 13,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 16}
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 1e4},
    "other theta": {"rope_type": "default", "rope_theta": 1e6},
    "yarn": YARN,
    "yarn, betas": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "original_max_position_embeddings": 256},
    "yarn, factor given": {**YARN, "attention_factor": 1.0},
    "yarn, equal mscales": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn, unequal mscales": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
}
POSITIONS = torch.tensor([0, 1, 5, 15, 16, 17, 100, 255, 4095])


@pytest.mark.parametrize("name", ROPES)
def test_equals_transformers(name):
    raw = {**SHAPE, "rope_parameters": ROPES[name]}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**{k: v for k, v in raw.items() if k != "model_type"}))
    config = from_hf(raw)
    factor = config.yarn.attention_factor if config.yarn else 1.0
    assert factor == pytest.approx(theirs.attention_scaling)
    torch.testing.assert_close(inverse_frequencies(config), theirs.inv_freq, rtol=1e-6, atol=0)
    x = torch.randn(len(POSITIONS), 3, 16, generator=torch.Generator().manual_seed(0))
    cos, sin = theirs(x, POSITIONS[None])
    expected = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)[0][0].transpose(0, 1)
    made = rotate(x, *rotary_table(inverse_frequencies(config), POSITIONS, factor, torch.float32))
    torch.testing.assert_close(made, expected, atol=2e-3, rtol=0)  # float32 angles at position 4095
    torch.testing.assert_close(made[:7], expected[:7], atol=1e-4, rtol=0)


def test_t12_nemotron_scaling_leaves_lengths_alone():
    """mscale / mscale_all_dim of 1 / 1 give a factor of exactly 1.0: a rotation, no change of length."""
    config = from_hf({**SHAPE, "rope_parameters": ROPES["yarn, equal mscales"]})
    assert config.yarn.attention_factor == 1.0
    x = torch.randn(len(POSITIONS), 3, 16, generator=torch.Generator().manual_seed(0))
    made = rotate(x, *rotary_table(inverse_frequencies(config), POSITIONS, 1.0, torch.float32))
    torch.testing.assert_close(made.norm(dim=-1), x.norm(dim=-1))


def test_the_factor_without_mscales_is_that_of_the_paper():
    config = from_hf({**SHAPE, "rope_parameters": YARN})
    assert config.yarn.attention_factor == pytest.approx(0.1 * math.log(16) + 1)


def test_scores_depend_on_distance_alone():
    config = ModelConfig(
        vocab_size=13, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16,
        yarn=YarnScaling(factor=16.0, original_max_positions=16),
    )  # fmt: skip
    q, k = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(1))
    scores = []
    for start in (0, 3, 50, 300):
        table = rotary_table(inverse_frequencies(config), torch.tensor([start, start + 7]), 1.0, torch.float32)
        turned = rotate(torch.cat((q, k)), *table)
        scores.append((turned[0] * turned[1]).sum().item())
    assert scores == pytest.approx([scores[0]] * 4, abs=1e-4)
