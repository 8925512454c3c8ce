"""The learned controller as a policy (DESIGN section 7): every row of a step is bought at one price.

Each step, the drafts at hand are scored, and the plans that are worth most at the operating point's prices are found
twice: with new drafts riding along, and without. What the whole step would cost decides between the two.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recguide.control.choose import Choice, choose
from recguide.control.controller import Controller, load_controller
from recguide.control.features import GROUP, KINDS
from recguide.control.forecast import Forecaster, Seen
from recguide.control.modes import FIRST, Modes, Way
from recguide.control.monitor import Monitor
from recguide.control.operating import TRIAL_DRAFTS, OperatingPoints, Point
from recguide.control.shipped import shipped_controller
from recguide.control.step_time import step_time_of
from recguide.engine.observe import Outcome
from recguide.engine.plan import AR, Outlook, RequestPlan
from recguide.engine.request import Request
from recguide.engine.stats import StepRecord
from recguide.errors import RecGuideError
from recguide.models.loader import Model
from recguide.policies.base import Knob, Policy, continuation, correction, draft_or_verify, opened
from recguide.policies.knobs import ChoiceKnob, FileKnob

FILE = FileKnob(name="file", help="controller file (empty: the one shipped)")
LATENCY = Knob(
    name="latency_weight", default=0.0, low=0.0, high=4.0, unit="",
    help="0: most tokens in all; above, tokens of slow requests count for more (1: proportionally fair)",
)  # fmt: skip
FLOOR = Knob(
    name="floor",
    default=0.0,
    low=0.0,
    high=1e6,
    unit="tokens/s",
    help="a request below this rate comes first (0: none)",
)
EXPLORE = Knob(
    name="explore", default=0.0, low=0.0, high=0.5, unit="share", help="plans drawn at random, to learn from"
)
ONLINE = Knob(name="online", default=1, low=0, high=1, unit="", help="1: recalibrate and time steps while running")
PRICE = Knob(
    name="price",
    default=1.0,
    low=0.1,
    high=10.0,
    unit="times",
    help="price of rows over the one found (1: as found)",
)

USE = ChoiceKnob(
    name="use",
    default="all",
    choices=("all", "overlap", "block", "trim"),
    help="for ablations, one freedom alone: branches beside verification, sizes, or verifying a part",
)
ABLATION_BLOCK = 4  # drafts of every branch where sizes are not free
FREEDOMS: dict[str, dict[str, Any]] = {
    "all": {},
    "overlap": {"trim": False, "block": ABLATION_BLOCK},
    "block": {"trim": False, "overlap": False},
    "trim": {"overlap": False, "block": ABLATION_BLOCK},
}

LEARN_FROM = 8  # outcomes that are learned from together: the second costs a tenth of the first, whose code was cold
TAIL = 2  # drafts to keep of what a rejection leaves
PROBE_EVERY = 8  # steps between drafts while drifted, to see whether drafting works again
PROBE_DRAFTS = 3
FLOOR_WEIGHT = 4.0  # what a token of a request below its floor counts at most


class RecGuide(Policy):
    name = "recguide"
    summary = "the learned controller: one price for rows that verify, draft, correct and continue"
    knobs = (FILE, LATENCY, FLOOR, EXPLORE, ONLINE, USE, PRICE)
    needs_signals = True
    reads_step_times = True
    learns = True

    def __init__(self, **values: Any):
        super().__init__(**values)
        self._attached = False

    def attach(self, model: Model) -> None:
        path, self.controller = self._find(model)
        _check_fits(self.controller, model, path)
        self._time, missing = step_time_of(model)
        self.fallbacks = (f"policy {self.name}: {missing}",) if missing else ()
        self.monitor = Monitor(self.controller.usual)
        self._forecast = Forecaster(self.controller, self.monitor)
        freedom = FREEDOMS[self.use]
        chained = model.adapter is not None and model.adapter.chain is not None
        self.tail = TAIL if chained and not freedom else 0
        self._points = OperatingPoints(
            self.controller,
            self._time,
            self.monitor,
            price=self.price,
            tail=self.tail,
            **freedom,
        )
        self._points.prepare()
        self._steps, self._timed, self._seconds = 0, 0, 0.0
        self._since: dict[int, tuple[int, float]] = {}  # by request: its tokens, and seconds of steps, when first seen
        self._mix, self._branches, self._modes = Counter(), Counter(), Modes()
        self._news: list[tuple[StepRecord, Sequence[Outcome], _Step | None]] = []
        self._last: _Step | None = None
        self._attached = True

    def _find(self, model: Model) -> tuple[Path, Controller]:
        """The file that was named, or the one that ships."""
        if self.file:
            return Path(self.file), load_controller(Path(self.file))
        found = shipped_controller(model)
        if found is None:
            raise RecGuideError(
                f"policy {self.name}: no controller ships for model {model.name!r}; train one with 'recguide train' "
                f"and name it: {self.name}:FILE"
            )
        return found

    # -- planning ----------------------------------------------------------------------------------------------

    def plan(self, requests: Sequence[Request]) -> list[RequestPlan]:
        if not requests:
            return []
        self._steps += 1
        context = sum(len(r.tokens) for r in requests) / len(requests)
        point = self._points.at(len(requests), context)
        holding = any(request.draft for request in requests)
        if self.monitor.drift is not None:
            plans = self._probing(requests)
        else:
            way = self._way(len(requests), point, context)
            if way is Way.TRIAL:
                plans = self._trial(requests, point, context)
            elif holding or way is Way.DRAFTING:
                plans = self._priced(requests, point, context, way is Way.DRAFTING)
            else:
                plans = [AR] * len(requests)
                self._last = _Step(point, context, self._plain(point, len(requests), context), Way.PLAIN)
        return [self._explored(r, p) for r, p in zip(requests, plans, strict=True)] if self.explore else plans

    def _way(self, requests: int, point: Point, context: float) -> Way:
        if not self.online:
            return Way.DRAFTING if point.drafts else Way.PLAIN
        if self._timed < FIRST:
            return Way.PLAIN
        if point.drafts:
            gain = point.rate * self._plain(point, requests, context) / requests
            return self._modes.while_drafting(requests, gain)
        seen = self._time.drafting_seen(requests)
        return self._modes.while_plain(requests, lambda: self._points.trial_gain(requests, context), seen=seen)

    def _plain(self, point: Point, requests: int, context: float) -> float:
        """Milliseconds of a plain step, at the pace of the table."""
        return self._points.milliseconds(point, requests, requests, 0, context)

    def _trial(self, requests: Sequence[Request], point: Point, context: float) -> list[RequestPlan]:
        """Whoever holds a draft has it verified, everybody else drafts."""
        plans = [draft_or_verify(request, 1 + TRIAL_DRAFTS) for request in requests]
        causal, branching = sum(1 + p.verify for p in plans), sum(b.rows for p in plans for b in p.branches)
        spent = self._points.milliseconds(point, len(plans), causal, branching, context)
        self._last = _Step(point, context, spent, Way.TRIAL)
        return plans

    def _priced(self, requests: Sequence[Request], point: Point, context: float, drafting: bool) -> list[RequestPlan]:
        seen = self._forecast(requests)
        weights = self._weights(requests)
        tariffs = point.tariffs
        best = None
        for drafts in (True, False) if drafting else (False,):
            chosen = [
                choose(s.survival, s.second, tariffs[s.bucket], drafting=drafts, weight=weight)
                for s, weight in zip(seen, weights, strict=True)
            ]
            causal, branching = sum(c.verify for c in chosen) + len(chosen), sum(c.draft_rows for c in chosen)
            spent = self._points.milliseconds(point, len(chosen), causal, branching, context)
            worth = sum(c.value / tariffs[s.bucket].rate for c, s in zip(chosen, seen, strict=True)) - spent
            if best is None or worth > best[0]:
                best = worth, chosen, spent
        _, chosen, spent = best
        self._last = _Step(point, context, spent, Way.DRAFTING)
        predicted = self._time.pace * spent
        return [self._as_plan(r, s, c, predicted) for r, s, c in zip(requests, seen, chosen, strict=True)]

    def _as_plan(self, request: Request, seen: Seen, chosen: Choice, spent: float) -> RequestPlan:
        branches = []
        for place, known, drafts in chosen.branches:
            if known and len(request.draft.second) > place:
                branches.append(correction(request, request.draft, place + 1, drafts))
            elif not known:
                branches.append(opened(request, place + 1, drafts))
        self._mix[f"verify {chosen.verify}"] += 1
        for branch in branches:
            self._mix[f"draft {branch.drafts}"] += 1
        outlook = Outlook(chosen.value, spent, seen.conditional, chosen.values)
        return RequestPlan(chosen.verify, tuple(branches), outlook=outlook)

    def _weights(self, requests: Sequence[Request]) -> Sequence[float]:
        """What a token of each request counts: fairness of degree ``latency_weight``, and the floor."""
        if not (self.latency_weight or self.floor):
            return [1.0] * len(requests)
        now = self._seconds
        self._since = {r.id: self._since.get(r.id, (r.generated, now)) for r in requests}
        rates = np.array(
            [
                max((r.generated - tokens) / max(now - since, 1e-3), 1e-3)
                for r, (tokens, since) in zip(requests, self._since.values(), strict=True)
            ]
        )
        weight = (np.exp(np.log(rates).mean()) / rates) ** self.latency_weight
        if self.floor:
            weight = weight * np.clip(self.floor / rates, 1.0, FLOOR_WEIGHT)
        return (weight / weight.mean()).tolist()

    def _probing(self, requests: Sequence[Request]) -> list[RequestPlan]:
        """Plain AR, but for a draft now and then: acceptance is watched until drafting works again."""
        plans = [draft_or_verify(request, 1) for request in requests]
        if self._steps % PROBE_EVERY == 0:
            chosen = next((i for i, r in enumerate(requests) if not r.draft), None)
            if chosen is not None:
                plans[chosen] = draft_or_verify(requests[chosen], 1 + PROBE_DRAFTS)
        self._last = None
        return plans

    def _explored(self, request: Request, plan: RequestPlan) -> RequestPlan:
        """With probability ``explore`` another plan, all alike; either with the probability it was made with."""
        held = len(request.draft.tokens) if request.draft else 0
        others = [RequestPlan(v) for v in {0, held // 2, held}]
        others += [RequestPlan(held, (continuation(request, held, drafts),)) for drafts in (1, 3, 7)]
        draw = random.Random(f"{request.params.seed}/{len(request.tokens)}/{self._steps}")
        chosen = draw.choice(others) if draw.random() < self.explore else plan
        chance = self.explore * sum(_same(chosen, other) for other in others) / len(others)
        chance += (1 - self.explore) * _same(chosen, plan)
        return RequestPlan(chosen.verify, chosen.branches, chance, chosen.outlook)

    # -- learning ----------------------------------------------------------------------------------------------

    def learn(self, step: StepRecord, outcomes: Sequence[Outcome]) -> None:
        """What came of a step: forecasts are recalibrated, and step times refined."""
        self._seconds += step.seconds
        timed = self._last if self.online and not step.prefill_rows else None
        self._timed += timed is not None
        self._news.append((step, outcomes, timed))
        if self._timed <= FIRST or sum(len(outcomes) for _, outcomes, _ in self._news) >= LEARN_FROM:
            self._take_in()

    def _take_in(self) -> None:
        for step, outcomes, timed in self._news:
            for outcome in outcomes:
                self._learn_outcome(outcome)
            if timed is not None:
                self._time_step(step, timed)
        self._news.clear()

    def _time_step(self, step: StepRecord, timed: _Step) -> None:
        requests, causal = step.requests, step.rows - step.draft_rows
        self._time.observe(step.seconds * 1e3, requests, causal, step.draft_rows, timed.context)
        if timed.way is Way.DRAFTING:
            # as such steps are believed to take: a hiccup says nothing of drafting
            spent = self._points.milliseconds(timed.point, requests, causal, step.draft_rows, timed.context)
            plain = self._plain(timed.point, requests, timed.context)
            self._modes.earned(requests, step.committed, requests * spent / plain)

    def _learn_outcome(self, outcome: Outcome) -> None:
        for number in range(len(outcome.plan.branches)):
            self._branches["drafted"] += 1
            self._branches["used"] += number == outcome.reused
        given = outcome.plan.verify or 0
        if not given or outcome.held is None:
            return
        outlook = outcome.plan.outlook
        group = GROUP[KINDS.index(outcome.held.kind)]
        predicted = outlook.conditional[:given] if outlook is not None else []
        self.monitor.learn(group, predicted, len(outcome.emitted) - 1, given, adapt=bool(self.online))

    # -- for people --------------------------------------------------------------------------------------------

    @property
    def drift(self) -> str | None:
        """Why the controller has fallen back to plain AR, in words; None while it has not."""
        return self.monitor.drift if self._attached else None

    def status(self) -> dict[str, Any]:
        """The state: price, predicted_ms, drafting, block_mix, branch_hits, drift, and on-policy auc, brier, ece."""
        if not self._attached:
            return {}
        last = self._last
        hits = self._branches["used"] / self._branches["drafted"] if self._branches["drafted"] else None
        return {
            "price": last.point.rate if last else None,
            "predicted_ms": self._time.pace * last.milliseconds if last else None,
            "drafting": last.way is not Way.PLAIN if last else None,
            "block_mix": dict(self._mix),
            "branch_hits": hits,
            "drift": self.drift,
            **self.monitor.quality(),
        }


@dataclass(frozen=True)
class _Step:
    """What the last step was planned at; milliseconds at the pace of the table."""

    point: Point
    context: float
    milliseconds: float
    way: Way


def _check_fits(controller: Controller, model: Model, path: Path) -> None:
    if controller.model != model.fingerprint:
        raise RecGuideError(
            f"{path}: controller of model {controller.model}, this model is {model.fingerprint}; "
            "train one on this model's logs"
        )
    if controller.draft_shift != model.draft_shift:
        raise RecGuideError(
            f"{path}: controller of a drafter with draft_shift {controller.draft_shift}, this one's is "
            f"{model.draft_shift}; train one on logs of this drafter"
        )


def _same(a: RequestPlan, b: RequestPlan) -> bool:
    return a.verify == b.verify and a.branches == b.branches
