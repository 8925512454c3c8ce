"""Policies measured against each other: on the same prompts, in one process, in turns of a fraction of a second."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from recguide.bench.cases import about_device, about_model, about_prompts, clock_of
from recguide.bench.prompts import Prompt
from recguide.bench.turns import take_turns
from recguide.engine.engine import Engine, default_context
from recguide.engine.request import Request, raise_failed
from recguide.engine.sampling import SamplingParams
from recguide.engine.stats import RequestStats
from recguide.errors import RecGuideError
from recguide.models.adapter import adapter_sha256
from recguide.models.loader import Model
from recguide.policies import parse_policy
from recguide.provenance import provenance

SCHEMA = 1
WARM_UP_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What is measured. Each repeat runs every policy at every concurrency once; policies of one concurrency take
    turns, in an order that alternates between repeats."""

    policies: tuple[str, ...] = ("ar", "linear:8")
    concurrency: tuple[int, ...] = (1, 4, 16)
    max_new_tokens: int = 128
    repeats: int = 3
    temperature: float = 0.0
    max_context: int | None = None

    def __post_init__(self) -> None:
        for name in ("policies", "concurrency"):
            if not getattr(self, name):
                raise RecGuideError(f"{name} is empty; give at least one")
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise RecGuideError(f"{name} names one twice: {getattr(self, name)}")
        for name in ("max_new_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise RecGuideError(f"{name} is {getattr(self, name)}; allowed: >= 1")
        if min(self.concurrency) < 1:
            raise RecGuideError(f"concurrency is {min(self.concurrency)}; allowed: >= 1")
        for spec in self.policies:
            parse_policy(spec)
        SamplingParams(temperature=self.temperature)

    @property
    def runs(self) -> int:
        return len(self.policies) * len(self.concurrency) * self.repeats


class _Run:
    """One engine answering all prompts, a step at a time."""

    def __init__(self, spec: str, engine: Engine, params: Sequence[SamplingParams], prompts: Sequence[list[int]]):
        self.spec, self.engine, self.clock = spec, engine, engine.clock
        self.requests = [engine.submit(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
        self.steps = self._steps()

    def _steps(self) -> Iterator[None]:
        while not self.engine.idle:
            self.engine.step()
            yield

    @property
    def answers(self) -> int:
        """Answers finished so far."""
        return sum(request.finished for request in self.requests)

    def cut(self) -> None:
        """End here; what was written counts."""
        for request in self.requests:
            self.engine.abort(request)


class Bench:
    """Runs the measurements one by one; ``result()`` is complete at any moment, so that nothing is lost.

    Where the model has a ``cost_table``, that device is simulated: each step takes what its table says.
    """

    def __init__(self, model: Model, prompts: Sequence[Prompt], settings: BenchSettings):
        self.model, self.prompts, self.settings = model, list(prompts), settings
        self.runs: list[dict] = []
        self._provenance, self._simulated = provenance(), about_device(model)
        self._encoded = [encode(model, p) for p in self.prompts]
        self.max_context = settings.max_context or default_context(model.config)
        longest = max(map(len, self._encoded))
        if longest + settings.max_new_tokens > self.max_context:
            raise RecGuideError(
                f"a prompt has {longest} tokens; with {settings.max_new_tokens} new ones it exceeds "
                f"the context of {self.max_context}; raise --max-context or lower --max-new-tokens"
            )

    def run(
        self, on_round: Callable[[], None] = lambda: None, on_answers: Callable[[int], None] = lambda _: None
    ) -> None:
        """Warm every policy up, then measure. ``on_round`` is called when the runs of one repeat and concurrency are
        over and kept, ``on_answers`` after a turn with the answers that came of it.

        An interruption passes on; runs that it cuts short are kept with what they have, and marked ``interrupted``.
        """
        self.warm_up()
        for repeat, concurrency, specs in self._rounds():
            try:
                self._measure_in_turns(specs, concurrency, repeat, on_answers)
            finally:
                on_round()

    def warm_up(self) -> None:
        """Let every policy decode a little, so that no run pays for first calls."""
        engine = self._engine(self.settings.policies[0], 1)
        for spec in self.settings.policies:
            engine.set_policy(spec)
            engine.generate(self._encoded[:1], SamplingParams(max_new_tokens=WARM_UP_TOKENS))

    def _rounds(self) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """Repeat, concurrency, and policies that take turns; every other repeat goes backwards (A B, B A)."""
        for repeat, concurrency in itertools.product(range(self.settings.repeats), self.settings.concurrency):
            yield repeat, concurrency, self.settings.policies[:: 1 if repeat % 2 == 0 else -1]

    def _engine(self, spec: str, concurrency: int) -> Engine:
        """With a cache for what it is asked to do and no more, since engines that take turns keep one each."""
        return Engine(
            self.model,
            spec,
            max_concurrency=min(concurrency, len(self._encoded)),
            max_context=min(self.max_context, max(map(len, self._encoded)) + self.settings.max_new_tokens),
            clock=clock_of(self.model),
        )

    def measure(self, spec: str, concurrency: int, repeat: int) -> dict:
        """One run over all prompts without turns, kept in ``runs``."""
        (run,) = self._measure_in_turns((spec,), concurrency, repeat, lambda _: None)
        return run

    def _measure_in_turns(
        self, specs: Sequence[str], concurrency: int, repeat: int, on_answers: Callable[[int], None]
    ) -> list[dict]:
        """A run of each policy over all prompts, kept in ``runs``."""
        runs = [_Run(spec, self._engine(spec, concurrency), self._params(), self._encoded) for spec in specs]
        answers = 0
        try:
            for run in take_turns(runs):
                raise_failed(run.requests)
                before, answers = answers, sum(one.answers for one in runs)
                on_answers(answers - before)
        except KeyboardInterrupt:
            for run in runs:
                run.cut()
            cut = [self._figures(run, concurrency, repeat) for run in runs if run.engine.stats.committed]
            self.runs += [run | {"interrupted": True} for run in cut]
            raise
        made = [self._figures(run, concurrency, repeat) for run in runs]
        self.runs += made
        return made

    def _params(self) -> list[SamplingParams]:
        settings = self.settings
        return [
            SamplingParams(max_new_tokens=settings.max_new_tokens, temperature=settings.temperature, seed=i)
            for i in range(len(self._encoded))
        ]

    def _figures(self, run: _Run, concurrency: int, repeat: int) -> dict:
        about = {"policy": run.spec, "concurrency": concurrency, "repeat": repeat}
        made = figures(run.engine, run.requests, run.clock.now())
        return about | made | {"by_category": by_category(self.prompts, run.requests)}

    def result(self) -> dict:
        """Everything measured so far, with what it was measured on."""
        model = self.model
        return {
            "schema": SCHEMA,
            "provenance": self._provenance,
            "model": about_model(model)
            | {
                "adapter": model.adapter_path and adapter_sha256(model.adapter_path)[:16],
                "fallbacks": model.fallbacks,
            },
            "prompts": about_prompts(self.prompts),
            "settings": asdict(self.settings),
            "simulated": self._simulated,
            "summary": summarise(self.runs),
            "runs": self.runs,
        }


def encode(model: Model, prompt: Prompt, thinking: bool | None = None) -> list[int]:
    """Token ids of a prompt: chats through the template (with or without thinking), raw text as it is."""
    if prompt.messages is None:
        return model.tokenizer.encode(prompt.text)
    return model.tokenizer.chat(prompt.as_messages(), thinking=thinking)


def figures(engine: Engine, requests: Sequence[Request], wall: float) -> dict:
    """Every figure of DESIGN section 11 for one run. Throughputs count kept output tokens; prefill time is included."""
    totals = engine.stats.requests
    tokens = totals.completion_tokens
    return {
        "wall_s": wall,
        "tokens": tokens,
        "prompt_tokens": totals.prompt_tokens,
        "aggregate_tok_s": tokens / wall,
        "per_request_tok_s": statistics.median(rates) if (rates := list(per_request_rates(requests))) else None,
        "ttft_s": statistics.median(r.first_token_at - r.submitted_at for r in requests if r.first_token_at),
        "tpf": totals.tokens_per_forward,
        "rows_per_token": totals.rows_per_token,
        "mean_acceptance_length": totals.mean_acceptance_length,
        "draft_acceptance_rate": totals.draft_acceptance_rate,
        "acceptance_histogram": dict(sorted(totals.acceptance_histogram.items())),
        "num_spec_steps": totals.num_spec_steps,
        "num_steps_without_draft": totals.num_steps_without_draft,
        "num_draft_tokens": totals.num_draft_tokens,
        "num_accepted_draft_tokens": totals.num_accepted_draft_tokens,
        "conditional_acceptance": totals.conditional_acceptance(),
        "reached": [totals.reached[j] for j in sorted(totals.reached)],
        "branches_drafted": dict(totals.branches_drafted),
        "branches_reused": dict(totals.branches_reused),
        "steps": engine.stats.steps,
        "step_seconds": engine.stats.seconds,
        "phases_s": engine.stats.phases,
        "share_outside_forward": engine.stats.share_outside_forward,
        "finished": dict(engine.stats.finished),
        "fallbacks": list(engine.policy.fallbacks),
        "on_policy": engine.policy.status(),
    }


def by_category(prompts: Sequence[Prompt], requests: Sequence[Request]) -> dict[str, dict]:
    """Tokens and acceptance length of each prompt category."""
    totals: dict[str, RequestStats] = {}
    for prompt, request in zip(prompts, requests, strict=True):
        totals.setdefault(prompt.category or "none", RequestStats()).add(request.stats)
    return {
        name: {
            "tokens": t.completion_tokens,
            "mean_acceptance_length": t.mean_acceptance_length,
            "tpf": t.tokens_per_forward,
        }
        for name, t in sorted(totals.items())
    }


def per_request_rates(requests: Sequence[Request]) -> Iterator[float]:
    """1 / TPOT of each request with at least two tokens, TPOT = (end - first token) / (tokens - 1)."""
    for r in requests:
        if r.generated > 1 and r.finished_at > r.first_token_at:
            yield (r.generated - 1) / (r.finished_at - r.first_token_at)


def summarise(runs: Sequence[dict]) -> list[dict]:
    """Per concurrency and policy: medians over repeats, and the ratio to ``ar`` of the same repeat, run by run."""
    rows = []
    keys = dict.fromkeys((r["concurrency"], r["policy"]) for r in runs)
    for concurrency, policy in keys:
        mine = [r for r in runs if (r["concurrency"], r["policy"]) == (concurrency, policy)]
        ratios = list(_ratios(mine, runs))
        row = {"concurrency": concurrency, "policy": policy, "repeats": len(mine)}
        for name in ("aggregate_tok_s", "per_request_tok_s", "tpf", "rows_per_token", "mean_acceptance_length"):
            values = [r[name] for r in mine if r[name] is not None]
            row[name] = statistics.median(values) if values else None
        row["share_outside_forward"] = statistics.median(r["share_outside_forward"] for r in mine)
        if ratios:
            row |= {"ratio_to_ar": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
        rows.append(row)
    return rows


def _ratios(mine: Sequence[dict], runs: Sequence[dict]) -> Iterator[float]:
    for run in mine:
        for other in runs:
            same = other["repeat"] == run["repeat"] and other["concurrency"] == run["concurrency"]
            if same and other["policy"] == "ar":
                yield run["aggregate_tok_s"] / other["aggregate_tok_s"]
