"""Row-selective low-rank products in Triton against float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recguide.kernels import adapter_triton
from recguide.kernels.adapter import add_low_rank

from tests.kernels.interpreted.guards import LIMIT, guarded, inside_poison, poisoned, relative_error

SIZE = st.sampled_from([1, 7, 16, 33, 70])


def operands(rows, inputs, rank, outputs, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, outputs), (rows, inputs), (rank, inputs), (outputs, rank))
    out, x, down, up = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return out, x, (down / inputs**0.5).to(dtype), up


@given(SIZE, st.sampled_from([5, 64, 300]), SIZE, SIZE, st.sampled_from([torch.float32, torch.float16]), st.data())
@settings(max_examples=40)
def test_serves_the_rows_from_first_on_and_no_other(rows, inputs, rank, outputs, dtype, data):
    first = data.draw(st.integers(0, rows))
    out, x, down, up = operands(rows, inputs, rank, outputs, dtype, rows + first)
    expected = out.double()
    expected[first:] += x[first:].double() @ down.double().T @ up.double().T
    before = out[:first].clone()
    wide, around = poisoned((rows, outputs + 3), dtype)
    target = wide[:, 1:-2].copy_(out)
    x[:first] = float("nan")  # not read
    if first < rows:
        with guarded():
            made = add_low_rank(target, inside_poison(x), inside_poison(down), inside_poison(up), first)
    else:
        made = add_low_rank(target, x, down, up, first)
    assert made is target
    assert torch.equal(made[:first], before)
    assert relative_error(made[first:], expected[first:]) < LIMIT[dtype]
    assert around.isnan().sum() == around.numel() - made.numel()


@pytest.mark.parametrize("processors", [1, 40])
def test_inputs_split_among_programs(monkeypatch, processors):
    monkeypatch.setattr(adapter_triton, "processors", lambda device: processors)
    out, x, down, up = operands(3, 1000, 8, 20, torch.float32, 0)
    expected = out.double() + x.double() @ down.double().T @ up.double().T
    assert relative_error(add_low_rank(out, x, down, up, 0), expected) < 1e-5


def test_gradients_take_the_torch_version():
    out, x, down, up = operands(3, 5, 2, 4, torch.float32, 0)
    down.requires_grad_(True)
    add_low_rank(out, x, down, up, 1).sum().backward()
    assert down.grad.isfinite().all()
