"""Linear maps in every dtype, packed where the processor can and plain where it cannot."""

import pytest
import torch

from recguide.models import loader
from recguide.models.linear import Linear, can_pack
from recguide.models.loader import load_model

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_product_is_that_of_float64(dtype):
    """No dtype fails on a processor without its instructions: it is multiplied unpacked."""
    weight, x = torch.randn(48, 32).to(dtype), torch.randn(5, 32).to(dtype)
    expected = x.double() @ weight.double().T
    error = (Linear(weight, pack=True)(x).double() - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype, question", [(torch.bfloat16, "bf16"), (torch.float16, "fp16")])
def test_sixteen_bits_are_packed_only_where_onednn_has_them(monkeypatch, dtype, question):
    for answer in (True, False):
        monkeypatch.setattr(torch.ops.mkldnn, f"_is_mkldnn_{question}_supported", lambda answer=answer: answer)
        assert can_pack(torch.zeros(2, 2, dtype=dtype)) is answer
    assert can_pack(torch.zeros(2, 2)) is torch.backends.mkldnn.is_available()


@pytest.mark.parametrize("native, told", [(torch.float32, True), (torch.bfloat16, False)])
def test_a_dtype_that_is_only_emulated_is_told(folder, monkeypatch, native, told):
    monkeypatch.setattr(loader, "default_dtype", lambda device: native)
    fallbacks = load_model(str(folder), dtype="bfloat16", device="cpu", adapter=None).fallbacks
    assert any("bfloat16 is only emulated by this processor" in line for line in fallbacks) is told
    assert not any("emulated" in line for line in load_model(str(folder), dtype="float32", adapter=None).fallbacks)
