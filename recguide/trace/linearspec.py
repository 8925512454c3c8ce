"""Reads the public LinearSpec confidence traces of Nemotron-Labs-Diffusion (schemas 1 and 2) into a decision log.

Requests of a server's own start-up (warm-up, health check) are left out. The round that ends a request is counted in
two ways by the two tracers: PyTorch emits its accepted drafts, the end token last, and no bonus; SGLang counts the seed
of the round among the emitted, as it does in every round. Here a round commits its accepted drafts and the verifier's
own token, and the last one of a text its accepted drafts alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recguide.errors import RecGuideError
from recguide.provenance import provenance
from recguide.trace.writer import TraceWriter

EVENT = "linearspec_confidence_round"
START_UP = ("warmup", "healthcheck", "health_check", "health-check")
SCHEMAS = (1, 2)


def import_linearspec(source: Path, folder: Path) -> int:
    """Write the rounds of ``source`` (JSONL) as a run folder; returns how many. RecGuideError where it is none."""
    rounds = list(_rounds(source))
    if not rounds:
        raise RecGuideError(f"{source}: no {EVENT} of a real request; nothing to import")
    backend = rounds[0].get("backend") or "sglang"
    about = {
        "model": f"nemotron-labs-diffusion ({source.name})",
        "model_fingerprint": f"linearspec:{source.stem}",
        "policy": f"linear:{rounds[0]['block_size']}",
        "imported_from": source.name,
        "backend": backend,
        "provenance": provenance(),
    }
    with TraceWriter(folder, about) as writer:
        requests: dict[str, list[dict[str, Any]]] = {}
        for step, row in enumerate(rounds):
            earlier = requests.setdefault(row["request_id"], [])
            _add_round(writer, step, list(requests).index(row["request_id"]), len(earlier), row)
            earlier.append(row)
        for number, rows in enumerate(requests.values()):
            _add_request(writer, number, rows)
    return len(rounds)


def _rounds(source: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = source.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise RecGuideError(f"{source}: cannot read ({fault})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if row["event"] != EVENT or row["schema_version"] not in SCHEMAS:
                raise RecGuideError(
                    f"{source}:{number}: {row['event']} of schema {row['schema_version']}; known: {EVENT} of 1 and 2"
                )
            accepted_of(row), row["request_id"], row["block_size"], row["accepted_draft_confidences"]
        except (ValueError, KeyError, TypeError) as fault:
            if isinstance(fault, RecGuideError):
                raise
            raise RecGuideError(f"{source}:{number}: not a LinearSpec round ({fault!r})") from None
        if not str(row["request_id"]).startswith(START_UP):
            yield row


def accepted_of(row: dict[str, Any]) -> tuple[int, int]:
    """(accepted drafts, committed tokens) of a round, in one way for both tracers."""
    accepted, emitted = row["accepted_draft_tokens"], row["emitted_tokens"]
    if emitted - accepted not in ((0, 1) if row["eos_hit"] else (1,)):
        raise ValueError(f"{emitted} emitted tokens do not go with {accepted} accepted drafts")
    return accepted, accepted if row["eos_hit"] else accepted + 1


def _add_round(writer: TraceWriter, step: int, request: int, number: int, row: dict[str, Any]) -> None:
    accepted, committed = accepted_of(row)
    drafts = row["block_size"] - 1
    writer.add(
        "plans",
        step=step,
        request=request,
        round=number,
        position=row.get("generation_offset"),
        held=drafts,
        held_kind="draft",
        verify=drafts,
        branch_parents=[],
        branch_tokens=[],
        branch_masks=[],
        propensity=1.0,
        accepted=accepted,
        committed=committed,
        reused=-1,
    )
    tokens = row.get("accepted_draft_token_ids") or []
    confidences = row["accepted_draft_confidences"]
    for j in range(min(accepted, len(confidences))):
        token = tokens[j] if j < len(tokens) else None
        _add_position(writer, step, request, number, j, drafts, token, confidences[j], True, token)
    if row["has_rejection"] and not row["eos_hit"]:
        token, correct = row["rejected_draft_token_id"], row["rejected_correct_token_id"]
        confidence = row["rejected_draft_confidence"]
        second = correct if row["rejected_correct_token_rank"] == 2 else None
        _add_position(writer, step, request, number, accepted, drafts, token, confidence, False, correct, second)


def _add_position(writer, step, request, number, place, drafts, token, top1, accepted, correct, second=None) -> None:
    writer.add(
        "draft_positions",
        step=step,
        request=request,
        round=number,
        position=place + 1,
        block=drafts,
        kind="draft",
        token=token,
        second=second,
        top1=top1,
        verified=True,
        reached=True,
        accepted=accepted,
        correct=correct,
    )


def _add_request(writer: TraceWriter, number: int, rows: list[dict[str, Any]]) -> None:
    writer.add(
        "requests",
        request=number,
        temperature=rows[0].get("temperature", 0.0),
        completion_tokens=sum(accepted_of(row)[1] for row in rows),
        forwards=2 * len(rows),
        finish_reason="eos" if rows[-1]["eos_hit"] else None,
    )
