"""The row of buttons that start, pause, step and stop a session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
from recguide.lab.controls import button
from recguide.lab.guard import guarded
from recguide.lab.session import LabSession


class Transport:
    """``widget`` is the row; ``show`` is called by the owner only."""

    def __init__(self, session: LabSession, measure: Callable[[], None]):
        self._session = session
        self._showing: int | None = None
        self.pause = widgets.ToggleButton(
            value=session.state == "paused",
            description="Pause",
            icon="pause",
            tooltip="Make no further step; press again to go on",
            layout=widgets.Layout(width="auto"),
        )
        self._set = guarded(session, lambda on: (session.pause if on else session.resume)())
        self.pause.observe(self._toggled, "value")
        self.start = button(session, "Start", "Begin, or begin anew after Stop or a failure", session.start, "play")
        walk = "Pause and make one step: walk a round below"
        self.step = button(session, "Step once", walk, session.step_once, "step-forward")
        end = "End all requests and threads; what was recorded is kept"
        self.stop = button(session, "Stop", end, session.stop, "stop")
        quiet = "Stop drawing for a while and report means with 95% intervals"
        self.measure = button(session, "Measure quietly", quiet, measure, "bullseye")
        self.widget = widgets.HBox([self.start, self.pause, self.step, self.stop, self.measure])

    def _toggled(self, change: dict[str, Any]) -> None:
        if self._showing != threading.get_ident():  # a person did it, and not ``show``
            self._set(change["new"])

    def show(self) -> None:
        """Press the pause button in or out, as the session is."""
        if (paused := self._session.state == "paused") != self.pause.value:
            self._showing = threading.get_ident()
            self.pause.value = paused
            self._showing = None
