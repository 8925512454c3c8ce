"""What a person sets in the lab, as one frozen value: the state file, the controls and the session all speak it.

Knows nothing of engines or widgets. Knobs of a policy itself are declared by the policy and live in its spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from recguide.errors import RecGuideError
from recguide.policies import Knob

ALL = "all"
PATTERNS = {
    "closed": "closed loop: always as many requests as the concurrency",
    "poisson": "Poisson: requests arrive at random, at a rate",
    "bursts": "bursts: as many requests as the concurrency at once, every period",
    "steps": "steps: closed loop whose load walks 1, half, all, half, a period each",
}

KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob(name="concurrency", default=4, low=1, high=32, unit="requests", help="requests decoded at once"),
        Knob(
            name="trim",
            default=64,
            low=0,
            high=64,
            unit="drafts",
            help="verify at most so many drafts of a block; the tail is dropped, which is free and exact",
        ),
        Knob(
            name="branches",
            default=8,
            low=0,
            high=8,
            unit="",
            help="at most so many branches may ride along with a verification",
        ),
        Knob(
            name="explore",
            default=0.0,
            low=0.0,
            high=1.0,
            unit="share",
            help="share of plans drawn at random and logged with their probability: to train on; costs throughput",
        ),
        Knob(
            name="temperature",
            default=0.0,
            low=0.0,
            high=2.0,
            unit="",
            help="0 is greedy; counts from the next request on",
        ),
        Knob(name="rate", default=1.0, low=0.1, high=20.0, unit="requests/s", help="arrivals of the Poisson pattern"),
        Knob(name="period", default=10.0, low=1.0, high=60.0, unit="s", help="seconds between bursts, or of a step"),
        Knob(
            name="max_new_tokens",
            default=96,
            low=8,
            high=256,
            unit="",
            help="tokens of an answer; counts from the next request on",
        ),
        Knob(name="seed", default=0, low=0, high=2**31 - 1, unit="", help="seed of prompts, arrivals and sampling"),
    )
}


@dataclass(frozen=True, kw_only=True)
class LabSettings:
    """Every field is checked against KNOBS or the names it may have; the policy's spec is checked by the engine."""

    concurrency: int = 4
    policy: str = "ar-row:5"
    trim: int = 64
    branches: int = 8
    explore: float = 0.0
    temperature: float = 0.0
    category: str = ALL
    pattern: str = "closed"
    rate: float = 1.0
    period: float = 10.0
    max_new_tokens: int = 96
    seed: int = 0

    def __post_init__(self) -> None:
        for knob in KNOBS.values():
            object.__setattr__(self, knob.name, _checked(knob, getattr(self, knob.name)))
        if self.pattern not in PATTERNS:
            raise RecGuideError(f"pattern is {self.pattern!r}; allowed: {', '.join(PATTERNS)}")
        for name in ("policy", "category"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise RecGuideError(f"{name} is {getattr(self, name)!r}; expected a name")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def settings_from(values: Mapping[str, Any]) -> LabSettings:
    """Settings as a state file holds them; unknown names are refused."""
    unknown = sorted(set(values) - {field.name for field in fields(LabSettings)})
    if unknown:
        raise RecGuideError(f"unknown setting {unknown[0]!r}; known: {', '.join(f.name for f in fields(LabSettings))}")
    return LabSettings(**values)


def _checked(knob: Knob, value: Any) -> float:
    kind = type(knob.default)
    try:
        number = kind(value)
        if isinstance(value, bool) or number != float(value):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise RecGuideError(f"{knob.name} is {value!r}; expected {kind.__name__}") from None
    if not knob.low <= number <= knob.high:
        raise RecGuideError(f"{knob.name} is {number}; allowed: {knob.low}..{knob.high} {knob.unit}".rstrip())
    return number


PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "quiet": ("one request at a time: rows are nearly free", {"concurrency": 1, "policy": "ar-row:5"}),
    "interactive": (
        "a few people chat: requests arrive at random",
        {"concurrency": 8, "policy": "overlap:5", "pattern": "poisson", "rate": 0.5, "temperature": 0.7},
    ),
    "throughput": ("as much as the machine gives", {"concurrency": 32, "policy": "ar"}),
    "hard prompts": (
        "translation and high temperature: drafts are wrong often",
        {"concurrency": 4, "policy": "linear:8", "category": "translation", "temperature": 1.0},
    ),
    "changing load": ("the load walks up and down", {"concurrency": 16, "pattern": "steps", "period": 10.0}),
    "learned": (
        "the controller under a load that walks up and down",
        {"concurrency": 16, "policy": "recguide", "pattern": "steps", "period": 10.0},
    ),
}


def preset(name: str, **kept: Any) -> LabSettings:
    """The settings of a preset; ``kept`` replaces fields, such as the seed one had before."""
    if name not in PRESETS:
        raise RecGuideError(f"preset {name!r} is unknown; known: {', '.join(PRESETS)}")
    return LabSettings(**PRESETS[name][1] | kept)
