"""Nemotron-Labs-Diffusion written once more, plainly and in float32, from its published facts.

The engine is checked against it. No K/V cache (every forward takes every token), dense masks, one request, greedy.
Knows nothing of the package: torch only. Choices that the facts leave open are said where they are made.
``test_nld_reference.py`` checks this file against transformers' Ministral-3, and its methods against each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu


def tiny_config() -> dict:
    """A config.json in the published layout. 16 original positions: YaRN and the query scale matter at once."""
    return {
        "model_type": "nemotron_labs_diffusion",
        "architectures": ["NemotronLabsDiffusionModel"],
        "auto_map": {
            "AutoConfig": "configuration_nemotron_labs_diffusion.NemotronLabsDiffusionConfig",
            "AutoModel": "modeling_nemotron_labs_diffusion.NemotronLabsDiffusionModel",
        },
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,  # 4 x 16 != 48, as in the 3B and the 14B
        "vocab_size": 160,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "sliding_window": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 11,
        "pad_token_id": None,
        "mask_token_id": 100,
        "block_size": 8,
        "dlm_paradigm": "bidirectional",
        "ar_loss_weight": 1.0,
        "dlm_loss_weight": None,
        "dp_varying_mask_ratio": False,
        "attn_implementation": "sdpa",
        "use_cache": False,
        "rope_parameters": {
            "rope_type": "yarn",
            # not 1e6: with 16 positions YaRN's ramp would hold no frequency, and its rounding would change nothing
            "rope_theta": 100.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
        "torch_dtype": "bfloat16",
        "transformers_version": "5.0.0",
    }


def random_tensors(config: Mapping, seed: int = 0, *, reach: int = 7) -> dict[str, Tensor]:
    """Random float32 weights under the published names, whose text varies and whose drafts are right now and then.

    Plain random weights agree on drafts only where the text repeats one token. Here the heads of the first layer look
    back over fixed distances (`_look_back`), so a draft is as good as the AR token while what it looks at is known.
    """
    random = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries, keys = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))

    def matrix(rows: int, columns: int, size: float) -> Tensor:
        return torch.randn(rows, columns, generator=random) * size

    def norm() -> Tensor:
        return 1 + 0.2 * torch.randn(hidden, generator=random)

    tensors = {"encoder.embed_tokens.weight": matrix(config["vocab_size"], hidden, 0.2)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"encoder.layers.{layer}."
        tensors |= {
            f"{prefix}input_layernorm.weight": norm(),
            f"{prefix}self_attn.q_proj.weight": matrix(queries, hidden, 0.1),
            f"{prefix}self_attn.k_proj.weight": matrix(keys, hidden, 0.1),
            f"{prefix}self_attn.v_proj.weight": matrix(keys, hidden, 0.3),
            f"{prefix}self_attn.o_proj.weight": matrix(hidden, queries, 0.3),
            f"{prefix}post_attention_layernorm.weight": norm(),
            f"{prefix}mlp.gate_proj.weight": matrix(inner, hidden, 0.1),
            f"{prefix}mlp.up_proj.weight": matrix(inner, hidden, 0.1),
            f"{prefix}mlp.down_proj.weight": matrix(hidden, inner, 0.1),
        }
    tensors["encoder.norm.weight"] = norm()
    tensors["diffusion_head.weight"] = matrix(config["vocab_size"], hidden, 0.3)
    # often the likeliest token, so that it matters that the mask id is no candidate
    tensors["diffusion_head.weight"][config["mask_token_id"]] *= 2
    _look_back(tensors, config, reach)
    return tensors


def _look_back(tensors: dict[str, Tensor], config: Mapping, reach: int) -> None:
    """Head h of the first layer looks back ``reach + h`` tokens from a token, and one further from a mask.

    All embeddings have feature 0 and the mask's has feature 1 too; with 0 as input the two fastest pairs of a head turn
    so that the score is highest at its distance. A mask is one place ahead of the row whose token it guesses.
    """
    heads, dim = config["num_attention_heads"], config["head_dim"]
    embeddings, prefix = tensors["encoder.embed_tokens.weight"], "encoder.layers.0."
    embeddings[:, 0], embeddings[:, 1] = 1, 0
    embeddings[config["mask_token_id"], 1] = 1
    tensors[f"{prefix}input_layernorm.weight"][:2] = 1
    for name in "qkv":
        tensors[f"{prefix}self_attn.{name}_proj.weight"][:, :2] = 0
    k = tensors[f"{prefix}self_attn.k_proj.weight"].view(-1, 2, dim // 2, config["hidden_size"])
    k[:, 0, :2, 0], k[:, 0, :2, 1] = 1, -1  # masks have nothing to copy: their keys are 0
    q = tensors[f"{prefix}self_attn.q_proj.weight"].view(heads, 2, dim // 2, config["hidden_size"])
    fastest = inverse_frequencies(config, truncate=True)[0][:2]
    for head in range(heads):
        near, far = ((reach + head + more) * fastest for more in (0, 1))
        q[head, 0, :2, 0], q[head, 1, :2, 0] = 2 * near.cos(), -2 * near.sin()
        q[head, 0, :2, 1], q[head, 1, :2, 1] = 2 * (far.cos() - near.cos()), -2 * (far.sin() - near.sin())


def adapter_config(r: int = 4, alpha: float = 16) -> dict:
    """The adapter_config.json of ``linear_spec_lora``."""
    return {
        "peft_type": "LORA",
        "target_modules": ["o_proj"],
        "r": r,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }


def random_lora(
    config: Mapping, seed: int = 0, *, r: int = 4, alpha: float = 16, size: float = 0.1
) -> dict[str, Tensor]:
    """A random adapter under its PEFT names, for a scale of ``alpha / r``; ``size`` is the spread of the delta."""
    random = torch.Generator().manual_seed(seed)
    queries, hidden = config["num_attention_heads"] * config["head_dim"], config["hidden_size"]
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"base_model.model.encoder.layers.{layer}.self_attn.o_proj."
        tensors[f"{prefix}lora_A.weight"] = torch.randn(r, queries, generator=random) / r**0.5
        tensors[f"{prefix}lora_B.weight"] = torch.randn(hidden, r, generator=random) * size * r / alpha
    return tensors


def inverse_frequencies(config: Mapping, truncate: bool) -> tuple[Tensor, float]:
    """YaRN's frequencies [head_dim / 2] and the factor on cos and sin, which is 1.0 for equal mscales.

    ``truncate`` rounds the ends of the ramp outwards to whole pairs. True is the default of transformers, which the
    released code takes its frequencies from; Megatron-Bridge, which trained the model, has the rounding off.
    """
    rope, dim = config["rope_parameters"], config["head_dim"]
    theta, factor, original = rope["rope_theta"], rope["factor"], rope["original_max_position_embeddings"]

    def pair_that_turns(times: float) -> float:  # the pair that makes so many turns within the original length
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(rope["beta_fast"]), pair_that_turns(rope["beta_slow"])
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high += 0.001 if low == high else 0  # transformers' guard against a division by zero

    plain = theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    slowed = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1

    return plain / factor * slowed + plain * (1 - slowed), mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"])


@dataclass(frozen=True)
class Round:
    """One round. The first one of a request is its prefill: no seed, no draft, and the first token is emitted.

    ``accepted`` counts the leading drafts that the verifier confirms; an EOS or the end of thinking may then leave
    fewer in ``emitted``, which otherwise holds the accepted drafts and one token more.
    """

    seed: int | None
    drafted: list[int]
    accepted: int
    emitted: list[int]
    forwards: int


def text(rounds: Iterable[Round]) -> list[int]:
    return [token for each in rounds for token in each.emitted]


@dataclass(frozen=True)
class Thinking:
    """After ``max_tokens`` emitted tokens without ``end_id`` the next one is ``end_id``; it is emitted and fed.

    That does not depend on where rounds end, so the text is the same for every block length. ``at_round_end`` is the
    released code's moment instead: the last token of the first round that ends beyond ``max_tokens`` (the prefill is
    no such round) is replaced. There the old token stays in the output while ``end_id`` is fed; here never.
    """

    max_tokens: int
    end_id: int
    at_round_end: bool = False


class Reference:
    """The model and its greedy generation methods. The mask id is no candidate anywhere, neither draft nor verify."""

    def __init__(
        self,
        config: Mapping,
        tensors: Mapping[str, Tensor],
        lora: Mapping[str, Tensor] | None = None,
        lora_scale: float = 4.0,
        *,
        eos_ids: Iterable[int] | None = None,
        truncate: bool | None = None,
    ):
        self.config, self.lora, self.lora_scale = config, lora, lora_scale
        self.tensors = {name: value.float() for name, value in tensors.items()}
        self.mask_id = config["mask_token_id"]
        default = config["eos_token_id"]
        self.eos_ids = set(eos_ids if eos_ids is not None else [default] if isinstance(default, int) else default)
        if truncate is None:
            truncate = config["rope_parameters"].get("truncate", True)
        self.frequencies, self.rope_factor = inverse_frequencies(config, truncate)

    # ---- the model

    def logits(
        self, tokens: Sequence[int], positions: Sequence[int], allowed: Tensor, lora_rows: Tensor | None = None
    ) -> Tensor:
        """[rows, vocab]. ``allowed[i, j]``: row i sees row j. ``lora_rows[i]``: the adapter is on in row i."""
        positions = torch.as_tensor(positions)
        x = self.tensors["encoder.embed_tokens.weight"][torch.as_tensor(tokens)]  # [rows, hidden]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"encoder.layers.{layer}."
            h = self._norm(x, f"{prefix}input_layernorm")
            x = x + self._attention(h, f"{prefix}self_attn.", positions, allowed, lora_rows)
            h = self._norm(x, f"{prefix}post_attention_layernorm")
            gated = silu(self._map(h, f"{prefix}mlp.gate_proj")) * self._map(h, f"{prefix}mlp.up_proj")
            x = x + self._map(gated, f"{prefix}mlp.down_proj")
        return self._map(self._norm(x, "encoder.norm"), "diffusion_head")

    def _map(self, x: Tensor, name: str) -> Tensor:
        return x @ self.tensors[f"{name}.weight"].T

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return x / (mean_square + self.config["rms_norm_eps"]).sqrt() * self.tensors[f"{name}.weight"]

    def _attention(self, h: Tensor, prefix: str, positions: Tensor, allowed: Tensor, lora_rows: Tensor | None):
        dim, rows = self.config["head_dim"], len(h)
        q, k, v = (self._map(h, f"{prefix}{name}_proj").view(rows, -1, dim).transpose(0, 1) for name in "qkv")
        q = self._rotate(q, positions) * self._query_scale(positions)[:, None]  # [heads, rows, dim]
        groups = self.config["num_attention_heads"] // self.config["num_key_value_heads"]
        k, v = (each.repeat_interleave(groups, 0) for each in (self._rotate(k, positions), v))
        scores = (q @ k.transpose(1, 2) / dim**0.5).masked_fill(~allowed, -math.inf)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(rows, -1)  # [rows, heads * dim]
        out = self._map(mixed, f"{prefix}o_proj")
        if self.lora is not None and lora_rows is not None:
            a, b = (self.lora[f"base_model.model.{prefix}o_proj.lora_{each}.weight"].float() for each in "AB")
            out = out + lora_rows[:, None] * self.lora_scale * (mixed @ a.T @ b.T)
        return out

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None].float() * self.frequencies  # [rows, dim / 2]
        cos, sin = angles.cos() * self.rope_factor, angles.sin() * self.rope_factor
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _query_scale(self, positions: Tensor) -> Tensor:
        """[rows], by the true position; the released code takes the row's number, which differs in quadratic mode."""
        rope = self.config["rope_parameters"]
        periods = positions // rope["original_max_position_embeddings"]
        return 1 + rope["llama_4_scaling_beta"] * torch.log(1 + periods.float())

    # ---- reading logits

    def _choose(self, logits: Tensor) -> tuple[list[int], list[float]]:
        """The likeliest token of each row and its probability, both among the tokens that are no mask."""
        logits = logits.clone()
        logits[:, self.mask_id] = -math.inf
        probabilities, tokens = logits.softmax(-1).max(-1)
        return tokens.tolist(), probabilities.tolist()

    def _causal(self, tokens: Sequence[int]) -> list[int]:
        """For every row the token that follows it; no adapter."""
        return self._choose(self.logits(tokens, range(len(tokens)), _causal_mask(len(tokens))))[0]

    def _commit(self, emitted: list[int], output: list[int], thinking: Thinking | None = None) -> list[int]:
        """What is kept of a round: up to its first EOS, else up to the end of thinking that is due in it.

        An EOS at the very place where the end of thinking is due stays: the text is over.
        """
        kept = next((emitted[: i + 1] for i, token in enumerate(emitted) if token in self.eos_ids), emitted)
        if thinking is None or thinking.end_id in output:
            return kept
        if thinking.at_round_end:
            over = len(output) + len(kept) > thinking.max_tokens and thinking.end_id not in kept
            return [*kept[:-1], thinking.end_id] if over and output and kept[-1] not in self.eos_ids else kept
        due = thinking.max_tokens - len(output)
        if due not in range(len(kept)) or thinking.end_id in kept[: due + 1] or kept[due] in self.eos_ids:
            return kept
        return [*kept[:due], thinking.end_id]

    def _done(self, output: list[int], max_new_tokens: int) -> bool:
        assert len(output) <= max_new_tokens
        return len(output) == max_new_tokens or output[-1] in self.eos_ids

    # ---- generation

    def ar(self, prompt: Sequence[int], max_new_tokens: int, thinking: Thinking | None = None) -> list[int]:
        output: list[int] = []
        while not output or not self._done(output, max_new_tokens):
            output += self._commit(self._causal([*prompt, *output])[-1:], output, thinking)
        return output

    def linear(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        block: int,
        threshold: float = 0.0,
        thinking: Thinking | None = None,
    ) -> list[Round]:
        """Draft [seed, MASK x (L - 1)] with every row seeing the whole block, adapter on; verify it causally, off.

        Departs from the released code: the block is shortened to the tokens still wanted (there it is always full and
        the output may be longer than wanted); a block without masks costs no draft forward; no mask id is chosen;
        masks are known by place, so that a seed equal to the mask id stays; several EOS ids; see `Thinking`.
        """
        output = self._commit(self._causal(prompt)[-1:], [], thinking)
        rounds = [Round(None, [], 0, list(output), 1)]
        while not self._done(output, max_new_tokens):
            known = [*prompt, *output]  # the last of them is the seed
            drafted, forwards = self._draft(known, min(block, max_new_tokens - len(output)) - 1, threshold)
            verified = self._causal(known + drafted)[len(known) - 1 :]
            accepted = _agreeing(drafted, verified)
            emitted = self._commit(verified[: accepted + 1], output, thinking)
            rounds.append(Round(output[-1], drafted, accepted, emitted, forwards + 1))
            output += emitted
        return rounds

    def _draft(self, known: list[int], masks: int, threshold: float) -> tuple[list[int], int]:
        """Reveal the masks that are sure enough, or the surest one, until none is left; 0 reveals all at once."""
        rows, seed = len(known) + masks, len(known) - 1
        allowed = _causal_mask(rows)
        allowed[seed:] = True
        lora_rows = torch.arange(rows) >= seed
        drafted: list[int | None] = [None] * masks
        forwards = 0
        while None in drafted:
            tokens = known + [self.mask_id if token is None else token for token in drafted]
            chosen, sure = self._choose(self.logits(tokens, range(rows), allowed, lora_rows)[len(known) :])
            forwards += 1
            masked = [i for i in range(masks) if drafted[i] is None]
            for i in [i for i in masked if sure[i] >= threshold] or [max(masked, key=lambda i: sure[i])]:
                drafted[i] = chosen[i]
        return drafted, forwards

    def quadratic(self, prompt: Sequence[int], max_new_tokens: int, block: int) -> list[Round]:
        """One forward a round: each of d_0 (the seed), d_1, ... is followed by the masks of the block after it.

        Departs from the old code that had this mode: an AR token is emitted by the forward that finds it (there by the
        next one), so that rounds read as in `linear` and the last one is saved; drafts and their masks are no more than
        the tokens still wanted, and masks that could draft nothing are left out; the adapter is on in mask rows.
        """
        prompt, masks = list(prompt), self._masks(block, max_new_tokens - 1)
        allowed = _causal_mask(len(prompt) + masks)
        allowed[len(prompt) :] = True
        rows = torch.arange(len(allowed))
        logits = self.logits(prompt + [self.mask_id] * masks, rows, allowed, rows >= len(prompt))
        chosen = self._choose(logits)[0]
        output = self._commit(chosen[len(prompt) - 1 : len(prompt)], [])
        draft = chosen[len(prompt) + 1 :]  # the mask at slot 0 gives way to the AR token
        rounds = [Round(None, [], 0, list(output), 1)]
        while not self._done(output, max_new_tokens):
            known, wanted = [*prompt, *output], max_new_tokens - len(output)
            verified, nexts = self._quadratic_forward(known, draft, block, wanted)
            accepted = _agreeing(draft, verified)
            emitted = self._commit(verified[: accepted + 1], output)
            rounds.append(Round(output[-1], draft, accepted, emitted, 1))
            output += emitted
            draft = nexts[accepted]
        return rounds

    def _masks(self, block: int, wanted: int) -> int:
        """Masks for a block: the seed's slot and those of its drafts, at most ``wanted``; 0 if it drafts nothing."""
        length = min(block, wanted)
        return length if length > 1 else 0

    def _quadratic_forward(self, known: list[int], draft: list[int], block: int, wanted: int):
        """For each of seed, d_1, ...: the token after it, and the drafts that follow that token."""
        start = len(known) - 1  # the seed is no clean row
        tokens, positions = known[:start], list(range(start))
        sees = [list(range(i + 1)) for i in range(start)]
        chain, counts = list(range(start)), []
        for i, token in enumerate([known[-1], *draft]):
            counts.append(self._masks(block, wanted - (i + 1)))  # i + 1 are emitted if d_i is the last one accepted
            chain = [*chain, len(tokens)]
            own = list(range(len(tokens) + 1, len(tokens) + 1 + counts[i]))
            tokens += [token] + [self.mask_id] * counts[i]
            positions += range(start + i, start + i + 1 + counts[i])
            sees += [chain] + [chain + own] * counts[i]
        allowed = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
        for row, seen in enumerate(sees):
            allowed[row, seen] = True
        heads = chain[start:]
        lora_rows = ~torch.isin(torch.arange(len(tokens)), torch.tensor(chain))
        chosen = self._choose(self.logits(tokens, positions, allowed, lora_rows))[0]
        # slot 0 is the AR token; slot 1, the mask in its place, gives way to it
        nexts = [chosen[h + 2 : h + 1 + count] for h, count in zip(heads, counts, strict=True)]
        return [chosen[h] for h in heads], nexts


def _causal_mask(rows: int) -> Tensor:
    return torch.ones(rows, rows, dtype=torch.bool).tril()


def _agreeing(drafted: Sequence[int], verified: Sequence[int]) -> int:
    """How many leading drafts the verifier chose too; ``verified`` holds one token more."""
    return next((i for i, token in enumerate(drafted) if token != verified[i]), len(drafted))
