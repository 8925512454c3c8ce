"""What the models of the controller see: one function for training and for run time (rule R6).

Two rows of features: of a draft token that is there (mismatch, second choice), and of a request that has no draft yet
(utility). All are float32 before anything is learned from them or decided by them, or rows would flip at the edges of
tree bins. Knows nothing of engines, logs or models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SCHEMA = 2
KINDS = ("draft", "correction", "open", "continuation", "tail")
OPENED = KINDS.index("open")  # kinds from here on begin with a mask, those before with a known token
GROUPS = ("open", "known", "tail")  # of kinds whose acceptance is watched together
GROUP = np.array([1, 1, 0, 0, 2])  # of each kind
IS_KIND = np.eye(len(KINDS), dtype=np.float32)[:, 1:]
MOST = 16  # draft positions the models know; later ones are taken for this one
DECAY = 0.8  # weight of a verification for the history, a verification later
PRIOR = (0.5, 1.0)  # accepted, reached: what a request without history counts as
FLOOR = 1e-6


@dataclass(frozen=True)
class Feature:
    """A column by its name, with its unit."""

    name: str
    unit: str
    about: str


HISTORY = (
    Feature("accept_rate", "share", "accepted of reached draft positions, older verifications weighing less"),
    Feature("last_accepted", "tokens", "accepted in the last verification"),
    Feature("last_full", "0/1", "whether the last verification accepted all it was given"),
    Feature("verifications", "log", "log(1 + verifications so far), 16 at most"),
)
DRAFT = (
    Feature("position", "tokens", "place in the draft, from 1"),
    Feature("first_open", "0/1", "whether it is the first token of a draft of an open branch"),
    Feature("first_known", "0/1", "whether it is the first token behind a known one"),
    Feature("top1", "logit", "log-odds of the draft token's probability"),
    Feature("margin", "probability", "best minus second-best probability"),
    Feature("least_top1", "logit", "smallest top1 up to here"),
    Feature("product", "log", "log of the product of the probabilities up to here"),
    Feature("before", "logit", "top1 of the place before; 0 at the first"),
    *(Feature(f"kind_{kind}", "0/1", f"drafted by a {kind} branch") for kind in KINDS[1:]),
)
MISMATCH = DRAFT + HISTORY
UTILITY = (*DRAFT[:3], *DRAFT[8:], *HISTORY)


def names(features: Sequence[Feature]) -> list[str]:
    return [feature.name for feature in features]


def history(rounds: Sequence[tuple[int, int]]) -> tuple[float, float, float, float]:
    """HISTORY of a request from its verifications so far, (drafts given, drafts accepted) each.

    Censored feedback is read as such: a position behind the first rejected one was never reached and counts as nothing.
    """
    accepted, reached = PRIOR
    for given, taken in rounds[-MOST:]:
        accepted = DECAY * accepted + taken
        reached = DECAY * reached + min(taken + 1, given)
    last_given, last_taken = rounds[-1] if rounds else (0, 0)
    full = float(bool(rounds) and last_taken == last_given)
    return accepted / reached, float(last_taken), full, math.log1p(min(len(rounds), MOST))


def draft_features(top1: np.ndarray, margin: np.ndarray, kinds: np.ndarray, histories: np.ndarray) -> np.ndarray:
    """MISMATCH rows [drafts, places, features] of drafts [drafts, places], padded at will behind their ends.

    ``top1`` and ``margin`` are probabilities, ``kinds`` [drafts] places in KINDS, ``histories`` [drafts, 4].
    """
    count, places = top1.shape
    out = np.empty((count, places, len(MISMATCH)), np.float32)
    sure = np.clip(top1, FLOOR, 1 - FLOOR)
    odds = np.log(sure / (1 - sure))
    _places(out[:, :, :3], kinds)
    out[:, :, 3] = odds
    out[:, :, 4] = margin
    out[:, :, 5] = np.minimum.accumulate(odds, 1)
    out[:, :, 6] = np.cumsum(np.log(sure), 1)
    out[:, 0, 7] = 0.0
    out[:, 1:, 7] = odds[:, :-1]
    _constant(out[:, :, 8:], kinds, histories)
    return out


def block_features(places: int, kinds: np.ndarray, histories: np.ndarray) -> np.ndarray:
    """UTILITY rows [requests, places, features] of blocks that are not drafted yet."""
    out = np.empty((len(kinds), places, len(UTILITY)), np.float32)
    _places(out[:, :, :3], kinds)
    _constant(out[:, :, 3:], kinds, histories)
    return out


def _places(out: np.ndarray, kinds: np.ndarray) -> None:
    """The place in the draft, and whether it is the first one, by whether what is before it was known."""
    out[:, :, 0] = np.arange(1, out.shape[1] + 1)
    out[:, :, 1:] = 0.0
    opened = kinds >= OPENED
    out[:, 0, 1] = opened
    out[:, 0, 2] = ~opened


def _constant(out: np.ndarray, kinds: np.ndarray, histories: np.ndarray) -> None:
    """Columns that are the same at every place: kind of branch and history."""
    out[:, :, : len(KINDS) - 1] = IS_KIND[kinds][:, None]
    out[:, :, len(KINDS) - 1 :] = histories[:, None]
