"""``recguide generate``: continue prompts, streaming a single one, and save the answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from recguide.bench.measure import encode
from recguide.bench.prompts import Prompt, load_prompts
from recguide.commands.options import (
    Adapter,
    Device,
    Dtype,
    MaxContext,
    ModelName,
    PromptsFile,
    open_model,
    progress_bar,
    say_fallbacks,
)
from recguide.engine.engine import Engine
from recguide.engine.request import Delta, Request, raise_failed
from recguide.engine.sampling import SamplingParams
from recguide.engine.text import TextStream, held_back
from recguide.errors import RecGuideError
from recguide.models import embedded
from recguide.models.loader import Model
from recguide.models.tokenizer import END_THINK, Tokenizer
from recguide.policies import parse_policy
from recguide.provenance import check_writable, write_text

POLICY = "ar-row:6"


def generate(
    prompt: Annotated[str | None, typer.Argument(help="What to answer (a chat message). Or use --prompts.")] = None,
    prompts: PromptsFile = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="ar, linear:8, ar-row:8, window, quadratic:4, overlap:8:0.5 ... Default: linear with the model's "
            f"published block, else {POLICY}."
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests decoded at once.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens an answer may have.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k best tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the best tokens up to this probability; 1 is off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Drop tokens below this share of the best; 0 is off.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 discourages repeats; 1 is off.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Same seed, same answer. Default: drawn and saved.")] = None,
    thinking: Annotated[bool | None, typer.Option(help="Ask the chat template for thinking, or for none.")] = None,
    max_thinking_tokens: Annotated[int | None, typer.Option(help="End the thinking after this many tokens.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given again.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write answers and statistics as JSONL.")] = None,
    model: ModelName = embedded.NAME,
    adapter: Adapter = "auto",
    dtype: Dtype = None,
    device: Device = None,
    max_context: MaxContext = None,
) -> None:
    """Continue one prompt (printed as it grows) or a file of prompts. Ctrl-C keeps what is there.

    Example: recguide generate "Why is the sky blue?" --policy ar-row:6
    """
    if (prompt is None) == (prompts is None):
        raise RecGuideError("give either a prompt or --prompts FILE")
    if prompt is not None and not prompt.strip():
        raise RecGuideError("prompt is empty; give it at least one word")
    chosen = load_prompts(prompts) if prompt is None else [Prompt("0", messages=({"role": "user", "content": prompt},))]
    planned = None if policy is None else parse_policy(policy)
    if out is not None:
        check_writable(out)
    params = SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=tuple(stop or ()),
    )
    console = Console(stderr=True)
    loaded = open_model(model, dtype, device, adapter, console)
    engine = Engine(
        loaded, planned or default_policy(loaded), max_concurrency=max(1, concurrency), max_context=max_context
    )
    engine.set_concurrency(concurrency)
    say_fallbacks(engine.policy, console)
    params = with_thinking_budget(params, loaded, max_thinking_tokens)
    requests = [engine.submit(encode(loaded, p, thinking), params) for p in chosen]
    try:
        _run(engine, requests, console, stream=prompt is not None)
    finally:
        for request in requests:
            engine.abort(request)
        _report(engine, chosen, requests, out, console, stream=prompt is not None)
    raise_failed(requests)


def default_policy(model: Model) -> str:
    return f"linear:{model.config.block_size}" if model.config.block_size else POLICY


def with_thinking_budget(params: SamplingParams, model: Model, budget: int | None) -> SamplingParams:
    """``params`` with the model's own end-of-thinking token, where a budget is asked for."""
    if budget is None:
        return params
    end = model.tokenizer.end_think_id
    if end is None:
        raise RecGuideError(f"--max-thinking-tokens: the tokenizer of {model.name} has no {END_THINK} token")
    return replace(params, max_thinking_tokens=budget, end_think_id=end)


def _run(engine: Engine, requests: list[Request], console: Console, *, stream: bool) -> None:
    if stream:
        _stream(engine, requests[0])
        return
    with progress_bar(console, transient=False) as progress:
        task = progress.add_task("answers", total=len(requests))
        while not engine.idle:
            progress.advance(task, sum(delta.finish_reason is not None for delta in engine.step()))


def _stream(engine: Engine, request: Request) -> None:
    printer = _Printer(engine.model.tokenizer, request.params.stop)
    try:
        while not engine.idle:
            for delta in engine.step():
                printer.show(delta)
    finally:
        printer.end(request)


class _Printer:
    """Prints an answer as it grows; what may be the start of a stop string waits until it is known."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]):
        self._text, self._stops, self._shown = TextStream(tokenizer), stops, 0

    def show(self, delta: Delta) -> None:
        self._text.feed(delta.tokens)
        text = self._text.text
        if delta.finish_reason is None:
            self._write(text[: len(text) - held_back(text, self._stops)])

    def end(self, request: Request) -> None:
        self._text.finish()
        self._write(self._text.text if request.stop_text is None else request.stop_text)
        sys.stdout.write("\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text[self._shown :])
        sys.stdout.flush()
        self._shown = max(self._shown, len(text))


def _report(engine, prompts: list[Prompt], requests: list[Request], out, console: Console, *, stream: bool) -> None:
    rows = [_row(engine, p, r) for p, r in zip(prompts, requests, strict=True)]
    if out is not None:
        write_text(out, "".join(json.dumps(row) + "\n" for row in rows))
        console.print(f"{len(rows)} answers in {out}", markup=False, highlight=False, soft_wrap=True)
    elif not stream:
        for row in rows:
            console.print(f"{row['id']} ({row['finish_reason']})", style="bold", markup=False, highlight=False)
            print(row["text"])
    totals, seconds = engine.stats.requests, engine.stats.seconds
    if totals.completion_tokens:
        console.print(
            f"{totals.completion_tokens} tokens in {seconds:.1f} s, {totals.completion_tokens / seconds:.1f} tokens/s, "
            f"{totals.tokens_per_forward:.2f} tokens per forward ({engine.policy.spec})",
            highlight=False,
            style="dim",
        )


def _row(engine: Engine, prompt: Prompt, request: Request) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "model": engine.model.name,
        "model_fingerprint": engine.model.fingerprint,
        "policy": engine.policy.spec,
        "text": request.text(engine.model.tokenizer),
        "tokens": request.output,
        "finish_reason": request.finish_reason,
        "error": request.error,
        "seed": request.params.seed,
        "mean_acceptance_length": request.stats.mean_acceptance_length,
        "tokens_per_forward": request.stats.tokens_per_forward,
    }
