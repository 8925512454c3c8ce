"""Watches predictions come true while the controller runs: recalibration, on-policy quality, and the drift alarm.

All of it is censor-aware: only positions that the verifier reached are counted. The alarm compares acceptance with
what was usual in training, not with the model's own forecast: a drafter whose adapter is off is unsure of itself, and
a model that sees this stays calibrated while drafting has become useless (rule R8).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from recguide.control.features import GROUPS, MOST

KEPT = 4096  # reached positions that the quality figures are of
WINDOW = 50  # verifications that the alarm looks back on
LEAST = 24  # fewer verifications prove nothing
ALARM, DEAD = -5.0, 1 / 3  # standard deviations below the usual acceptance, and the share of it: both, for an alarm
ALIVE, PROOF = 0.6, 12  # share of the usual acceptance that ends an alarm, in so many verifications
STEP, LEAST_STEP = 0.5, 0.01  # of the recalibration: STEP / observations, at least LEAST_STEP
OFFSET_PLACES = 3  # later positions share an offset
OFFSET_OF = np.minimum(np.arange(MOST), OFFSET_PLACES - 1)
BINS = 10


class Monitor:
    """``usual`` [GROUPS, K]: acceptance in training of each group of kinds of drafts, by position."""

    def __init__(self, usual: np.ndarray):
        self._usual: list[list[float]] = usual.tolist()
        self.offsets = np.zeros((len(GROUPS), OFFSET_PLACES))
        self._seen = [[0] * OFFSET_PLACES for _ in GROUPS]
        self._pairs: deque[tuple[float, bool]] = deque(maxlen=KEPT)
        self._window: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)
        self._quality: dict[str, Any] | None = None  # until more is observed
        self._factors: dict[int, list[float]] = {}  # the same, by group
        self.observed = 0
        self.drift: str | None = None

    def offset(self, groups: np.ndarray, places: int) -> np.ndarray:
        """Log-odds to add [drafts, places] for drafts of these ``groups`` (places in GROUPS, [drafts])."""
        return self.offsets[groups][:, OFFSET_OF[:places]]

    def factors(self, group: int) -> list[float]:
        """What to multiply the odds of one draft's places by; later places share the last."""
        if group not in self._factors:
            self._factors[group] = [math.exp(offset) for offset in self.offsets[group].tolist()]
        return self._factors[group]

    def learn(self, group: int, predicted: Sequence[float], accepted: int, given: int, *, adapt: bool = True) -> None:
        """What came of a verification: ``predicted`` P(accepted | reached) of the ``given`` drafts, recalibrated; what
        is usual, where nothing was predicted.

        Without ``adapt`` the offsets stay as they are.
        """
        self._quality = None
        self._factors.pop(group, None)
        reached = min(accepted + 1, given)
        usual = self._usual[group]
        predicted = predicted or usual[:given]
        expected = variance = 0.0
        for j in range(min(reached, len(predicted))):
            right = j < accepted
            self._pairs.append((predicted[j], right))
            place = min(j, OFFSET_PLACES - 1)
            self._seen[group][place] += 1
            step = max(STEP / (10 + self._seen[group][place]), LEAST_STEP)
            self.offsets[group, place] += step * (right - predicted[j]) * adapt
            share = min(max(usual[min(j, len(usual) - 1)], 0.02), 0.98)
            expected += share
            variance += share * (1 - share)
            self.observed += 1
        self._window.append((min(accepted, len(predicted)), expected, variance))
        self._judge()

    def _judge(self) -> None:
        """Alarm where hardly anything is accepted. Less than usual is none: requests differ by a factor of five, and a
        hard one may last. It looks dead, too, and plain AR is about right for it; what follows it ends the alarm."""
        got, usual, variance = map(sum, zip(*self._window, strict=True))
        if self.drift is not None:
            if len(self._window) == PROOF and got > ALIVE * usual:
                self.drift, self._window = None, deque(maxlen=WINDOW)
        elif len(self._window) >= LEAST and got < min(DEAD * usual, usual + ALARM * variance**0.5):
            fewer = (usual - got) / len(self._window)
            self.drift = (
                f"drafts are accepted far less often than in training ({fewer:.2f} fewer a verification): "
                "is the draft adapter on? plain AR until they are again"
            )
            self._window = deque(maxlen=PROOF)

    def quality(self) -> dict[str, Any]:
        """On-policy figures of the latest reached positions: auc, brier, ece, reliability, positions; and
        ``ece_by_chance``, the ece to expect of so many positions where every prediction is right."""
        if self._quality is None:
            self._quality = self._measured() if self._pairs else {"positions": 0}
        return self._quality

    def _measured(self) -> dict[str, Any]:
        predicted, right = (np.array(column, float) for column in zip(*self._pairs, strict=True))
        parts = [p for p in np.array_split(np.argsort(predicted, kind="stable"), BINS) if len(p)]
        curve = [(float(predicted[p].mean()), float(right[p].mean()), len(p)) for p in parts]
        return {
            "positions": len(right),
            "auc": auc(predicted, right > 0),
            "brier": float(((predicted - right) ** 2).mean()),
            "ece": sum(abs(p - o) * n for p, o, n in curve) / len(right),
            "ece_by_chance": sum(_scatter(predicted[part]) for part in parts) / len(right),
            "reliability": curve,
        }


def _scatter(predicted: np.ndarray) -> float:
    """Mean distance of a sum of coin tosses with these chances from what is expected: that of a normal one."""
    return float((2 / np.pi * (predicted * (1 - predicted)).sum()) ** 0.5)


def auc(predicted: np.ndarray, right: np.ndarray) -> float | None:
    """Area under the ROC curve by ranks, ties shared; None where only one outcome occurs."""
    positive, negative = int(right.sum()), int((~right).sum())
    if not positive or not negative:
        return None
    _, cell, count = np.unique(predicted, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - (count - 1) / 2  # mean rank of equals, from 1
    return float((middle[cell][right].sum() - positive * (positive + 1) / 2) / (positive * negative))
