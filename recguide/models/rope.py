"""Rotary position embedding, plain and YaRN: cosines and sines for given positions, and their use.

Pairs are (i, i + head_dim/2), the Hugging Face convention. The first half of ``sin`` carries the minus sign of the
rotation, so that applying it is one roll and one fused multiply-add.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from recguide.kernels import native
from recguide.kernels.backend import native_takes
from recguide.models.config import ModelConfig, QueryScale, YarnScaling


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """[head_dim / 2] float32, in radians per position."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = 1.0 / (config.rope_theta**exponent)
    return plain if config.yarn is None else _yarn_frequencies(plain, config.yarn, config)


def _yarn_frequencies(plain: Tensor, yarn: YarnScaling, config: ModelConfig) -> Tensor:
    """Interpolate slow dimensions by ``factor``, keep fast ones, ramp between (YaRN, section 3.2)."""

    def dimension(rotations: float) -> float:
        wavelength = yarn.original_max_positions / (rotations * 2 * math.pi)
        return config.head_dim * math.log(wavelength) / (2 * math.log(config.rope_theta))

    low, high = dimension(yarn.beta_fast), dimension(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    ramp = (torch.arange(len(plain), dtype=torch.float32) - low) / max(high - low, 0.001)
    interpolated = ramp.clamp(0, 1)
    return plain / yarn.factor * interpolated + plain * (1 - interpolated)


def rotary_table(frequencies: Tensor, positions: Tensor, factor: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and signed sin for ``positions`` [rows], each [rows, 1, head_dim]."""
    angles = positions[:, None].float() * frequencies  # [rows, head_dim/2]
    cos, sin = angles.cos() * factor, angles.sin() * factor
    return torch.cat((cos, cos), -1)[:, None].to(dtype), torch.cat((-sin, sin), -1)[:, None].to(dtype)


def query_scales(scale: QueryScale, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Factors [rows, 1, 1] of the queries at ``positions`` [rows]."""
    return (1 + scale.beta * (positions // scale.original_max_positions).float().log1p()).to(dtype)[:, None, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [rows, heads, head_dim] by the table of its rows."""
    if native_takes(x):
        return native.rotate(x, cos, sin)
    return torch.addcmul(x * cos, torch.roll(x, x.shape[-1] // 2, -1), sin)
