"""The session's life: it does what it is told, says what went wrong, and leaves nothing behind."""

import gc
import json
import threading
import time
import weakref

import pytest
from recguide.lab import registry
from recguide.lab.registry import open_session
from recguide.lab.session import LabSession
from recguide.lab.settings import KNOBS

from recguide.bench.prompts import Prompt
from recguide.engine.engine import Engine
from recguide.errors import RecGuideError
from recguide.trace.reader import read_trace
from tests.lab.helpers import MODEL, make_session, own_threads, stands_still, wait


@pytest.fixture
def session(tmp_path):
    made = make_session(tmp_path)
    yield made
    made.stop()
    assert own_threads() == []


def test_it_decodes_pauses_steps_resumes_and_stops(session):
    assert session.state == "stopped"
    session.start()
    session.start()
    assert session.state == "running"
    wait(lambda: session.engine.stats.committed > 50)
    assert len(session.engine.running) == 2
    session.pause()
    assert session.state == "paused"
    assert stands_still(session)
    before = session.engine.stats.steps
    session.step_once()
    wait(lambda: session.engine.stats.steps == before + 1)
    assert stands_still(session)
    session.resume()
    wait(lambda: session.engine.stats.steps > before + 20)
    session.stop()
    session.stop()
    assert session.state == "stopped"
    assert own_threads() == []
    session.start()
    wait(lambda: session.engine.stats.committed > 20)


def test_a_round_can_be_walked_across_the_end_of_requests(session):
    """Stepping goes on when a request ends: a closed loop brings the next one while paused."""
    session.change(concurrency=1, max_new_tokens=8)
    session.start()
    session.pause()
    for _ in range(40):
        before = session.engine.stats.steps
        session.step_once()
        wait(lambda before=before: session.engine.stats.steps > before)
    assert sum(session.engine.stats.finished.values()) >= 2


def test_knobs_take_effect_between_steps_and_are_logged(session, tmp_path):
    session.start()
    session.change(concurrency=8, policy="overlap:3")
    wait(lambda: session.engine.concurrency == 8 and session.engine.policy.spec == "overlap:3")
    wait(lambda: len(session.engine.running) == 8)
    session.change(concurrency=2)
    wait(lambda: len(session.engine.running) == 2)  # at once, not when eight answers have ended
    session.change(trim=1, temperature=0.5)
    wait(lambda: session.engine.policy.spec == "overlap:3 (trim=1)")
    session.stop()
    events = [e for e in read_trace(tmp_path / "log-001").events if e["event"] == "knobs"]
    assert [set(e) - {"at_s", "event"} for e in events] == [
        {"step", "concurrency", "policy"},
        {"step", "concurrency"},
        {"step", "trim", "temperature"},
    ]
    assert [c.step for c in session.changes] == [e["step"] for e in events]


@pytest.mark.parametrize("name", [n for n in KNOBS if n != "seed"])
def test_every_knob_at_its_ends(session, name):
    session.start()
    for value in (KNOBS[name].low, KNOBS[name].high):
        session.change(**{name: value})
        wait(lambda value=value: getattr(session.settings, name) == value)
        before = session.engine.stats.committed
        wait(lambda before=before: session.engine.stats.committed > before)
    assert not session.faults


@pytest.mark.parametrize("pattern", ["poisson", "bursts", "steps"])
def test_every_pattern_decodes(session, pattern):
    session.change(pattern=pattern, rate=20.0, period=1.0, concurrency=4, max_new_tokens=8)
    session.start()
    wait(lambda: session.engine.stats.finished.total() > 10)


def test_a_queue_that_overflows_turns_arrivals_away(session):
    session.change(pattern="bursts", concurrency=32, period=1.0, max_new_tokens=256)
    session.start()
    wait(lambda: session.load.submitted >= 32)
    session.pause()
    session.load._pattern._at = -1000  # bursts are due at once
    for _ in range(5):
        session.load._pattern._at = -1000
        session._inbox.put(None)
        time.sleep(0.05)
    wait(lambda: session.load.turned_away > 0)
    assert session.load.under_way <= 32 + 64


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"policy": "nonsense"}, "policy 'nonsense' is unknown"),
        ({"policy": "linear:99"}, "block is 99"),
        ({"concurrency": 33}, "concurrency is 33; allowed: 1..32"),
        ({"category": "poems"}, "no prompt of category 'poems'"),
        ({"policy": "ar", "rate": -1.0}, "rate is -1.0"),
    ],
)
def test_what_is_refused_is_said_and_changes_nothing(session, values, words):
    session.start()
    before = session.settings
    session.change(**values)
    wait(lambda: session.faults)
    assert words in session.faults[-1].message
    assert session.settings == before
    assert session.engine.policy.spec == "linear:4"
    committed = session.engine.stats.committed
    wait(lambda: session.engine.stats.committed > committed)


