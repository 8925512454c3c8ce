"""The lab's only view of the learned controller: how it is trained, named, and asked what it thinks.

Everything about it is optional here: a missing trainer, and keys that a policy does not report, are said in words.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recguide.engine.request import Draft, Request
from recguide.errors import RecGuideError
from recguide.policies import POLICIES, Policy

NAME = "recguide"
TRAINER = "recguide.predictors.fit"
Progress = Callable[[str, float], None]


def train(folders: Sequence[Path], out: Path, cost_table: Any, on_progress: Progress) -> Any:
    """Train on decision logs and write the controller file; returns the trainer's report."""
    try:
        trainer = importlib.import_module(TRAINER).train_controller
    except (ImportError, AttributeError):
        raise RecGuideError(
            f"training is not possible here: {TRAINER} is missing; install a recguide that has it, with [train]"
        ) from None
    return trainer(folders, out, cost_table=cost_table, on_progress=on_progress)


def spec(name: str, knobs: Mapping[str, float], controller: Path | None) -> str:
    """A policy's text form from its name and knob values; the controller's names its file too."""
    parts = [f"{knob}={value!r}" for knob, value in knobs.items()]
    if name == NAME and controller is not None:
        parts.insert(0, str(controller))
    return ":".join([name, *parts])


def choices() -> list[str]:
    """Policies a person may choose."""
    return list(POLICIES)


def status(policy: Policy) -> dict[str, Any]:
    """What the policy reports of itself; empty for one that reports nothing."""
    reported = getattr(policy, "status", None)
    return dict(reported()) if callable(reported) else {}


def survival(policy: Policy, request: Request, draft: Draft) -> tuple[list[float], bool]:
    """P(each draft token is kept, with all before it), and whether a learned model says so.

    Without one: the product of the draft's own top-1 probabilities, which a drafter is too sure of.
    """
    learned = getattr(policy, "survival", None)
    if callable(learned):
        return list(learned(request, draft)), True
    product, values = 1.0, []
    for p in draft.top1:
        product *= p
        values.append(product)
    return values, False
