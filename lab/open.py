"""``open_lab``: the one line a notebook needs. Model, session, state from last time, dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recguide.lab.context import outside_any_request
from recguide.lab.dashboard import Dashboard
from recguide.lab.registry import open_session
from recguide.lab.session import LabSession
from recguide.lab.settings import LabSettings
from recguide.lab.state import NAME, LabState, load_state

from recguide.bench.prompts import Prompt
from recguide.errors import RecGuideError
from recguide.models import embedded
from recguide.models.loader import Model, load_model

FOLDER = Path("lab-session")


class Lab:
    """An open lab. Displays itself; ``session`` and ``dashboard`` are there to be looked at and driven."""

    def __init__(self, session: LabSession, dashboard: Dashboard):
        self.session, self.dashboard = session, dashboard

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.dashboard.widget._repr_mimebundle_(**options)

    def stop(self) -> None:
        """End the session's threads and the drawing. Open the lab again for another one."""
        self.session.stop()
        self.dashboard.draw()
        self.dashboard.close()


_open: Lab | None = None


def open_lab(
    settings: LabSettings | None = None,
    *,
    model: str | Model = embedded.NAME,
    folder: Path | str = FOLDER,
    prompts: Sequence[Prompt] | None = None,
    record: bool = True,
    leave_after: float | None = None,
) -> Lab:
    """Start a session and its dashboard. Running the cell again takes over: the session before is stopped.

    Without ``settings`` the state saved in ``folder`` is taken up, after a kernel restart too. With ``leave_after``
    the session ends when no page has answered for so many seconds.
    """
    global _open
    folder = Path(folder)
    state, fault = _state_of(folder, settings)

    def make(loaded: Model | None) -> LabSession:
        return LabSession(_model(model, loaded), state.settings, folder=folder, prompts=prompts, record=record)

    if _open is not None:
        _open.dashboard.close()
    session = open_session(make)
    if fault is not None:
        session.fault(fault)
    session.start()
    context = outside_any_request()
    dashboard = context.run(Dashboard, session, state.pins, leave_after=leave_after)
    dashboard.run(context)
    _open = Lab(session, dashboard)
    return _open


def _state_of(folder: Path, settings: LabSettings | None) -> tuple[LabState, RecGuideError | None]:
    """What to begin with; a damaged state file is said and not used."""
    if settings is not None or not (folder / NAME).exists():
        return LabState(settings or LabSettings()), None
    try:
        return load_state(folder / NAME), None
    except RecGuideError as fault:
        return LabState(LabSettings()), fault


def _model(wanted: str | Model, loaded: Model | None) -> Model:
    """A model that is loaded already is not loaded again."""
    if isinstance(wanted, Model):
        return wanted
    return loaded if loaded is not None and loaded.name == wanted else load_model(wanted)
