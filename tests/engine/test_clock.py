"""A simulated device: the same text, and time that passes by forwards alone."""

import pytest

from recguide.engine.clock import SimulatedClock, Stopwatch, WallClock
from recguide.engine.engine import Engine
from recguide.engine.sampling import SamplingParams
from tests.helpers import small_model

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]


def device(requests, causal_rows, draft_rows, context):
    """Ten milliseconds, one for each row, two for rows that draft, and a hundredth for each token in a cache."""
    return 10 + causal_rows + 2 * draft_rows + 0.01 * requests * context


def run(clock, policy):
    engine = Engine(small_model(), policy, max_context=64, clock=clock)
    requests = [engine.submit(prompt, SamplingParams(max_new_tokens=12, seed=5)) for prompt in PROMPTS]
    steps = []
    while not engine.idle:
        contexts = [engine._cache.lengths[r.slot] if r.slot is not None else 0 for r in requests if not r.finished]
        engine.step()
        steps.append((engine.last_step, sum(contexts) / len(contexts)))
    return requests, steps, engine


@pytest.mark.parametrize("policy", ["ar", "linear:4", "overlap:3"])
def test_every_step_takes_what_the_device_says(policy):
    requests, steps, engine = run(SimulatedClock(device), policy)
    for step, context in steps:
        causal = step.rows - step.draft_rows
        assert step.seconds == pytest.approx(device(step.requests, causal, step.draft_rows, context) / 1e3)
        assert step.phases["forward"] == pytest.approx(step.seconds)
    assert engine.clock.now() == pytest.approx(sum(step.seconds for step, _ in steps))
    for request in requests:
        assert 0 == request.submitted_at < request.first_token_at <= request.finished_at <= engine.clock.now()


def test_the_text_is_that_of_the_wall_clock():
    simulated, wall = (run(clock, "linear:4") for clock in (SimulatedClock(device), WallClock()))
    assert [r.output for r in simulated[0]] == [r.output for r in wall[0]]
    assert [s.rows for s, _ in simulated[1]] == [s.rows for s, _ in wall[1]]


def test_it_is_the_same_every_time():
    first, second = (run(SimulatedClock(device), "quadratic:3")[2].clock.now() for _ in range(2))
    assert first == second > 0


def test_a_stopwatch_counts_only_while_it_runs(monkeypatch):
    passed = [100.0]
    monkeypatch.setattr("recguide.engine.clock.time.perf_counter", lambda: passed[0])
    clock = Stopwatch()
    for waited, ran in ((5.0, 2.0), (7.0, 3.0)):
        passed[0] += waited
        before = clock.now()
        with clock.running():
            passed[0] += ran
            assert clock.now() == before + ran
        assert clock.now() == before + ran
    assert clock.now() == 5.0


def test_a_stopwatch_stops_where_its_work_fails():
    clock = Stopwatch()
    with pytest.raises(KeyboardInterrupt), clock.running():
        raise KeyboardInterrupt
    assert clock.now() == clock.now() > 0
