"""Measure quietly: nobody looks, nothing draws, and the result is a mean with an interval, not a wiggle.

Counts come from the engine's own totals, read once per batch; the interval is Student's, over the batches' means.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from recguide.lab.session import LabSession

from recguide.errors import RecGuideError

BATCHES = 10
POLL = 0.05
T_975 = 2.262  # Student's t for 95% on both sides, BATCHES - 1 degrees of freedom


@dataclass(frozen=True)
class Mean:
    """A mean and half the width of its 95% interval."""

    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:.1f} ± {self.half:.1f}"


@dataclass(frozen=True)
class Measurement:
    """Throughputs in tokens/s, and what was running."""

    name: str
    policy: str
    concurrency: int
    category: str
    seconds: float
    aggregate: Mean
    per_request: Mean
    step_ms: float
    rows_per_step: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measurement_from(values: dict[str, Any]) -> Measurement:
    """As a state file holds it; RecGuideError when fields are missing or unknown."""
    try:
        means = {name: Mean(**values[name]) for name in ("aggregate", "per_request")}
        return Measurement(**values | means)
    except (TypeError, KeyError) as fault:
        raise RecGuideError(f"a pinned run is damaged ({fault}); pin it again") from None


def measure(
    session: LabSession, seconds: float, on_progress: Callable[[str, float], None], name: str = ""
) -> Measurement:
    """Let the session run unwatched for so long. RecGuideError when it does not run, or nothing was decoded."""
    if session.state != "running":
        raise RecGuideError(f"the session is {session.state}; start it, then measure")
    session.quiet(True)
    try:
        return _measured(session, seconds, on_progress, name)
    finally:
        session.quiet(False)


def _measured(session: LabSession, seconds: float, on_progress, name: str) -> Measurement:
    engine, settings = session.engine, session.settings
    before = (engine.stats.steps, engine.stats.rows, engine.stats.seconds)
    aggregate, each = [], []
    for batch in range(BATCHES):
        on_progress(f"measuring quietly, {seconds:.0f} s", batch / BATCHES)
        tokens, took, running = _batch(session, seconds / BATCHES)
        aggregate.append(tokens / took)
        each.append(tokens / took / running if running else 0.0)
    steps, rows, spent = (now - then for now, then in zip(_totals(engine), before, strict=True))
    if not steps:
        raise RecGuideError("no step was made while measuring; there was no request to decode")
    if settings != session.settings:
        raise RecGuideError("a knob was turned while measuring; measure again")
    return Measurement(
        name=name or f"{settings.policy} at {settings.concurrency}",
        policy=settings.policy,
        concurrency=settings.concurrency,
        category=settings.category,
        seconds=seconds,
        aggregate=_mean(aggregate),
        per_request=_mean(each),
        step_ms=spent / steps * 1e3,
        rows_per_step=rows / steps,
    )


def _totals(engine) -> tuple[int, int, float]:
    return engine.stats.steps, engine.stats.rows, engine.stats.seconds


def _batch(session: LabSession, seconds: float) -> tuple[int, float, float]:
    """Tokens committed, seconds it took, and requests decoded at once on average."""
    engine = session.engine
    started, committed, running = time.perf_counter(), engine.stats.committed, []
    while time.perf_counter() - started < seconds:
        time.sleep(POLL)
        running.append(len(engine.running))
    return engine.stats.committed - committed, time.perf_counter() - started, statistics.fmean(running or [0])


def _mean(values: list[float]) -> Mean:
    return Mean(statistics.fmean(values), T_975 * statistics.stdev(values) / math.sqrt(len(values)))
