"""Operating points: solved anew when their grounds move, and with patience."""

from dataclasses import replace

import numpy as np
import pytest

from recguide.control.cost import Axes, CostTable, Identity
from recguide.control.monitor import Monitor
from recguide.control.operating import LONGEST, PATIENCE, TRIAL_DRAFTS, OperatingPoints
from tests.controllers import handmade

AXES = Axes((1, 2, 4), (1, 2, 4, 8), (256,))


def table(drafting_times: float) -> CostTable:
    """Rows cost next to nothing beside the floor of a step; steps that draft take ``drafting_times`` as long."""
    requests, rows, _ = np.meshgrid(AXES.requests, AXES.rows, AXES.contexts, indexing="ij")
    causal = 40.0 + 0.5 * requests * rows
    return CostTable(Identity("m", "a", "float32", "p"), AXES, causal, drafting_times * causal, {})


def points_of(step_time) -> OperatingPoints:
    controller = handmade(draft_shift=1)
    return OperatingPoints(controller, step_time, Monitor(controller.usual))


def gain_needed() -> float:
    """The slowest drafting steps, to plain ones, at which a point still drafts."""
    return max(times for times in np.arange(1.0, 4.0, 0.05) if points_of(table(times)).at(1, 0).drafts)


def seen(step_time, points, steps, milliseconds):
    """Steps of a request that draft, as they were timed, and plain ones as the table says; returns the point they lead
    to."""
    plain = step_time.told(1, 1, 0, 0)
    for _ in range(steps):
        for spent, drafts in ((plain, 0), (milliseconds, 3)):
            points.at(1, 0)
            step_time.observe(spent, 1, 1, drafts, 0)
    return points.at(1, 0)


@pytest.mark.parametrize("measured, drafts", [(0.7, True), (1.0, False)])
def test_what_is_seen_changes_the_point(measured, drafts):
    """The table says that drafting does not pay, by 5%; what such steps took decides."""
    step_time = table(1.05 * gain_needed())
    points = points_of(step_time)
    assert not points.at(1, 0).drafts
    told = step_time.told(1, 1, 3, 0)
    assert seen(step_time, points, 128, measured * told).drafts is drafts
    assert step_time.predict(1, 1, 3, 0) == pytest.approx(measured * told, rel=0.05)


def test_solutions_come_less_and_less_often(monkeypatch):
    """Contexts grow and step times move, yet points are solved one at a time, and known ones serve meanwhile."""
    step_time, solved = table(1.3), []
    points = points_of(step_time)
    solve = points._solve
    monkeypatch.setattr(points, "_solve", lambda *args: (solved.append(step), solve(*args))[1])
    for step in range(10 * PATIENCE):
        points.at(1, 50.0 * step)
        step_time.observe(step_time.told(1, 1, 0, 0), 1, 1, 0, 0)
        step_time.observe(1.002**step * step_time.told(1, 1, 3, 0), 1, 1, 3, 0)
    gaps = np.diff(solved)
    assert len(gaps) >= 3 and (gaps >= np.minimum(PATIENCE * 2 ** np.arange(len(gaps)), LONGEST)).all()


def test_where_all_steps_take_longer_nothing_is_solved_again(monkeypatch):
    axes = replace(AXES, contexts=(192, 2000))
    short = table(1.3)
    causal, drafting = (np.concatenate((t, 1.5 * t), 2) for t in (short.causal, short.drafting))
    points = points_of(CostTable(short.identity, axes, causal, drafting, {}))
    near = points.at(2, 0)
    monkeypatch.setattr(points, "_solve", None)
    for _ in range(PATIENCE):
        far = points.at(2, 1900)
    assert far.buckets == near.buckets
    times = points.milliseconds(far, 2, 2, 0, 1900) / points.milliseconds(near, 2, 2, 0, 0)
    assert times > 1.4 and far.rate == pytest.approx(near.rate / times)


def test_a_point_and_its_times_belong_together():
    """While news do not change a point, they do not change the times that plans are chosen with: at prices of other
    times nothing might pay."""
    step_time = table(1.3)
    points = points_of(step_time)
    told = step_time.predict(1, 1, 3, 0)
    before = points.milliseconds(points.at(1, 0), 1, 1, 3, 0)
    seen(step_time, points, 64, 1.05 * told)
    assert step_time.errors(1).corrected(step_time.told, 1, 1, 3, 0) > 1.02 * told
    assert points.milliseconds(points.at(1, 0), 1, 1, 3, 0) == before
    seen(step_time, points, 512, 1.4 * told)
    assert points.milliseconds(points.at(1, 0), 1, 1, 3, 0) > 1.15 * before


def test_a_trial_earns_what_it_accepts_for_what_its_two_steps_take():
    controller, step_time = handmade(draft_shift=1), table(1.3)
    accepted = controller.samples.open[:, :TRIAL_DRAFTS].sum(1).mean()
    drafting, verifying = (step_time.predict(2, 2 + c, d, 192) for c, d in ((0, 4), (4, 0)))
    earned = (2 + accepted) / (drafting + verifying) * step_time.predict(2, 2, 0, 192)
    assert points_of(step_time).trial_gain(2, 0) == pytest.approx(earned)


def test_a_price_multiplies_what_rows_cost():
    controller, step_time = handmade(draft_shift=1), table(1.1)
    dear = OperatingPoints(controller, step_time, Monitor(controller.usual), price=3.0).at(1, 0).tariffs[1]
    found = points_of(step_time).at(1, 0).tariffs[1]
    assert (dear.rate, dear.causal, dear.draft) == pytest.approx((3 * found.rate, 3 * found.causal, 3 * found.draft))


def test_a_request_that_guesses_badly_drafts_at_its_own_price():
    """At the price of all together drafting would never pay for it, and its tokens would come one by one."""
    controller, step_time = handmade(draft_shift=1), table(1.3)
    samples = controller.samples
    worst = np.argsort(samples.open.sum(1))[: len(samples.open) // 3]
    bucket = np.ones(len(samples.open), int)
    bucket[worst] = 0
    known = np.ones(len(samples.known), int)
    mixed = replace(controller, samples=replace(samples, open_bucket=bucket, known_bucket=known, buckets=2))
    point = OperatingPoints(mixed, step_time, Monitor(controller.usual)).at(1, 0)
    poor, good = (bucket.prices.rate for bucket in point.buckets)
    assert 1 / step_time.predict(1, 1, 0, 192) <= poor < point.rate < good
