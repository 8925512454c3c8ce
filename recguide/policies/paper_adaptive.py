"""Verification-guided block size (the paper's high-load rule, PAPER section 'Higher load').

A request's state is s, minus the mean verifier entropy of its last two rounds, and z, the size of its last block and
whether all of it was accepted. It takes the block with the largest V_B(s, z) - rho_C T_C(B): V the tokens a round is
expected to commit, T the time of a round of C requests, rho_C the tokens a millisecond earns one request at C. The
price is one for all requests: what the best single block earns for the average of them.

Against the publication: V is learned from the engine's own rounds, starting from a constant (assign ``values`` to start
from another table; nothing here explores). Drafts ride behind an autoregressive row, as in ``ar-row``, so a round is an
AR token and then the verification. Block 1, plain AR, may be in the set (the published one is ``8/16/32``). Requests
are not grouped by block, because rows are not padded.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from recguide.control.step_time import RowCost, StepTime, step_time_of
from recguide.engine.plan import RequestPlan
from recguide.engine.request import Request
from recguide.models.loader import Model
from recguide.policies.base import Policy, continuation, draft_or_verify
from recguide.policies.knobs import BlocksKnob
from recguide.policies.values import WEIGHT, ValueTable

BLOCKS = BlocksKnob(
    name="blocks", default=(1, 2, 4, 8), low=1, high=64, unit="tokens", help="blocks to choose from, seed included"
)
ENTROPY_EDGES = (0.5, 1.0, 2.0, 3.0)  # nats, between the buckets of s
CONTEXT_STEP = 64  # tokens; times are looked up once for contexts this close


@dataclass(frozen=True, slots=True)
class Past:
    """What a request was when it drafted last: its state, what it had seen, and the entropy of its last rounds."""

    state: tuple[int, int, bool] | None = None
    verified: int = 0
    entropies: tuple[float, ...] = ()
    committed: int = 0
    drafted: int = 0
    ready: int = 0


class PaperAdaptive(Policy):
    name = "paper-adaptive"
    summary = "a request's block from verifier entropy and its last block, at one price for time"
    knobs = (BLOCKS,)
    needs_verifier_entropy = True
    reads_step_times = True

    def __init__(self, **values: object):
        super().__init__(**values)
        self.values = ValueTable()
        self.step_time: StepTime = RowCost()
        self._ready = [0, 0]  # continuations drafted, and come true
        self._times: dict[tuple[int, int], list[tuple[float, float]]] = {}

    def attach(self, model: Model) -> None:
        self.step_time, missing = step_time_of(model)
        self.fallbacks = (f"policy {self.name}: {missing}",) if missing else ()
        self._times.clear()

    def plan(self, requests: Sequence[Request]) -> list[RequestPlan]:
        drafting = [request for request in requests if not request.draft]
        states = {request.id: self._learn(request) for request in drafting}
        times = self._round_times(requests) if drafting else []
        price = max(map(operator.truediv, self._values(None), times), default=0.0)
        return [draft_or_verify(r, 1 if r.draft else self._best(states[r.id], times, price)) for r in requests]

    def _best(self, state: tuple[int, int, bool] | None, times: Sequence[float], price: float) -> int:
        """The block with the largest surplus; the smallest of equals."""
        worth = [value - price * time for value, time in zip(self._values(state), times, strict=True)]
        return self.blocks[worth.index(max(worth))]

    def _values(self, state: tuple[int, int, bool] | None) -> list[float]:
        """V_B: the AR row's token; and if the draft is usable, what is accepted of it and the verifier's own token."""
        accepted = self.values.accepted(state, self.blocks[-1] - 1)
        return [1.0 if b == 1 else 1.0 + self._usable * (1.0 + accepted[b - 1]) for b in self.blocks]

    @property
    def _usable(self) -> float:
        """The share of drafts that fit the AR row's token (all, where drafts do not guess it)."""
        drafted, ready = self._ready
        return (ready + WEIGHT) / (drafted + WEIGHT)

    # -- time --------------------------------------------------------------------------------------------------

    def _round_times(self, requests: Sequence[Request]) -> list[float]:
        """T_C(B) in ms: a step that drafts and, as often as the draft is usable, one that verifies it."""
        context = round(fmean(len(request.tokens) for request in requests) / CONTEXT_STEP)
        key = (len(requests), context)
        if key not in self._times:
            self._times[key] = [self._step_times(requests, block, context * CONTEXT_STEP) for block in self.blocks]
        return [draft + self._usable * verify for draft, verify in self._times[key]]

    def _step_times(self, requests: Sequence[Request], block: int, context: float) -> tuple[float, float]:
        count, predict = len(requests), self.step_time.predict
        if block == 1:
            return predict(count, count, 0, context), 0.0
        drafts = continuation(requests[0], 0, block - 1).rows
        return predict(count, count, count * drafts, context), predict(count, count * block, 0, context)

    # -- history -----------------------------------------------------------------------------------------------

    def _learn(self, request: Request) -> tuple[int, int, bool] | None:
        """Take in what came of the last draft, and return the state now."""
        past = request.memory.get(self.spec, Past())
        history, entropy, stats = request.accepted_history, request.verifier_entropy, request.stats
        for drafted, accepted in history[past.verified :]:
            self.values.learn(past.state, drafted, accepted)
        entropies = past.entropies
        if len(entropy) > past.committed:
            entropies = (*entropies, fmean(entropy[past.committed :]))[-2:]
        drafted, ready = stats.branches_drafted["continuation"], stats.branches_reused["continuation"]
        self._ready[0] += drafted - past.drafted
        self._ready[1] += ready - past.ready
        state = self._state(history, entropies)
        request.memory[self.spec] = Past(state, len(history), entropies, len(entropy), drafted, ready)
        return state

    def _state(self, history: Sequence[tuple[int, int]], entropies: Sequence[float]) -> tuple[int, int, bool] | None:
        """(bucket of s, last block as one of the set, whether it was accepted whole); None before the first round."""
        if not (history and entropies):
            return None
        drafted, accepted = history[-1]
        block = max((b for b in self.blocks if b <= drafted + 1), default=self.blocks[0])
        return bisect.bisect(ENTROPY_EDGES, fmean(entropies)), block, accepted == drafted
