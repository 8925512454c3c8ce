"""Draft blocks for training: many blocks of every kind the engine asks for, packed behind one segment mask.

A block sits at a token ``t`` of an answer. Seed known (draft and correction branches): the rows are the token and its
masks, they see the clean text before ``t``. Open (continuations): masks only, they see the clean text up to ``t``.
Either way mask row i predicts the token at its own position.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recguide.drafter.dialogues import Dialogue

OPEN_SHARE = 0.4
MASKS = (2, 3, 3, 4, 4, 4, 5, 5, 6, 7, 7, 15)


@dataclass(frozen=True, slots=True)
class Block:
    """``at`` is the index of the last known token in the dialogue."""

    at: int
    masks: int
    open: bool

    @property
    def rows(self) -> int:
        return self.masks + (not self.open)


@dataclass(slots=True)
class PackedSequence:
    """The draft rows of one dialogue. Tensors are [rows] unless said otherwise.

    ``allowed`` [rows, clean + rows] bool: what each row sees of the clean text and of the rows. ``targets`` are
    positions in the dialogue that mask rows predict; ``distance`` counts from 1 behind the last known token.
    """

    tokens: Tensor
    positions: Tensor
    mask_rows: Tensor
    targets: Tensor
    distance: Tensor
    allowed: Tensor


def choose_blocks(dialogue: Dialogue, rows: int, chooser: random.Random) -> list[Block]:
    """Blocks at random places of the answer, about ``rows`` rows in all. Masks past the end are not asked for."""
    first, last = len(dialogue.prompt) - 1, len(dialogue.prompt) + len(dialogue.answer) - 2
    blocks, used = [], 0
    while used < rows:
        at = chooser.randint(first, last)
        masks = min(chooser.choice(MASKS), len(dialogue.prompt) + len(dialogue.answer) - 1 - at)
        block = Block(at, masks, chooser.random() < OPEN_SHARE)
        blocks.append(block)
        used += block.rows
    return blocks


def pack(tokens: list[int], blocks: list[Block], mask_id: int) -> PackedSequence:
    """Rows, positions and the segment mask of ``blocks`` over the clean ``tokens``."""
    rows, positions, masks, limits, owner = [], [], [], [], []
    for number, block in enumerate(blocks):
        if not block.open:
            rows.append(tokens[block.at])
            positions.append(block.at)
        masks += range(len(rows), len(rows) + block.masks)
        rows += [mask_id] * block.masks
        positions += range(block.at + 1, block.at + 1 + block.masks)
        limits += [block.at + block.open] * block.rows
        owner += [number] * block.rows
    clean = np.arange(len(tokens)) < np.array(limits)[:, None]
    own = np.array(owner)[:, None] == np.array(owner)
    position = torch.tensor(positions)
    mask_rows = torch.tensor(masks)
    known = torch.tensor([block.at for block in blocks])[torch.tensor(owner)]
    return PackedSequence(
        tokens=torch.tensor(rows),
        positions=position,
        mask_rows=mask_rows,
        targets=position[mask_rows],
        distance=(position - known)[mask_rows],
        allowed=torch.from_numpy(np.concatenate((clean, own), 1)),
    )
