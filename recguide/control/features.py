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
GROUP = (1, 1, 0, 0, 2)  # of each kind
IS_KIND = [tuple(float(kind == other) for other in KINDS[1:]) for kind in KINDS]
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


def draft_features(
    top1: Sequence[float], margin: Sequence[float], kind: int, past: Sequence[float]
) -> list[tuple[float, ...]]:
    """MISMATCH rows of the places of one draft, from its probabilities, its place in KINDS, and its request's history.

    In plain numbers: a step scores a handful of drafts, for which array operations cost their calls and not their
    arithmetic.
    """
    opened = float(kind >= OPENED)
    same = (*IS_KIND[kind], *past)
    rows: list[tuple[float, ...]] = []
    least, product, before = math.inf, 0.0, 0.0
    for place, (chance, ahead) in enumerate(zip(top1, margin, strict=True), 1):
        sure = min(max(chance, FLOOR), 1 - FLOOR)
        odds = math.log(sure / (1 - sure))
        least = min(least, odds)
        product += math.log(sure)
        first = (opened, 1 - opened) if place == 1 else (0.0, 0.0)
        rows.append((float(place), *first, odds, ahead, least, product, before, *same))
        before = odds
    return rows


def block_features(places: int, kinds: np.ndarray, histories: np.ndarray) -> np.ndarray:
    """UTILITY rows [requests, places, features] of blocks that are not drafted yet."""
    out = np.zeros((len(kinds), places, len(UTILITY)), np.float32)
    opened = kinds >= OPENED
    out[:, :, 0] = np.arange(1, places + 1)
    out[:, 0, 1] = opened
    out[:, 0, 2] = ~opened
    out[:, :, 3 : 2 + len(KINDS)] = np.array(IS_KIND)[kinds][:, None]
    out[:, :, 2 + len(KINDS) :] = histories[:, None]
    return out
