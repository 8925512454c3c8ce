"""The dashboard's lines of text: what runs, what it costs to watch, what fell back, what the predictors are worth."""

from __future__ import annotations

import html
from typing import Any

import torch
from recguide.lab import series
from recguide.lab.session import LabSession
from recguide.lab.watch import Watcher

COSTLY = 0.1  # share of one core beyond which drawing is said to cost throughput


def state_line(session: LabSession, per_second: float, share: float, quiet: bool) -> str:
    """Engine, load, model, log and drawing, in one line."""
    engine, load = session.engine, session.load
    parts = [f"<b>{session.state}</b>", f"session {session.id}", f"policy {html.escape(_policy(session))}"]
    if engine is not None and load is not None:
        parts.append(f"{len(engine.running)} of {engine.concurrency} running, {len(engine.waiting)} waiting")
        parts.append(f"{engine.stats.committed} tokens in {engine.stats.steps} steps")
        if load.turned_away:
            parts.append(f"<b>{load.turned_away} arrivals turned away: the queue is full</b>")
    model = session.model
    parts.append(f"{html.escape(model.name)}, {model.dtype_name} on {model.backbone.device}")
    parts.append(f"{torch.get_num_threads()} threads, seed {session.settings.seed}")
    parts.append("recording" if session.recording is not None and session.recording.on else "not recording")
    if session.state == "running":
        parts.append(_drawing(per_second, share, quiet))
    return f'<div class="recguide-state">{" · ".join(parts)}</div>'


def _policy(session: LabSession) -> str:
    return session.settings.policy if session.engine is None else session.engine.policy.spec


def _drawing(per_second: float, share: float, quiet: bool) -> str:
    if quiet:
        return "not drawing: measuring quietly"
    text = f"drawing {per_second:.1f}/s"
    if share > COSTLY:
        text += f", which takes {share:.0%} of a core from decoding: 'Measure quietly' for figures"
    return text


def fallbacks(session: LabSession, status: dict[str, Any]) -> str:
    """Everything that is not as it should be (rule R8); empty when all is well."""
    found = [*session.model.fallbacks, *session.policy.fallbacks]
    if session.engine is not None and not session.engine.adapter_enabled:
        found.append("the draft adapter is switched off: the text is the same, drafts are rarely right")
    if status.get("drift"):
        found.append(f"the predictors drift: {status['drift']}")
    if session.recording is not None and session.recording.error:
        found.append(f"the decision log is not complete: {session.recording.error}")
    if session.supply.left_out:
        found.append(f"{session.supply.left_out} prompts are too long for the lab's context and left out")
    return "".join(f"<div>⚠ {html.escape(text)}</div>" for text in found)


def predictors_line(watcher: Watcher, status: dict[str, Any]) -> str:
    """Running values of what the reliability curve shows, and what the policy reports of itself."""
    pairs = list(watcher.predictions)
    rounds = list(watcher.rounds)
    learned = bool(rounds) and rounds[-1].learned
    source = "the controller's predictions" if learned else "the draft's own top-1 probabilities"
    parts = [f"Predictor: {source}, {len(pairs)} drafts reached"]
    parts += _value(
        "AUC", status.get("auc") if learned else series.auc(pairs), "chance that a kept draft ranked higher"
    )
    parts += _value("ECE", status.get("ece") if learned else series.ece(pairs), "mean distance from the diagonal")
    parts += _value("Brier", status.get("brier"), "mean squared error")
    parts += _value("price", status.get("price"), "tokens per ms that a row must earn")
    if "drift" in status:
        parts.append(f"drift: {html.escape(str(status['drift'] or 'none'))}")
    return f'<div class="recguide-state">{" · ".join(parts)}</div>'


def _value(name: str, value: float | None, meaning: str) -> list[str]:
    return [] if value is None else [f'<span title="{meaning}">{name} {value:.3f}</span>']
