"""Policies by name. ``parse_policy("linear:8")`` reads a name and its knobs in order, or as ``name=value``."""

from __future__ import annotations

from recguide.errors import RecGuideError
from recguide.policies.ar import Autoregressive
from recguide.policies.ar_row import ArRow
from recguide.policies.base import Knob, Policy
from recguide.policies.budget import Budget
from recguide.policies.ema_tiers import EmaTiers
from recguide.policies.explore import Explore
from recguide.policies.learned import RecGuide
from recguide.policies.linear import Linear
from recguide.policies.overlap import Overlap
from recguide.policies.paper_adaptive import PaperAdaptive
from recguide.policies.quadratic import Quadratic
from recguide.policies.tiers import Tiers
from recguide.policies.window import Window

__all__ = ["POLICIES", "Knob", "Policy", "parse_policy"]

FAMILIES = (
    Autoregressive,
    Linear,
    ArRow,
    Window,
    Quadratic,
    Overlap,
    RecGuide,
    PaperAdaptive,
    EmaTiers,
    Budget,
    Tiers,
    Explore,
)
POLICIES: dict[str, type[Policy]] = {family.name: family for family in FAMILIES}


def parse_policy(spec: str | Policy) -> Policy:
    """A policy from text such as ``ar``, ``linear:8``, ``overlap:8:0.4`` or ``overlap:delta=0.4``."""
    if isinstance(spec, Policy):
        return spec
    name, *parts = spec.strip().split(":")
    if name not in POLICIES:
        raise RecGuideError(f"policy {name!r} is unknown; known: {', '.join(POLICIES)}")
    cls = POLICIES[name]
    if len(parts) > len(cls.knobs):
        raise RecGuideError(f"policy {spec!r} has {len(parts)} values, {name} takes {len(cls.knobs)}")
    values, names = {}, {knob.name for knob in cls.knobs}
    for knob, part in zip(cls.knobs, parts, strict=False):
        key, equals, value = part.partition("=")
        named = equals and (key in names or not knob.takes_text)
        name_set, value = (key, value) if named else (knob.name, part)
        if name_set in values:
            raise RecGuideError(f"policy {spec!r} sets {name_set} twice")
        values[name_set] = value
    return cls(**values)
