"""A policy under limits that a person sets: drafts verified at most, branches at most, a share of random plans.

Any plan is lossless, so limits change speed and what is learned, never a text. The limited policy is not told: its
next plans follow from what came of the cut ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from recguide.lab.settings import KNOBS, LabSettings

from recguide.engine.plan import AR, Branch, RequestPlan
from recguide.engine.request import Request
from recguide.policies import Policy
from recguide.policies.explore import Explore


class Limited(Policy):
    """Plans of ``inner``, cut. The logged propensity of a random plan is that of having been drawn at random."""

    name = "limited"
    summary = "another policy's plans under limits"

    def __init__(self, inner: Policy, trim: int, branches: int, explore: float):
        super().__init__()
        self.inner, self.trim, self.branches, self.explore = inner, trim, branches, explore
        self._random = Explore()

    @property
    def needs_signals(self) -> bool:
        return self.inner.needs_signals or self.explore > 0

    @property
    def spec(self) -> str:
        limits = [f"{name}={value}" for name, value in self._limits() if value != KNOBS[name].default]
        return f"{self.inner.spec} ({', '.join(limits)})"

    def _limits(self) -> tuple[tuple[str, float], ...]:
        return ("trim", self.trim), ("branches", self.branches), ("explore", self.explore)

    def plan(self, requests: Sequence[Request]) -> list[RequestPlan]:
        planned = self.inner.plan(requests)
        return [self._explored(r, plan) for r, plan in zip(requests, planned, strict=True)]

    def _explored(self, request: Request, plan: RequestPlan) -> RequestPlan:
        if self.explore:
            # a fixed function of the text, as all of the project's draws are
            if random.Random(f"{request.params.seed}/{len(request.tokens)}/lab").random() < self.explore:
                plan, share = self._random.plan_request(request), self.explore
            else:
                share = 1 - self.explore
            plan = replace(plan, propensity=plan.propensity * share)
        return cut(plan, self.trim, self.branches)


def cut(plan: RequestPlan, trim: int, branches: int) -> RequestPlan:
    """At most so many drafts verified and branches beside them. A plan that only drafts keeps its draft."""
    if plan.verify is None:
        return plan if trim else replace(AR, propensity=plan.propensity)
    verify = min(plan.verify, trim)
    kept = (_moved(branch, plan.verify, verify) for branch in plan.branches)
    fitting = [branch for branch in kept if branch is not None]
    return replace(plan, verify=verify, branches=tuple(fitting[:branches]) if trim else ())


def _moved(branch: Branch, before: int, after: int) -> Branch | None:
    """The branch under a shorter trunk: a continuation follows its end, one behind the end is gone."""
    if branch.parent == before + 1:
        return replace(branch, parent=after + 1)
    return branch if branch.parent <= after + 1 else None


def limited(policy: Policy, settings: LabSettings) -> Policy:
    """The policy itself where no limit is set."""
    made = Limited(policy, settings.trim, settings.branches, settings.explore)
    return made if any(value != KNOBS[name].default for name, value in made._limits()) else policy
