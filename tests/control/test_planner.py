"""The planner: its choice is brute force's, its fixed point beats every fixed plan, and prices move plans the right
way."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.control.choose import Tariff, choose
from recguide.control.planner import Operating, Options, Prices, Shape, solve
from tests.controllers import samples

shares = st.floats(0, 1)
prices_ = st.floats(0.001, 0.6)


def prices(causal, draft, ready, known, tail=(), alone=0.05):
    worth = (np.array([0.0, *np.cumsum(steps)]) for steps in (ready, known, tail))
    return Prices(0.1, causal, draft, alone, *worth)


def brute_force(conditional, held, second, p, shape, weight):
    """Every v, and for every outcome every branch or none."""
    survival = np.cumprod(conditional)
    best = -np.inf
    sizes = range(len(p.ready))
    for v in range(held + 1):
        reach = [1.0, *survival[:v]]
        ends = [reach[i] - reach[i + 1] for i in range(v)] + [reach[v]]
        total = weight * sum(reach) - p.causal * (v + 1)
        for place, chance in enumerate(ends):
            tail = p.ready_tail[min(max(held - place - 1, 0), len(p.ready_tail) - 1)]
            choices = [weight * chance * tail]
            for m in sizes[1:]:
                cost = p.draft * (m + shape.extra)
                true = shape.open_chance
                choices.append(weight * chance * (true * p.ready[m] + (1 - true) * tail) - cost)
                if place < v:
                    true = second[place]
                    choices.append(weight * chance * (true * p.ready_known[m] + (1 - true) * tail) - cost)
            total += max(choices)
        best = max(best, total)
    return best


@settings(max_examples=150)
@given(
    st.lists(shares, min_size=3, max_size=3), st.integers(0, 3), st.lists(shares, min_size=3, max_size=3), prices_,
    prices_, st.lists(shares, min_size=3, max_size=3), st.lists(shares, min_size=3, max_size=3),
    st.lists(shares, max_size=2), st.sampled_from([Shape(), Shape(1, 0.7)]), st.floats(0.3, 3),
)  # fmt: skip
def test_the_choice_is_brute_forces(conditional, held, second, causal, draft, ready, known, tail, shape, weight):
    p = prices(causal, draft, ready, known, tail)
    survival = np.cumprod(conditional)
    survival[held:] = 0
    options = Options(survival[None], np.array([second]), p, shape, weight=np.array([weight]))
    plans = options.best(np.array([held]))
    expected = brute_force(np.array(conditional), held, second, p, shape, weight)
    assert plans.net[0] == pytest.approx(expected, abs=1e-9)
    # and the plan it names is worth what it says
    v = int(plans.verify[0])
    assert v <= held and plans.causal_rows[0] == v + 1
    reach = [1.0, *survival[:v]]
    ends = [reach[i] - reach[i + 1] for i in range(v)] + [reach[v]]
    value = weight * sum(reach)
    rows = 0
    for place, chance in enumerate(ends):
        value += weight * chance * p.ready_tail[min(max(held - place - 1, 0), len(tail))]
    for worth, true, lengths in (
        (p.ready, [shape.open_chance] * 4, plans.open[0]),
        (p.ready_known, second, plans.known[0]),
    ):
        for place, m in enumerate(lengths):
            instead = p.ready_tail[min(max(held - place - 1, 0), len(tail))]
            value += weight * ends[place] * true[place] * (worth[m] - instead) if m else 0
            rows += m + shape.extra if m else 0
    assert plans.draft_rows[0] == rows and plans.value[0] == pytest.approx(value)


@settings(max_examples=100)
@given(
    st.lists(shares, max_size=5), st.lists(shares, min_size=5, max_size=5), prices_, prices_,
    st.lists(shares, min_size=4, max_size=4), st.lists(shares, max_size=3), st.floats(0.3, 3), st.booleans(),
    st.sampled_from([Shape(), Shape(1, 0.7), Shape(trim=False), Shape(overlap=False), Shape(block=2)]),
)  # fmt: skip
def test_plain_numbers_choose_as_arrays_do(conditional, second, causal, draft, ready, tail, weight, drafting, shape):
    held = len(conditional)
    p = prices(causal, draft, ready, ready[::-1], tail)
    survival = np.zeros(5)
    survival[:held] = np.cumprod(conditional)
    args = (survival[None], np.array([second]), p, shape)
    many = Options(*args, drafting=drafting, weight=np.array([weight])).best(np.array([held]))
    tariff = Tariff.of(p, shape)
    one = choose(survival[:held].tolist(), second, tariff, drafting=drafting, weight=weight)
    assert one.net == pytest.approx(many.net[0], abs=1e-9)
    assert (
        one.value - (draft * one.draft_rows if one.draft_rows else 0)
        == pytest.approx(many.value[0] - (draft * many.draft_rows[0] if many.draft_rows[0] else 0), abs=1e-9)
        or one.verify != many.verify[0]
    )  # a tie
    assert len(one.values) == held + 1 and all(branch.place <= one.verify for branch in one.branches)


@given(st.lists(shares, min_size=6, max_size=6), st.lists(prices_, min_size=2, max_size=5))
def test_a_higher_price_verifies_a_prefix(conditional, costs):
    survival = np.cumprod(conditional)[None]
    sizes = []
    for cost in sorted(costs):
        p = prices(cost, 1.0, [0.5], [0.5], alone=cost)
        options = Options(survival, np.zeros((1, 6)), p, Shape(), drafting=False)
        sizes.append(int(options.best(np.array([6])).verify[0]))
    assert sizes == sorted(sizes, reverse=True)


def test_many_requests_are_planned_as_each_alone():
    some = samples(3, 20)
    p = prices(0.05, 0.06, [0.4, 0.3, 0.2], [0.8, 0.3, 0.2])
    second, held = np.full(some.open.shape, 0.4), np.arange(20) % 9
    together = Options(some.open, second, p, Shape()).best(held)
    for i in range(20):
        one = slice(i, i + 1)
        alone = Options(some.open[one], second[one], p, Shape()).best(held[one])
        for name in ("verify", "open", "known", "value", "draft_rows"):
            assert np.allclose(getattr(together, name)[i], getattr(alone, name)[0]), name


def device(requests, floor=13.0, row=0.35, dear=0.62, knee=16, draft=0.15, launch=2.5):
    """A step on a device: a floor, rows that get dearer at ``knee``, and drafts that pay for themselves and a
    launch."""

    def time(causal, drafts):
        rows = requests * (causal + drafts)
        spent = floor + row * min(rows, knee) + dear * max(rows - knee, 0)
        return (spent + (launch + draft * requests * drafts) * (drafts > 0)) / requests

    return time


def rate_of(time, some, verify, branch):
    """Tokens a ms of a fixed plan: verify so many, an open branch of ``branch`` after every outcome (0: the last only,
    of ``verify``, as in ar-row)."""
    reach = np.concatenate((np.ones((len(some.open), 1)), some.open), 1)[:, : verify + 1].sum(1).mean()
    if branch:
        return reach / time(verify + 1, (verify + 1) * branch)
    return (1 + reach) / (time(1, verify) + time(verify + 1, 0))


@pytest.mark.parametrize("requests", [1, 2, 4, 8, 16, 32])
def test_the_operating_point_is_no_worse_than_any_fixed_plan(requests):
    some, time = samples(1, 128), device(requests)
    point = solve(time, some, Shape())
    fixed = [1 / time(1, 0)]
    fixed += [rate_of(time, some, v, b) for v, b in itertools.product(range(1, 8), (0,))]
    fixed += [rate_of(time, some, v, v) for v in range(1, 5)]
    assert point.prices.rate >= 0.995 * max(fixed)


def test_load_takes_drafts_away():
    points = [solve(device(n), samples(1, 128), Shape()) for n in (1, 2, 4, 8, 16, 32)]
    drafted = [point.draft_rows for point in points]
    assert drafted[0] > 1 and drafted[-1] == 0 and not points[-1].drafts
    assert drafted == sorted(drafted, reverse=True)


def test_free_rows_are_all_taken_and_dear_ones_never():
    some = samples(2, 64)
    free = solve(lambda causal, drafts: 10.0 + 1e-6 * (causal + drafts), some, Shape())
    assert free.causal_rows > 5 and free.draft_rows > 15
    dear = solve(lambda causal, drafts: 10.0 * (causal + drafts), some, Shape())
    assert isinstance(dear, Operating) and not dear.drafts and dear.tokens == 1.0


def test_a_margin_keeps_to_plain_decoding():
    some, time = samples(1, 128), device(1)
    gain = solve(time, some, Shape()).prices.rate * time(1, 0)
    assert gain > 1.02
    assert solve(time, some, Shape(), margin=gain - 1 - 0.01).drafts
    assert not solve(time, some, Shape(), margin=gain - 1 + 0.01).drafts


def test_a_draft_ready_is_worth_more_the_longer_it_is():
    point = solve(device(1), samples(1, 128), Shape())
    for worth in (point.prices.ready, point.prices.ready_known):
        assert worth[0] == 0 and (np.diff(worth) >= -1e-9).all()


@pytest.mark.parametrize(
    "shape", [Shape(trim=False), Shape(overlap=False), Shape(block=3), Shape(overlap=False, block=3)]
)
def test_less_freedom_is_worth_less(shape):
    some = samples(1, 128)
    free = solve(device(1), some, Shape()).prices.rate
    assert 1 / device(1)(1, 0) - 1e-9 <= solve(device(1), some, shape).prices.rate <= free * 1.005


def test_plans_keep_to_what_is_allowed():
    some = samples(3, 40)
    p = prices(0.03, 0.02, [0.4, 0.3, 0.2, 0.1], [0.5, 0.3, 0.2, 0.1])
    second, held = np.full(some.open.shape, 0.4), np.arange(40) % 6
    args = (some.open, second, p)
    whole = Options(*args, Shape(trim=False)).best(held)
    assert (whole.verify == held).all()
    alone = Options(*args, Shape(overlap=False)).best(held)
    assert not alone.draft_rows[held > 0].any() and alone.draft_rows[held == 0].all()
    fixed = Options(*args, Shape(block=3)).best(held)
    assert set(fixed.open.ravel()) | set(fixed.known.ravel()) <= {0, 3} and fixed.draft_rows.any()


@pytest.mark.parametrize("requests", [1, 2, 4])
@pytest.mark.parametrize("drafts", [2, 4])
def test_drafting_and_verifying_by_turns_is_priced_as_it_pays(requests, drafts):
    """Without overlap and trimming, a block of a fixed size is ar-row: its rate is known in closed form."""
    some = samples(1, 128)
    time = device(requests, launch=1.0)
    point = solve(time, some, Shape(trim=False, overlap=False, block=drafts))
    by_turns = rate_of(time, some, drafts, 0)
    assert point.prices.rate == pytest.approx(max(by_turns, 1 / time(1, 0)), rel=0.005)


def test_tails_are_worth_something_and_take_the_place_of_branches():
    """A tail costs nothing: with tails more is earned and less is drafted, and the more of them the better."""
    some = samples(1, 128)
    points = [solve(device(2), some, Shape(tail=tail)) for tail in (0, 1, 3)]
    rates = [point.prices.rate for point in points]
    assert rates[0] < rates[1] < rates[2]
    assert points[2].draft_rows < points[0].draft_rows
    worth = points[2].prices.ready_tail
    assert worth[0] == 0 and worth[1] > 0 and (np.diff(worth) >= -1e-9).all()


@pytest.mark.parametrize("requests", [1, 2, 4])
def test_a_start_near_the_point_leads_where_the_others_do(requests):
    """Also where steps that draft turned out dearer than that point took them for, and where it is a wrong one."""
    some, shape = samples(1, 128), Shape(tail=2)
    known = [
        solve(device(n, launch=launch), some, shape) for n, launch in ((requests, 0.5), (requests, 3.5), (16, 2.5))
    ]
    expected = solve(device(requests), some, shape).prices.rate
    for near in known:
        assert solve(device(requests), some, shape, near=near).prices.rate == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("tail", [1, 2])
def test_drafts_and_tails_by_turns_are_priced_as_they_pay(tail):
    """The rate of ar-row with tails, where drafts are verified whole, is that of a chain of states in closed form."""
    some, time, drafts = samples(1, 128), device(1, launch=1.0), 3
    point = solve(time, some, Shape(tail=tail, trim=False, overlap=False, block=drafts))
    size = 1 + tail + 1  # nothing held, a tail of 1.., a draft
    moves, tokens, spent = np.zeros((size, size)), np.zeros(size), np.zeros(size)
    moves[0, -1], tokens[0], spent[0] = 1, 1, time(1, drafts)
    for state, held, survival in [*((t, t, some.tail) for t in range(1, tail + 1)), (size - 1, drafts, some.open)]:
        reach = np.concatenate((np.ones((128, 1)), survival), 1)[:, : held + 1].mean(0)
        tokens[state], spent[state] = reach.sum(), time(held + 1, 0)
        for accepted, chance in enumerate(reach - np.append(reach[1:], 0)):
            moves[state, min(max(held - accepted - 1, 0), tail)] += chance
    share = stationary(moves)
    assert point.prices.rate == pytest.approx(max(share @ tokens / (share @ spent), 1 / time(1, 0)), rel=0.005)


def stationary(moves):
    values, vectors = np.linalg.eig(moves.T)
    share = vectors[:, np.abs(values - 1).argmin()].real
    return share / share.sum()
