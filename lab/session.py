"""The live session: an engine on its thread, a driver thread that keeps the load and obeys commands, and their life.

Whoever turns a knob only queues a command; the driver applies it between steps and logs the step. The session knows
nothing of widgets: it can be driven from a script or a test.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recguide.lab.fanout import Fanout
from recguide.lab.jobs import Jobs
from recguide.lab.limits import Limited, limits_of
from recguide.lab.load import Load
from recguide.lab.recording import Recording
from recguide.lab.settings import KNOBS, LabSettings, settings_from
from recguide.lab.supply import Supply
from recguide.lab.watch import Watcher

from recguide.bench.prompts import Prompt
from recguide.control.step_time import step_time_of
from recguide.engine.engine import Engine
from recguide.engine.runner import EngineThread
from recguide.errors import RecGuideError
from recguide.models.loader import Model
from recguide.policies import parse_policy

CONTEXT, CHUNK = 512, 128  # tokens of a request, prompt rows of a step: 32 places are to fit into a laptop's memory
LOOK = 0.5  # seconds at most between two looks at the engine, which may have failed
KEPT = 100


@dataclass(frozen=True)
class Change:
    """A knob that was turned: when and at which step it took effect."""

    at: float
    step: int
    text: str


@dataclass(frozen=True)
class Fault:
    """Something a person should see. ``details`` is a traceback or nothing."""

    at: float
    message: str
    details: str = ""


class LabSession:
    """Use as a context manager, or call ``start`` and ``stop``; both may be called again. Every method is thread-safe.

    ``folder`` takes decision logs and exports. ``prompts`` default to the project's own set.
    """

    def __init__(
        self,
        model: Model,
        settings: LabSettings | None = None,
        *,
        folder: Path,
        prompts: Sequence[Prompt] | None = None,
        record: bool = True,
    ):
        self.id = uuid.uuid4().hex[:6]
        self.model, self.folder, self.record = model, folder, record
        self.settings = settings or LabSettings()
        self.policy = self._planner(self.settings)
        self.context = min(CONTEXT, model.config.max_positions)
        self.supply = Supply(model, prompts, self.context)
        self.watcher = Watcher()
        self.jobs = Jobs()
        self.changes: deque[Change] = deque(maxlen=KEPT)
        self.faults: deque[Fault] = deque(maxlen=KEPT)
        self.step_time = step_time_of(model)[0]
        self.engine: Engine | None = None
        self.runner: EngineThread | None = None
        self.load: Load | None = None
        self.recording: Recording | None = None
        self._fanout = Fanout()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._driver: threading.Thread | None = None
        self._life = threading.RLock()

    def __enter__(self) -> LabSession:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- life --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """stopped, running, paused or failed."""
        if self.runner is None:
            return "stopped"
        if self.runner.error is not None:
            return "failed"
        return "paused" if self.runner.paused else "running"

    def start(self) -> None:
        """Begin decoding; does nothing while the session runs, and restarts one whose engine failed."""
        with self._life:
            if self.state == "failed":
                self.stop()
            if self.runner is not None:
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            engine = Engine(
                self.model,
                self.policy,
                max_concurrency=int(KNOBS["concurrency"].high),
                concurrency=self.settings.concurrency,
                max_context=self.context,
                prefill_chunk=CHUNK,
            )
            self._fanout.add(self.watcher)
            engine.observer = self._fanout
            self.engine, self.runner = engine, EngineThread(engine)
            self.recording = Recording(engine, self._fanout, self.folder)
            if self.record:
                self.recording.start()
            self.load = Load(self.runner, self.supply, lambda: self._inbox.put(None))
            self.load.follow(self.settings)
            self.runner.start()
            self.load.go()
            self._driver = threading.Thread(target=self._drive, name="recguide-driver", daemon=True)
            self._driver.start()
            atexit.register(self.stop)

    def stop(self) -> None:
        """End all threads and requests, complete the log, free the engine. Statistics stay; ``start`` begins anew."""
        self.jobs.cancel()  # before the lock: a job may be waiting for it
        with self._life:
            if self.runner is None:
                return
            atexit.unregister(self.stop)
            driver, self._driver = self._driver, None
            self._inbox.put(None)
            if driver is not None:
                driver.join()
            self.runner.stop()
            self._fanout.remove(self.watcher)
            try:
                self.recording.stop()
            except RecGuideError as fault:
                self.fault(fault)
            self.engine.observer = None
            self.engine = self.runner = self.load = self.recording = None

    def pause(self) -> None:
        """No step after the one in progress, no arrivals, until ``resume`` or ``step_once``."""
        with self._life:
            if self.runner is not None:
                self.runner.pause()
                self._inbox.put(self.load.hold)

    def resume(self) -> None:
        with self._life:
            if self.runner is not None:
                self.runner.resume()
                self._inbox.put(self.load.go)

    def step_once(self) -> None:
        """One step; pauses first if need be."""
        self.pause()
        with self._life:
            if self.runner is not None:
                self.runner.step_once()

    # -- what a person turns -----------------------------------------------------------------------------------

    def change(self, **values: Any) -> None:
        """Queue other settings; returns at once. What is wrong with them becomes a fault, and the old ones stay."""
        if self.runner is None:
            self._apply(values)
        else:
            self._inbox.put(lambda: self._apply(values))

    def use_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Queue another prompt set."""

        def apply() -> None:
            self.supply.use(prompts)
            self._apply({"category": "all"})
            self.supply.restart(self.settings.seed, self.settings.category)

        apply() if self.runner is None else self._inbox.put(apply)

    def quiet(self, wanted: bool) -> None:
        """Stop or go on looking at steps: an engine that nobody watches runs as if alone."""
        if self.engine is not None:
            self.engine.observer = None if wanted else self._fanout

    def settle(self, seconds: float, on_progress: Callable[[str, float], None]) -> None:
        """Wait until a queued change is in force and its effect has settled. Not for the driver's thread."""
        applied = threading.Event()
        self._inbox.put(applied.set)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until or not applied.is_set():
            on_progress("settling", 0.0)
            time.sleep(0.05)
            if self.runner is None:
                raise RecGuideError("the session was stopped")

    def fault(self, error: BaseException | str, details: str = "") -> None:
        """Keep something for a person to see."""
        self.faults.append(Fault(time.time(), str(error) or type(error).__name__, details))

    # -- the driver's thread -----------------------------------------------------------------------------------

    def _drive(self) -> None:
        wait: float | None = 0.0
        told = False
        while self._driver is not None:
            try:
                if (command := self._next(wait)) is not None:
                    command()
                wait = self.load.top_up() if self.state != "failed" else None
                if self.state == "failed" and not told:
                    told = True
                    self.fault(f"the engine stopped: {self.runner.error}; press Start to begin anew")
            except Exception as error:  # a thread's boundary: a person sees it, the session goes on
                self.fault(error)
                wait = LOOK

    def _next(self, wait: float | None) -> Callable[[], None] | None:
        """The next command, or None when a request ended or it is time for an arrival."""
        try:
            return self._inbox.get(timeout=LOOK if wait is None else min(wait, LOOK))
        except queue.Empty:
            return None

    def _apply(self, values: dict[str, Any]) -> None:
        """Take over settings; all of them or none."""
        try:
            wanted = settings_from(self.settings.to_dict() | values)
            changed = {k: v for k, v in wanted.to_dict().items() if v != getattr(self.settings, k)}
            if "category" in changed and wanted.category not in self.supply.categories:
                raise RecGuideError(f"no prompt of category {wanted.category!r}")
            planner = self._planner(wanted) if "policy" in changed else self.policy
            if planner is not self.policy and self.runner is not None:
                self.engine.set_policy(planner)  # may refuse: a controller of another model, say
        except RecGuideError as fault:
            self.fault(fault)
            return
        if not changed:
            return
        self.settings, self.policy = wanted, planner
        planner.limits = limits_of(wanted)
        if self.runner is not None:
            self.engine.set_concurrency(wanted.concurrency)
            self.load.follow(wanted)
            self._note(changed)
        if "policy" in changed:
            self.watcher.clear_predictions()

    @staticmethod
    def _planner(settings: LabSettings) -> Limited:
        """The policy of the settings, under their limits."""
        planner = Limited(parse_policy(settings.policy))
        planner.limits = limits_of(settings)
        return planner

    def _note(self, changed: dict[str, Any]) -> None:
        step = self.engine.stats.steps
        first = [name for name in ("policy",) if name in changed]
        text = ", ".join(f"{name} {changed[name]}" for name in [*first, *(n for n in changed if n not in first)])
        self.changes.append(Change(time.perf_counter(), step, text))
        self.recording.event("knobs", step=step, **changed)
