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


def drafting(modes, steps, *, requests=1, gain=1.1):
    return [modes.while_drafting(requests, gain) for _ in range(steps)]


def test_drafting_has_plain_steps_in_it_now_and_then():
    made = drafting(Modes(), 3 * PERIOD)
    assert made.count(Way.PLAIN) == 3 * PLAIN_TURN and made.count(Way.DRAFTING) == 3 * (PERIOD - PLAIN_TURN)
    assert made[PLAIN_FROM : PLAIN_FROM + PLAIN_TURN] == [Way.PLAIN] * PLAIN_TURN


def test_a_short_stay_is_not_spent_on_timing():
    assert set(drafting(Modes(), PLAIN_FROM)) == {Way.DRAFTING}


def test_where_drafting_gains_much_no_step_is_plain():
    assert set(drafting(Modes(), 2 * PERIOD, gain=SURE)) == {Way.DRAFTING}


@pytest.mark.parametrize("seen, period", [(False, TRIAL_PERIOD), (True, PERIOD)])
def test_where_drafting_should_lose_a_little_a_few_steps_try(seen, period):
    modes = Modes()
    made = [modes.while_plain(1, lambda: 1.0, seen=seen) for _ in range(10 * period)]
    assert made.count(Way.TRIAL) == 10 * TRIAL_TURN and made.count(Way.DRAFTING) == 0


def test_where_drafting_should_lose_much_nothing_is_tried():
    modes = Modes()
    assert {modes.while_plain(1, lambda: PROMISING, seen=False) for _ in range(1000)} == {Way.PLAIN}


def test_loads_have_their_turns_apart_and_near_ones_together():
    modes = Modes()
    drafting(modes, PLAIN_FROM, requests=1)
    assert drafting(modes, 1, requests=8) == [Way.DRAFTING]
    assert drafting(modes, 1, requests=1) == [Way.PLAIN]
    together = [modes.while_drafting(15 + i % 4, 1.1) for i in range(PERIOD)]
    assert together.count(Way.PLAIN) == PLAIN_TURN
