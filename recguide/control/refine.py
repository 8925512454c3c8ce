"""How much longer steps take than a table says: for all alike, and for kinds of steps, told apart by a Kalman filter.

The logarithm of measured over told is taken to be the sum of the machine's pace, which wanders from step to step, of an
error of the table for steps that verify or draft, the same at every load, of one for this kind at this load, of one
that grows with the step, and of noise. The last is there because a machine that reads its weights more slowly than
when the table was made does not calculate more slowly: rows are cheaper there. Errors of a table are small and stay;
what is seen is believed as far as it speaks against that, the sooner the quieter the machine turns out to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

NOISE = 0.2  # standard deviation of a step's time at first, of logarithms as everything here
LEAST_NOISE, MOST_NOISE = 0.05, 0.4  # sizes of steps of one kind differ by as much from a table
WANDER = 0.25  # of the pace, from one step to the next, in units of the noise
FIRST_PACE = 0.7  # of the pace, before anything was seen
KIND_ERROR, LOAD_ERROR = 0.06, 0.07  # of the table, for a kind of steps at all loads, and beyond that at one load
STEEPNESS = 0.4  # of the exponent that sizes of steps are told with
SLOW_READS = -0.8  # correlation of that with the pace: it is reading weights, mostly, that a machine becomes slower at
LEAST_STEEPNESS = -0.9  # rows cost something, whatever was seen
FOREIGN = 2.0  # times that, where the table is of another device
HICCUP = 2.0  # standard deviations beyond which a step counts as if it were there
ATTENTION = 0.05  # weight of a step for how noisy the machine is
MEMORY = 1 - 1 / 2000  # of an error, a step: the table is trusted again where nothing more is seen
LONG_MEMORY = 1 - 1 / 10000  # of the exponent, which each step tells little of


class Kind(IntEnum):
    """What a step does besides writing a token for every request."""

    PLAIN = 0
    VERIFYING = 1
    DRAFTING = 2

    @classmethod
    def of(cls, requests: float, causal_rows: float, draft_rows: float) -> Kind:
        """The kind of a step with so many rows in all."""
        if draft_rows:
            return cls.DRAFTING
        return cls.VERIFYING if causal_rows > requests else cls.PLAIN


@dataclass(frozen=True)
class Errors:
    """What steps of a load take beyond the pace, to what a table says: so many times by kind, and s ** ``steepness``
    times that where the table says that the step takes s times what a plain one does."""

    kinds: tuple[float, ...] = (1.0,) * len(Kind)
    steepness: float = 0.0

    def corrected(
        self, told: Callable[..., float], requests: int, causal_rows: float, draft_rows: float, context: float
    ) -> float:
        """Milliseconds of a step at the pace of the table; ``told`` as in StepTime."""
        kind, says = Kind.of(requests, causal_rows, draft_rows), told(requests, causal_rows, draft_rows, context)
        if kind is Kind.PLAIN or not self.steepness:
            return self.kinds[kind] * says
        return self.kinds[kind] * says * (says / told(requests, requests, 0, context)) ** self.steepness


class Refinement:
    """The pace and the errors of a table of ``loads`` loads, of this device or a ``foreign`` one: means and
    covariance."""

    def __init__(self, loads: int, *, foreign: bool = False):
        self._mean = np.zeros(len(Kind) + loads * len(Kind) + 1)
        errors = np.full(len(self._mean), LOAD_ERROR)
        errors[[Kind.VERIFYING, Kind.DRAFTING]] = KIND_ERROR
        errors[-1] = STEEPNESS
        errors *= FOREIGN if foreign else 1.0
        errors[0] = FIRST_PACE
        self._covariance = np.diag(errors**2)
        self._covariance[0, -1] = self._covariance[-1, 0] = SLOW_READS * errors[0] * errors[-1]
        self._noise = NOISE
        self._kept = np.full(len(errors), MEMORY)
        self._kept[[0, -1]] = 1.0, LONG_MEMORY
        self._kept_together = np.outer(self._kept, self._kept)
        self._returning = np.diag((1 - self._kept**2) * errors**2)
        self._parts = [[_parts(load, kind, len(errors)) for kind in Kind] for load in range(loads)]

    @property
    def pace(self) -> float:
        """What all steps take, to what the table says."""
        return math.exp(self._mean[0])

    def errors(self, load: int) -> Errors:
        """What steps of a load take beyond the pace."""
        kinds = tuple(math.exp(parts @ self._mean - self._mean[0]) for parts in self._parts[load])
        return Errors(kinds, max(float(self._mean[-1]), LEAST_STEEPNESS))

    def observe(self, load: int, kind: Kind, ratio: float, size: float = 1.0) -> None:
        """Take in a step that took ``ratio`` times what the table says; 0 (the clock was too coarse) tells nothing.
        ``size``: what the table says of it, to what it says of a plain step of that load."""
        if ratio <= 0:
            return
        self._mean *= self._kept
        self._covariance *= self._kept_together
        self._covariance += self._returning
        self._covariance[0, 0] += (WANDER * self._noise) ** 2
        parts = self._parts[load][kind].copy()
        parts[-1] = math.log(size)
        shared = self._covariance @ parts
        variance = float(parts @ shared) + self._noise**2
        most = HICCUP * variance**0.5
        surprise = min(max(math.log(ratio) - float(parts @ self._mean), -most), most)
        self._mean += shared * (surprise / variance)
        self._covariance -= np.outer(shared, shared) / variance
        self._noise *= (1 + ATTENTION * (surprise**2 / variance - 1)) ** 0.5
        self._noise = min(max(self._noise, LEAST_NOISE), MOST_NOISE)


def _parts(load: int, kind: Kind, count: int) -> np.ndarray:
    """What a step takes its time from, whatever its size, as ones among ``count`` zeros: the pace, its kind's error,
    its own at this load."""
    own = len(Kind) * (1 + load) + kind
    parts = np.zeros(count)
    parts[[0, own] if kind is Kind.PLAIN else [0, kind, own]] = 1.0
    return parts
