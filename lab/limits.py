"""A policy under limits that a person sets: drafts verified at most, branches at most, a share of random plans.

Any plan is lossless, so limits change speed and what is learned, never a text. The limited policy is not told: its
next plans follow from what came of the cut ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from recguide.lab.settings import KNOBS, LabSettings

from recguide.engine.observe import Outcome
from recguide.engine.plan import AR, Branch, RequestPlan
from recguide.engine.request import Request
from recguide.engine.stats import StepRecord
from recguide.models.loader import Model
from recguide.policies import Policy
from recguide.policies.explore import Explore

LIMITS = ("trim", "branches", "explore")


class Limited(Policy):
    """Plans of ``inner``, cut. Limits may change while it plans; ``inner`` stays attached and keeps what it learned.

    The logged propensity of a random plan is that of having been drawn at random.
    """

    name = "limited"
    summary = "another policy's plans under limits"

    def __init__(self, inner: Policy):
        super().__init__()
        self.inner = inner
        self.limits: dict[str, float] = {name: KNOBS[name].default for name in LIMITS}
        self._random = Explore()

    @property
    def needs_signals(self) -> bool:
        return self.inner.needs_signals or self.limits["explore"] > 0

    @property
    def tail(self) -> int:
        return self.inner.tail

    @property
    def needs_verifier_entropy(self) -> bool:
        return self.inner.needs_verifier_entropy

    @property
    def learns(self) -> bool:
        return self.inner.learns

    @property
    def fallbacks(self) -> tuple[str, ...]:
        return self.inner.fallbacks

    @property
    def spec(self) -> str:
        set_ones = [f"{name}={value}" for name, value in self.limits.items() if value != KNOBS[name].default]
        return f"{self.inner.spec} ({', '.join(set_ones)})" if set_ones else self.inner.spec

    def attach(self, model: Model) -> None:
        self.inner.attach(model)

    def learn(self, step: StepRecord, outcomes: Sequence[Outcome]) -> None:
        self.inner.learn(step, outcomes)

    def plan(self, requests: Sequence[Request]) -> list[RequestPlan]:
        planned, limits = self.inner.plan(requests), self.limits
        if all(limits[name] == KNOBS[name].default for name in LIMITS):
            return planned
        return [self._limited(r, plan, **limits) for r, plan in zip(requests, planned, strict=True)]

    def _limited(self, request: Request, plan: RequestPlan, trim: int, branches: int, explore: float) -> RequestPlan:
        if explore:
            # a fixed function of the text, as all of the project's draws are
            if random.Random(f"{request.params.seed}/{len(request.tokens)}/lab").random() < explore:
                plan, share = self._random.plan_request(request), explore
            else:
                share = 1 - explore
            plan = replace(plan, propensity=plan.propensity * share)
        return cut(plan, trim, branches)


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


def limits_of(settings: LabSettings) -> dict[str, float]:
    """The limits that the settings name."""
    return {name: getattr(settings, name) for name in LIMITS}
