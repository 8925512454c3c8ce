"""``recguide trace``: record decision logs, say what is in them, import those of another engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from recguide.bench.measure import encode
from recguide.bench.prompts import load_prompts, spread
from recguide.commands.entry import say
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
from recguide.engine.sampling import SamplingParams
from recguide.models import embedded
from recguide.policies import parse_policy
from recguide.trace.linearspec import import_linearspec
from recguide.trace.reader import Trace, read_trace
from recguide.trace.recorder import Recorder

trace = typer.Typer(no_args_is_help=True, help="Record and check decision logs.")
OUT = Annotated[Path, typer.Argument(help="A new run folder.")]


@trace.command()
def record(
    out: OUT,
    policy: Annotated[str, typer.Option(help="Whose plans to record; explore draws them at random.")] = "explore",
    prompts: PromptsFile = None,
    limit: Annotated[int | None, typer.Option(help="Use only N prompts, evenly spread over the file.")] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at once.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens an answer may have.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    model: ModelName = embedded.NAME,
    adapter: Adapter = "auto",
    dtype: Dtype = None,
    device: Device = None,
    max_context: MaxContext = None,
) -> None:
    """Decode prompts and log every decision with its outcome. Ctrl-C keeps what is there.

    Example: recguide trace record runs/first --limit 40
    """
    planned = parse_policy(policy)
    console = Console()
    loaded = open_model(model, dtype, device, adapter, console)
    encoded = [encode(loaded, p) for p in spread(load_prompts(prompts), limit)]
    params = [
        SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=i) for i in range(len(encoded))
    ]
    engine = Engine(loaded, planned, max_concurrency=max(1, concurrency), max_context=max_context)
    engine.set_concurrency(concurrency)
    say_fallbacks(engine.policy, console)
    with Recorder(engine, out), progress_bar(console) as progress:
        task = progress.add_task("recording", total=len(encoded))
        engine.generate(encoded, params, lambda delta: progress.advance(task, delta.finish_reason is not None))
    console.print(_shown(read_trace(out)))


@trace.command()
def check(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Say exactly what a decision log holds, after a kill too. Exit status 1 when it has no end.

    Example: recguide trace check runs/first
    """
    found = read_trace(run)
    Console().print(_shown(found))
    if found.cut:
        say(Console(), "cut short", f"{', '.join(found.cut)}: what was flushed is there", "yellow")
        raise typer.Exit(1)


@trace.command("import")
def import_trace(
    source: Annotated[Path, typer.Argument(help="A LinearSpec confidence trace (JSONL, schema 1 or 2).")],
    out: OUT,
) -> None:
    """Read the rounds of another engine as a decision log, to fit predictors on them.

    Example: recguide trace import raw_trace_gsm8k.jsonl runs/theirs
    """
    count = import_linearspec(source, out)
    console = Console()
    say(console, "imported", f"{count} rounds into {out}", "green")
    console.print(_shown(read_trace(out)))


def _shown(found: Trace) -> Table:
    manifest = found.manifest
    table = Table("", "", show_header=False)
    table.add_row("model", escape(f"{manifest['model']} ({manifest['model_fingerprint']})"))
    table.add_row("policy", escape(str(manifest["policy"])))
    for name, rows in found.tables.items():
        table.add_row(name, f"{len(rows)} rows" + (", cut short" if name in found.cut else ""))
    plans, positions = found.tables["plans"], found.tables["draft_positions"]
    if len(plans):
        committed = sum(plans["committed"].to_pylist())
        table.add_row("committed", f"{committed} tokens in {len(plans)} plans")
    reached = [a for a, r in zip(positions["accepted"].to_pylist(), positions["reached"].to_pylist(), strict=True) if r]
    if reached:
        table.add_row("accepted", f"{sum(reached) / len(reached):.3f} of {len(reached)} reached draft positions")
    table.add_row("events", ", ".join(event["event"] for event in found.events[:8]))
    return table
