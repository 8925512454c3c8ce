"""One session per kernel: the newest takes over, and says so."""

from __future__ import annotations

from collections.abc import Callable

from recguide.lab.session import LabSession

from recguide.models.loader import Model

_current: LabSession | None = None


def open_session(make: Callable[[Model | None], LabSession]) -> LabSession:
    """One session per kernel: the new one takes over, the one before is stopped, and a fault line says so.

    ``make`` gets the model that is loaded already, if any.
    """
    global _current
    before, _current = _current, None
    if before is not None:
        before.stop()
    session = make(None if before is None else before.model)
    if before is not None:
        session.fault(f"session {before.id} was stopped: there is one session per kernel, and {session.id} took over")
    _current = session
    return session
