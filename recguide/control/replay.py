"""Replay a decision log: what another policy would have done at every step, and what that would have earned.

The estimate is model-based where the log cannot know, and exact where it can: a draft whose rejection was seen
answers for every trim of it; beyond what was verified, the mismatch model's conditionals go on. A branch earns what
the controller says a ready draft is worth, if its outcome came true. Rows are paid at the cost table's step times.
One currency: tokens, less the rate of the run itself times milliseconds; the oracle knows what will be accepted and
buys exactly that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recguide.control.choose import Tariff
from recguide.control.controller import Controller
from recguide.control.forecast import Forecaster
from recguide.control.monitor import Monitor
from recguide.control.operating import OperatingPoints
from recguide.control.step_time import StepTime
from recguide.engine.plan import AR, Branch, RequestPlan, clamp
from recguide.engine.request import Draft, Request
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from recguide.policies.base import Policy
from recguide.trace.reader import Trace, with_verifications

RESAMPLES = 400
UNKNOWN_REMAINING = 64  # tokens a request may still commit, where the log does not say


@dataclass(frozen=True)
class Decision:
    """One request in one step, as it was and as the other policy would have had it; all in tokens.

    ``known``: the log answers for the other plan without the model.
    """

    step: int
    request: int
    held: int
    accepted: int
    plan: RequestPlan
    other: RequestPlan
    earned: float
    other_earned: float
    oracle: float
    known: bool
    top1: tuple[float, ...]

    @property
    def regret(self) -> float:
        """What the logged plan left to the oracle."""
        return self.oracle - self.earned


@dataclass(frozen=True)
class Replay:
    """All decisions of a run, the rate (tokens per ms) they were priced at, and ``interval``: the 95% bootstrap
    interval over requests of what the other policy earns more a decision."""

    decisions: list[Decision]
    rate: float
    gain: float
    interval: tuple[float, float]

    @property
    def known_share(self) -> float:
        return sum(d.known for d in self.decisions) / len(self.decisions)

    def worst(self, count: int) -> list[Decision]:
        return sorted(self.decisions, key=lambda d: -d.regret)[:count]


def replay(trace: Trace, policy: Policy, controller: Controller, step_time: StepTime) -> Replay:
    """Plan every step of ``trace`` with ``policy`` and price both plans. RecGuideError where the log has no plan."""
    rate = _rate(trace)
    steps = list(_steps(trace))
    if not steps:
        raise RecGuideError(f"{trace.folder}: no plan was logged; record a longer run")
    pricer = _Pricer(controller, step_time, rate)
    decisions = [d for step, rows in steps for d in pricer.decisions(step, rows, policy)]
    gains: dict[int, list[float]] = {}
    for d in decisions:
        gains.setdefault(d.request, []).append(d.other_earned - d.earned)
    return Replay(decisions, rate, *_interval(list(gains.values())))


def _rate(trace: Trace) -> float:
    steps = trace.tables["steps"]
    decoding = [
        (committed, seconds)
        for committed, seconds, prefill in zip(
            steps["committed"].to_pylist(), steps["seconds"].to_pylist(), steps["prefill_rows"].to_pylist(), strict=True
        )
        if not prefill
    ]
    spent = sum(seconds for _, seconds in decoding)
    if not spent:
        raise RecGuideError(f"{trace.folder}: logs no step times; only runs of this engine can be replayed")
    return sum(committed for committed, _ in decoding) / (1e3 * spent)


@dataclass(frozen=True)
class _Logged:
    """A request as it stood before a step, the plan it got, and what was seen."""

    request: Request
    plan: RequestPlan
    accepted: int
    reached: int


def _steps(trace: Trace) -> Iterator[tuple[int, list[_Logged]]]:
    shift = trace.manifest.get("draft_shift", 0)
    ended = trace.tables["requests"].to_pylist()  # a log cut short knows no limit of those that were running
    limits = {r["request"]: r["prompt_tokens"] + r["max_new_tokens"] for r in ended}
    drafts: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in trace.tables["draft_positions"].to_pylist():
        drafts.setdefault((row["step"], row["request"]), []).append(row)
    walk = with_verifications(trace.tables["plans"])
    for step, rows in itertools.groupby(walk, key=lambda pair: pair[0]["step"]):
        logged = []
        for row, past in rows:
            held = sorted(drafts.get((step, row["request"]), []), key=lambda d: d["position"])
            logged.append(_logged(row, held, list(past), shift, limits.get(row["request"])))
        yield step, logged


def _logged(
    row: dict[str, Any], held: list[dict[str, Any]], past: list[tuple[int, int]], shift: int, limit: int | None
) -> _Logged:
    request = Request(row["request"], [0] * row["position"], SamplingParams(), frozenset(), 0)
    request.limit = limit or len(request.tokens) + UNKNOWN_REMAINING
    request.draft_shift, request.accepted_history = shift, past
    if held:
        columns = {name: [d[name] for d in held] for name in ("token", "second", "top1", "margin")}
        known = all(value is not None for name in ("second", "top1", "margin") for value in columns[name])
        signals = (columns["top1"], columns["margin"], columns["second"]) if known else ((), (), ())
        request.draft = Draft(columns["token"], held[0]["kind"], *map(list, signals))
    branches = tuple(
        Branch(parent, None if token < 0 else token, masks, shift=shift)
        for parent, token, masks in zip(row["branch_parents"], row["branch_tokens"], row["branch_masks"], strict=True)
    )
    plan = RequestPlan(None if row["verify"] < 0 else row["verify"], branches)
    return _Logged(request, plan, max(row["accepted"], 0), sum(d["reached"] for d in held))


class _Pricer:
    """What plans earn, in tokens less the price of the step's time."""

    def __init__(self, controller: Controller, step_time: StepTime, rate: float):
        monitor = Monitor(controller.usual)
        self._forecast, self._rate, self._time = Forecaster(controller, monitor), rate, step_time
        self._points = OperatingPoints(controller, step_time, monitor)

    def decisions(self, step: int, logged: Sequence[_Logged], policy: Policy) -> Iterator[Decision]:
        requests = [row.request for row in logged]
        others = [
            clamp(plan, len(r.draft.tokens) if r.draft else 0, r.remaining)
            for plan, r in zip(policy.plan(requests), requests, strict=True)
        ]
        context = sum(len(r.tokens) for r in requests) / len(requests)
        point = self._points.at(len(requests), context)
        seen = self._forecast(requests)
        plans = [row.plan for row in logged]
        share, other_share = (self._share(each, context) for each in (plans, others))
        row_price, seat = self._row_price(len(requests), context), self._share([AR] * len(requests), context)
        for i, (row, other) in enumerate(zip(logged, others, strict=True)):
            conditional, tariff = seen[i].conditional, point.tariffs[seen[i].bucket]
            ready = np.array(tariff.open)
            earned, _ = _worth(row.plan, row, conditional, ready)
            other_earned, known = _worth(other, row, conditional, ready)
            yield Decision(
                step, row.request.id, len(row.request.draft.tokens) if row.request.draft else 0, row.accepted,
                row.plan, other, earned - share, other_earned - other_share,
                _oracle(row, tariff, ready, row_price, seat),
                known, tuple(row.request.draft.top1) if row.request.draft else (),
            )  # fmt: skip

    def _share(self, plans: Sequence[RequestPlan], context: float) -> float:
        """The price of the step's time, divided among its requests."""
        drafting = sum(branch.rows for plan in plans for branch in plan.branches)
        causal = sum(plan.rows for plan in plans) - drafting
        return self._rate * self._time.predict(len(plans), causal, drafting, context) / len(plans)

    def _row_price(self, count: int, context: float) -> float:
        """The price of one more causal row for a request."""
        more, less = (self._time.predict(count, count * rows, 0, context) for rows in (2, 1))
        return self._rate * (more - less) / count


