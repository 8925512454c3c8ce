"""Long work one at a time, on a thread of its own: training, measuring, saving. Whoever draws reads its state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from recguide.errors import RecGuideError

Progress = Callable[[str, float], None]


class Cancelled(Exception):
    """Raised inside a job, where it reports progress, when the session ends."""


@dataclass(frozen=True)
class Job:
    """``progress`` is 0..1. When done, ``result`` or ``error`` is set. ``at`` is when it was said, as ``time.time``."""

    name: str
    text: str = "started"
    progress: float = 0.0
    done: bool = False
    result: str | None = None
    error: Exception | None = None
    at: float = field(default_factory=time.time)


class Jobs:
    """``current`` is the newest job, running or done; None before the first."""

    def __init__(self) -> None:
        self.current: Job | None = None
        self._thread: threading.Thread | None = None
        self._cancel = threading.Event()
        self._guard = threading.Lock()

    @property
    def busy(self) -> bool:
        return self.current is not None and not self.current.done

    def start(self, name: str, work: Callable[[Progress], str]) -> None:
        """Run ``work(progress)``; its return value is the message of success."""
        with self._guard:
            if self.busy:
                raise RecGuideError(f"{name}: wait until '{self.current.name}' is done")
            self._cancel.clear()
            self.current = Job(name)
            self._thread = threading.Thread(target=self._run, args=(name, work), name="recguide-job", daemon=True)
            self._thread.start()

    def _run(self, name: str, work: Callable[[Progress], str]) -> None:
        try:
            self.current = Job(name, "done", 1.0, done=True, result=work(self._progress))
        except Cancelled:
            self.current = Job(name, "cancelled", 1.0, done=True, result="cancelled")
        except Exception as fault:  # a thread's boundary: the dashboard shows it
            self.current = Job(name, "failed", 1.0, done=True, error=fault)

    def _progress(self, text: str, share: float) -> None:
        if self._cancel.is_set():
            raise Cancelled
        self.current = Job(self.current.name, text, min(max(share, 0.0), 1.0))

    def join(self, timeout: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def cancel(self) -> None:
        """End the job at its next report and wait for that."""
        self._cancel.set()
        self.join()
