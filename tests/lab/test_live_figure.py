"""What the browser is sent, and when; that it arrives is seen in test_browser.py."""

import numpy as np
import plotly.graph_objects as go
import pytest
from recguide.lab.live_figure import SCRIPT, LiveFigure


@pytest.fixture
def live():
    return LiveFigure(go.Figure(go.Scatter(x=np.arange(3.0), y=np.zeros(3))))


def asked(figure, monkeypatch):
    """The messages that a view gets which has just loaded."""
    sent = []
    monkeypatch.setattr(figure, "send_state", lambda key=None: sent.append(figure.get_state(key)))
    figure._handle_msg({"content": {"data": {"method": "custom", "content": "fresh"}}, "buffers": []})
    return sent


def test_a_view_gets_the_figure_as_it_is_in_one_message(live, monkeypatch):
    live.plotly_update(restyle_data={"y": [np.array([1.0, 2.0, 3.0])]}, trace_indexes=[0])
    live.layout.font.color = "#123456"
    (state,) = asked(live, monkeypatch)
    y = state["_widget_data"][0]["y"]
    assert np.frombuffer(y["buffer"], y["dtype"]).tolist() == [1.0, 2.0, 3.0]
    assert state["_widget_layout"]["font"]["color"] == "#123456"
    assert state["_fresh"] == 1


def test_every_view_is_answered_though_nothing_changed(live, monkeypatch):
    asked(live, monkeypatch)
    (state,) = asked(live, monkeypatch)
    assert state["_fresh"] == 2


def test_plotlys_script_is_not_the_module_that_must_load_in_time(live):
    assert live._esm == SCRIPT and len(SCRIPT) < 2000
    assert live._script == str(go.FigureWidget._esm) and "newPlot" in live._script
