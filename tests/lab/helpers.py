"""A session on the tiny model, and waiting for what other threads do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recguide.lab.session import LabSession
from recguide.lab.settings import LabSettings

from recguide.models.loader import tiny_model

MODEL = tiny_model()
LONG = 30.0


def make_session(folder: Path, **settings: Any) -> LabSession:
    return LabSession(MODEL, LabSettings(**{"concurrency": 2, "policy": "linear:4"} | settings), folder=folder)


def wait(holds: Callable[[], Any], seconds: float = LONG) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.005)


def own_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("recguide")]


def stands_still(session: LabSession, seconds: float = 0.2) -> bool:
    """No step is made for a while."""
    time.sleep(0.05)  # the step in progress may end
    before = session.engine.stats.steps
    time.sleep(seconds)
    return session.engine.stats.steps == before
