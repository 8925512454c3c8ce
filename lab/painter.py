"""From a session to the figure: which arrays each panel gets now. Called by the dashboard's owner only."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from recguide.lab import series
from recguide.lab.figure import BRANCHES, COLOURS, ROWS, SIZE_NAMES, SIZES, LiveFigure, update
from recguide.lab.measure import Measurement
from recguide.lab.ring import Ring
from recguide.lab.session import LabSession
from recguide.lab.watch import STEPS

TRAIL_EVERY = 2.0  # seconds between two points of a trail
SETTLED = 2.5  # seconds after a turn of a knob before throughput counts as its own
LABELS = 8
LABEL_ROOM = 20.0  # seconds of the time axis that a label takes
LABEL_SIZE = (0.3, 0.08)  # of the Pareto plane, wide and high


class Painter:
    """Remembers trails and predictions between drawings; everything else is read anew."""

    def __init__(self, session: LabSession, figure: LiveFigure):
        self._session, self._figure = session, figure
        self._predicted = Ring(("predicted", "price"), STEPS)
        self._trail: deque[tuple[float, float, int, str]] = deque(maxlen=series.POINTS)
        self._trail_at = 0.0

    def draw(self, pins: Sequence[Measurement]) -> None:
        """Give every panel its newest arrays, in one message."""
        watcher = self._session.watcher
        count = watcher.steps.count
        steps = watcher.steps.last()
        status = self._session.policy.inner.status()
        self._predict(steps, count, status)
        now = self._now(steps)
        aggregate, each = series.throughput(steps, now)
        self._extend_trail(float(aggregate[-1]), float(each[-1]))
        update(
            self._figure,
            {
                "aggregate": {"x": series.AGO, "y": aggregate},
                "each": {"x": series.AGO, "y": each},
                "changes": self._changes(now, aggregate),
                "trail": _marks(list(self._trail)),
                "now": self._newest(),
                "pins": _marks([(p.per_request.value, p.aggregate.value, i, p.name) for i, p in enumerate(pins)]),
                **{name: _steps(series.recent(steps[name], fill=0.0)) for name in ROWS},
                "measured": _steps(series.recent(steps["seconds"], 1e3)),
                "achieved": _steps(series.achieved(steps)),
                **{name: _steps(series.recent(values)) for name, values in self._predicted.last(series.STEPS).items()},
                "reliability": self._reliability(status),
                "mix": {"x": np.array(SIZE_NAMES, object), "y": series.mix(list(watcher.blocks), SIZES)},
                "hits": {"x": np.array(BRANCHES, object), "y": series.hit_rates(list(watcher.branches), BRANCHES)},
            },
        )

    def _now(self, steps: dict[str, np.ndarray]) -> float:
        """The right end of the time axis; it stands still while nothing is decoded, so that nothing is sent."""
        running = self._session.state == "running" or not len(steps["at"])
        return time.perf_counter() if running else float(steps["at"][-1])

    def _predict(self, steps: dict[str, np.ndarray], count: int, status: dict[str, Any]) -> None:
        """What was predicted of the steps made since the last drawing."""
        price = status.get("price")
        fresh = min(count - self._predicted.count, len(steps["at"]))
        self._predicted.skip(count - fresh)
        for i in range(len(steps["at"]) - fresh, len(steps["at"])):
            self._predicted.add(self._expected(steps, i), np.nan if price is None else price)

    def _expected(self, steps: dict[str, np.ndarray], i: int) -> float:
        """Milliseconds that the policy expected of a step; else what the table says of its rows."""
        requests, rows, drafting = (int(steps[name][i]) for name in ("requests", "rows", "drafting"))
        if not np.isnan(steps["expected"][i]) or not requests:
            return float(steps["expected"][i])
        return self._session.step_time.predict(requests, rows - drafting, drafting, steps["context"][i])

    def _changes(self, now: float, aggregate: np.ndarray) -> dict[str, Any]:
        """Turned knobs on the throughput curve."""
        shown = [c for c in list(self._session.changes) if now - c.at < series.WINDOW]
        places = np.searchsorted(series.AGO, [c.at - now for c in shown]).clip(0, series.POINTS - 1)
        heights = np.nan_to_num(aggregate[places])
        rows = [(c.at - now, float(y), 7, c.text) for c, y in zip(shown, heights, strict=True)]
        labels = [_label(text) for *_, text in rows]
        for earlier, later in pairwise([i for i, label in enumerate(labels) if label]):
            if rows[later][0] - rows[earlier][0] < LABEL_ROOM:
                labels[earlier] = ""  # the hover still tells it
        return _marks(rows) | {"text": np.array(labels, object)}

    def _extend_trail(self, aggregate: float, each: float) -> None:
        session, now = self._session, time.perf_counter()
        if session.state != "running" or now - self._trail_at < TRAIL_EVERY or not np.isfinite(each):
            return
        if session.changes and now - session.changes[-1].at < SETTLED:
            return
        self._trail_at = now
        names = session.watcher.policies
        number = int(session.watcher.steps.last(1)["policy"][0])
        self._trail.append((each, aggregate, number, f"{short(names[number])}, C={session.settings.concurrency}"))

    def _newest(self) -> dict[str, Any]:
        """The last point of each policy and concurrency on the trail."""
        newest = {label: (x, y, number, label) for x, y, number, label in self._trail}
        rows = list(newest.values())[-LABELS:]
        return _marks(rows) | {"text": np.array(_apart(rows), object)}

    def _reliability(self, status: dict[str, Any]) -> dict[str, Any]:
        reported = status.get("reliability")
        if reported:
            mean, share, count = (np.array(column, np.float32) for column in zip(*reported, strict=True))
        else:
            mean, share, count = series.reliability(list(self._session.watcher.predictions))
        return _marks([(x, y, 0, f"{int(n)} drafts") for x, y, n in zip(mean, share, count, strict=True) if n])


def _label(change: str) -> str:
    """A change of policy is named on the curve; the others tell when hovered."""
    return short(change.split(",")[0]) if change.startswith("policy") else ""


def short(spec: str) -> str:
    """A policy's spec without the folders of its file."""
    return ":".join(part.rsplit("/", 1)[-1] for part in spec.split(":"))


def _apart(rows: Sequence[tuple[float, float, int, str]]) -> list[str]:
    """Texts that do not cover one another: of neighbours on the plane the newer one's, and the hover tells all."""
    wide, high = (LABEL_SIZE[axis] * max((row[axis] for row in rows), default=0.0) for axis in (0, 1))
    texts = [text for *_, text in rows]
    for i, (x, y, *_) in enumerate(rows):
        if any(abs(x - later[0]) < wide and abs(y - later[1]) < high for later in rows[i + 1 :]):
            texts[i] = ""
    return texts


def _steps(values: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": series.STEP_AXIS, "y": values}


def _marks(rows: Sequence[tuple[float, float, int, str]]) -> dict[str, np.ndarray]:
    """(x, y, number of a colour, text) of each mark."""
    texts = np.array([row[3] for row in rows], object)
    return {
        "x": np.array([row[0] for row in rows], np.float32),
        "y": np.array([row[1] for row in rows], np.float32),
        "marker.color": np.array([row[2] % len(COLOURS) for row in rows], np.float32),
        "text": texts,
        "hovertext": texts,
    }
