"""The C kernels against float64, and bit for bit against themselves with other rows around."""

import math
import os
import stat
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recguide.kernels import native
from recguide.kernels.native import NativeAttention, Unavailable
from recguide.kernels.rows import Places, StepRows
from recguide.kernels.signals import greedy, signals, signals_reference
from recguide.kernels.step_attention import GroupedAttention, store_kv
from torch.nn import functional as F

from recguide.models.cache_dir import cache_dir
from recguide.models.rope import rotary_table, rotate
from tests.kernels.steps import steps

COMPILE = native.library.__wrapped__  # without memory
try:
    native.library()
    WHY = ""
except Unavailable as fault:
    WHY = str(fault)
here = pytest.mark.skipif(WHY != "", reason=f"no C kernels: {WHY}")

ROWS = st.sampled_from([1, 2, 11, 12, 13, 24, 25, 47, 48, 49, 100])
ROUNDING = 2**-8  # half of what neighbours among bfloat16 numbers differ by, relatively


@pytest.fixture(scope="module", params=["bfloat16 instructions", "plain AVX-512"], autouse=True)
def made_for(request):
    """The kernels as compiled for this processor, and as for one without bfloat16 instructions."""
    if WHY:
        yield
        return
    has = native._processor()
    if request.param == "bfloat16 instructions" and native.PRODUCTS not in has:
        pytest.skip("this processor has none")
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        plain = has - {native.PRODUCTS} if request.param == "plain AVX-512" else has
        patch.setattr(native, "_processor", lambda: plain)
        loaded = COMPILE()
        patch.setattr(native, "library", lambda: loaded)
        yield


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def strided(*shape, seed=0):
    """Rows that do not lie one behind the other."""
    return numbers(*shape[:-1], shape[-1] + 6, seed=seed)[..., 2 : shape[-1] + 2]


def near(made, exact, sums=1.0):
    """Within the rounding of the result and of float32 sums of numbers of size ``sums``."""
    error = (made.double() - exact).abs()
    assert (error <= ROUNDING * exact.abs() + 2e-6 * sums).all(), error.max()


# -- products --------------------------------------------------------------------------------------------------------


