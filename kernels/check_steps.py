"""Steps for the check: rows of the three plans at a given load, and random ragged ones. No requests, only rows."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .rows import StepRows


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every request of a step does: trunk rows, and branches as (parent, rows)."""

    name: str
    trunk: int
    branches: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        return self.trunk + sum(rows for _, rows in self.branches)


def linear(block: int) -> Plan:
    """A trunk that verifies a whole block."""
    return Plan(name=f"linear:{block}", trunk=block)


def overlap(block: int) -> Plan:
    """A trunk, two corrections in it, and the continuation behind it."""
    branches = ((block // 4, block), (block // 2, block), (block, block))
    return Plan(name=f"overlap:{block}", trunk=block, branches=branches)


def quadratic(block: int) -> Plan:
    """A trunk with an open branch after each of its rows."""
    return Plan(name=f"quadratic:{block}", trunk=block, branches=tuple((p, block) for p in range(1, block + 1)))


def step_of(plans: list[Plan], contexts: list[int], slots: list[int] | None = None) -> StepRows:
    """One request per plan and context, in the engine's order: all trunks, then all branches."""
    step = StepRows(slots or list(range(len(plans))), [], [], [], [], [])
    for plan, context in zip(plans, contexts, strict=True):
        first = step.total
        step.owned.append(list(range(first, first + plan.trunk)))
        step.keys.append(context + plan.rows)
        _add(step, range(context + 1, context + plan.trunk + 1), 0, 0)
    for index, (plan, context) in enumerate(zip(plans, contexts, strict=True)):
        key = context + plan.trunk
        for parent, rows in plan.branches:
            step.owned[index].extend(range(step.total, step.total + rows))
            _add(step, [context + parent] * rows, key, key + rows)
            key += rows
    return step


def _add(step: StepRows, limits: range | list[int], low: int, high: int) -> None:
    step.limits.extend(limits)
    step.lows.extend([low] * len(limits))
    step.highs.extend([high] * len(limits))


def random_step(chooser: random.Random, most_requests: int, most_context: int, most_rows: int) -> StepRows:
    """Ragged requests: prompts, single rows, drafts without a trunk, trunks with any branches; slots in any order."""
    plans = []
    for _ in range(chooser.randint(1, most_requests)):
        kind = chooser.choice(("prompt", "row", "draft", "any"))
        trunk = {"prompt": chooser.randint(1, most_rows), "row": 1, "draft": 0}.get(kind, chooser.randint(1, 6))
        count = {"prompt": 0, "row": 0, "draft": 1}.get(kind, chooser.randint(0, 4))
        branches = tuple((chooser.randint(0, trunk), chooser.randint(1, 6)) for _ in range(count))
        plans.append(Plan(name=kind, trunk=trunk, branches=branches))
    contexts = [chooser.randint(0, most_context) for _ in plans]
    return step_of(plans, contexts, chooser.sample(range(len(plans) + 2), len(plans)))


def visible_keys(step: StepRows) -> int:
    """(row, key) pairs that attention has to look at."""
    segments = zip(step.limits, step.lows, step.highs, strict=True)
    return sum(limit + max(high - max(low, limit), 0) for limit, low, high in segments)
