"""Patterns of arrival, on a clock that the test moves."""

import itertools

import pytest
from recguide.lab.arrivals import SPARE, Bursts, Closed, Poisson, Steps, pattern_of
from recguide.lab.settings import PATTERNS, LabSettings


def arrivals(pattern, seconds, step=0.01):
    """Times of arrival when nothing ever ends."""
    count, found = 0, []
    for i in range(int(seconds / step) + 1):
        for _ in range(pattern.due(i * step, count)):
            found.append(i * step)
            count += 1
    return found


@pytest.mark.parametrize("level", [1, 4, 32])
@pytest.mark.parametrize("under_way", [0, 1, 3, 32, 40])
def test_a_closed_loop_fills_up_and_never_overfills(level, under_way):
    assert max(under_way, level + SPARE) == under_way + Closed(level).due(5.0, under_way)
    assert Closed(level).next(5.0) is None


def test_poisson_arrivals_come_at_their_rate_and_the_same_for_a_seed():
    found = arrivals(Poisson(4.0, seed=3, start=0.0), 500)
    assert len(found) == pytest.approx(2000, rel=0.1)
    gaps = [b - a for a, b in itertools.pairwise(found)]
    mean = sum(gaps) / len(gaps)
    assert sum((g - mean) ** 2 for g in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.2)  # exponential
    assert found == arrivals(Poisson(4.0, seed=3, start=0.0), 500)
    assert found != arrivals(Poisson(4.0, seed=4, start=0.0), 500)


def test_bursts_come_every_period_and_do_not_pile_up():
    pattern = Bursts(5, 2.0, start=0.0)
    assert [round(t) for t in arrivals(pattern, 4.5)] == [0] * 5 + [2] * 5 + [4] * 5
    assert pattern.due(103.0, 0) == 5  # late by many periods: one burst
    assert pattern.due(103.5, 0) == 0
    assert pattern.next(103.5) == 104.0


def test_steps_walk_up_and_down():
    pattern = Steps(8, 10.0, start=100.0)
    assert [pattern.level(100 + 10 * i) for i in range(5)] == [1, 4, 8, 4, 1]
    assert pattern.due(125.0, 3) == 8 + SPARE - 3
    assert pattern.next(125.0) == 130.0


@pytest.mark.parametrize("name", PATTERNS)
def test_every_named_pattern_can_be_made(name):
    pattern = pattern_of(LabSettings(pattern=name, rate=20.0, period=1.0), 7.0)
    assert arrivals(pattern, 20)
    assert pattern.next(30.0) is None or pattern.next(30.0) > 20
