"""The decode engine: requests in, plans for every step, lossless tokens out.

``Engine.step`` is the only way tokens are made: plan, lay out, one forward, draw, accept, commit. The engine knows
nothing of terminals, files or widgets. It may be driven from one thread while others submit, abort and turn knobs.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

import torch
from torch import Tensor

from recguide.engine.accept import accepted_length
from recguide.engine.cache import KVCache, StepAttention
from recguide.engine.chaining import Left, choose_along, choose_tails, draw_others, left_of, pieces, runs_of
from recguide.engine.clock import Clock, WallClock
from recguide.engine.drawing import Drawn, Work, draft_of, next_draft, reveal, rows_to_draw
from recguide.engine.layout import Layout, Segment, build_layout
from recguide.engine.observe import Observer, Outcome
from recguide.engine.plan import Branch, RequestPlan, clamp
from recguide.engine.request import Delta, Draft, Request
from recguide.engine.sampling import SamplingParams
from recguide.engine.stats import EngineStats, StepRecord
from recguide.engine.text import StopMatcher
from recguide.errors import RecGuideError
from recguide.models.config import ModelConfig
from recguide.models.loader import Model
from recguide.policies import Policy, parse_policy
from recguide.provenance import kernels

Prompt = str | list[int] | list[dict[str, str]]
LOGIT_ROWS = 256  # logits of more rows than this are made in pieces, so that rows x vocabulary stays bounded


def default_context(config: ModelConfig) -> int:
    """Tokens of prompt and answer together, unless the user says otherwise."""
    return min(2048, config.max_positions)


class Engine:
    """Continuous batching of requests under one policy.

    ``max_concurrency`` slots of ``max_context`` tokens are reserved; ``concurrency`` of them are used at a time (it
    may be changed while running, as may the policy). ``prefill_chunk`` bounds the prompt rows of a step. ``clock``
    tells the time of every statistic: the wall's unless a device is simulated.
    """

    def __init__(
        self,
        model: Model,
        policy: str | Policy = "ar",
        *,
        max_concurrency: int = 32,
        concurrency: int | None = None,
        max_context: int | None = None,
        prefill_chunk: int = 256,
        clock: Clock | None = None,
    ):
        for name, value in (("max_concurrency", max_concurrency), ("prefill_chunk", prefill_chunk)):
            if value < 1:
                raise RecGuideError(f"{name} is {value}; allowed: >= 1")
        max_context = default_context(model.config) if max_context is None else max_context
        if not 2 <= max_context <= model.config.max_positions:
            raise RecGuideError(f"max_context is {max_context}; allowed: 2..{model.config.max_positions} (the model's)")
        self.model, self.max_context, self.prefill_chunk = model, max_context, prefill_chunk
        self.max_concurrency, self.clock = max_concurrency, clock or WallClock()
        self._policy = self._attached(policy)
        self._concurrency = self._check_concurrency(max_concurrency if concurrency is None else concurrency)
        backbone = model.backbone
        self.kernels = kernels(backbone.device)
        self._adapter = model.fused_adapter
        self.adapter_enabled = True
        self._cache = KVCache(
            model.config, max_concurrency, max_context, prefill_chunk + 64, backbone.dtype, backbone.device
        )
        self._ids = itertools.count()
        self._lock = threading.RLock()
        self._commands: deque[Callable[[], None]] = deque()
        self._pending_deltas: list[Delta] = []
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.stats = EngineStats()
        self.last_step: StepRecord | None = None
        self.observer: Observer | None = None
        self._outcomes: list[Outcome] = []
        self._learning = False

    # -- what a user turns -------------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        return self._policy

    def set_policy(self, policy: str | Policy) -> None:
        """Plan with another policy from the next step on. Running requests keep their drafts and their text."""
        self._policy = self._attached(policy)

    def _attached(self, policy: str | Policy) -> Policy:
        parsed = parse_policy(policy)
        parsed.attach(self.model)
        return parsed

    @property
    def concurrency(self) -> int:
        return self._concurrency

    def set_concurrency(self, concurrency: int) -> None:
        """Run at most this many requests at once from the next step on; more that already run finish first."""
        self._concurrency = self._check_concurrency(concurrency)

    def _check_concurrency(self, concurrency: int) -> int:
        if not 1 <= concurrency <= self.max_concurrency:
            raise RecGuideError(f"concurrency is {concurrency}; allowed: 1..{self.max_concurrency}")
        return concurrency

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Request:
        """Queue a prompt (text, token ids, or chat messages) and return its request. Thread-safe.

        Raises RecGuideError for an empty prompt, one that leaves no room in the context, or unknown token ids.
        """
        request = self.prepare(prompt, params)
        self.enqueue(request)
        return request

    def prepare(self, prompt: Prompt, params: SamplingParams | None = None) -> Request:
        """The checked request of a prompt, not queued yet."""
        params = params or SamplingParams()
        ids = self._encode(prompt)
        config = self.model.config
        eos = config.eos_ids if params.eos_ids is None else params.eos_ids
        limit = min(len(ids) + params.max_new_tokens, self.max_context)
        request = Request(next(self._ids), ids, params, frozenset(eos), limit, submitted_at=self.clock.now())
        request.seed_in_block = config.conventions.seed_in_block
        request.draft_shift = self.model.draft_shift
        request.stats.count_prefill = config.conventions.count_prefill
        if params.stop:
            request.stop_matcher = StopMatcher(self.model.tokenizer, params.stop)
        return request

    def enqueue(self, request: Request) -> None:
        """Queue a prepared request. Thread-safe."""
        self._command(lambda: self.waiting.append(request))

    def _encode(self, prompt: Prompt) -> list[int]:
        tokenizer = self.model.tokenizer
        if isinstance(prompt, str):
            ids = tokenizer.encode(prompt)
        elif prompt and isinstance(prompt[0], dict):
            ids = tokenizer.chat(prompt)
        else:
            ids = list(prompt)
        if not ids:
            raise RecGuideError("prompt is empty; give it at least one token")
        if len(ids) >= self.max_context:
            raise RecGuideError(
                f"prompt has {len(ids)} tokens, the context holds {self.max_context} with the answer; "
                "shorten it or raise max_context"
            )
        wrong = [i for i in ids if not (isinstance(i, int) and 0 <= i < self.model.config.vocab_size)]
        if wrong:
            raise RecGuideError(f"prompt holds token id {wrong[0]!r}; allowed: 0..{self.model.config.vocab_size - 1}")
        return ids

    def abort(self, request: Request, reason: str = "abort") -> None:
        """End a request wherever it is; its slot is free before the next step. Thread-safe."""
        self._command(lambda: self._finish(request, reason))

    def _command(self, action: Callable[[], None]) -> None:
        """Run an action between steps: now if no step is running, else at the start of the next."""
        self._commands.append(action)
        if self._lock.acquire(blocking=False):
            try:
                self._apply_commands()
            finally:
                self._lock.release()

    def _apply_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def flush(self) -> list[Delta]:
        """Carry out what other threads asked for, without a step, and return what came of it."""
        with self._lock:
            self._apply_commands()
            return self.take_deltas()

    @property
    def has_news(self) -> bool:
        """True when ``flush`` would do or return something."""
        return bool(self._commands or self._pending_deltas)

    @property
    def idle(self) -> bool:
        """True when a step would neither run anything nor report anything."""
        return not (self.running or self.waiting or self.has_news)

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        on_delta: Callable[[Delta], None] | None = None,
    ) -> list[Request]:
        """Continue all prompts and return their requests in order. ``on_delta`` sees tokens as they are committed.

        An interruption (Ctrl-C) aborts what is unfinished and passes on; the requests keep their partial output.
        """
        prompts = list(prompts)
        each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
        requests: list[Request] = []
        try:
            for prompt, param in zip(prompts, each, strict=True):
                requests.append(self.submit(prompt, param))
            while not all(request.finished for request in requests):
                for delta in self.step():
                    if on_delta:
                        on_delta(delta)
        except BaseException:
            for request in requests:
                self.abort(request)
            self.take_deltas()  # or the next caller of step would see them
            raise
        return requests

    # -- the step ----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Delta]:
        """One forward over the rows that the policy planned. Returns what each request gained; empty when idle."""
        with self._lock:
            self._apply_commands()
            self._admit()
            if not self.running:
                return self.take_deltas()
            phases = _Phases(self.clock.now)
            policy = self._policy  # another thread may set a new one in mid-step
            self._learning = policy.learns
            work = self._plan(policy)
            phases.mark("plan")
            layout = self._lay_out(work)
            phases.mark("layout")
            hidden = self._forward(layout)
            self.clock.computed(len(work), layout.first_draft_row, layout.rows - layout.first_draft_row, _context(work))
            phases.mark("forward")
            drawn = self._draw(work, layout, hidden, policy, phases)
            left = [
                self._settle(item, layout.trunk_logits[index], layout.branch_logits[index], drawn, policy.tail)
                for index, item in enumerate(work)
            ]
            self.running = [r for r in self.running if not r.finished]
            phases.mark("accept")
            self._draft_tails([part for part in left if part is not None])
            phases.mark("chain")
            self._record(work, layout, phases)
            self._tell(policy)
            return self.take_deltas()

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._concurrency:
            request = self.waiting.popleft()
            request.slot = self._cache.take()
            self.running.append(request)

    def _plan(self, policy: Policy) -> list[Work]:
        """Prompt rows first, in order of arrival, up to the chunk; whoever has all its K/V gets a plan."""
        budget = self.prefill_chunk
        ready, prefill = [], {}
        for request in self.running:
            pending = len(request.tokens) - 1 - self._cache.lengths[request.slot]
            prefill[request.id] = min(pending, budget)
            budget -= prefill[request.id]
            if prefill[request.id] == pending:
                ready.append(request)
        plans = dict(zip((r.id for r in ready), policy.plan(ready), strict=True))
        work = [self._work(r, plans.get(r.id), prefill[r.id]) for r in self.running]
        return [item for item in work if item.segment.rows]

    def _work(self, request: Request, plan: RequestPlan | None, prefill: int) -> Work:
        cached = self._cache.lengths[request.slot]
        new = request.tokens[cached : cached + prefill]
        if plan is None:
            return Work(request, None, Segment(request.slot, cached, tuple(new), 0))
        drafts = request.draft.tokens if request.draft else []
        plan = clamp(plan, len(drafts), request.remaining)
        plan.check(len(drafts))
        scored = 0
        if plan.verify is not None:
            scored = plan.verify + 1
            new = [*new, request.tokens[-1], *drafts[: plan.verify]]
        return Work(request, plan, Segment(request.slot, cached, tuple(new), scored, prefill, plan.branches))

    def _lay_out(self, work: list[Work]) -> Layout:
        self._cache.reserve(max(item.segment.rows for item in work))
        for item in work:
            self._cache.wrote(item.segment.slot, item.segment.rows)
        model, segments = self.model, [item.segment for item in work]
        layout = build_layout(segments, model.config.mask_id, adapt_tokens=model.adapt_tokens)
        return layout.to(self.model.backbone.device)

    def _forward(self, layout: Layout) -> Tensor:
        """Hidden states of the rows that need logits."""
        hidden = self.model.backbone.forward(
            layout.tokens,
            layout.positions,
            StepAttention(self._cache, layout, self.model.config),
            first_draft_row=layout.first_draft_row if self.adapter_enabled else layout.rows,
            mask_rows=layout.mask_rows,
            adapter=self._adapter,
        )
        return hidden if layout.all_rows_scored else hidden[layout.logit_rows]

    def _draw(self, work: list[Work], layout: Layout, hidden: Tensor, policy: Policy, phases: _Phases) -> Drawn:
        """Logits, draws and signals, a bounded piece at a time."""
        watched = self.observer is not None
        drawn = Drawn(*rows_to_draw(work), signals=policy.needs_signals or watched, entropy=watched)
        chain = self._adapter.chain if self.adapter_enabled else None
        branches = layout.branch_logits
        runs = [] if chain is None else runs_of(work, layout.trunk_logits, branches, self.model.adapt_tokens)
        for part in pieces(len(drawn.rows), [s for each in branches for s in each], LOGIT_ROWS):
            logits = self.model.backbone.logits(hidden[part])
            phases.mark("forward")
            draw_others(runs, logits, part.start, drawn)
            if policy.needs_verifier_entropy:
                drawn.add_verifier(logits[: max(0, drawn.first_draft - part.start)])
            phases.mark("sampling")
            if runs:
                choose_along(chain, runs, logits, hidden[part], part.start, drawn)
                phases.mark("chain")
        return drawn

    def _settle(self, item: Work, trunk: slice, branches: list[slice], drawn: Drawn, tail: int) -> Left | None:
        """Accept, commit and keep the draft for the next step; at most ``tail`` places of one that was rejected."""
        request, segment, plan = item.request, item.segment, item.plan
        if plan is None:
            request.stats.prefill_forwards += 1
            self._cache.commit(segment.slot, len(segment.trunk))
            return None
        request.stats.forwards += 1
        request.stats.rows += plan.rows
        if not all(drawn.finite[trunk]):
            request.error = "the model's logits are not finite; check the weights, or load them in float32"
            self._finish(request, "error")
        elif plan.verify is None:
            self._cache.commit(segment.slot, segment.prefill)
            held = request.draft
            self._keep_draft(request, plan.branches[0], branches[0], drawn)
            self._note(item, len(request.tokens), request.stats.num_spec_steps, held, [], 0, None)
        else:
            return self._verify(item, trunk, branches, drawn, tail)
        return None

    @staticmethod
    def _keep_draft(request: Request, branch: Branch, part: slice, drawn: Drawn) -> None:
        """The whole draft, or what a drafting of several forwards knows so far."""
        request.stats.branches_drafted["draft"] += 1
        if not (branch.known or branch.threshold):
            request.draft = draft_of(branch, part, drawn, "draft")
            return
        request.known = reveal(branch, part, drawn)
        stuck = not any(drawn.finite[part])
        if None not in request.known or stuck:
            request.draft = Draft(list(takewhile(lambda token: token is not None, request.known)))

    def _verify(self, item: Work, trunk: slice, branches: list[slice], drawn: Drawn, tail: int) -> Left | None:
        request, plan = item.request, item.plan
        emitted = drawn.tokens[trunk]
        drafted = request.draft.tokens[: plan.verify] if request.draft else []
        accepted = accepted_length(drafted, emitted)
        kept, reason = _cut(request, emitted[: accepted + 1])
        held, position, rounds = request.draft, len(request.tokens), request.stats.num_spec_steps
        request.stats.verified(len(drafted), accepted, len(kept))
        if drafted:
            request.accepted_history.append((len(drafted), accepted))
        request.draft, reused = next_draft(item, branches, drawn, accepted, emitted)
        request.known = []
        self._commit(item, kept, trunk, drawn)
        self._note(item, position, rounds, held, emitted[: accepted + 1], len(kept), reused)
        left = left_of(request, held, accepted, tail) if held and not (request.draft or reason) else None
        if held:
            held.chained = None  # whoever watches may keep the draft for long
        if reason:
            self._finish(request, reason, kept)
        else:
            self._pending_deltas.append(Delta(request, kept, None))
        return left

    def _draft_tails(self, left: list[Left]) -> None:
        """New drafts from what is left of rejected ones."""
        if left and self.adapter_enabled:
            choose_tails(self._adapter.chain, left, self.model.backbone.dtype, entropy=self.observer is not None)

    def _note(self, item: Work, position, rounds, held, emitted, kept, reused) -> None:
        """Keep what came of a plan, for the observer and a policy that learns."""
        if self.observer is not None or self._learning:
            outcome = Outcome(item.request, item.plan, position, rounds, held, emitted, kept, reused)
            self._outcomes.append(outcome)

    def _tell(self, policy: Policy) -> None:
        outcomes, self._outcomes = self._outcomes, []
        if self._learning:
            policy.learn(self.last_step, outcomes)
        if (observer := self.observer) is not None:
            observer.on_step(self.last_step, policy.spec, outcomes)

    def _commit(self, item: Work, kept: list[int], trunk: slice, drawn: Drawn) -> None:
        request = item.request
        if request.first_token_at is None:
            request.first_token_at = self.clock.now()
        request.tokens += kept
        if request.params.logprobs:
            request.logprobs += drawn.logprobs[trunk][: len(kept)]
            request.filtered_logprobs += drawn.filtered[trunk][: len(kept)]
        request.verifier_entropy += drawn.verifier_entropy[trunk][: len(kept)]
        self._cache.commit(item.segment.slot, item.segment.prefill + len(kept))

    def _finish(self, request: Request, reason: str, tokens: list[int] | None = None) -> None:
        if request.finished:
            return
        request.finish_reason = reason
        request.finished_at = self.clock.now()
        request.draft = None
        if request.slot is not None:
            self._cache.release(request.slot)
            request.slot = None
        if request in self.waiting:
            self.waiting.remove(request)
        self.running = [r for r in self.running if r is not request]
        self.stats.finished[reason] += 1
        self.stats.requests.add(request.stats)
        if (observer := self.observer) is not None:  # another thread may take it away in mid-step
            observer.on_finish(request)
        self._pending_deltas.append(Delta(request, tokens or [], reason))

    def take_deltas(self) -> list[Delta]:
        """What was gained since the last step returned, such as the ends of aborted requests."""
        taken, self._pending_deltas = self._pending_deltas, []
        return taken

    def _record(self, work: list[Work], layout: Layout, phases: _Phases) -> None:
        committed = sum(len(d.tokens) for d in self._pending_deltas)
        phases.mark("other")
        self.last_step = StepRecord(
            index=self.stats.steps,
            requests=len(work),
            rows=layout.rows,
            prefill_rows=sum(i.segment.prefill if i.plan else len(i.segment.trunk) for i in work),
            draft_rows=layout.rows - layout.first_draft_row,
            committed=committed,
            seconds=phases.total,
            phases=phases.spent,
        )
        self.stats.add(self.last_step)


class _Phases:
    """Splits a step's time into phases."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.started = self._last = now()
        self.spent: dict[str, float] = {}

    def mark(self, phase: str) -> None:
        now = self._now()
        self.spent[phase] = self.spent.get(phase, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        return self._last - self.started


def _context(work: list[Work]) -> float:
    """Mean tokens in the cache of a step's requests."""
    return sum(item.segment.cached for item in work) / len(work)


def _cut(request: Request, tokens: list[int]) -> tuple[list[int], str | None]:
    """Keep tokens up to EOS, stop string and budget, whichever comes first (R5); the reason if the request ends."""
    kept = tokens[: request.remaining]
    end = next((i for i, token in enumerate(kept, 1) if token in request.eos_ids), None)
    if end is not None:
        kept = kept[:end]
    match = request.stop_matcher.feed(kept) if request.stop_matcher else None
    if match is not None:
        count, request.stop_text = match
        return kept[:count], "stop"
    if end is not None:
        return kept, "eos"
    return kept, "length" if len(kept) == request.remaining else None
