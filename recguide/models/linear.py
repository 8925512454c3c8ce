"""A bias-free linear map that uses prepacked weights on the CPU: the C kernels' where they run, else oneDNN's.

Prepacking halves the time of a few-row product on a CPU with bfloat16 instructions, but the packed product has no
gradient: a training backbone keeps plain weights.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from recguide.kernels import native
from recguide.kernels.backend import choose


def can_multiply(weight: Tensor) -> bool:
    """Whether the C kernels multiply by such a weight here."""
    if weight.dtype != torch.bfloat16 or weight.requires_grad or weight.shape[1] % 2:
        return False
    return choose(weight.device).native and native.multiplies()


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN multiplies such a weight here: not every processor (AVX2 alone, say) has its 16-bit paths."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available() or weight.requires_grad:
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype != torch.float16 or torch.ops.mkldnn._is_mkldnn_fp16_supported()


class Linear:
    """y = x @ weight.T for x [rows, in] and weight [out, in]."""

    def __init__(self, weight: Tensor, pack: bool):
        self.out_features, self.in_features = weight.shape
        self.native = native.Weights(weight) if pack and can_multiply(weight) else None
        self.packed = self.native is not None or (pack and can_pack(weight))
        if self.native:
            weight = self.native.packed
        elif self.packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.weight = weight

    def dense(self) -> Tensor:
        """The weight [out, in] in plain layout."""
        if self.native:
            return native.unpack(self.weight, self.out_features)
        return self.weight.to_dense() if self.packed else self.weight

    def __call__(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """[rows, out]. Where ``onto`` [rows, out] is given, y is added to it, in place if no gradient is wanted."""
        if self.native:
            return native.linear(x, self.native, onto)
        if self.packed:
            made = torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")
        else:
            made = F.linear(x, self.weight)
        if onto is None:
            return made
        return onto + made if onto.requires_grad or made.requires_grad else onto.add_(made)
