"""The dashboard without a browser: controls queue commands, nobody but the owner draws, and no fault is silent."""

import asyncio
import re
import threading
import time

import ipywidgets as widgets
import numpy as np
import pytest
from recguide.lab import dashboard as dashboard_module
from recguide.lab import figure, series
from recguide.lab.controls import button, slider
from recguide.lab.dashboard import Dashboard
from recguide.lab.open import open_lab
from recguide.lab.session import Change
from recguide.lab.settings import KNOBS, PRESETS, LabSettings
from recguide.lab.state import NAME, load_state

from recguide.errors import RecGuideError
from recguide.policies import POLICIES
from tests.lab.helpers import MODEL, own_threads, wait


@pytest.fixture
def board(session):
    return Dashboard(session)


def answer(board, **said):
    """What the browser sends when it has painted."""
    content = {"tick": board.pulse.tick, "theme": "light", "seen": True, "busy": 0.01} | said
    board.pulse._hear(board.pulse, content, [])


def walk(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from walk(child)


def test_controls_are_made_from_what_policies_declare(board, session):
    for name, cls in POLICIES.items():
        made = board.controls.knobs[name]
        assert list(made) == [k.name for k in cls.knobs]
        for knob in cls.knobs:
            assert knob.help in made[knob.name].tooltip
            assert not getattr(made[knob.name], "continuous_update", False)
            if isinstance(knob.default, int | float):
                assert (made[knob.name].min, made[knob.name].max) == (knob.low, knob.high)
            if name != "linear":  # which is shown as the session has it
                assert knob.check(made[knob.name].value, name) == knob.check(knob.default, name)
    assert list(board.controls.policy.options) == list(POLICIES)


@pytest.mark.parametrize("name", [n for n in KNOBS if n != "seed"])
def test_a_slider_at_its_ends_reaches_the_engine(board, session, name):
    for value in (KNOBS[name].high, KNOBS[name].low):
        board.controls.sliders[name].value = value
        wait(lambda value=value: getattr(session.settings, name) == value)
    assert not session.faults


def test_a_policy_and_its_knobs_reach_the_engine(board, session):
    for name in POLICIES:
        board.controls.policy.value = name
        wait(lambda name=name: session.settings.policy.split(":")[0] == name)
        board.draw()
        shown = [n for n, box in board.controls._boxes.items() if box.layout.display != "none"]
        assert shown == [name]
    board.controls.policy.value = "overlap"
    board.controls.knobs["overlap"]["delta"].value = 0.25
    board.controls.knobs["overlap"]["block"].value = 3
    wait(lambda: session.engine.policy.spec == "overlap:3:0.25")


def test_what_the_session_does_is_shown_and_not_sent_back(board, session):
    session.change(concurrency=5, policy="overlap:3:0.25", temperature=0.5, category="math")
    wait(lambda: session.settings.concurrency == 5)
    changes = len(session.changes)
    board.draw()
    assert board.controls.sliders["concurrency"].value == 5
    assert board.controls.policy.value == "overlap"
    assert board.controls.knobs["overlap"]["delta"].value == 0.25
    assert board.controls.category.value == "math"
    time.sleep(0.05)
    assert len(session.changes) == changes


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_taken_over_and_recognised(board, session, name):
    board.controls.preset.value = name
    wait(lambda: session.settings.concurrency == LabSettings(**PRESETS[name][1]).concurrency)
    wait(lambda: session.engine.concurrency == session.settings.concurrency)
    board.draw()
    assert board.controls.preset.value == name
    assert not session.faults


def test_a_controller_that_does_not_exist_is_said_and_nothing_changes(board, session):
    board.controls.knobs["recguide"]["file"].value = "nowhere.safetensors"
    wait(lambda: session.faults)
    board.draw()
    assert "nowhere.safetensors" in session.faults[-1].message
    assert board.controls.policy.value == "linear"
    assert session.engine.policy.spec == "linear:4"


def test_knobs_that_are_no_numbers_are_typed(board, session):
    board.controls.policy.value = "tiers"
    wait(lambda: session.settings.policy.startswith("tiers"))
    board.controls.knobs["tiers"][POLICIES["tiers"].knobs[0].name].value = "4@2/1"
    wait(lambda: session.engine.policy.spec == "tiers:4@2/1")
    board.controls.knobs["tiers"][POLICIES["tiers"].knobs[0].name].value = "nonsense"
    wait(lambda: session.faults)
    assert "expected" in session.faults[-1].message


def test_a_refused_value_is_said_and_the_control_goes_back(board, session):
    session.change(policy="linear:99")
    wait(lambda: session.faults)
    board.draw()
    assert "block is 99" in board.faults._text.value
    assert board.faults.widget.layout.display == "flex"
    assert board.controls.knobs["linear"]["block"].value == 4
    board.faults._close.click()
    board.draw()
    assert board.faults.widget.layout.display == "none"


def test_no_handler_fails_in_silence(board, session):
    def broken():
        raise ZeroDivisionError("by <nothing>")

    button(session, "Break", "breaks", broken).click()
    board.draw()
    shown = board.faults._text.value
    assert "ZeroDivisionError: by &lt;nothing&gt;" in shown
    assert "<details><summary>Details</summary>" in shown
    assert "in broken" in shown


def test_buttons_answer_while_a_cell_runs(session):
    """A handler that publishes on its own widget keeps its messages on the thread for comms."""
    sent = []
    made = button(session, "Go", "goes", lambda: None)
    made.observe(lambda change: sent.append(change["new"]), "tooltip")
    made.click()
    made.click()
    assert len(sent) == 2


def test_handlers_only_queue_commands(board, session, monkeypatch):
    """The engine is turned by the driver, whichever thread a message arrives on."""
    callers = []
    plain = type(session.engine).set_policy
    monkeypatch.setattr(
        type(session.engine),
        "set_policy",
        lambda self, p: (callers.append(threading.current_thread().name), plain(self, p)),
    )
    worker = threading.Thread(target=lambda: setattr(board.controls.policy, "value", "ar"), name="subshell-1")
    worker.start()
    worker.join()
    wait(lambda: callers)
    assert set(callers) == {"recguide-driver"}


def test_a_drawing_fills_every_panel(board, session):
    session.change(policy="overlap:5")
    wait(lambda: session.watcher.steps.count > 300 and session.watcher.policies[-1] == "overlap:5")
    board.painter._trail_at = 0.0
    session.changes.clear()
    board.draw()
    for key in ("aggregate", "each", "measured", "achieved", "trunk", "correction", "continuation", "trail", "mix"):
        values = figure.points(board.figure, key)
        assert np.isfinite(values).any(), key
        assert values.dtype == np.float32
        assert len(values) <= 600
    assert figure.points(board.figure, "mix").sum() == pytest.approx(100)
    assert "rg-token" in board.rounds.value
    assert "AUC" in board.predictors.value or "drafts reached" in board.predictors.value
    assert re.search(r"<b>running</b> · session \w{6} · policy overlap:5 · \d of 2 running", board.state.value)


def test_labels_on_the_curve_do_not_lie_over_each_other(board, session):
    session.changes.clear()
    now = time.perf_counter()
    texts = {60: "policy linear:4", 50: "policy overlap:5", 20: "policy ar", 19: "concurrency 2", 1: "policy ar-row:3"}
    session.changes.extend(Change(now - ago, 0, text) for ago, text in texts.items())
    shown = board.painter._changes(now, np.ones(series.POINTS, np.float32))
    assert list(shown["text"]) == ["", "policy overlap:5", "", "", "policy ar-row:3"]
    assert list(shown["hovertext"]) == list(texts.values())


def test_names_on_the_pareto_plane_do_not_lie_over_each_other(board):
    board.painter._trail.clear()
    board.painter._trail.extend([(8.0, 10.0, 0, "ar"), (1.0, 50.0, 1, "overlap"), (1.2, 51.0, 2, "linear")])
    shown = board.painter._newest()
    assert list(shown["text"]) == ["ar", "", "linear"]
    assert list(shown["hovertext"]) == ["ar", "overlap", "linear"]


def test_predicted_times_come_from_the_cost_table(board, session, monkeypatch):
    class Table:
        def predict(self, requests, causal, drafting, context):
            assert requests >= 1
            assert causal + drafting > 0
            return 12.5

    session.step_time = Table()
    count = session.watcher.steps.count
    wait(lambda: session.watcher.steps.count > count + 10)
    board.draw()
    assert figure.points(board.figure, "predicted")[-1] == 12.5


def test_an_update_names_every_property_for_every_trace(board, session, monkeypatch):
    """The browser forgets, of the other traces, what a message sets for one and leaves open for another."""
    messages = []
    plain = type(board.figure).plotly_update

    def spy(self, restyle_data=None, relayout_data=None, trace_indexes=None):
        messages.append((restyle_data, trace_indexes))
        return plain(self, restyle_data, relayout_data, trace_indexes)

    monkeypatch.setattr(type(board.figure), "plotly_update", spy)
    wait(lambda: session.watcher.steps.count > 100)
    board.draw()
    assert 1 <= len(messages) <= 2
    for data, places in messages:
        for values in data.values():
            assert len(values) == len(places)
            assert all(isinstance(v, np.ndarray) for v in values)


def test_nothing_is_sent_while_nothing_happens(board, session):
    session.pause()
    time.sleep(0.1)
    board.draw()
    board.draw()
    sent = []
    for widget in (board.state, board.rounds, board.predictors, board.fallbacks, board.pulse):
        widget.observe(sent.append)
    board.figure.observe(sent.append)
    for _ in range(3):
        board.draw()
    assert [c["name"] for c in sent] == []


def test_the_theme_of_the_page_is_taken_over(board, session):
    answer(board, theme="dark")
    board.draw()
    assert board.figure.layout.font.color == figure.INK["dark"]
    answer(board, theme="light")
    board.draw()
    assert board.figure.layout.font.color == figure.INK["light"]


def test_the_pace_follows_the_browser(board):
    """Slower when drawing is slow; not at all while hidden or unanswered; never faster than four times a second."""
    answer(board)
    for _ in range(40):
        board.draw()
        answer(board, busy=0.4)
    assert board._interval == dashboard_module.SLOWEST
    for _ in range(40):
        board.draw()
        answer(board, busy=0.001)
    assert board._interval >= dashboard_module.FASTEST
    board._drawn_at -= 2
    assert board._due()
    answer(board, seen=False)
    assert not board._due()
    answer(board, seen=True)
    board.draw()
    board._drawn_at -= 2
    assert not board._due()  # no answer yet


def test_the_figure_is_never_rebuilt(board, session, monkeypatch):
    before, data = board.figure, board.figure.data
    monkeypatch.setattr(figure, "build", lambda: pytest.fail("built again"))
    for name in ("ar", "overlap", "linear"):
        board.controls.policy.value = name
        wait(lambda name=name: session.settings.policy.split(":")[0] == name)
        board.draw()
    assert board.figure is before
    assert all(a is b for a, b in zip(data, board.figure.data, strict=True))


def test_every_control_has_a_name_a_tip_and_works_by_keyboard(board):
    for widget in walk(board.widget):
        if isinstance(widget, widgets.Button | widgets.ToggleButton):
            assert widget.description
            assert widget.tooltip
        if isinstance(widget, widgets.IntSlider | widgets.FloatSlider | widgets.Dropdown):
            assert widget.description
            assert widget.tooltip


def test_units_are_in_labels():
    for knob in KNOBS.values():
        made = slider(knob, knob.default)
        assert not knob.unit or made.description.endswith(knob.unit)


def test_the_state_file_follows_and_comes_back(board, session, tmp_path):
    session.change(concurrency=7, seed=3)
    wait(lambda: session.settings.seed == 3)
    board.draw()
    assert load_state(tmp_path / NAME).settings == session.settings


def test_panels_are_float32_of_few_points():
    assert series.POINTS <= 600
    assert series.AGO.dtype == series.STEP_AXIS.dtype == np.float32


# -- the owner task --------------------------------------------------------------------------------------------


def opened(folder, **settings):
    given = LabSettings(**{"concurrency": 2, "policy": "linear:4"} | settings) if settings else None
    return open_lab(given, model=MODEL, folder=folder)


async def eventually(holds, seconds=20.0):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not happen"
        await asyncio.sleep(0.02)


def test_the_owner_draws_on_its_loop_and_restores_the_state(tmp_path):
    async def person():
        lab = opened(tmp_path, concurrency=2)
        board = lab.dashboard
        answer(board)
        drawn = board.drawings
        await eventually(lambda: answer(board) or board.drawings > drawn + 2)
        board.controls.sliders["concurrency"].value = 6
        await eventually(lambda: answer(board) or lab.session.engine.concurrency == 6)
        await eventually(lambda: answer(board) or ((tmp_path / NAME).exists() and "6 running" in board.state.value))
        # the cell is run again: the new session takes over, with the state of the old one
        again = opened(tmp_path)
        assert lab.session.state == "stopped"
        assert again.session.settings.concurrency == 6
        assert board._task is None
        assert len(own_threads()) <= 4
        again.stop()
        await asyncio.sleep(0)
        assert "stopped" in again.dashboard.state.value

    asyncio.run(person())
    assert own_threads() == []


def test_a_damaged_state_file_is_said_and_not_used(tmp_path):
    (tmp_path / NAME).write_text("{")

    async def person():
        lab = opened(tmp_path)
        assert "not a lab state" in lab.session.faults[0].message or "not a lab state" in lab.session.faults[-1].message
        assert lab.session.settings == LabSettings()
        lab.stop()

    asyncio.run(person())


def test_an_error_in_drawing_is_shown_and_drawing_goes_on(tmp_path, monkeypatch):
    async def person():
        lab = opened(tmp_path, concurrency=1)
        board = lab.dashboard
        plain, failed = board.painter.draw, []

        def once(pins):
            if not failed:
                failed.append(True)
                raise ValueError("a crooked curve")
            plain(pins)

        monkeypatch.setattr(board.painter, "draw", once)
        await eventually(lambda: answer(board) or failed)
        drawn = board.drawings
        await eventually(lambda: answer(board) or board.drawings > drawn)
        assert any("a crooked curve" in f.message for f in lab.session.faults)
        lab.stop()

    asyncio.run(person())


def test_zooms_of_the_browser_are_handled_on_the_owners_loop(tmp_path):
    """A figure is not safe for threads, and messages may arrive on any."""

    async def person():
        lab = opened(tmp_path, concurrency=1)
        threads = []
        plain = figure.go.FigureWidget._handle_msg
        figure.go.FigureWidget._handle_msg = lambda self, msg: threads.append(threading.current_thread())
        try:
            worker = threading.Thread(target=lab.dashboard.figure._handle_msg, args=({},))
            worker.start()
            worker.join()
            await eventually(lambda: threads)
        finally:
            figure.go.FigureWidget._handle_msg = plain
            lab.stop()
        assert threads == [threading.main_thread()]

    asyncio.run(person())


def test_a_page_that_is_gone_takes_its_session_with_it(tmp_path, monkeypatch):
    """A page of its own (Voila) has a kernel of its own, which nobody else would stop."""
    monkeypatch.setattr(dashboard_module, "SILENT", 0.1)

    async def person():
        lab = open_lab(LabSettings(concurrency=1), model=MODEL, folder=tmp_path, leave_after=1.0)
        for _ in range(20):
            answer(lab.dashboard)
            await asyncio.sleep(0.1)
        assert lab.session.state == "running"
        lab.session.pause()  # nothing is drawn; the page still answers
        for _ in range(15):
            answer(lab.dashboard)
            await asyncio.sleep(0.1)
        assert lab.session.state == "paused"
        await eventually(lambda: lab.session.state == "stopped")

    asyncio.run(person())
    assert own_threads() == []


def test_opening_with_wrong_settings_is_refused():
    with pytest.raises(RecGuideError, match="concurrency is 99"):
        LabSettings(concurrency=99)
