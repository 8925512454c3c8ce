"""``recguide bench``: policies against each other on the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from recguide.bench.cases import where
from recguide.bench.measure import Bench, BenchSettings
from recguide.bench.prompts import load_prompts, spread
from recguide.bench.table import bench_table
from recguide.commands.options import (
    Adapter,
    Device,
    Dtype,
    MaxContext,
    ModelName,
    PromptsFile,
    Simulate,
    integers,
    measure_step_times,
    open_model,
    progress_bar,
    say_fallbacks,
    words,
)
from recguide.models import embedded
from recguide.policies import parse_policy
from recguide.provenance import check_writable, write_json


def bench(
    policies: Annotated[
        str, typer.Option(help="Policies with their knobs, separated by commas.")
    ] = "ar,linear:8,ar-row:8",
    concurrency: Annotated[str, typer.Option(help="Requests at once, separated by commas.")] = "1,4,16",
    prompts: PromptsFile = None,
    limit: Annotated[int | None, typer.Option(help="Use only N prompts, evenly spread over the file.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens an answer may have.")] = 64,
    repeats: Annotated[int, typer.Option(help="Runs of each policy at each concurrency.")] = 3,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    simulate: Simulate = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the whole result, after every round.")] = None,
    model: ModelName = embedded.NAME,
    adapter: Adapter = "auto",
    dtype: Dtype = None,
    device: Device = None,
    max_context: MaxContext = None,
) -> None:
    """Measure policies, in turns of a fraction of a second in one process, and print medians and paired ratios to ar.

    Nothing else should run on the machine meanwhile. Each policy keeps a cache of its own. Ctrl-C keeps what was done.

    Example: recguide bench --policies ar,linear:8,overlap:8 --concurrency 1,4,16 --json result.json
    """
    settings = BenchSettings(
        policies=words(policies, "--policies"),
        concurrency=integers(concurrency, "--concurrency"),
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        temperature=temperature,
        max_context=max_context,
    )
    chosen = spread(load_prompts(prompts), limit)
    if json_out is not None:
        check_writable(json_out)
    console = Console()
    loaded = open_model(model, dtype, device, adapter, console)
    loaded.cost_table = simulate
    if simulate is None:
        measure_step_times(loaded, settings.policies, console)
    measured = Bench(loaded, chosen, settings)
    for spec in settings.policies:
        planned = parse_policy(spec)
        planned.attach(loaded)
        say_fallbacks(planned, console)
    try:
        run_with_progress(measured, console, json_out)
    finally:
        if measured.runs:
            result = measured.result()
            console.print(bench_table(result["summary"], caption(result)))


def run_with_progress(measured: Bench, console: Console, json_out: Path | None) -> None:
    """Measure with a bar that counts answers; what was measured is written after every round, and when it is cut."""
    with progress_bar(console) as progress:
        task = progress.add_task("warming up", total=measured.settings.runs * len(measured.prompts))

        def on_answers(count: int) -> None:
            progress.update(task, advance=count)

        def on_round() -> None:
            if not measured.runs:
                return
            last = measured.runs[-1]
            progress.update(task, description=f"repeat {last['repeat'] + 1}, concurrency {last['concurrency']} done")
            if json_out is not None:
                write_json(json_out, measured.result())

        measured.run(on_round, on_answers)


def caption(result: dict) -> str:
    s = result["settings"]
    cut = "; interrupted, rates are of what was done" if any(run.get("interrupted") for run in result["runs"]) else ""
    return (
        f"{result['model']['name']} ({result['model']['dtype']}), {result['prompts']['count']} prompts x "
        f"{s['max_new_tokens']} tokens, temperature {s['temperature']:g}, median of {s['repeats']}{cut}; "
        + where(result)
    )
