"""Draft blocks for training: rows, positions, targets and the segment mask against their definitions."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st
from recguide.kernels.rows import groups_of

from recguide.drafter.blocks import MASKS, Block, choose_blocks, pack
from recguide.drafter.dialogues import Dialogue
from recguide.engine.layout import Segment, build_layout
from recguide.engine.plan import Branch

MASK = 99


@st.composite
def packings(draw):
    tokens = draw(st.lists(st.integers(0, 12), min_size=2, max_size=20))
    block = st.integers(0, len(tokens) - 2).flatmap(
        lambda at: st.builds(Block, st.just(at), st.integers(1, len(tokens) - 1 - at), st.booleans())
    )
    return tokens, draw(st.lists(block, min_size=1, max_size=6))


@given(packings())
def test_rows_see_the_text_before_their_block_and_their_block(packing):
    tokens, blocks = packing
    packed, row = pack(tokens, blocks, MASK), 0
    for block in blocks:
        own = {len(tokens) + row + i for i in range(block.rows)}
        known = set(range(block.at + 1 if block.open else block.at))
        for i in range(block.rows):
            assert set(packed.allowed[row].nonzero()[:, 0].tolist()) == known | own
            seed = i == 0 and not block.open
            assert packed.tokens[row] == (tokens[block.at] if seed else MASK)
            assert packed.positions[row] == block.at + i + block.open
            assert (row in packed.mask_rows.tolist()) is not seed
            row += 1
    assert row == len(packed.tokens) == packed.allowed.shape[0]


@given(packings())
def test_masks_predict_the_token_at_their_own_position(packing):
    tokens, blocks = packing
    packed = pack(tokens, blocks, MASK)
    assert packed.targets.tolist() == [b.at + 1 + i for b in blocks for i in range(b.masks)]
    assert packed.order.tolist() == [1 + i for b in blocks for i in range(b.masks)]
    assert torch.equal(packed.scored_rows, packed.mask_rows)
    assert max(packed.targets) < len(tokens)


@given(packings())
def test_shifted_rows_predict_the_token_behind_them(packing):
    tokens, blocks = packing
    packed = pack(tokens, blocks, MASK, shift=1)
    assert packed.targets.tolist() == [b.at + 1 + i + b.open for b in blocks for i in range(b.rows)]
    assert packed.order.tolist() == [1 + i for b in blocks for i in range(b.rows)]
    assert packed.scored_rows.tolist() == list(range(len(packed.tokens)))
    plain = pack(tokens, blocks, MASK)
    assert torch.equal(packed.tokens, plain.tokens) and torch.equal(packed.allowed, plain.allowed)


def test_a_block_is_what_the_engine_lays_out():
    """Draft branch, continuation and correction of the engine, against the training blocks that teach them."""
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    cases = [
        (Segment(0, 4, (), 0, 0, (Branch(0, tokens[4], 3),)), Block(4, 3, False)),
        (Segment(0, 4, (5,), 1, 0, (Branch(1, None, 3),)), Block(4, 3, True)),
        (Segment(0, 4, (5, 8), 2, 0, (Branch(1, tokens[5], 2),)), Block(5, 2, False)),
    ]
    for segment, block in cases:
        layout, packed = build_layout([segment], MASK), pack(tokens, [block], MASK)
        drafts = slice(layout.first_draft_row, None)
        assert layout.tokens[drafts].tolist() == packed.tokens.tolist()
        assert layout.positions[drafts].tolist() == packed.positions.tolist()
        own = segment.cached + len(segment.trunk)
        (group,) = groups_of(layout.attention, 1)
        sees = ~group.blocked[0, 0, drafts] if group.blocked is not None else None
        for row in range(block.rows):
            tail = range(group.keys - group.first) if sees is None else sees[row].nonzero()[:, 0].tolist()
            keys = {*range(group.first), *(group.first + i for i in tail)}
            text = {k for k in keys if k < own}
            assert text == {k for k in packed.allowed[row].nonzero()[:, 0].tolist() if k < len(tokens)}
            assert len(keys - text) == block.rows


@given(st.integers(1, 12), st.integers(2, 30), st.integers(1, 200), st.integers(0, 999), st.integers(0, 1))
def test_chosen_blocks_stay_in_the_answer(prompt, answer, rows, seed, shift):
    dialogue = Dialogue([1] * prompt, [2] * answer, "qa")
    blocks = choose_blocks(dialogue, rows, random.Random(seed), shift)
    assert all(prompt - 1 <= b.at and b.masks >= 1 and b.at + b.masks + shift <= prompt + answer - 1 for b in blocks)
    assert rows <= sum(b.rows for b in blocks) < rows + max(MASKS) + 1


def test_every_kind_of_block_is_chosen():
    blocks = choose_blocks(Dialogue([1] * 5, [2] * 200, "qa"), 4000, random.Random(0))
    assert {b.masks for b in blocks} >= set(MASKS)  # the end of the answer shortens some
    assert 0.3 < sum(b.open for b in blocks) / len(blocks) < 0.5
    assert len({b.at for b in blocks}) > 100
