"""Draft blocks for training: many blocks of every kind the engine asks for, packed behind one segment mask.

A block sits at a token ``t`` of an answer. Seed known (draft and correction branches): the rows are the token and its
masks, they see the clean text before ``t``. Open (continuations): masks only, they see the clean text up to ``t``.
Either way mask row i predicts the token at its own position; with ``shift`` 1 every row predicts the one behind it.
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

    def scored(self, shift: int) -> int:
        """Rows that predict something."""
        return self.rows if shift else self.masks


@dataclass(slots=True)
class PackedSequence:
    """The draft rows of one dialogue. Tensors are [rows] unless said otherwise.

    ``allowed`` [rows, clean + rows] bool: what each row sees of the clean text and of the rows. ``targets`` are
    positions in the dialogue that the ``scored_rows`` predict; ``order`` counts these from 1 within each block.
    """

    tokens: Tensor
    positions: Tensor
    mask_rows: Tensor
    scored_rows: Tensor
    targets: Tensor
    order: Tensor
    allowed: Tensor


def choose_blocks(
    dialogue: Dialogue, rows: int, chooser: random.Random, shift: int = 0, open_share: float = OPEN_SHARE
) -> list[Block]:
    """Blocks at random places of the answer, about ``rows`` rows in all. Nothing past the end is asked for."""
    size = len(dialogue.prompt) + len(dialogue.answer)
    first, last = len(dialogue.prompt) - 1, size - 2 - shift
    blocks, used = [], 0
    while used < rows:
        at = chooser.randint(first, last)
        masks = min(chooser.choice(MASKS), size - 1 - shift - at)
        block = Block(at, masks, chooser.random() < open_share)
        blocks.append(block)
        used += block.rows
    return blocks


def pack(tokens: list[int], blocks: list[Block], mask_id: int, shift: int = 0) -> PackedSequence:
    """Rows, positions and the segment mask of ``blocks`` over the clean ``tokens``."""
    rows, positions, masks, scored, order, limits, owner = [], [], [], [], [], [], []
    for number, block in enumerate(blocks):
        if not block.open:
            rows.append(tokens[block.at])
            positions.append(block.at)
        masks += range(len(rows), len(rows) + block.masks)
        scored += range(len(rows) + block.masks - block.scored(shift), len(rows) + block.masks)
        order += range(1, block.scored(shift) + 1)
        rows += [mask_id] * block.masks
        positions += range(block.at + 1, block.at + 1 + block.masks)
        limits += [block.at + block.open] * block.rows
        owner += [number] * block.rows
    clean = np.arange(len(tokens)) < np.array(limits)[:, None]
    own = np.array(owner)[:, None] == np.array(owner)
    position = torch.tensor(positions)
    scored_rows = torch.tensor(scored)
    return PackedSequence(
        tokens=torch.tensor(rows),
        positions=position,
        mask_rows=torch.tensor(masks),
        scored_rows=scored_rows,
        targets=position[scored_rows] + shift,
        order=torch.tensor(order),
        allowed=torch.from_numpy(np.concatenate((clean, own), 1)),
    )