def _worth(plan: RequestPlan, row: _Logged, conditional: Sequence[float], ready: np.ndarray) -> tuple[float, bool]:
    """Tokens that a plan earns, and whether the log alone says so."""
    if plan.verify is None:
        return max((float(ready[min(b.drafts, len(ready) - 1)]) for b in plan.branches), default=0.0), True
    rejected = row.reached > row.accepted  # which answers for every trim
    survival = _survival(plan.verify, row, conditional)
    tokens = 1 + sum(survival)
    ends = np.append(-np.diff(np.append(1.0, survival)), survival[-1] if len(survival) else 1.0)
    worth = {}
    for branch in plan.branches:
        size = min(branch.drafts, len(ready) - 1)
        place = branch.parent - 1
        if branch.token is None and place < len(ends):
            worth[place] = max(worth.get(place, 0.0), float(ends[place] * ready[size]))
    return tokens + sum(worth.values()), plan.verify <= row.reached or rejected


def _survival(verify: int, row: _Logged, conditional: Sequence[float]) -> list[float]:
    """Of each draft: 1 or 0 where the log saw it, the model's from there on."""
    alive, out = 1.0, []
    for j in range(verify):
        if j < row.reached:
            alive *= j < row.accepted
        elif j < len(conditional):
            alive *= conditional[j]
        else:
            alive = 0.0
        out.append(alive)
    return out


def _oracle(row: _Logged, tariff: Tariff, ready: np.ndarray, row_price: float, seat: float) -> float:
    """The best that was to be had: what will be accepted is verified, and the best draft made for what comes true."""
    draft_price = tariff.draft if np.isfinite(tariff.draft) else row_price
    drafting = max(0.0, float((ready - draft_price * np.arange(len(ready))).max()))
    return 1 + row.accepted * (1 - row_price) + drafting - seat


def _interval(gains: list[list[float]]) -> tuple[float, tuple[float, float]]:
    """Mean gain a decision, and its interval by drawing requests with replacement."""
    totals = np.array([(sum(g), len(g)) for g in gains])
    chooser = np.random.default_rng(0)
    drawn = totals[chooser.integers(0, len(totals), (RESAMPLES, len(totals)))].sum(1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
    return float(totals[:, 0].sum() / totals[:, 1].sum()), (float(low), float(high))
