"""From a watcher's numbers to the arrays that a figure shows: float32, of fixed length, at most some hundred points.

Pure functions on numpy arrays; nothing here knows of sessions or figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

WINDOW = 120.0  # seconds of history
POINTS = 240
SMOOTH = 1.5  # seconds that a throughput is averaged over
STEPS = 120  # steps in the panels of rows and times
BINS = 10

AGO = np.linspace(-WINDOW, 0, POINTS, dtype=np.float32)  # the time axis never changes, so it is sent once
STEP_AXIS = np.arange(1 - STEPS, 1, dtype=np.float32)


def throughput(steps: dict[str, np.ndarray], now: float) -> tuple[np.ndarray, np.ndarray]:
    """Aggregate and per-request tokens/s at the times AGO before ``now``; NaN where nothing ran.

    Within a step its tokens are spread evenly; between steps nothing is made, so a pause shows as zero.
    """
    if not len(steps["at"]):
        return np.full(POINTS, np.nan, np.float32), np.full(POINTS, np.nan, np.float32)
    ends, took = steps["at"], steps["seconds"]
    times = np.ravel(np.column_stack((ends - took, ends)))
    times = np.maximum.accumulate(times)
    ask = now + AGO.astype(np.float64)
    tokens = _gained(times, steps["committed"], ask)
    seats = _gained(times, steps["requests"] * took, ask)
    aggregate = tokens / SMOOTH
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(seats > 0, tokens / seats, np.nan)
    before = ask < times[0]
    aggregate[before], each[before] = np.nan, np.nan
    return aggregate.astype(np.float32), each.astype(np.float32)


def _gained(times: np.ndarray, amounts: np.ndarray, ask: np.ndarray) -> np.ndarray:
    """How much was made in the SMOOTH seconds before each time asked for."""
    total = np.repeat(np.concatenate(([0.0], np.cumsum(amounts))), 2)[1:-1]
    return np.interp(ask, times, total) - np.interp(ask - SMOOTH, times, total)


def recent(values: np.ndarray, scale: float = 1.0, fill: float = np.nan) -> np.ndarray:
    """The last STEPS values, filled up in front."""
    shown = np.full(STEPS, fill, np.float32)
    taken = values[-STEPS:]
    if len(taken):
        shown[-len(taken) :] = taken * scale
    return shown


def achieved(steps: dict[str, np.ndarray], smooth: int = 20) -> np.ndarray:
    """Tokens per ms over the ``smooth`` steps before each of the last STEPS: what a price should come out at."""
    tokens, spent = np.cumsum(steps["committed"]), np.cumsum(steps["seconds"]) * 1e3
    if len(tokens) <= smooth:
        return recent(np.empty(0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return recent((tokens[smooth:] - tokens[:-smooth]) / (spent[smooth:] - spent[:-smooth]))


def reliability(pairs: Sequence[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean prediction, observed share and count of each of BINS equal bins; NaN where a bin is empty."""
    if not pairs:
        empty = np.full(BINS, np.nan, np.float32)
        return empty, empty, np.zeros(BINS, np.float32)
    chance, came = np.array(pairs, dtype=np.float64).T
    place = np.clip((chance * BINS).astype(int), 0, BINS - 1)
    count = np.bincount(place, minlength=BINS)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(place, chance, BINS) / count
        share = np.bincount(place, came, BINS) / count
    return mean.astype(np.float32), share.astype(np.float32), count.astype(np.float32)


def ece(pairs: Sequence[tuple[float, bool]]) -> float | None:
    """Expected calibration error: the mean distance of prediction and outcome over the bins, by count."""
    mean, share, count = reliability(pairs)
    return float(np.nansum(np.abs(mean - share) * count) / count.sum()) if count.sum() else None


def auc(pairs: Sequence[tuple[float, bool]]) -> float | None:
    """Chance that something that came true was predicted higher than something that did not; ties count half."""
    if not pairs:
        return None
    chance, came = np.array(pairs, dtype=np.float64).T
    good = int(came.sum())
    bad = len(came) - good
    if not good or not bad:
        return None
    _, inverse, counts = np.unique(chance, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((ranks[inverse][came > 0].sum() - good * (good + 1) / 2) / (good * bad))


def mix(blocks: Sequence[int], sizes: Sequence[int]) -> np.ndarray:
    """Share of verifications that fall between one size and the next (the last is open), in percent."""
    counts = np.histogram(np.array(blocks, dtype=float), [*sizes, np.inf])[0]
    return (100 * counts / max(1, counts.sum())).astype(np.float32)


def hit_rates(branches: Sequence[tuple[str, bool]], kinds: Sequence[str]) -> np.ndarray:
    """Share of the branches of each kind whose draft was used, in percent; NaN where there was none."""
    found = [[hit for kind, hit in branches if kind == wanted] for wanted in kinds]
    return np.array([100 * sum(hits) / len(hits) if hits else np.nan for hits in found], np.float32)