@here
@given(ROWS, st.integers(1, 100), st.integers(1, 40), st.sampled_from([1, 2]), st.booleans())
def test_linear_is_the_product(rows, outputs, pairs, threads, onto):
    x, weight, base = strided(rows, 2 * pairs), numbers(outputs, 2 * pairs, seed=1), strided(rows, outputs, seed=2)
    exact = x.double() @ weight.double().T + (base.double() if onto else 0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = native.linear(x, native.Weights(weight), base if onto else None)
    finally:
        torch.set_num_threads(before)
    near(made, exact, sums=50)
    assert (made is base) is onto


@here
@given(ROWS, st.integers(1, 70), st.integers(1, 500))
def test_a_row_of_a_product_does_not_depend_on_the_others(rows, outputs, pairs):
    """The same bits, however many rows there are and whichever threads and turns they fall to."""
    x, weights = numbers(rows, 2 * pairs), native.Weights(numbers(outputs, 2 * pairs, seed=1))
    made = native.linear(x, weights)
    for row in {0, rows // 2, rows - 1}:
        assert torch.equal(native.linear(x[row : row + 1], weights)[0], made[row])


@here
@given(st.integers(1, 100), st.integers(1, 40))
def test_a_packed_weight_can_be_had_back(outputs, pairs):
    weight = numbers(outputs, 2 * pairs)
    assert torch.equal(native.unpack(native.pack(weight), outputs), weight)


@here
def test_nothing_is_written_beyond_the_rows_and_outputs():
    whole = torch.full((7, 90), 3.0).bfloat16()
    native.linear(numbers(5, 8), native.Weights(numbers(33, 8)), whole[1:6, 20:53])
    whole[1:6, 20:53] = 3
    assert (whole == 3).all()


@here
@given(ROWS, st.data(), st.sampled_from([(32,), (64, 32), (96, 32, 32)]), st.sampled_from([2, 16, 50]), st.booleans())
def test_the_adapter_serves_rows_from_split_on(rows, data, widths, rank, onto):
    split = data.draw(st.integers(0, rows))
    x, weight = strided(rows, 36), numbers(sum(widths), 36, seed=1)
    downs = [numbers(rank, 36, seed=10 + i) / 8 for i in range(len(widths))]
    ups = [numbers(width, rank, seed=20 + i) / 8 for i, width in enumerate(widths)]
    assert native.Factors.fit(downs, ups)
    base = strided(rows, sum(widths), seed=2) if onto else None
    exact = x.double() @ weight.double().T + (base.double() if onto else 0)
    low = [(x[split:].double() @ down.double().T).bfloat16().double() for down in downs]
    exact[split:] += torch.cat([part @ up.double().T for part, up in zip(low, ups, strict=True)], 1)
    weights, factors = native.Weights(weight), native.Factors(downs, ups)
    plain = native.linear(x, weights, base.clone() if onto else None)
    made = native.linear(x, weights, base, factors, split)
    near(made[split:], exact[split:], sums=4000)  # a rank's sum may round to the other neighbour than in float64
    assert torch.equal(made[:split], plain[:split])


@here
def test_factors_that_panels_cannot_hold_are_refused():
    def fit(*shapes):
        return native.Factors.fit([torch.zeros(r, 4) for r, _ in shapes], [torch.zeros(o, r) for r, o in shapes])

    assert fit((4, 32), (4, 64))
    assert not fit((4, 32), (4, 40))
    assert not fit((4, 32), (0, 32))
    assert not fit((3, 32))


# -- rows ------------------------------------------------------------------------------------------------------------


@here
@given(ROWS, st.sampled_from([1, 15, 16, 64, 100, 577]))
def test_rms_norm(rows, width):
    x, weight = 3 * strided(rows, width), torch.rand(width)
    near(native.rms_norm(x, weight, 1e-5), F.rms_norm(x.double(), (width,), weight.double(), 1e-5))
    assert not native.rms_norm(torch.zeros_like(x), weight, 1e-5).any()


@here
@given(ROWS, st.sampled_from([1, 16, 33, 100]))
def test_silu_product(rows, width):
    x = 6 * strided(rows, 2 * width)
    near(native.silu_product(x), F.silu(x[:, :width].double()) * x[:, width:].double(), sums=40)


@here
@given(ROWS, st.integers(1, 4), st.sampled_from([4, 16, 32, 64, 128]))
def test_rotation(rows, heads, width):
    x = numbers(rows, heads + 2, width)[:, 1 : heads + 1]
    angles = torch.rand(width // 2, generator=torch.Generator().manual_seed(1))
    cos, sin = rotary_table(angles, torch.arange(rows), 1.0, torch.bfloat16)
    near(rotate(x, cos, sin), rotate(x.double(), cos.double(), sin.double()), sums=4)


@here
@given(steps(), st.sampled_from([32, 64]), st.data())
def test_keys_and_values_are_stored_as_the_reference_stores_them(step, width, data):
    """Drafts that are not finite become 0; other rows keep what they are."""
    first = data.draw(st.integers(0, step.total))
    k, v = numbers(step.total, 3, width), numbers(step.total, 5, width, seed=1)[:, :3]
    k[:, 1, 3], k[:, 0, 5], v[:, 2, width - 1] = math.nan, math.inf, -math.inf
    slots = torch.zeros(step.total, dtype=torch.int64)
    places = Places(slots, torch.arange(step.total).flip(0), first)
    caches = [torch.zeros(2, 3, step.total + 4, width).bfloat16() for _ in range(4)]
    store_kv(k, v, *caches[:2], places)
    with torch.enable_grad():  # takes the reference
        store_kv(k.clone(), v.clone(), *caches[2:], places)
    for made, expected in zip(caches[:2], caches[2:], strict=True):
        torch.testing.assert_close(made, expected, rtol=0, atol=0, equal_nan=True)


# -- attention -------------------------------------------------------------------------------------------------------


def attended(step, width, kv_heads, group, threads=1, poison=None):
    """By the C kernel, and exactly. ``poison`` stands in every key that no row of the step sees."""
    tokens = max(step.keys) + 20
    k, v = (numbers(max(step.slots) + 1, kv_heads, tokens, width, seed=seed) for seed in (1, 2))
    q = numbers(step.total, kv_heads * group + 1, width)[:, 1:]
    exact = GroupedAttention(step, group, width**-0.5, k.double())(q.double(), k.double(), v.double())
    if poison is not None:
        for slot, keys in zip(step.slots, step.keys, strict=True):
            k[slot, :, keys:] = v[slot, :, keys:] = poison
        for slot in set(range(len(k))) - set(step.slots):
            k[slot] = v[slot] = poison
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return NativeAttention(step, group, width**-0.5)(q, k, v), exact
    finally:
        torch.set_num_threads(before)


@here
@given(
    steps(most_cached=300), st.sampled_from([32, 64, 96]), st.integers(1, 3), st.integers(1, 5), st.sampled_from([1, 2])
)
def test_attention(step, width, kv_heads, group, threads):
    made, exact = attended(step, width, kv_heads, group, threads)
    torch.testing.assert_close(made.double(), exact, atol=2e-2, rtol=2e-2)


@here
@given(steps(), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_no_row_sees_may_hold_any_bits(step, poison):
    made, exact = attended(step, 64, 2, 3, poison=poison)
    torch.testing.assert_close(made.double(), exact, atol=2e-2, rtol=2e-2)


@here
@pytest.mark.parametrize("cached", [0, 15, 16, 127, 128, 129, 1000])
@pytest.mark.parametrize("rows", [1, 21, 22, 70])
def test_a_row_of_attention_does_not_depend_on_the_others(cached, rows):
    """A long trunk, and each of its rows decoded alone over the same cache: the same bits."""
    keys = cached + rows
    k, v, q = numbers(1, 3, keys, 64, seed=1), numbers(1, 3, keys, 64, seed=2), numbers(rows, 9, 64)

    def step(first, count):
        limits = list(range(cached + first + 1, cached + first + count + 1))
        return StepRows([0], [list(range(count))], [cached + first + count], limits, [0] * count, [0] * count)

    whole = NativeAttention(step(0, rows), 3, 0.125)(q, k, v)
    for row in {0, rows // 2, rows - 1}:
        assert torch.equal(NativeAttention(step(row, 1), 3, 0.125)(q[row : row + 1], k, v)[0], whole[row])


@here
def test_a_value_that_is_not_a_number_reaches_only_rows_that_see_it():
    k, v, q = numbers(1, 1, 40, 64, seed=1), numbers(1, 1, 40, 64, seed=2), numbers(2, 1, 64)
    k[0, 0, 30] = math.nan
    step = StepRows([0], [[0, 1]], [40], [30, 31], [0, 0], [0, 0])
    made = NativeAttention(step, 1, 0.125)(q, k, v)
    assert made[0].isfinite().all() and made[1].isnan().all()


# -- logits ----------------------------------------------------------------------------------------------------------


@here
@given(st.integers(1, 9), st.sampled_from([2, 16, 33, 128, 129, 5000]), st.integers(0, 40), st.booleans())
def test_signals_are_those_of_the_reference(rows, vocab, top_k, entropy):
    logits, top_k = 4 * strided(rows, vocab), min(top_k, vocab)
    made, expected = signals(logits, entropy=entropy, top_k=top_k), signals_reference(logits, entropy, top_k, None)
    for name in ("probabilities", "logsumexp", "entropy", "top_logits"):
        ours, theirs = getattr(made, name), getattr(expected, name)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for ids in (made.ids, made.top_ids):  # of equals, another may come first
        if ids is not None:
            assert all(len(set(row)) == len(row) for row in ids.tolist())
            best = logits.float().topk(ids.shape[1]).values
            assert torch.equal(logits.float().gather(1, ids), best)


@here
def test_impossible_tokens_take_no_part():
    logits = torch.full((1, 300), -math.inf).bfloat16()
    logits[0, 200], logits[0, 290] = 1.0, 2.0
    made = signals(logits, entropy=True)
    share = 1 / (1 + math.exp(-1))
    assert made.ids.tolist() == [[290, 200]]
    assert made.probabilities[0].tolist() == pytest.approx([share, 1 - share], rel=1e-5)
    assert made.entropy.item() == pytest.approx(-share * math.log(share) - (1 - share) * math.log(1 - share), rel=1e-5)


@here
@given(st.integers(1, 9), st.sampled_from([1, 16, 33, 128, 129, 5000]), st.integers(1, 3))
def test_the_greedy_token_is_the_first_of_the_best(rows, vocab, spread):
    logits = (spread * strided(rows, vocab)).round()
    best, ids = logits.max(-1)
    made = greedy(logits)
    assert torch.equal(made[0], best.float()) and torch.equal(made[1], ids)
    logits[rows - 1, vocab // 2] = math.nan
    assert greedy(logits)[0].isnan().tolist() == [False] * (rows - 1) + [True]


# -- building ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Compile into an empty cache, with everything that a processor can have."""
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "_processor", lambda: frozenset(native.NEEDED))
    return COMPILE


def script(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.skipif(sys.platform != "linux", reason="the C kernels are for Linux")
@pytest.mark.parametrize("moved", [{"RECGUIDE_CACHE": "~/elsewhere"}, {"XDG_CACHE_HOME": "/somewhere"}, {}])
def test_the_cache_is_that_of_the_models(monkeypatch, moved):
    for name in ("RECGUIDE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in moved.items():
        monkeypatch.setenv(name, value)
    assert native._cache() == cache_dir()


@pytest.mark.parametrize("name", native.NEEDED)
def test_a_processor_without_an_instruction_is_told(build, monkeypatch, name):
    monkeypatch.setattr(native, "_processor", lambda: frozenset(native.NEEDED) - {name})
    with pytest.raises(Unavailable, match=f"^the processor has no {name}$"):
        build()


def test_no_compiler_is_told(build, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(Unavailable, match="no C compiler"):
        build()


def test_a_compiler_that_fails_is_told_and_leaves_nothing(build, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", script(tmp_path / "cc", "#!/bin/sh\necho 'x.c:1: error: no such thing' >&2\nexit 1\n"))
    with pytest.raises(Unavailable, match=r"cc failed: x\.c:1: error: no such thing$"):
        build()
    assert os.listdir(tmp_path / "cache" / "native") == []


def test_a_cache_that_cannot_be_written_is_told(build, tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(Unavailable, match="cache/native: Not a directory"):
        build()


def test_a_library_that_cannot_be_loaded_is_told(build, monkeypatch, tmp_path):
    made = script(tmp_path / "cc", "#!/bin/sh\nfor last; do :; done\ntouch kernels.so common.o\n")
    monkeypatch.setenv("CC", made)
    with pytest.raises(Unavailable, match=r"kernels-[0-9a-f]{16}\.so cannot be loaded"):
        build()


@here
def test_it_is_compiled_once_and_changed_sources_again(build, tmp_path, monkeypatch):
    build()
    (first,) = (tmp_path / "cache" / "native").iterdir()
    monkeypatch.setenv("PATH", "")
    build()
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-g"))
    with pytest.raises(Unavailable, match="no C compiler"):
        build()
    assert [path.name for path in first.parent.iterdir()] == [first.name]


@here
@pytest.mark.slow
def test_processes_that_compile_at_once_all_get_it(tmp_path):
    code = "from recguide.kernels import native; native.library()"
    env = {**os.environ, "RECGUIDE_CACHE": str(tmp_path)}
    running = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(3)]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    assert len(list((tmp_path / "native").iterdir())) == 1


THREADS = """
from recguide.kernels import native
native.library()
print({line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.rsplit("/", 1)[-1]})
"""


@here
def test_it_runs_on_torchs_own_threads():
    """A second OpenMP would have threads of its own, and both would wait for each other."""
    made = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert made.stdout.count("omp") == 1, made.stdout
