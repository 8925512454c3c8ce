"""Plain, drafting or a trial: the way that is not chosen has a turn, where its times may change what is chosen."""

import pytest

from recguide.control.modes import (
    HOPED,
    LEAST,
    LOSING,
    PERIOD,
    PLAIN_FROM,
    PLAIN_TURN,
    PROMISING,
    REST,
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
    assert {modes.while_plain(1, lambda: HOPED, seen=False) for _ in range(1000)} == {Way.PLAIN}
    assert {modes.while_plain(2, lambda: PROMISING, seen=True) for _ in range(1000)} == {Way.PLAIN}
    assert Way.TRIAL in {modes.while_plain(4, lambda: PROMISING, seen=False) for _ in range(10)}


def test_drafting_that_earned_less_than_plain_steps_rests_and_is_tried_again():
    modes, made = Modes(), []
    for _ in range(LEAST // 4 + REST + 10):
        made.append(modes.while_drafting(4, SURE))
        if made[-1] is Way.DRAFTING:
            modes.earned(4, 4, 4 / LOSING + 0.1)
    rested = [step for step, way in enumerate(made) if way is Way.PLAIN]
    assert rested == list(range(rested[0], rested[0] + REST)) and rested[0] == LEAST // 4
    assert modes.while_drafting(1, SURE) is Way.DRAFTING  # at another load all is as it was


def test_drafting_that_earns_its_steps_goes_on():
    modes = Modes()
    for tokens in 300 * (1, 1, 1, 5):  # a draft step commits one, and what it drafted comes later
        assert modes.while_drafting(1, SURE) is Way.DRAFTING
        modes.earned(1, tokens, 1.9)


def test_loads_have_their_turns_apart_and_near_ones_together():
    modes = Modes()
    drafting(modes, PLAIN_FROM, requests=1)
    assert drafting(modes, 1, requests=8) == [Way.DRAFTING]
    assert drafting(modes, 1, requests=1) == [Way.PLAIN]
    together = [modes.while_drafting(15 + i % 4, 1.1) for i in range(PERIOD)]
    assert together.count(Way.PLAIN) == PLAIN_TURN
