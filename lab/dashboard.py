"""The dashboard: controls, panels and buttons around one session, and the one task that draws them.

The owner task runs on the kernel's loop. It alone writes the figure and every text; newest wins, at most four times a
second, less when the browser paints slowly, and not at all while the page is hidden or nobody answers.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import time
from collections.abc import Sequence
from pathlib import Path

import ipywidgets as widgets
from recguide.lab import figure, tokens, words
from recguide.lab.actions import Actions
from recguide.lab.controls import Controls
from recguide.lab.export import export_figure
from recguide.lab.guard import FaultBox, report
from recguide.lab.measure import Measurement
from recguide.lab.painter import Painter
from recguide.lab.pulse import Pulse
from recguide.lab.session import LabSession
from recguide.lab.state import NAME, save_state

from recguide.errors import RecGuideError

LOOK = 0.1  # seconds between two looks at orders and at the pace
FASTEST, SLOWEST = 0.25, 1.5  # seconds between drawings
SHARE = 0.1  # of one core that drawing may take before it slows down
SILENT = 5.0  # seconds after which a browser that does not answer is asked again
ROUNDS = 12


class Dashboard:
    """``widget`` is what to display; ``run`` draws until ``close``. ``draw`` may be called by hand in a test.

    With ``leave_after`` the session ends when no page has answered for so many seconds: it is the page's own.
    """

    def __init__(self, session: LabSession, pins: Sequence[Measurement] = (), *, leave_after: float | None = None):
        self.session, self._leave_after = session, leave_after
        self.pulse = Pulse()
        self.figure = figure.build()
        self.painter = Painter(session, self.figure)
        self.faults = FaultBox(session)
        self.controls = Controls(session)
        self.actions = Actions(session, lambda what, path: self._orders.put((what, path)))
        self.actions.pins[:] = pins
        self.state, self.fallbacks = widgets.HTML(), widgets.HTML()
        self.predictors, self.rounds = widgets.HTML(), widgets.HTML()
        self._orders: queue.SimpleQueue[tuple[str, Path]] = queue.SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._theme = "light"
        self._hushed = False
        self._drawn: object = None
        self._drawn_at = 0.0
        self._draw_seconds = 0.0
        self._interval = 1.0
        self._saved: object = self._to_save()
        self.drawings = 0
        self.widget = self._arranged()
        self.draw()

    def _arranged(self) -> widgets.VBox:
        heading = widgets.HTML(
            "<b>Inside a round</b>: one request's text, a line a step; hover or focus a token to see what was known. "
            "The number below a draft is its predicted survival." + tokens.legend()
        )
        parts = [self.state, self.fallbacks, self.faults.widget, self.actions.transport.widget, self.controls.widget]
        parts += [self.actions.widget, self.figure, self.predictors, heading, self.rounds, self.pulse]
        box = widgets.VBox(parts)
        box.add_class("recguide-lab")
        return box

    # -- the owner ---------------------------------------------------------------------------------------------

    def run(self, context: contextvars.Context | None = None) -> None:
        """Start the owner task on the running loop; does nothing when it runs."""
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self.figure.adopt(loop)
            self._task = loop.create_task(self._own(), context=context)  # kept: a task that nobody holds may vanish

    def close(self) -> None:
        """Stop drawing; what is on the page stays as it is."""
        if self._task is not None and not self._task.done():
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        self._task = None
        self.figure.adopt(None)

    async def _own(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            try:
                if self._deserted():
                    self.session.stop()
                    return
                self._obey()
                self._draw_answers()
                if self._due():
                    self.draw()
                    self._ask()
            except Exception as error:  # the owner must go on, and a person must see it
                report(self.session, error)

    def _deserted(self) -> bool:
        return self._leave_after is not None and self.pulse.silent_for > self._leave_after

    def _ask(self) -> None:
        """A page that is only left when it is silent is asked also while there is nothing to draw."""
        if self._leave_after is not None and self.pulse.waited > SILENT:
            self.pulse.beat()

    def _due(self) -> bool:
        since = time.perf_counter() - self._drawn_at
        if self.pulse.waiting and self.pulse.waited < SILENT:
            return False
        return since >= self._interval if self.pulse.seen and not self.pulse.waiting else since >= SILENT

    def _obey(self) -> None:
        """Orders that need the figure."""
        while True:
            try:
                _what, path = self._orders.get_nowait()
            except queue.Empty:
                return
            try:
                text = export_figure(self.figure, self.session, path)
                self.session.jobs.start("export figure", lambda _, text=text: text)
            except RecGuideError as error:
                self.session.fault(error)

    def draw(self) -> None:
        """Bring everything on the page up to date; sends nothing where nothing changed."""
        started = time.perf_counter()
        quiet = self._quiet()
        if not quiet:
            self._draw_panels()
        self._draw_words(quiet)
        self._autosave()
        now = time.perf_counter()
        self._draw_seconds += 0.3 * (now - started - self._draw_seconds)
        self._drawn_at = now
        self._interval = min(max(self._cost / SHARE, FASTEST), SLOWEST)
        self.drawings += 1

    @property
    def _cost(self) -> float:
        """Seconds of a core that one drawing takes, in the kernel and in the browser."""
        return self._draw_seconds + self.pulse.painted_in

    def hush(self, wanted: bool) -> None:
        """Draw no panels until told otherwise, as while measuring."""
        self._hushed = wanted

    def _quiet(self) -> bool:
        job = self.session.jobs.current
        return self._hushed or (job is not None and not job.done and job.name in ("measure", "baselines"))

    def _draw_panels(self) -> None:
        session = self.session
        if self.pulse.theme != self._theme:
            self._theme = self.pulse.theme
            figure.paint(self.figure, self._theme)
            self._drawn = None
        pins = self.actions.pins
        now = (session.watcher.steps.count, len(pins), session.state, id(session.step_time))
        if now == self._drawn and session.state != "running":
            return
        self._drawn = now
        self.painter.draw(pins)
        rounds = list(session.watcher.rounds)[-ROUNDS:]
        self.rounds.value = tokens.rounds_html(rounds, session.model.tokenizer)
        self.pulse.beat()

    def _draw_answers(self) -> None:
        """What a person waits for after a press: cheap, and nothing is sent where nothing changed."""
        self.actions.draw()
        self.controls.show()
        self.faults.draw()

    def _draw_words(self, quiet: bool) -> None:
        session = self.session
        status = session.policy.inner.status()
        share = self._cost / self._interval
        self._draw_answers()
        self.fallbacks.value = words.fallbacks(session, status)
        if not quiet:
            self.predictors.value = words.predictors_line(session.watcher, status)
        self.state.value = words.state_line(session, 1 / self._interval, share, quiet)

    # -- the state file ----------------------------------------------------------------------------------------

    def _to_save(self) -> object:
        return self.session.settings, tuple(self.actions.pins)

    def _autosave(self) -> None:
        """Keep the state file up to date, so that a kernel may die at any moment."""
        now = self._to_save()
        if now != self._saved:
            self._saved = now
            save_state(self.session.folder / NAME, *now)
