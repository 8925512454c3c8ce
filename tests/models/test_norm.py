"""RMSNorm on a CPU is torch's own: its values, its gradient, its zeros."""

import pytest
import torch
from torch.nn import functional as F

from recguide.models.norm import RMSNorm

WIDTHS = [1, 3, 64, 577]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 8e-3), (torch.float16, 1e-3)])
@pytest.mark.parametrize("width", WIDTHS)
def test_values(width, dtype, tolerance):
    x, weight = (3 * torch.randn(7, width)).to(dtype), torch.randn(width).to(dtype)
    made = RMSNorm(weight, 1e-5)(x)
    assert made.dtype == dtype
    exact = F.rms_norm(x.double(), (width,), weight.double(), 1e-5)
    torch.testing.assert_close(made.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("width", WIDTHS)
def test_gradient(width):
    x, weight = torch.randn(5, width, requires_grad=True), torch.randn(width)
    ours, theirs = (
        torch.autograd.grad(f(x).square().sum(), x)[0]
        for f in (RMSNorm(weight, 1e-3), lambda x: F.rms_norm(x, (width,), weight, 1e-3))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_row_of_zeros_stays_zero_and_touches_no_other():
    x = torch.randn(3, 16)
    x[1] = 0
    norm = RMSNorm(torch.ones(16), 1e-5)
    made = norm(x)
    assert not made[1].any() and made.isfinite().all()
    torch.testing.assert_close(made[2], norm(x[2:])[0])
