"""The planner: its choice is brute force's, and prices move plans the right way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.control.choose import Tariff, choose
from recguide.control.planner import Options, Prices, Shape
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


@given(st.lists(shares, min_size=6, max_size=6), prices_, st.floats(-0.3, 0.5))
def test_a_plain_step_may_cost_something_else_than_its_row(conditional, cost, plain):
    survival, p = np.cumprod(conditional)[None], prices(cost, 1.0, [0.5], [0.5], alone=cost)
    usual, other = (
        Options(survival, np.zeros((1, 6)), p, Shape(), drafting=False, plain=extra).values(np.array([6]))[0]
        for extra in (0.0, plain)
    )
    assert usual - other == pytest.approx([plain, *[0.0] * 6])


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
