"""The fixed point beats every fixed plan, prices simple plans as they pay, and is found from anywhere near."""

import itertools

import numpy as np
import pytest

from recguide.control.planner import Shape
from recguide.control.solve import Operating, solve
from tests.controllers import samples


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


@pytest.mark.parametrize("requests, tile", [(2, 4), (4, 8), (8, 16)])
def test_where_rows_come_in_tiles_no_fixed_plan_is_much_better(requests, tile):
    """The rows of a tile cost next to nothing, the next tile much: a plan of one draft may pay where longer ones do
    not, and no straight line about a richer plan tells so."""

    def time(causal, drafts):
        rows = requests * (causal + drafts)
        within = np.clip((rows % tile) / tile * 4, 0, 1)  # dear for the first quarter of a tile
        return (20 + 9 * (rows // tile + within) + 1.5 * (drafts > 0)) / requests

    some = samples(1, 128)
    fixed = [rate_of(time, some, v, b) for v, b in itertools.product(range(1, 8), (0,))]
    assert max(fixed) > 1.03 / time(1, 0)
    assert solve(time, some, Shape()).prices.rate >= 0.97 * max(fixed)


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
