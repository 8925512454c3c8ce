"""From what the engine tells its observer to rows of the decision log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recguide.engine.engine import Engine
from recguide.engine.observe import Outcome
from recguide.engine.request import Draft, Request
from recguide.engine.stats import StepRecord
from recguide.provenance import provenance
from recguide.trace.writer import TraceWriter


class Recorder:
    """Records an engine into a run folder until it is closed. Use as a context manager."""

    def __init__(self, engine: Engine, folder: Path, **about: Any):
        self._engine = engine
        self.writer = TraceWriter(folder, manifest(engine, **about))
        self._policy = engine.policy.spec
        engine.observer = self

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._engine.observer = None
        self.writer.close()

    def on_step(self, step: StepRecord, policy: str, outcomes: Sequence[Outcome]) -> None:
        if policy != self._policy:
            self.writer.event("policy", value=policy)
            self._policy = policy
        self.writer.add(
            "steps",
            step=step.index,
            at_s=self.writer.now,
            policy=policy,
            requests=step.requests,
            rows=step.rows,
            prefill_rows=step.prefill_rows,
            draft_rows=step.draft_rows,
            committed=step.committed,
            seconds=step.seconds,
            forward_s=step.phases.get("forward", 0.0),
        )
        for outcome in outcomes:
            self._add_plan(step.index, outcome)
            if outcome.held and outcome.plan.verify:
                self._add_positions(step.index, outcome, outcome.held)

    def _add_plan(self, step: int, outcome: Outcome) -> None:
        plan, held = outcome.plan, outcome.held
        self.writer.add(
            "plans",
            step=step,
            request=outcome.request.id,
            position=outcome.position,
            round=outcome.round,
            held=len(held.tokens) if held else 0,
            held_kind=held.kind if held else None,
            verify=-1 if plan.verify is None else plan.verify,
            branch_parents=[b.parent for b in plan.branches],
            branch_tokens=[-1 if b.token is None else b.token for b in plan.branches],
            branch_masks=[b.masks for b in plan.branches],
            propensity=plan.propensity,
            predicted_value=plan.outlook and plan.outlook.value,
            predicted_ms=plan.outlook and plan.outlook.step_ms,
            alternatives=plan.outlook and json.dumps([round(float(v), 4) for v in plan.outlook.alternatives]),
            accepted=len(outcome.emitted) - 1,
            committed=outcome.kept,
            reused=-1 if outcome.reused is None else outcome.reused,
        )

    def _add_positions(self, step: int, outcome: Outcome, held: Draft) -> None:
        accepted = len(outcome.emitted) - 1
        for j, token in enumerate(held.tokens):
            reached = j <= accepted and j < outcome.plan.verify
            self.writer.add(
                "draft_positions",
                step=step,
                request=outcome.request.id,
                round=outcome.round,
                position=j + 1,
                block=len(held.tokens),
                kind=held.kind,
                token=token,
                second=_at(held.second, j),
                top1=_at(held.top1, j),
                margin=_at(held.margin, j),
                entropy=_at(held.entropy, j),
                verified=j < outcome.plan.verify,
                reached=reached,
                accepted=j < accepted,
                correct=outcome.emitted[j] if reached else None,
            )

    def on_finish(self, request: Request) -> None:
        stats, params = request.stats, request.params
        self.writer.add(
            "requests",
            request=request.id,
            prompt_tokens=stats.prompt_tokens,
            max_new_tokens=params.max_new_tokens,
            temperature=params.temperature,
            seed=params.seed,
            completion_tokens=stats.completion_tokens,
            forwards=stats.forwards,
            rows=stats.rows,
            cut_tokens=stats.cut_tokens,
            finish_reason=request.finish_reason,
        )


def _at(values: Sequence[Any], place: int) -> Any:
    """A signal, or None where the draft was made without."""
    return values[place] if place < len(values) else None


def manifest(engine: Engine, **about: Any) -> dict[str, Any]:
    """What a log is of."""
    model = engine.model
    return {
        "model": model.name,
        "model_fingerprint": model.fingerprint,
        "dtype": model.dtype_name,
        "adapter": None if model.adapter is None else str(model.adapter_path),
        "draft_shift": model.draft_shift,
        "policy": engine.policy.spec,
        "concurrency": engine.concurrency,
        "provenance": provenance(),
        **about,
    }
