"""Controllers for small models, made by hand: real files, weights that nobody trained."""

from __future__ import annotations

import numpy as np

from recguide.control.controller import COLUMNS, Controller
from recguide.control.features import GROUPS
from recguide.control.scoring import Logistic, Scorer
from recguide.control.solve import Samples
from recguide.models.loader import Model

PLACES = 8


def scorer(columns: int, seed: int) -> Scorer:
    chooser = np.random.default_rng(seed)
    weights = chooser.normal(0, 0.3, columns)
    return Scorer(Logistic(weights, np.float64(0.2)), np.array([[0.0, 0.3, 1.0], [0.05, 0.3, 0.95]]))


def samples(seed: int = 0, count: int = 40, places: int = PLACES) -> Samples:
    """Survivals of drafts that are right about half of the time."""
    chooser = np.random.default_rng(seed)
    opened = np.cumprod(chooser.beta(1.2, 1.0, (count, places)), 1)
    known = np.concatenate((np.full((count, 1), 0.99), 0.99 * opened[:, :-1]), 1)  # the seed's own row comes first
    bucket = chooser.integers(0, 3, count)
    tail = np.cumprod(chooser.beta(0.7, 1.2, (count, places)), 1)
    return Samples(
        opened, known, tail, np.full(places, 0.4), bucket, bucket[::-1].copy(), chooser.integers(0, 3, count), 3
    )


def handmade(fingerprint: str = "abc", draft_shift: int = 0, seed: int = 0) -> Controller:
    scorers = {name: scorer(len(columns), seed + i) for i, (name, columns) in enumerate(COLUMNS.items())}
    chooser = np.random.default_rng(seed)
    golden = {}
    for name, columns in COLUMNS.items():
        rows = chooser.normal(0, 1, (32, len(columns))).astype(np.float32)
        golden[name] = rows, scorers[name](rows)
    return Controller(
        model=fingerprint,
        draft_shift=draft_shift,
        **scorers,
        open_chance=1.0 if draft_shift else 0.6,
        samples=samples(seed),
        edges=np.array([0.6, 1.4]),
        usual=np.full((len(GROUPS), PLACES), 0.15),  # small models draft badly: no alarm
        golden=golden,
        about={"made": "by hand"},
    )


def handmade_for(model: Model) -> Controller:
    return handmade(model.fingerprint, model.draft_shift)
