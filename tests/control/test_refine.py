"""What steps take, to a table: the pace of all is told from what one kind of step costs, in noise, and hiccups pass."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.control.refine import FOREIGN, HICCUP, LEAST_STEEPNESS, LOAD_ERROR, MEMORY, Errors, Kind, Refinement

KINDS = (Kind.PLAIN, Kind.VERIFYING, Kind.DRAFTING)


def test_the_kind_of_a_step():
    assert [Kind.of(*rows) for rows in ((4, 4, 0), (4, 9, 0), (4, 4, 2), (4, 9, 2))] == [0, 1, 2, 2]


def watched(seen, steps, true, *, noise=0.0, wander=0.0, seed=0, kinds=KINDS):
    """Steps of load 0, each kind for a few steps in turn, that take ``true[kind]`` times a pace that wanders."""
    chance, pace = random.Random(seed), 0.0
    for step in range(steps):
        pace = 0.97 * pace + chance.gauss(0, wander)
        kind = kinds[step // 3 % len(kinds)]
        seen.observe(0, kind, math.exp(pace + chance.gauss(0, noise)) * true[kind])
    return seen


def beside_plain(seen, kind, load=0):
    kinds = seen.errors(load).kinds
    return kinds[kind] / kinds[Kind.PLAIN]


@given(st.floats(0.5, 2.0), st.sampled_from(KINDS))
def test_a_machine_at_another_pace_is_so_at_all_steps(pace, kind):
    seen = Refinement(3)
    for _ in range(100):
        seen.observe(1, kind, pace)
    expected = [seen.pace * error for load in range(3) for error in seen.errors(load).kinds]
    assert seen.pace * seen.errors(1).kinds[kind] == pytest.approx(pace, rel=0.02)
    assert expected == pytest.approx([pace] * 9, rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_dear_drafts_are_told_from_a_slow_machine_in_noise(seed):
    """Steps scatter by 20% and the pace by as much again; drafting takes 1.2 times what the table says."""
    seen = watched(Refinement(2), 400, [1.0, 1.0, 1.2], noise=0.2, wander=0.05, seed=seed)
    assert beside_plain(seen, Kind.DRAFTING) == pytest.approx(1.2, rel=0.08)
    assert beside_plain(seen, Kind.VERIFYING) == pytest.approx(1.0, rel=0.08)


@pytest.mark.parametrize("seed", range(4))
def test_noise_alone_moves_little(seed):
    seen = watched(Refinement(2), 60, [1.0, 1.0, 1.0], noise=0.2, wander=0.05, seed=seed)
    assert beside_plain(seen, Kind.DRAFTING) == pytest.approx(1.0, rel=0.1)


def test_what_one_load_shows_counts_in_part_at_others():
    seen = watched(Refinement(3), 300, [1.0, 1.0, 1.3])
    here, there = beside_plain(seen, Kind.DRAFTING), beside_plain(seen, Kind.DRAFTING, load=2)
    assert 1.05 < there < here - 0.05


def test_a_table_of_another_device_is_doubted_more():
    own, foreign = (watched(Refinement(1, foreign=f), 12, [1.0, 1.0, 1.3]) for f in (False, True))
    assert beside_plain(own, Kind.DRAFTING) < beside_plain(foreign, Kind.DRAFTING) < 1.3
    assert FOREIGN > 1


@pytest.mark.parametrize("true", [-0.5, 0.0, 0.3])
def test_what_grows_with_the_step_is_told_from_kinds_and_pace_in_noise(true):
    seen, chance, pace = Refinement(2), random.Random(0), 0.5
    for step in range(600):
        pace += chance.gauss(0, 0.03)
        kind = KINDS[step % 3]
        size = 1.0 if kind is Kind.PLAIN else chance.uniform(1.1, 2.0)
        seen.observe(0, kind, math.exp(pace + chance.gauss(0, 0.1)) * size**true, size)
    assert seen.errors(0).steepness == seen.errors(1).steepness == pytest.approx(true, abs=0.12)
    assert beside_plain(seen, Kind.DRAFTING) == pytest.approx(1.0, abs=0.06)


def test_rows_cost_something_whatever_was_seen():
    seen = Refinement(1, foreign=True)
    for _ in range(500):
        seen.observe(0, Kind.PLAIN, 1.0)
        for size in (1.5, 3.0):
            seen.observe(0, Kind.VERIFYING, 1 / size**1.5, size)
    assert seen.errors(0).steepness == LEAST_STEEPNESS > -1


def told(requests, causal_rows, draft_rows, context):
    return 2.0 * (causal_rows + draft_rows)


def test_errors_correct_what_a_table_says():
    errors = Errors((1.1, 1.2, 1.3), -0.5)
    assert errors.corrected(told, 2, 2, 0, 0) == pytest.approx(1.1 * 4)
    assert errors.corrected(told, 2, 8, 0, 0) == pytest.approx(1.2 * 16 / 2)
    assert errors.corrected(told, 2, 2, 6, 0) == pytest.approx(1.3 * 16 / 2)
    assert Errors().corrected(told, 2, 2, 6, 0) == 16


def test_a_hiccup_passes():
    seen = watched(Refinement(1), 60, [1.0, 1.0, 1.0])
    before = seen.pace
    seen.observe(0, Kind.PLAIN, 1e6)
    assert seen.pace < 1.2 * before
    watched(seen, 30, [1.0, 1.0, 1.0])
    assert seen.pace == pytest.approx(1.0, rel=0.03)
    first = Refinement(1)
    first.observe(0, Kind.PLAIN, 1e6)
    assert first.pace < math.exp(HICCUP)


def test_a_step_that_the_clock_did_not_see_tells_nothing():
    seen = Refinement(1)
    seen.observe(0, Kind.PLAIN, 0.0)
    assert seen.pace == 1.0


def test_an_error_that_is_not_seen_again_is_forgotten():
    """Drafting that was slow once is taken at the table's word in the end, or nobody would find out that it is not."""
    seen = watched(Refinement(1), 200, [1.0, 1.0, 1.5])
    then = math.log(beside_plain(seen, Kind.DRAFTING))
    steps = round(math.log(0.25) / math.log(MEMORY))
    watched(seen, steps, [1.0, 1.0, 1.5], kinds=(Kind.PLAIN,))
    assert math.log(beside_plain(seen, Kind.DRAFTING)) < 0.5 * then
    assert then > LOAD_ERROR
