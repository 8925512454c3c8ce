"""Plain or drafting: what earned more is what runs, and the other is tried again."""

import pytest

from recguide.control.modes import ENOUGH, PERIOD, TRIAL_PERIOD, TRIAL_TURN, Modes, Way

FIRST = int(ENOUGH["plain"])  # steps that show the pace


def play(modes, steps, plain, drafting, requests=1, wants=True, trial_gain=1.0, seen=True):
    """Steps whose rates are given in tokens a ms; returns the share that drafted."""
    drafted = 0
    for _ in range(steps):
        way = modes.way(requests, wants=wants, trial_gain=trial_gain, seen=seen)
        rate = plain if way is Way.PLAIN else drafting
        modes.learn(requests, way, tokens=requests, milliseconds=1 / rate, plain_ms=9.0)
        drafted += way is not Way.PLAIN
    return drafted / steps


def test_what_earns_more_runs():
    assert play(Modes(), 2000, plain=0.1, drafting=0.12) > 0.9
    assert play(Modes(), 2000, plain=0.1, drafting=0.09) < 0.2


def test_a_short_stay_is_not_spent_on_trying():
    assert play(Modes(), FIRST, plain=0.1, drafting=0.12) == 0
    for steps, gain in ((24, 1.2), (PERIOD - 7, 1.6)):
        modes = Modes()
        play(modes, FIRST, plain=0.1, drafting=0.1)
        assert play(modes, steps, plain=0.1, drafting=0.1 * gain) == 1
    assert play(modes, PERIOD, plain=0.1, drafting=0.16) < 1


def test_a_table_that_flatters_drafting_is_found_out():
    """Plain steps really earn 1.8 times what the table says of them."""
    assert play(Modes(), 2000, plain=0.2, drafting=0.15) < 0.3


def test_a_hundredth_is_within_the_margin():
    assert play(Modes(), 2000, plain=0.1, drafting=0.0995) > 0.9


def test_a_change_is_noticed_both_ways():
    modes = Modes()
    play(modes, 1000, plain=0.1, drafting=0.08)
    play(modes, 6 * PERIOD, plain=0.1, drafting=0.13)
    assert play(modes, PERIOD, plain=0.1, drafting=0.13) > 0.9
    play(modes, 3 * PERIOD, plain=0.1, drafting=0.08)
    assert play(modes, PERIOD, plain=0.1, drafting=0.08) < 0.2


def test_loads_are_judged_apart():
    modes = Modes()
    play(modes, 1000, plain=0.1, drafting=0.08, requests=8)
    assert play(modes, 500, plain=0.1, drafting=0.12, requests=1) > 0.9


def test_loads_that_share_an_operating_point_share_what_was_seen():
    """Drafting loses a tenth at every number of requests; plain steps of more requests take longer."""
    modes, drafted = Modes(), 0
    for step in range(2000):
        requests = 14 + step % 5
        way = modes.way(requests, wants=True, trial_gain=1.0, seen=True)
        does = way is Way.DRAFTING
        spent = (10 + requests) * (1.5 / 0.9 if does else 1.0)
        tokens = requests * (1.5 if does else 1.0)
        modes.learn(requests, way, tokens=tokens, milliseconds=spent, plain_ms=10.0 + requests)
        drafted += does
    assert drafted < 0.2 * 2000


@pytest.mark.parametrize("seen, period", [(False, TRIAL_PERIOD), (True, PERIOD)])
def test_where_the_model_sees_a_small_loss_a_few_steps_try(seen, period):
    modes = Modes()
    play(modes, FIRST, plain=0.1, drafting=0.1)
    drafted = play(modes, 10 * period, plain=0.1, drafting=0.2, wants=False, seen=seen)
    assert drafted == pytest.approx(TRIAL_TURN / period)


def test_trials_are_not_held_against_drafting():
    """They are made for their times, with plans that are not the best."""
    modes = Modes()
    play(modes, 100 * TRIAL_PERIOD, plain=0.1, drafting=0.05, wants=False, seen=False)
    assert play(modes, PERIOD, plain=0.1, drafting=0.12) > 0.9


def test_where_the_model_sees_a_large_loss_nothing_is_tried():
    assert play(Modes(), 1000, plain=0.1, drafting=0.2, wants=False, trial_gain=0.8) == 0
