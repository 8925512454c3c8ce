"""The engine end to end on a tiny model: with the Triton kernels it writes the tokens that it writes with torch's."""

import pytest
from recguide.kernels import attention_triton, signals_triton
from recguide.kernels.backend import VARIABLE, choose

from recguide.engine.sampling import SamplingParams
from tests.helpers import make_engine, small_model

PROMPTS = [[1, 2, 3, 4, 5], [7, 1], [2, 9, 4]]


def outputs(monkeypatch, backend: str, spec: str, **params):
    """Tokens of all prompts, with an unpacked model, whose adapter goes through the kernels too."""
    monkeypatch.setenv(VARIABLE, backend)
    choose.cache_clear()
    engine = make_engine(small_model(pack=False), spec, max_concurrency=2, prefill_chunk=4)
    jobs = [SamplingParams(max_new_tokens=8, seed=i, **params) for i in range(len(PROMPTS))]
    made = [(r.output, r.finish_reason) for r in engine.generate(PROMPTS, jobs)]
    choose.cache_clear()
    return made, engine.stats.steps


@pytest.mark.parametrize(
    ("spec", "params"),
    [
        ("ar", {}),
        ("linear:4", {"temperature": 0.8}),
        ("overlap:4:1", {"temperature": 0.8}),
        ("quadratic:3", {}),
        ("linear:4:0.5", {"temperature": 0.8, "top_p": 0.8}),
    ],
)
def test_tokens_are_those_of_the_references(monkeypatch, spec, params):
    calls = []
    for module, name in ((attention_triton, "TritonAttention"), (signals_triton, "_run")):
        plain = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, p=plain, n=name, **k: calls.append(n) or p(*a, **k))
    expected = outputs(monkeypatch, "torch", spec, **params)
    assert not calls
    assert outputs(monkeypatch, "triton", spec, **params) == expected
    assert "TritonAttention" in calls
    assert ("_run" in calls) == (spec != "ar" and spec != "quadratic:3")
