"""What the buttons do: measuring, pinning, training, exporting, saving; and every way in which each may fail."""

import csv
import json
import os
import time

import pytest
from recguide.lab import tasks
from recguide.lab.actions import Actions
from recguide.lab.export import export_csv, export_figure
from recguide.lab.figure import build
from recguide.lab.measure import Mean, Measurement, measure
from recguide.lab.pins import pins_table
from recguide.lab.state import load_state, save_state

from recguide.errors import RecGuideError
from recguide.trace.reader import read_trace
from tests.controllers import handmade_for
from tests.helpers import small_model
from tests.lab.helpers import MODEL, make_session, wait

READ_ONLY = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


def said(*_):
    """A progress callback that does not care."""


@pytest.fixture
def actions(session):
    return Actions(session, lambda what, path: None)


def finish(session, seconds=30.0):
    """Wait for the newest job; returns it."""
    wait(lambda: not session.jobs.busy, seconds)
    return session.jobs.current


def pinned(name="one", aggregate=10.0):
    mean = Mean(aggregate, 0.5)
    return Measurement(name, "ar", 4, "all", 5.0, mean, Mean(aggregate / 4, 0.1), 20.0, 4.0)


# -- measuring -------------------------------------------------------------------------------------------------


def test_a_quiet_measurement_is_a_mean_with_an_interval(session):
    seen = session.watcher.steps.count
    before, began = session.engine.stats.committed, time.perf_counter()
    found = measure(session, 1.0, said)
    rate = (session.engine.stats.committed - before) / (time.perf_counter() - began)
    assert found.aggregate.value == pytest.approx(rate, rel=0.2)
    assert found.per_request.value == pytest.approx(found.aggregate.value / 2, rel=0.1)
    assert 0 < found.aggregate.half < found.aggregate.value
    assert found.step_ms > 0
    assert found.rows_per_step >= 2
    wait(lambda: session.watcher.steps.count > seen)  # it is watched again


def test_nothing_to_measure_is_said(session):
    session.pause()
    with pytest.raises(RecGuideError, match="the session is paused; start it"):
        measure(session, 0.2, said)
    session.resume()
    session.change(pattern="bursts", period=60.0, max_new_tokens=8)
    wait(lambda: session.settings.pattern == "bursts")
    wait(lambda: session.engine.idle)
    with pytest.raises(RecGuideError, match="no step was made"):
        measure(session, 0.2, said)


def test_a_knob_turned_meanwhile_spoils_a_measurement(session):
    def turn(text, share):
        session.change(concurrency=3)

    with pytest.raises(RecGuideError, match="a knob was turned while measuring"):
        measure(session, 0.5, turn)


def test_the_button_measures_and_pins(session, actions, monkeypatch):
    monkeypatch.setattr("recguide.lab.actions.QUIET_SECONDS", 0.5)
    actions.pin.click()
    assert "measure" in session.faults[-1].message.lower()
    actions.transport.measure.click()
    assert finish(session).error is None
    actions.pin.click()
    actions.pin.click()
    assert len(actions.pins) == 1
    actions.draw()
    assert "linear:4 at 2" in actions.table.value
    assert "tokens/s" in actions.message.value
    actions.unpin.click()
    assert actions.pins == []


def test_baselines_are_measured_and_the_policy_comes_back(session, monkeypatch):
    monkeypatch.setattr(tasks, "SETTLE", 0.05)
    kept = []
    tasks.measure_baselines(session, 0.3, kept.append, said)
    assert [pin.policy for pin in kept] == list(tasks.BASELINES)
    wait(lambda: session.settings.policy == "linear:4")


def test_step_costs_are_measured_while_decoding_stands_still(session, monkeypatch):
    monkeypatch.setattr(tasks, "QUICK", tasks.Axes((1, 2), (1, 2), (16,)))
    states = []
    tasks.measure_costs(session, lambda *_: states.append(session.state))
    assert set(states) == {"paused"}
    assert session.state == "running"
    assert session.step_time.predict(2, 4, 0, 16) > 0


def test_pins_are_compared_with_the_first():
    table = pins_table([pinned("<first>", 10.0), pinned("second", 15.0)])
    assert "&lt;first&gt;" in table
    assert "1.50x" in table
    assert "No pinned runs" in pins_table([])


# -- controller ------------------------------------------------------------------------------------------------


def test_training_with_too_little_is_said_and_decoding_goes_on(session, actions):
    actions.train.click()
    job = finish(session, 60)
    assert isinstance(job.error, RecGuideError)
    actions.draw()
    assert session.faults[-1].message == str(job.error)
    assert session.state == "running"


def test_training_without_a_log_is_said(tmp_path):
    session = make_session(tmp_path)
    session.record = False
    with session:
        with pytest.raises(RecGuideError, match="nothing was recorded yet"):
            tasks.train(session, said)
        assert session.state == "running"
    with pytest.raises(RecGuideError, match="the session is stopped"):
        tasks.train(session, said)


