"""Small models whose drafts are accepted and rejected often, policies that draft to order, and short ways to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from recguide.engine.engine import Engine
from recguide.engine.plan import RequestPlan
from recguide.engine.request import Draft, Request
from recguide.engine.sampling import SamplingParams
from recguide.models.adapter import AdapterConfig, DraftAdapter
from recguide.models.backbone import Backbone
from recguide.models.checkpoint import fingerprint_tensors
from recguide.models.config import ModelConfig
from recguide.models.linear import can_pack
from recguide.models.loader import Model, default_dtype, random_weights
from recguide.models.tokenizer import ByteTokenizer
from recguide.policies import Policy

SMALL = ModelConfig(
    vocab_size=13,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=256,
    tie_embeddings=False,
)

POLICY_SPECS = (
    *(f"{name}:{block}" for name in ("linear", "ar-row", "quadratic", "overlap") for block in (2, 4, 8, 32)),
    *(
        "overlap:8:0",
        "overlap:8:1",
        "overlap:4:1",
        "window:2:32",
        "window:4:8",
        "window:32:32",
        "linear:8:0.3",
        "explore",
        "explore:4",
        "recguide",
        "recguide:explore=0.5",
        "recguide::1:200:0.2:0",
        "recguide:use=overlap",
        "recguide:use=trim",
        "paper-adaptive",
        "paper-adaptive:8/16/32",
        "ema-tiers",
        "ema-tiers:2/3/5/9:0.9:0",
        "budget",
        "budget:5:0",
        "budget:16:7",
        "tiers",
        "tiers:9@1/4@3/2",
    ),
)
SAMPLERS = {
    "greedy": {},
    "warm": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 4},
    "top_p": {"temperature": 0.8, "top_p": 0.7},
    "min_p": {"temperature": 0.8, "min_p": 0.2},
    "penalty": {"temperature": 0.8, "repetition_penalty": 1.5},
    "greedy_penalty": {"repetition_penalty": 1.3},
    "all": {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 0.8},
}


def small_weights(config: ModelConfig = SMALL, seed: int = 0, leaning: float = 1.0) -> dict[str, torch.Tensor]:
    """Random weights with one constant direction: every row leans to the same tokens, as far as ``leaning`` goes."""
    weights = random_weights(config, seed, 0.3)
    weights["model.embed_tokens.weight"][:, 0] += leaning
    return weights


def small_model(
    seed: int = 0,
    config: ModelConfig = SMALL,
    *,
    leaning: float = 1.0,
    rank: int = 4,
    weights=None,
    pack: bool = True,
    shift: int = 0,
    chain: int = 0,
) -> Model:
    """A float32 model with a random draft adapter (``rank`` 0: none) that is right about half of the time."""
    weights = weights or small_weights(config, seed, leaning)
    model = Model("small", config, Backbone(config, weights, pack=pack), ByteTokenizer(), fingerprint_tensors(weights))
    if rank:
        model.adapter = random_adapter(model, rank, seed, shift=shift, chain=chain)
        if config.has_virtual_mask:
            model.adapter.mask_embedding[0] = leaning
    return model


def random_adapter(
    model: Model,
    rank: int = 4,
    seed: int = 0,
    size: float = 0.1,
    shift: int = 0,
    adapt_tokens: bool = True,
    chain: int = 0,
) -> DraftAdapter:
    torch.manual_seed(seed)
    adapter = DraftAdapter(
        model.config,
        AdapterConfig(rank=rank, alpha=2 * rank, draft_shift=shift, adapt_tokens=adapt_tokens, chain=chain),
        model.fingerprint,
    )
    for parameter in adapter.parameters():
        parameter.data.normal_(0, size)
    return adapter.requires_grad_(False)


def agreeing_model(seed: int = 0, config: ModelConfig = SMALL, *, pack: bool = True) -> Model:
    """Logits are the same in every row, so every draft is right: at temperature 0 one token, above it varied text."""
    weights = small_weights(config, seed)
    for name, value in weights.items():
        if "o_proj" in name or "down_proj" in name:
            value.zero_()
    weights["model.embed_tokens.weight"].zero_()[:, 0] = 1.0
    return small_model(config=config, weights=weights, rank=0, pack=pack)


class Oracle(Policy):
    """Verifies drafts made to order: ``draft(request)`` gives the tokens to propose, as many as it likes."""

    name, summary = "oracle", "drafts made to order by a test"

    def __init__(self, draft: Callable[[Request], list[int]]):
        super().__init__()
        self.draft = draft

    def plan_request(self, request: Request) -> RequestPlan:
        tokens = self.draft(request)
        request.draft = Draft(tokens) if tokens else None
        return RequestPlan(len(tokens))


def foresight(reference: Sequence[int], block: int, wrong: int | None = None, vocab: int = 13) -> Oracle:
    """Drafts ``block`` tokens of the reference output, the one at ``wrong`` replaced by another token."""

    def draft(request: Request) -> list[int]:
        tokens = list(reference[request.generated : request.generated + block])
        if wrong is not None and wrong < len(tokens):
            tokens[wrong] = (tokens[wrong] + 1) % vocab
        return tokens

    return Oracle(draft)


def make_engine(model: Model, policy: str | Policy = "ar", **settings) -> Engine:
    return Engine(model, policy, **({"max_concurrency": 16, "max_context": model.config.max_positions} | settings))


def run(model: Model, policy: str | Policy, prompt, **params) -> Request:
    """One request alone on a fresh engine."""
    return make_engine(model, policy, max_concurrency=1).generate([prompt], SamplingParams(**({"seed": 0} | params)))[0]


def drain(engine: Engine, most: int = 5000) -> None:
    """Step until nothing is left; fails when an engine makes no progress."""
    for _ in range(most):
        if engine.idle:
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


def assert_clean(engine: Engine) -> None:
    """No request, no slot and no K/V value is left."""
    engine.take_deltas()
    assert engine.idle
    assert engine._cache.free_slots == engine.max_concurrency
    assert set(engine._cache.lengths) == {0}
    assert not engine._cache.k.any()
    assert not engine._cache.v.any()


def assert_counts_agree(request: Request) -> None:
    """The identities that hold for every finished request."""
    s = request.stats
    assert s.completion_tokens == len(request.output)
    assert sum(s.acceptance_histogram.values()) == s.num_spec_steps
    assert sum(k * n for k, n in s.acceptance_histogram.items()) == s.num_accepted_draft_tokens
    assert sum(s.kept_at.values()) == s.num_accepted_draft_tokens
    assert all(s.kept_at[j] <= s.reached[j] for j in s.reached)
    assert s.num_accepted_draft_tokens <= s.num_draft_tokens


def mixed_jobs(count: int, vocab: int = 13) -> list[tuple[list[int], SamplingParams]]:
    """Requests that differ in everything: prompt length, budget, sampler, seed, EOS and stop strings."""
    samplers = list(SAMPLERS.values())
    jobs = []
    for i in range(count):
        prompt = [(7 * i + 5 * j + j * j) % vocab for j in range(1 + (5 * i) % 23)]
        params = SamplingParams(
            max_new_tokens=3 + (11 * i) % 38,
            seed=i,
            eos_ids=(i % vocab,) if i % 3 == 0 else (),
            stop=(chr(i % vocab), chr(9) * 3) if i % 4 == 1 else (),
            **samplers[i % len(samplers)],
        )
        jobs.append((prompt, params))
    return jobs


def native_dtype() -> str:
    """What this processor multiplies fastest, by name."""
    return str(default_dtype(torch.device("cpu"))).removeprefix("torch.")


def skip_without_products_in(dtype: str) -> None:
    """Skip a test of the real model where oneDNN has no products in this dtype: torch's own take seconds a token."""
    if not can_pack(torch.empty(1, 1, dtype=getattr(torch, dtype))):
        pytest.skip(f"this processor has no fast products in {dtype}; small models are tested in it")
