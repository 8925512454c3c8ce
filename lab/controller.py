"""The lab's only view of the learned controller: how it is trained, named, and asked what it thinks.

Every key of a policy's status is optional, and most policies predict nothing at all: what stands in is said in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

from recguide.engine.observe import Outcome
from recguide.errors import RecGuideError
from recguide.policies import POLICIES, parse_policy

NAME = "recguide"
Progress = Callable[[str, float], None]


def train(folders: Sequence[Path], out: Path, on_progress: Progress) -> Any:
    """Train on decision logs and write the controller file; returns the trainer's report."""
    try:
        from recguide.predictors.fit import train_controller
    except ImportError as fault:
        raise RecGuideError(f"training needs more than is installed ({fault}); pip install 'recguide[train]'") from None
    return train_controller(folders, out, on_progress=on_progress)


def spec(name: str, values: Mapping[str, Any]) -> str:
    """A policy's shortest text form from its name and knob values."""
    texts = {knob.name: knob.text(values[knob.name]) for knob in POLICIES[name].knobs if knob.name in values}
    return parse_policy(":".join([name, *(f"{knob}={text}" for knob, text in texts.items())])).spec


def survival(outcome: Outcome) -> tuple[list[float], bool]:
    """P(each draft at hand is kept, with all before it), and whether the policy itself predicted it.

    Without a prediction: the product of the draft's own top-1 probabilities.
    """
    outlook, held = outcome.plan.outlook, outcome.held
    learned = outlook is not None and len(outlook.conditional) > 0
    size = len(held.tokens) if held else 0
    chances = list(outlook.conditional[:size]) if learned else (held.top1 if held else [])
    return [float(p) for p in accumulate(chances, mul)], learned


def expected_ms(outcomes: Sequence[Outcome]) -> float | None:
    """What the policy expected the step to take, if it says so."""
    return next((o.plan.outlook.step_ms for o in outcomes if o.plan.outlook is not None), None)
