"""The plain reference of Nemotron-Labs-Diffusion: its forward against transformers, its methods against each other."""

from dataclasses import asdict

import pytest
import torch
from transformers import Ministral3Config, Ministral3ForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.nld_reference import (
    Reference,
    Thinking,
    _causal_mask,
    inverse_frequencies,
    random_lora,
    random_tensors,
    text,
    tiny_config,
)

CONFIG = tiny_config()
MASK = CONFIG["mask_token_id"]
TENSORS = random_tensors(CONFIG)
LORA = random_lora(CONFIG)
BLOCKS = (1, 2, 4, 8)


def numbers(count: int, seed: int) -> list[int]:
    return torch.randint(0, CONFIG["vocab_size"], (count,), generator=torch.Generator().manual_seed(seed)).tolist()


# shorter than the original 16 positions, across them, beyond them
PROMPTS = [numbers(count, count) for count in (1, 5, 14, 40)]


def ministral_config(truncate: bool = True) -> Ministral3Config:
    """True leaves the rounding of YaRN's ramp to the default of transformers, as the published config does."""
    names = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "hidden_act",
        "rms_norm_eps",
        "max_position_embeddings",
        "tie_word_embeddings",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
    ]
    shared = {name: CONFIG[name] for name in names}
    rope = CONFIG["rope_parameters"] | ({} if truncate else {"truncate": False})
    return Ministral3Config(**shared, rope_parameters=rope, attn_implementation="eager")


def ministral(tensors=TENSORS, truncate: bool = True) -> Ministral3ForCausalLM:
    model = Ministral3ForCausalLM(ministral_config(truncate)).eval()
    renamed = {
        name.replace("encoder.", "model.").replace("diffusion_head", "lm_head"): tensors[name] for name in tensors
    }
    model.load_state_dict(renamed, strict=True)
    return model


# ---- the forward


@pytest.mark.parametrize("truncate", [True, False])
def test_frequencies_equal_those_of_transformers(truncate):
    theirs, their_factor = ROPE_INIT_FUNCTIONS["yarn"](ministral_config(truncate))
    ours, factor = inverse_frequencies(CONFIG, truncate)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    assert factor == their_factor == 1.0


def test_rounding_of_the_ramp_matters():
    """Else no test with this configuration could tell the two conventions apart."""
    rounded, exact = (inverse_frequencies(CONFIG, truncate)[0] for truncate in (True, False))
    assert (rounded / exact - 1).abs().max() > 0.05


