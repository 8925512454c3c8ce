"""What the dashboard's buttons do that takes time: plain functions of a session and a progress callback.

They run on the job thread and return the message of success; nothing here knows of widgets.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from recguide.lab import controller
from recguide.lab.jobs import Progress
from recguide.lab.measure import Measurement, measure
from recguide.lab.session import LabSession

from recguide.control.cost import Axes
from recguide.control.profile import Profiler
from recguide.errors import RecGuideError
from recguide.policies import parse_policy
from recguide.provenance import check_writable

CONTROLLER = "controller.safetensors"
REPORT = "controller.html"
BASELINES = ("ar", "linear:8", "ar-row:5")
SETTLE = 1.5  # seconds between a change of policy and its measurement
QUICK = Axes((1, 4, 16), (1, 4, 16), (256,))


@contextmanager
def standing_still(session: LabSession) -> Iterator[None]:
    """Pause decoding meanwhile: two busy computations on two cores are several times slower than one by one."""
    was_running = session.state == "running"
    if was_running:
        session.pause()
    try:
        yield
    finally:
        if was_running:
            session.resume()


def train(session: LabSession, progress: Progress) -> str:
    """Train a controller on all that this session recorded."""
    recording = session.recording
    if recording is None:
        raise RecGuideError("the session is stopped; start it, let it record, then train")
    with standing_still(session):
        parts = recording.cut()
        if not parts:
            raise RecGuideError("nothing was recorded yet; switch recording on and let it run with some exploration")
        out = session.folder / CONTROLLER
        check_writable(out)
        report = controller.train(parts, out, progress)
        report.save_html(session.folder / REPORT)
    return f"controller written to {out}, its report to {REPORT}; 'Export' copies it, 'Load' uses a file"


def export_controller(session: LabSession, path: Path) -> str:
    """Copy what was trained in this session."""
    trained = session.folder / CONTROLLER
    if not trained.exists():
        raise RecGuideError("there is no controller to export; press 'Train on this session' first")
    check_writable(path)
    if path.resolve() == trained.resolve():
        raise RecGuideError(f"{path} is where the trained controller lies; give another place")
    shutil.copyfile(trained, path)
    return f"controller exported to {path}"


def load_controller(session: LabSession, path: Path) -> str:
    """Plan with a controller file from the next step on; a foreign or damaged one changes nothing."""
    if not path.exists():
        raise RecGuideError(f"{path}: no such file; 'Export' writes one")
    spec = controller.spec(controller.NAME, {"file": str(path)})
    parse_policy(spec).attach(session.model)
    session.change(policy=spec)
    return f"planning with {path}"


def save_run(session: LabSession, target: Path) -> str:
    """Copy the decision logs of this session."""
    if session.recording is None:
        raise RecGuideError("the session is stopped; what it recorded lies in its folder already")
    if target.exists():
        raise RecGuideError(f"{target}: exists already; give a new name")
    session.recording.save(target)
    return f"run saved to {target}"


def measure_baselines(
    session: LabSession, seconds: float, keep: Callable[[Measurement], None], progress: Progress
) -> str:
    """Each baseline for so long under the present load, then the policy from before again."""
    before = session.settings.policy
    try:
        for number, spec in enumerate(BASELINES):

            def share(text: str, part: float, number: int = number, spec: str = spec) -> None:
                progress(f"{spec}: {text}", (number + part) / len(BASELINES))

            session.change(policy=spec)
            session.settle(SETTLE, share)
            keep(measure(session, seconds, share))
    finally:
        session.change(policy=before)
    return f"{len(BASELINES)} baselines measured for {seconds:.0f} s each"


def measure_costs(session: LabSession, progress: Progress) -> str:
    """A coarse table of step times, for this session only; ``recguide profile`` measures a fine one and keeps it."""
    profiler = Profiler(session.model, QUICK, repeats=3)
    with standing_still(session):
        for number, line in enumerate(profiler.run(), 1):
            progress(line, number / profiler.measurements)
    session.step_time = profiler.table()
    return "step costs measured: the step panel now shows predicted times"