def test_export_and_load(session, tmp_path):
    with pytest.raises(RecGuideError, match="there is no controller to export"):
        tasks.export_controller(session, tmp_path / "out.safetensors")
    handmade_for(MODEL).save(tmp_path / tasks.CONTROLLER)
    with pytest.raises(RecGuideError, match="give another place"):
        tasks.export_controller(session, tmp_path / tasks.CONTROLLER)
    out = tmp_path / "deep" / "out.safetensors"
    assert str(out) in tasks.export_controller(session, out)
    assert "planning with" in tasks.load_controller(session, out)
    wait(lambda: session.settings.policy == f"recguide:{out}")
    before = session.engine.stats.committed
    wait(lambda: session.engine.stats.committed > before + 20)


@READ_ONLY
def test_export_to_a_folder_that_may_not_be_written(session, tmp_path):
    handmade_for(MODEL).save(tmp_path / tasks.CONTROLLER)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    with pytest.raises(RecGuideError, match="cannot write"):
        tasks.export_controller(session, locked / "out.safetensors")


def test_export_below_a_file(session, tmp_path):
    handmade_for(MODEL).save(tmp_path / tasks.CONTROLLER)
    (tmp_path / "file").write_text("")
    with pytest.raises(RecGuideError, match="cannot write"):
        tasks.export_controller(session, tmp_path / "file" / "out.safetensors")


@pytest.mark.parametrize("kind", ["missing", "foreign", "text", "spoiled"])
def test_a_controller_that_does_not_fit_changes_nothing(session, tmp_path, kind):
    path = tmp_path / "some.safetensors"
    if kind == "foreign":
        handmade_for(small_model()).save(path)
    elif kind == "text":
        path.write_text("not a controller")
    elif kind == "spoiled":
        handmade_for(MODEL).save(path)
        content = bytearray(path.read_bytes())
        content[-5] ^= 0x55
        path.write_bytes(content)
    with pytest.raises(RecGuideError, match=r"some\.safetensors"):
        tasks.load_controller(session, path)
    assert session.settings.policy == session.engine.policy.spec == "linear:4"


# -- files -----------------------------------------------------------------------------------------------------


def test_a_saved_run_can_be_read(session, tmp_path):
    wait(lambda: session.watcher.steps.count > 30)
    target = tmp_path / "runs" / "one"
    assert str(target) in tasks.save_run(session, target)
    [part] = target.iterdir()
    assert len(read_trace(part).tables["steps"]) >= 30
    with pytest.raises(RecGuideError, match="exists already"):
        tasks.save_run(session, target)
    assert session.recording.on


def test_numbers_come_with_their_origin(session, tmp_path):
    wait(lambda: session.watcher.steps.count > 30)
    export_csv(session, tmp_path / "steps.csv")
    rows = list(csv.DictReader((tmp_path / "steps.csv").open()))
    assert len(rows) >= 30
    assert {row["policy"] for row in rows} == {"linear:4"}
    about = json.loads((tmp_path / "steps.json").read_text())
    assert about["settings"]["concurrency"] == 2
    assert about["model_fingerprint"] == MODEL.fingerprint


def test_the_figure_is_a_page_of_its_own(session, tmp_path):
    export_figure(build(), session, tmp_path / "figure.html")
    page = (tmp_path / "figure.html").read_text()
    assert "Pareto plane" in page
    assert session.id in page
    with pytest.raises(RecGuideError, match="cannot write"):
        export_figure(build(), session, tmp_path / "figure.html" / "below")


def test_state_survives(session, tmp_path):
    pins = [pinned("a"), pinned("b", 20.0)]
    save_state(tmp_path / "s.json", session.settings, pins)
    found = load_state(tmp_path / "s.json")
    assert found.settings == session.settings
    assert list(found.pins) == pins


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not a lab state"),
        ("[]", "not a lab state"),
        ('{"schema": 9, "settings": {}, "pins": []}', "schema 9, this version reads 1"),
        ('{"schema": 1, "settings": {"colour": 1}, "pins": []}', "unknown setting 'colour'"),
        ('{"schema": 1, "settings": {"concurrency": 99}, "pins": []}', "concurrency is 99"),
        ('{"schema": 1, "settings": {}, "pins": [{"name": "x"}]}', "a pinned run is damaged"),
    ],
)
def test_a_wrong_state_file_is_said(session, actions, tmp_path, content, words):
    before = session.settings
    (tmp_path / "wrong.json").write_text(content)
    actions.state.value = "wrong.json"
    actions._load_state()
    assert words in str(finish(session).error)
    assert session.settings == before


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.txt", None, "no such file"),
        ("p.jsonl", '{"prompt": 3}', "must be a string"),
        ("p.xml", "<x/>", "cannot tell the format"),
        ("p.txt", "", "no prompts"),
    ],
)
def test_a_wrong_prompt_file_is_said(session, actions, tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_text(content)
    actions.prompts.value = name
    actions._use_prompts()
    assert words in str(finish(session).error)
    actions.draw()
    assert words in session.faults[-1].message
    before = session.engine.stats.committed
    wait(lambda: session.engine.stats.committed > before)


def test_a_right_prompt_file_is_used(session, actions, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "abc", "category": "mine"}\n')
    actions.prompts.value = "p.jsonl"
    actions._use_prompts()
    assert "1 prompts in use" in finish(session).result
    wait(lambda: session.supply.categories == ["all", "mine"])
