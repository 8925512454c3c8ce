"""Plain, drafting or a trial: the way that is not chosen has a turn, where its times may change what is chosen."""

import pytest

from recguide.control.modes import (
    PERIOD,
    PLAIN_FROM,
    PLAIN_TURN,
    PROMISING,
    SURE,
    TRIAL_PERIOD,
    TRIAL_TURN,
    Modes,
    Way,
)


def ways(modes, steps, *, requests=1, drafts=True, gain=1.1, trial_gain=1.0, seen=True):
    return [modes.way(requests, drafts=drafts, gain=gain, trial_gain=trial_gain, seen=seen) for _ in range(steps)]


def test_drafting_has_plain_steps_in_it_now_and_then():
    made = ways(Modes(), 3 * PERIOD)
    assert made.count(Way.PLAIN) == 3 * PLAIN_TURN and made.count(Way.DRAFTING) == 3 * (PERIOD - PLAIN_TURN)
    assert made[PLAIN_FROM : PLAIN_FROM + PLAIN_TURN] == [Way.PLAIN] * PLAIN_TURN


def test_a_short_stay_is_not_spent_on_timing():
    assert set(ways(Modes(), PLAIN_FROM)) == {Way.DRAFTING}


def test_where_drafting_gains_much_no_step_is_plain():
    assert set(ways(Modes(), 2 * PERIOD, gain=SURE)) == {Way.DRAFTING}


@pytest.mark.parametrize("seen, period", [(False, TRIAL_PERIOD), (True, PERIOD)])
def test_where_drafting_should_lose_a_little_a_few_steps_try(seen, period):
    made = ways(Modes(), 10 * period, drafts=False, seen=seen)
    assert made.count(Way.TRIAL) == 10 * TRIAL_TURN and made.count(Way.DRAFTING) == 0


def test_where_drafting_should_lose_much_nothing_is_tried():
    assert set(ways(Modes(), 1000, drafts=False, trial_gain=PROMISING, seen=False)) == {Way.PLAIN}


def test_loads_have_their_turns_apart_and_near_ones_together():
    modes = Modes()
    ways(modes, PLAIN_FROM, requests=1)
    assert ways(modes, 1, requests=8) == [Way.DRAFTING]
    assert ways(modes, 1, requests=1) == [Way.PLAIN]
    together = [modes.way(15 + i % 4, drafts=True, gain=1.1, trial_gain=1.0, seen=True) for i in range(PERIOD)]
    assert together.count(Way.PLAIN) == PLAIN_TURN
