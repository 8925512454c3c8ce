"""Signals of logits rows: the best tokens, their probabilities, margin, entropy; and a token drawn with noise.

One public function each for signals and for draws, with their torch references; on a GPU both are one pass over the
logits (``signals_triton``). Which row is whose, and filters such as top-p, are not known here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import native
from .backend import choose, native_takes
from .noise import gumbel

ROWS = 16  # of a float32 copy at a time: what is made of it stays in the processor's cache
BLOCK = 128  # tokens whose maximum is looked at first
LEAST = -87.0  # e to this is the least normal number of float32: smaller ones cost a trap each


class Signals(NamedTuple):
    """Per row: ids and probabilities of the two best tokens [rows, 2], log of the sum of exponentials [rows]; the
    entropy in nats [rows], and ids and logits of the ``top_k`` best [rows, top_k], or None where not asked for."""

    ids: Tensor
    probabilities: Tensor
    logsumexp: Tensor
    entropy: Tensor | None
    top_ids: Tensor | None
    top_logits: Tensor | None

    @property
    def margin(self) -> Tensor:
        """How much more probable the best token is than the second [rows]."""
        return self.probabilities[:, 0] - self.probabilities[:, 1]


def signals(logits: Tensor, *, entropy: bool = False, top_k: int = 0, mask_id: int | None = None) -> Signals:
    """Signals of ``logits`` [rows, vocab] (float32, bfloat16, float16); float32 arithmetic, int64 ids.

    The token ``mask_id`` counts as impossible. Which of equally good tokens comes first is not defined. Raises
    ValueError for fewer than two tokens or a ``top_k`` above the vocabulary.
    """
    vocab = logits.shape[1]
    if vocab < 2 or not 0 <= top_k <= vocab:
        raise ValueError(f"top_k is {top_k} of a vocabulary of {vocab}; allowed: 0..vocabulary, which is 2 or more")
    if choose(logits.device).triton:
        from .signals_triton import signals_triton

        return signals_triton(logits, entropy, top_k, mask_id)
    if native_takes(logits) and mask_id is None:
        return _signals_native(logits, entropy, top_k)
    return signals_reference(logits, entropy, top_k, mask_id)


def signals_reference(logits: Tensor, entropy: bool, top_k: int, mask_id: int | None) -> Signals:
    """``signals`` in torch: a few rows at a time on a CPU, all at once on a GPU."""
    size = ROWS if logits.device.type == "cpu" else max(len(logits), 1)
    parts = [_signals(part, entropy, top_k, mask_id) for part in logits.split(size)]
    if len(parts) == 1:
        return parts[0]
    return Signals(*(None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)))


def _signals(logits: Tensor, entropy: bool, top_k: int, mask_id: int | None) -> Signals:
    wide = _widened(logits)
    if mask_id is not None:
        wide[:, mask_id] = float("-inf")
    best, ids = _best(wide, logits.shape[1], max(2, top_k))
    # clamped, so that an impossible token adds next to nothing to sum and entropy, and not 0 * inf
    below = wide.sub_(best[:, :1]).clamp_(min=LEAST)
    weights = below.exp()
    total = weights.sum(-1)
    probabilities = (best[:, :2] - best[:, :1]).exp() / total[:, None]
    normaliser = total.log()
    spread = normaliser - below.mul_(weights).sum(-1) / total if entropy else None
    top = (ids[:, :top_k], best[:, :top_k]) if top_k else (None, None)
    return Signals(ids[:, :2], probabilities, best[:, 0] + normaliser, spread, *top)


def _signals_native(logits: Tensor, entropy: bool, top_k: int) -> Signals:
    best, ids = native.best_tokens(logits, max(2, top_k))
    total, weighted = native.exponential_sums(logits, best)
    probabilities = (best[:, :2] - best[:, :1]).exp_() / total[:, None]
    normaliser = total.log()
    spread = normaliser - weighted / total if entropy else None
    top = (ids[:, :top_k], best[:, :top_k]) if top_k else (None, None)
    return Signals(ids[:, :2], probabilities, best[:, 0] + normaliser, spread, *top)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The best logit of every row [rows], NaN where one is NaN, and the first token that has it; of [rows, vocab]."""
    if native_takes(logits):
        return tuple(column[:, 0] for column in native.best_tokens(logits, 1))
    return logits.max(-1)


def best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Logits and ids of the ``count`` best tokens of every row [rows, count], best first; float32 and int64."""
    if native_takes(logits):
        return native.best_tokens(logits, count)
    if logits.device.type != "cpu":
        found = logits.topk(count, -1)
        return found.values.float(), found.indices
    parts = [_best(_widened(part), part.shape[1], count) for part in logits.split(ROWS)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _widened(logits: Tensor) -> Tensor:
    """A float32 copy, with impossible tokens behind the last up to a multiple of BLOCK."""
    rows, vocab = logits.shape
    wide = torch.empty(rows, -(-vocab // BLOCK) * BLOCK, dtype=torch.float32, device=logits.device)
    wide[:, vocab:] = float("-inf")
    wide[:, :vocab] = logits
    return wide


def _best(wide: Tensor, vocab: int, count: int) -> tuple[Tensor, Tensor]:
    """Values and ids of the best tokens, best first. They are in the blocks with the best maxima, which are few."""
    blocks = wide.view(len(wide), -1, BLOCK)
    if blocks.shape[1] > count:
        where = blocks.amax(-1).topk(count, -1).indices  # [rows, count]
        inside = blocks.gather(1, where[:, :, None].expand(-1, -1, BLOCK)).flatten(1)
        best, places = inside.topk(count, -1)
        ids = where.gather(1, places // BLOCK) * BLOCK + places % BLOCK
        if not best[:, -1].isneginf().any():  # else it may be a token behind the last
            return best, ids
    return wide[:, :vocab].topk(count, -1)


def sample(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """argmax_v(logits[v] / temperature + noise(seed, position, v)) of every row; int64 [rows].

    logits [rows, vocab]; temperatures float32 > 0, seeds and positions int64, all [rows] and on a CPU.
    """
    if choose(logits.device).triton:
        from .signals_triton import sample_triton

        return sample_triton(logits, temperatures, seeds, positions)
    rows = zip(logits, temperatures.tolist(), seeds.tolist(), positions.tolist(), strict=True)
    drawn = [(row.float() / t + gumbel(seed, at, None, len(row), row.device)).argmax() for row, t, seed, at in rows]
    return torch.stack(drawn)