def test_the_same_seed_gives_the_same_texts(tmp_path):
    def texts(folder):
        session = make_session(folder, concurrency=3, max_new_tokens=16, temperature=0.8, seed=7)
        found = {}
        with session:
            session.watcher.on_finish = lambda r: found.setdefault(r.params.seed, r.output)
            wait(lambda: len(found) >= 6)
        return [found[seed] for seed in range(7, 12) if seed in found and len(found[seed])]

    assert texts(tmp_path / "a")[:4] == texts(tmp_path / "b")[:4]


def test_an_engine_that_fails_is_shown_and_can_be_started_again(session, monkeypatch):
    session.start()
    wait(lambda: session.engine.stats.steps > 5)

    def broken(self, *_):
        raise RuntimeError("the device fell off")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_lay_out", broken)
        wait(lambda: session.state == "failed")
        wait(lambda: session.faults)
    assert "the device fell off" in session.faults[-1].message
    session.start()
    assert session.state == "running"
    wait(lambda: session.engine.stats.committed > 20)


def test_prompts_of_ones_own(session):
    session.start()
    session.use_prompts([Prompt("mine", "own", text="abc")])
    wait(lambda: session.supply.categories == ["all", "own"])
    session.use_prompts([Prompt("long", text="x" * 5000)])
    wait(lambda: session.faults)
    assert "no prompt is shorter than" in session.faults[-1].message
    assert session.supply.categories == ["all", "own"]


def test_quiet_leaves_the_engine_alone(session):
    session.start()
    wait(lambda: session.watcher.steps.count > 10)
    session.quiet(True)
    time.sleep(0.05)
    count, steps = session.watcher.steps.count, session.engine.stats.steps
    wait(lambda: session.engine.stats.steps > steps + 20)
    assert session.watcher.steps.count == count
    session.quiet(False)
    wait(lambda: session.watcher.steps.count > count)


def test_watching_may_come_and_go_at_any_moment(session):
    """The engine's observer is set from other threads in mid-step; no step may fail for it."""
    session.change(policy="explore:8", concurrency=6)
    session.start()
    for i in range(300):
        session.quiet(i % 2 == 0)
        time.sleep(0.002)
    assert session.state == "running", session.runner.error


def test_the_log_goes_on_in_parts_and_misses_no_token(session, tmp_path):
    session.start()
    for _ in range(3):
        wait(lambda: session.watcher.steps.count > 30)
        session.recording.cut()
    session.pause()
    assert stands_still(session)
    engine = session.engine
    session.stop()
    traces = [read_trace(part) for part in sorted(tmp_path.glob("log-*"))]
    assert len(traces) == 4
    assert all(trace.cut == () for trace in traces)
    logged = [row for trace in traces for row in trace.tables["steps"]["step"].to_pylist()]
    assert logged == sorted(set(logged))
    assert logged == list(range(engine.stats.steps))


def test_nothing_is_left_after_stop(tmp_path):
    session = make_session(tmp_path)
    session.start()
    wait(lambda: session.watcher.steps.count > 50)
    engine, cache = weakref.ref(session.engine), weakref.ref(session.engine._cache)
    session.stop()
    gc.collect()
    assert engine() is cache() is None


def test_a_session_that_nobody_holds_is_gone(tmp_path):
    def used():
        session = make_session(tmp_path)
        with session:
            wait(lambda: session.watcher.steps.count > 5)
        return weakref.ref(session)

    gone = used()
    gc.collect()
    assert gone() is None


def test_one_session_a_kernel_and_the_newest_takes_over(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_current", None)
    loaded = []

    def make(model):
        loaded.append(model)
        return LabSession(model or MODEL, folder=tmp_path / str(len(loaded)))

    first = open_session(make)
    first.start()
    second = open_session(make)
    second.start()
    assert (first.state, second.state) == ("stopped", "running")
    assert loaded == [None, MODEL]  # the model is not loaded again
    assert f"session {first.id} was stopped" in second.faults[0].message
    second.stop()
    monkeypatch.setattr(registry, "_current", None)


def test_jobs_run_one_at_a_time_and_end_with_the_session(session):
    session.start()
    entered = threading.Event()

    def work(progress):
        while True:
            progress("working", 0.5)
            entered.set()
            time.sleep(0.01)

    session.jobs.start("first", work)
    entered.wait(5)
    with pytest.raises(RecGuideError, match="second: wait until 'first' is done"):
        session.jobs.start("second", work)
    session.stop()
    assert session.jobs.current.result == "cancelled"


def test_a_session_folder_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    session = make_session(blocked / "below")
    with pytest.raises((RecGuideError, OSError)):
        session.start()
    assert own_threads() == []
    assert session.state == "stopped"


def test_events_name_the_step(session, tmp_path):
    session.start()
    session.change(concurrency=3)
    wait(lambda: session.engine.concurrency == 3)
    lines = (tmp_path / "log-001" / "events.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["concurrency"] == 3