@torch.no_grad()
@pytest.mark.parametrize("truncate", [True, False])
def test_causal_logits_equal_ministral3_far_beyond_the_original_length(truncate):
    tokens = numbers(300, 0)
    ours = Reference(CONFIG, TENSORS, truncate=truncate).logits(tokens, range(300), _causal_mask(300))
    theirs = ministral(truncate=truncate)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_any_mask_and_positions_equal_ministral3():
    tokens, rows = numbers(60, 1), 60
    random = torch.Generator().manual_seed(2)
    allowed = (torch.rand(rows, rows, generator=random) < 0.4) | torch.eye(rows, dtype=torch.bool)
    positions = torch.randint(0, 100, (rows,), generator=random)
    ours = Reference(CONFIG, TENSORS).logits(tokens, positions, allowed)
    bias = torch.zeros(1, 1, rows, rows).masked_fill(~allowed, -torch.inf)
    theirs = ministral()(torch.tensor([tokens]), attention_mask=bias, position_ids=positions[None]).logits[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_adapter_on_everywhere_equals_ministral3_with_merged_weights():
    merged = dict(TENSORS)
    for layer in range(CONFIG["num_hidden_layers"]):
        name = f"encoder.layers.{layer}.self_attn.o_proj"
        a, b = (LORA[f"base_model.model.{name}.lora_{each}.weight"] for each in "AB")
        merged[f"{name}.weight"] = merged[f"{name}.weight"] + 4.0 * b @ a
    tokens = numbers(30, 3)
    ours = Reference(CONFIG, TENSORS, LORA).logits(tokens, range(30), _causal_mask(30), torch.ones(30).bool())
    torch.testing.assert_close(ours, ministral(merged)(torch.tensor([tokens])).logits[0], rtol=1e-4, atol=1e-4)


def test_adapter_changes_its_rows_and_those_that_see_them():
    reference, tokens, rows = Reference(CONFIG, TENSORS, LORA), numbers(20, 4), torch.arange(20)
    off, on = (reference.logits(tokens, rows, _causal_mask(20), rows >= start) for start in (20, 12))
    assert torch.equal(off[:12], on[:12])
    assert ((off - on)[12:].abs().amax(-1) > 1e-3).all()
    without = Reference(CONFIG, TENSORS).logits(tokens, rows, _causal_mask(20), rows >= 12)
    assert torch.equal(off, without)


# ---- generation


@pytest.mark.parametrize("lora", [None, LORA], ids=["base", "lora"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_all_methods_give_the_same_text(prompt, block, lora):
    reference = Reference(CONFIG, TENSORS, lora, eos_ids=())
    expected = reference.ar(prompt, 24)
    assert len(expected) == 24
    assert MASK not in expected
    for rounds in (reference.linear(prompt, 24, block), reference.quadratic(prompt, 24, block)):
        assert text(rounds) == expected
        for each in rounds[1:]:
            assert each.emitted[: each.accepted] == each.drafted[: each.accepted]
            assert len(each.emitted) == each.accepted + 1
            assert len(each.drafted) < block
            assert MASK not in each.drafted


def accepted(lora=None, method: str = "linear") -> list[int]:
    """Tokens of the full rounds of length 8, accepted drafts and one more."""
    reference = Reference(CONFIG, TENSORS, lora, eos_ids=())
    rounds = [each for prompt in PROMPTS for each in getattr(reference, method)(prompt, 40, 8)[1:]]
    return [each.accepted + 1 for each in rounds if len(each.drafted) == 7]


@pytest.mark.parametrize("method", ["linear", "quadratic"])
def test_drafts_are_accepted_and_rejected(method):
    """The small model is of use: varied text, and rounds that accept nothing, a part, and everything."""
    counts = accepted(method=method)
    assert 1.5 < sum(counts) / len(counts) < 4
    assert {1, 2, 3, 4, 8} <= set(counts)
    for prompt in PROMPTS:
        assert len(set(Reference(CONFIG, TENSORS, eos_ids=()).ar(prompt, 40))) > 12


@pytest.mark.parametrize("method", ["linear", "quadratic"])
def test_adapter_changes_acceptance_but_not_all_of_it(method):
    base, lora = accepted(method=method), accepted(LORA, method)
    assert base != lora
    assert sum(lora) / len(lora) > 1.3


def test_the_mask_id_would_often_be_chosen():
    reference = Reference(CONFIG, TENSORS, eos_ids=())
    tokens = PROMPTS[3] + reference.ar(PROMPTS[3], 24)
    raw = reference.logits(tokens, range(len(tokens)), _causal_mask(len(tokens))).argmax(-1)
    assert (raw == MASK).sum() > 3


@pytest.mark.parametrize("budget", [1, 2, 7, 8, 9])
def test_budget_is_kept_exactly(budget):
    reference = Reference(CONFIG, TENSORS, eos_ids=())
    for rounds in (reference.linear(PROMPTS[1], budget, 8), reference.quadratic(PROMPTS[1], budget, 8)):
        left = budget
        for each in rounds:
            assert len(each.drafted) <= max(left - 1, 0)
            left -= len(each.emitted)
        assert left == 0


@pytest.mark.parametrize("place", range(12))
def test_text_ends_with_its_first_eos(place):
    """At every place: in the prefill, as an accepted draft, as the verifier's own token."""
    free = Reference(CONFIG, TENSORS, eos_ids=()).ar(PROMPTS[2], 24)
    reference = Reference(CONFIG, TENSORS, eos_ids={free[place], 159})
    expected = free[: free.index(free[place]) + 1]
    assert reference.ar(PROMPTS[2], 24) == expected
    assert text(reference.linear(PROMPTS[2], 24, 8)) == expected
    assert text(reference.quadratic(PROMPTS[2], 24, 8)) == expected


def test_eos_of_the_configuration_is_the_default():
    assert Reference(CONFIG, TENSORS).eos_ids == {11}


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7, 2.0])
def test_threshold_changes_forwards_but_not_the_text(threshold):
    reference = Reference(CONFIG, TENSORS, LORA, eos_ids=())
    rounds = reference.linear(PROMPTS[2], 24, 8, threshold)
    assert text(rounds) == reference.ar(PROMPTS[2], 24)
    for each in rounds[1:]:
        most = {0.0: min(1, len(each.drafted)), 2.0: len(each.drafted)}.get(threshold)
        assert each.forwards == most + 1 if most is not None else 1 <= each.forwards <= len(each.drafted) + 1
    assert threshold in (0.0, 2.0) or {each.forwards for each in rounds} > {2, 3}


@pytest.mark.parametrize("threshold", [0.0, 0.9])
def test_a_head_that_wants_the_mask_id_everywhere_ends_too(threshold):
    tensors = {**TENSORS, "diffusion_head.weight": TENSORS["diffusion_head.weight"].clone()}
    reference = Reference(CONFIG, tensors, eos_ids=())
    before = text(reference.linear(PROMPTS[1], 12, 4, threshold))
    reference.tensors["diffusion_head.weight"][MASK] = 1e3 * _mean_state(PROMPTS[1] + before)
    raw = reference.logits(PROMPTS[1] + before, range(17), _causal_mask(17)).argmax(-1)
    assert (raw == MASK).all()
    assert text(reference.linear(PROMPTS[1], 12, 4, threshold)) == before
    assert text(reference.quadratic(PROMPTS[1], 12, 4)) == before


def _mean_state(tokens: list[int]) -> torch.Tensor:
    """[hidden], the mean of the final states: the logits of a model whose head is the identity."""
    reference = Reference(CONFIG, {**TENSORS, "diffusion_head.weight": torch.eye(CONFIG["hidden_size"])})
    return reference.logits(tokens, range(len(tokens)), _causal_mask(len(tokens))).mean(0)


@pytest.mark.parametrize("end_id", [5, MASK], ids=["end", "end is the mask id"])
@pytest.mark.parametrize("most", [0, 1, 6, 23, 24])
def test_end_of_thinking_is_emitted_and_fed_at_its_place(most, end_id):
    """With the mask id as end, the seed is a mask by value: it has to stay what it is."""
    reference, thinking = Reference(CONFIG, TENSORS, eos_ids=()), Thinking(most, end_id)
    expected = reference.ar(PROMPTS[1], 24, thinking)
    free = reference.ar(PROMPTS[1], 24)
    assert expected[:most] == free[:most]
    assert expected.count(end_id) == (most < 24)
    assert most == 24 or expected[most] == end_id
    for block in BLOCKS:
        rounds = reference.linear(PROMPTS[1], 24, block, thinking=thinking)
        assert text(rounds) == expected
        assert [each.seed for each in rounds[1:]] == [each.emitted[-1] for each in rounds[:-1]]


def test_end_of_thinking_at_the_end_of_a_round():
    reference = Reference(CONFIG, TENSORS, eos_ids=())
    free = reference.linear(PROMPTS[1], 24, 8)
    rounds = reference.linear(PROMPTS[1], 24, 8, thinking=Thinking(6, 5, at_round_end=True))
    ends = [i for i in range(len(free)) if len(text(free[: i + 1])) > 6]
    assert [asdict(each) for each in rounds[: ends[0]]] == [asdict(each) for each in free[: ends[0]]]
    assert rounds[ends[0]].emitted == [*free[ends[0]].emitted[:-1], 5]
    assert rounds[ends[0] + 1].seed == 5
    # after it, the verifier's own text again
    output = text(rounds)
    start = output.index(5) + 1
    assert reference.ar(PROMPTS[1] + output[:start], 24 - start) == output[start:]


def test_thinking_that_ends_by_itself_is_left_alone():
    reference = Reference(CONFIG, TENSORS, eos_ids=())
    free = reference.ar(PROMPTS[1], 24)
    assert reference.ar(PROMPTS[1], 24, Thinking(6, free[3])) == free
    assert text(reference.linear(PROMPTS[1], 24, 8, thinking=Thinking(6, free[6]))) == free
