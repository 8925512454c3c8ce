"""R2: uncommitted K/V is never read; and nothing grows: slots, memory, threads, objects (T19)."""

import gc
import threading
from functools import cache

import psutil
import pytest
import torch

from recguide.engine import engine as engine_module
from recguide.engine.cache import KVCache
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from tests.helpers import (
    POLICY_SPECS,
    SMALL,
    assert_clean,
    drain,
    make_engine,
    mixed_jobs,
    run,
    small_model,
)

MODEL = small_model()
JOBS = mixed_jobs(16)


@cache
def ar_outputs():
    engine = make_engine(MODEL, max_concurrency=1)
    return [engine.generate([prompt], params)[0].output for prompt, params in JOBS]


@torch.inference_mode()
def poison(engine, key, value):
    """Overwrite all that is not committed: rejected tails, branches, free slots."""
    for slot, length in enumerate(engine._cache.lengths):
        engine._cache.k[:, slot, :, length:] = key
        engine._cache.v[:, slot, :, length:] = value


@pytest.mark.parametrize("spec", ["ar", *POLICY_SPECS])
def test_alone_nothing_uncommitted_is_read(spec):
    params = {"max_new_tokens": 40, "temperature": 0.8, "seed": 2}
    engine = make_engine(MODEL, spec, max_concurrency=1, prefill_chunk=3)
    request = engine.submit([1, 2, 3, 4, 5, 6, 7], SamplingParams(**params))
    while not engine.idle:
        poison(engine, float("nan"), float("nan"))
        engine.step()
    assert request.output == run(MODEL, "ar", [1, 2, 3, 4, 5, 6, 7], **params).output


@pytest.mark.parametrize("spec", ["ar", *POLICY_SPECS])
def test_in_company_nothing_uncommitted_is_read(spec):
    """Requests of a group share a product, so blocked values meet a weight of exactly zero: they must be finite."""
    engine = make_engine(MODEL, spec, prefill_chunk=7)
    requests = [engine.submit(prompt, params) for prompt, params in JOBS]
    while not engine.idle:
        poison(engine, float("nan"), 1e30)
        engine.step()
    assert [r.output for r in requests] == ar_outputs()


@pytest.mark.parametrize("company", [1, 5])
@pytest.mark.parametrize("spec", ["linear:4", "overlap:4:1", "quadratic:4"])
def test_a_drafter_gone_mad_leaves_the_text_as_it_is(spec, company):
    """NaN in the adapter fills branch rows with NaN; the trunk must not see any of it."""
    model = small_model()
    for parameter in model.adapter.parameters():
        parameter.fill_(float("nan"))
    engine = make_engine(model, spec)
    params = SamplingParams(max_new_tokens=20, seed=0)
    requests = [engine.submit([1, 2, i], params) for i in range(company)]
    drain(engine, most=100)  # a draft of nothing must not be asked for again and again
    expected = [run(MODEL, "ar", [1, 2, i], max_new_tokens=20).output for i in range(company)]
    assert [(r.output, r.error) for r in requests] == [(tokens, None) for tokens in expected]


def test_a_released_slot_is_clean_for_the_next():
    engine = make_engine(MODEL, "quadratic:8", max_concurrency=2)
    for _ in range(3):
        engine.generate([[1] * 30, [2] * 9], SamplingParams(max_new_tokens=9))
        assert_clean(engine)


def test_slots_are_lowest_first_and_reserve_keeps_what_is_stored():
    kv = KVCache(SMALL, 3, 8, 2, torch.float32, torch.device("cpu"))
    assert [kv.take(), kv.take()] == [0, 1]
    kv.release(0)
    assert kv.take() == 0
    kv.k.fill_(3)
    kv.reserve(5)
    assert kv.k.shape[3] == 13
    assert (kv.k[:, :, :, :10] == 3).all()
    kv.reserve(4)
    assert (kv.k.shape[3], kv.scratch) == (13, 5)


def test_a_cache_that_does_not_fit_is_told_in_one_line():
    with pytest.raises(RecGuideError, match=r"no memory for a K/V cache of .* GB; lower max_concurrency"):
        KVCache(SMALL, 10**6, 10**9, 0, torch.float32, torch.device("cpu"))


def test_a_request_can_be_aborted_after_the_cache_has_grown():
    """The cache grows inside a step, the slot is given back outside of one."""
    engine = make_engine(MODEL, "quadratic:8", max_concurrency=1, prefill_chunk=1)
    request = engine.submit([1, 2], SamplingParams(max_new_tokens=100, seed=1))
    while engine._cache.scratch == 65:
        engine.step()
    engine.abort(request)
    assert_clean(engine)


def test_steps_larger_than_the_scratch_make_room():
    engine = make_engine(MODEL, "quadratic:32", max_concurrency=1, prefill_chunk=1)
    params = SamplingParams(max_new_tokens=40, temperature=0.8, seed=1)
    assert engine.generate([[1, 2]], params)[0].output == run(MODEL, "ar", [1, 2], **vars(params)).output


@pytest.mark.parametrize("size", [1, 5, 256])
def test_t19_logits_are_made_in_pieces(monkeypatch, size):
    monkeypatch.setattr(engine_module, "LOGIT_ROWS", size)
    sizes, plain = [], MODEL.backbone.logits
    monkeypatch.setattr(MODEL.backbone, "logits", lambda hidden: sizes.append(len(hidden)) or plain(hidden))
    engine = make_engine(MODEL, "overlap:8:1")
    requests = [engine.submit(prompt, params) for prompt, params in JOBS]
    drain(engine)
    assert max(sizes) <= size
    monkeypatch.undo()
    assert [r.output for r in requests] == ar_outputs()


def footprint(engine):
    gc.collect()
    return (
        engine._cache.k.numel(),
        threading.active_count(),
        sum(isinstance(o, torch.Tensor) for o in gc.get_objects()),
        len(engine._commands) + len(engine._pending_deltas),
    )


@pytest.mark.slow
def test_t19_two_hundred_requests_leave_everything_as_before():
    engine = make_engine(MODEL, "overlap:8:1", max_concurrency=8)
    params = [SamplingParams(max_new_tokens=10 + i % 7, temperature=0.8, seed=i) for i in range(50)]
    prompts = [[i % 13] * (1 + i % 20) for i in range(50)]
    engine.generate(prompts, params)
    before, memory = footprint(engine), psutil.Process().memory_info().rss
    for _ in range(4):
        engine.generate(prompts, params)
    assert footprint(engine) == before
    assert psutil.Process().memory_info().rss - memory < 20e6
    assert_clean(engine)
