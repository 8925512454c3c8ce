"""Against an independent public implementation: mlx-vlm's Nemotron-Labs-Diffusion, where it is installed.

pip install "mlx[cpu]" mlx-vlm && python -m pytest tests/models/test_mlx.py
"""

import numpy as np
import pytest
import torch

from tests.models.test_nld import CONFIG, LORA, PROMPTS, SCALE, TENSORS, TOKENS, load, run, write
from tests.nld_reference import Reference, text

mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
theirs = pytest.importorskip("mlx_vlm.models.nemotron_labs_diffusion", reason="mlx-vlm is not installed")

# they do not exclude the mask: a head row of zeros keeps it from being chosen
UNMASKED = TENSORS | {"diffusion_head.weight": TENSORS["diffusion_head.weight"].clone()}
UNMASKED["diffusion_head.weight"][CONFIG["mask_token_id"]] = 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("mlx") / "model", tensors=UNMASKED)


@pytest.fixture(scope="module")
def language_model(folder):
    mx.set_default_device(mx.cpu)
    known = theirs.ModelConfig.__dataclass_fields__
    model = theirs.Model(theirs.ModelConfig(**{k: v for k, v in CONFIG.items() if k in known}))
    weights = model.sanitize({name: mx.array(value.numpy()) for name, value in UNMASKED.items()})
    model.load_weights(list(weights.items()), strict=True)
    assert model.language_model.load_linear_spec_lora(folder / "linear_spec_lora")
    return model.language_model


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_causal_logits(language_model, prompt):
    made = np.array(language_model(mx.array([prompt])).logits[0])
    causal = torch.ones(len(prompt), len(prompt), dtype=torch.bool).tril()
    expected = Reference(CONFIG, UNMASKED).logits(prompt, range(len(prompt)), causal)
    np.testing.assert_allclose(made, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("block", [2, 4, 8])  # beyond 8 they change the block as they go
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_linear_self_speculation(language_model, folder, prompt, block):
    output, forwards = language_model.linear_spec_generate(
        mx.array([prompt]), max_new_tokens=TOKENS, block_length=block, eos_token_id=CONFIG["eos_token_id"]
    )
    rounds = Reference(CONFIG, UNMASKED, LORA, SCALE).linear(prompt, TOKENS, block)
    first = rounds[0].emitted
    request = run(load(folder), f"linear:{block}", prompt + first, max_new_tokens=TOKENS - 1)
    assert np.array(output)[0, len(prompt) :].tolist() == text(rounds) == first + request.output
    assert forwards == sum(r.forwards for r in rounds) == 1 + request.stats.forwards
