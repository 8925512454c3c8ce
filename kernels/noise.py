"""Gumbel noise that is a pure function of (seed, position, token id): the counter-based hash behind every draw."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

MASK32 = 0xFFFFFFFF
TOKEN_OFFSET = 0x9E3779B9
FACTORS = (0x7FEB352D, 0x846CA68B)  # constants of the lowbias32 hash


def mix(x: Tensor) -> Tensor:
    """A 32-bit finaliser with full avalanche on int64 tensors."""
    x = ((x ^ (x >> 16)) * FACTORS[0]) & MASK32
    x = ((x ^ (x >> 15)) * FACTORS[1]) & MASK32
    return x ^ (x >> 16)


@lru_cache(maxsize=4)
def _token_keys(vocab: int, device: torch.device) -> Tensor:
    return mix(mix(torch.arange(vocab, device=device) + TOKEN_OFFSET))


def states(seeds: Tensor, positions: Tensor) -> Tensor:
    """What the hash knows before it sees a token; int64 of 32 bits, of the shape of ``seeds`` and ``positions``."""
    return mix(mix(mix(seeds & MASK32) ^ (seeds >> 32)) ^ positions)


def gumbel(seed: int, position: int, ids: Tensor | None, vocab: int, device: torch.device) -> Tensor:
    """Standard Gumbel noise, float32, a pure function of (seed, position, token id).

    For the token ids given ([n]), or for all of a vocabulary ([vocab]).
    """
    state = states(torch.tensor(seed, device=device), torch.tensor(position, device=device))
    tokens = _token_keys(vocab, device) if ids is None else mix(mix(ids + TOKEN_OFFSET))
    bits = mix(tokens ^ state)
    # 23 bits: the largest u is 1 - 2^-24, which float32 holds, so that the noise is finite
    u = ((bits >> 9).to(torch.float32) + 0.5) * 2.0**-23
    return -(-u.log()).log()
