"""The dashboard's tabs: buttons for what takes time, with its progress and result.

Every press starts a job or queues an order; the owner draws what comes of it.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path

import ipywidgets as widgets
from recguide.lab import tasks
from recguide.lab.controls import button
from recguide.lab.export import export_csv
from recguide.lab.guard import guarded, report, time_of_day
from recguide.lab.measure import Measurement, measure
from recguide.lab.pins import pins_table
from recguide.lab.session import LabSession
from recguide.lab.state import NAME, load_state, save_state
from recguide.lab.transport import Transport

from recguide.bench.prompts import load_prompts

QUIET_SECONDS = 10.0
BASELINE_SECONDS = 5.0
TABS = ("Compare", "Controller", "Save, export", "Prompts")


class Actions:
    """``order`` queues something for the owner, who alone may read the figure. ``pins`` are kept runs."""

    def __init__(self, session: LabSession, order: Callable[[str, Path], None]):
        self.session, self._order = session, order
        self.pins: list[Measurement] = []
        self.last: Measurement | None = None
        self._reported: object = None
        self.transport = Transport(session, self._measure)
        self.bar = widgets.FloatProgress(min=0, max=1, layout=widgets.Layout(width="200px"))
        self.message = widgets.HTML()
        self.table = widgets.HTML()
        self.widget = self._tabs()

    # -- tabs --------------------------------------------------------------------------------------------------

    def _tabs(self) -> widgets.VBox:
        tabs = widgets.Tab([self._comparing(), self._controlling(), self._saving(), self._prompting()], titles=TABS)
        job = widgets.HBox([self.bar, self.message])
        return widgets.VBox([job, tabs])

    def _comparing(self) -> widgets.Widget:
        s, seconds = self.session, f"{BASELINE_SECONDS:.0f} s"
        self.pin = button(s, "Pin this run", "Keep the last quiet measurement to compare with", self._pin, "thumb-tack")
        self.unpin = button(s, "Clear pins", "Forget all pinned runs", self.pins.clear, "trash")
        baselines = f"Measure {', '.join(tasks.BASELINES)} for {seconds} each under the present load, and pin them"
        self.baselines = button(s, "Measure baselines", baselines, self._baselines, "flag")
        costs = "Measure what steps cost here (under a minute), for the curve of predicted times"
        self.costs = button(s, "Measure step costs", costs, lambda: self._job("costs", tasks.measure_costs), "clock-o")
        return widgets.VBox([widgets.HBox([self.pin, self.baselines, self.costs, self.unpin]), self.table])

    def _controlling(self) -> widgets.Widget:
        s = self.session
        self.file = _path("file", "exported.safetensors", "Where to export to, and what to load")
        train = "Train a controller on this session's decisions; decoding pauses meanwhile"
        self.train = button(
            s, "Train on this session", train, lambda: self._job("train", tasks.train), "graduation-cap"
        )
        self.export = button(s, "Export controller", "Copy the trained controller to the file", self._export, "upload")
        self.load = button(s, "Load controller", "Plan with the controller in the file", self._load, "download")
        return widgets.VBox([self.file, widgets.HBox([self.train, self.export, self.load])])

    def _saving(self) -> widgets.Widget:
        s = self.session
        self.run = _path("run folder", "runs/first", "A new folder for the decision log")
        self.figure = _path("figure", "figure.html", "A page that zooms and hovers without a kernel")
        self.csv = _path("numbers", "steps.csv", "Every step remembered, a row each")
        self.state = _path("state", NAME, "Settings, seed, policy and pinned runs as one JSON")
        self.record = widgets.ToggleButton(
            value=s.record, description="Record decisions", tooltip="Log every decision, to train on", icon="circle"
        )
        self.record.observe(guarded(s, lambda change: self._record(change["new"])), "value")
        rows = (
            (self.run, self._button("Save run", "Copy the decision log into the folder", self._save_run), self.record),
            (
                self.figure,
                self._button("Export figure", "Write the figure", lambda: self._ordered("figure", self.figure)),
            ),
            (self.csv, self._button("Export CSV", "Write the numbers", self._export_csv)),
            (
                self.state,
                self._button("Save state", "Write the state", self._save_state),
                self._button("Load state", "Take over the state", self._load_state),
            ),
        )
        return widgets.VBox([widgets.HBox(row) for row in rows])

    def _prompting(self) -> widgets.Widget:
        self.prompts = _path("prompt file", "", "Prompts of your own: .txt, .jsonl or .json; empty: ours")
        use = self._button("Use prompts", "Serve these prompts from the next request on", self._use_prompts)
        return widgets.HBox([self.prompts, use])

    def _button(self, text: str, tooltip: str, handler: Callable[[], None]) -> widgets.Button:
        return button(self.session, text, tooltip, handler)

    # -- what they do ------------------------------------------------------------------------------------------

    def _place(self, box: widgets.Text) -> Path:
        """Relative paths are in the session's folder."""
        return self.session.folder / Path(box.value.strip()).expanduser()

    def _job(self, name: str, task: Callable[..., str]) -> None:
        self.session.jobs.start(name, lambda progress: task(self.session, progress))

    def _measure(self) -> None:
        def work(progress: Callable[[str, float], None]) -> str:
            self.last = found = measure(self.session, QUIET_SECONDS, progress)
            return f"{found.name}: all {found.aggregate}, each {found.per_request} tokens/s; 'Pin this run' keeps it"

        self.session.jobs.start("measure", work)

    def _baselines(self) -> None:
        self._job("baselines", lambda s, go: tasks.measure_baselines(s, BASELINE_SECONDS, self.pins.append, go))

    def _pin(self) -> None:
        found = self.last
        if found is None:
            self.session.fault("nothing to pin yet: press 'Measure quietly' first")
        elif found not in self.pins:
            self.pins.append(found)

    def _export(self) -> None:
        path = self._place(self.file)
        self._job("export", lambda s, _: tasks.export_controller(s, path))

    def _load(self) -> None:
        path = self._place(self.file)
        self._job("load", lambda s, _: tasks.load_controller(s, path))

    def _save_run(self) -> None:
        path = self._place(self.run)
        self._job("save run", lambda s, _: tasks.save_run(s, path))

    def _export_figure(self) -> None:
        self._order("figure", self._place(self.figure))

    def _export_csv(self) -> None:
        path = self._place(self.csv)
        self._job("export numbers", lambda s, _: export_csv(s, path))

    def _save_state(self) -> None:
        path = self._place(self.state)

        def work(_progress: object) -> str:
            save_state(path, self.session.settings, self.pins)
            return f"state saved to {path}"

        self.session.jobs.start("save state", work)

    def _load_state(self) -> None:
        path = self._place(self.state)

        def work(_progress: object) -> str:
            found = load_state(path)
            self.pins[:] = found.pins
            self.session.change(**found.settings.to_dict())
            return f"state of {path} taken over"

        self.session.jobs.start("load state", work)

    def _use_prompts(self) -> None:
        path = self._place(self.prompts) if self.prompts.value.strip() else None

        def work(_progress: object) -> str:
            found = load_prompts(path)
            self.session.use_prompts(found)
            return f"{len(found)} prompts in use"

        self.session.jobs.start("prompts", work)

    def _record(self, wanted: bool) -> None:
        self.session.record = wanted
        recording = self.session.recording
        if recording is not None:
            (recording.start if wanted else recording.stop)()

    # -- drawn by the owner ------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Show the job, the pause and the pins as they are; a failed job also goes to the fault box."""
        job = self.session.jobs.current
        if job is not None and job != self._reported:
            self._reported = job
            self.bar.value = job.progress
            at, text = time_of_day(job.at), html.escape(f"{job.name}: {job.result or job.text}")
            self.message.value = f'<span role="status"><small>{at}</small> {text}</span>'  # stays while others change
            if job.error is not None:
                report(self.session, job.error)
        self.transport.show()
        self.table.value = pins_table(self.pins)


def _path(label: str, value: str, tooltip: str) -> widgets.Text:
    layout = widgets.Layout(width="420px")
    return widgets.Text(value=value, description=label, tooltip=tooltip, continuous_update=False, layout=layout)
