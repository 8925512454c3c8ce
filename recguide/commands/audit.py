"""``recguide audit``: does every policy write exactly what ``ar`` writes?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recguide.bench.lossless import Audit
from recguide.bench.lossless import audit as run_audit
from recguide.bench.measure import encode
from recguide.bench.prompts import load_prompts, spread
from recguide.commands.options import (
    Adapter,
    Device,
    Dtype,
    MaxContext,
    ModelName,
    PromptsFile,
    open_model,
    progress_bar,
    words,
)
from recguide.control.shipped import shipped_controller
from recguide.engine.sampling import SamplingParams
from recguide.models import embedded
from recguide.policies import parse_policy
from recguide.policies.learned import RecGuide

POLICIES = "linear:8,ar-row:8,window,quadratic:4,overlap:8"


def audit(
    policies: Annotated[
        str | None,
        typer.Option(
            help=f"Policies to compare with ar, separated by commas. Default: {POLICIES}, and recguide where a "
            "controller ships for the model."
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at once for them (ar runs alone).")] = 16,
    prompts: PromptsFile = None,
    limit: Annotated[int | None, typer.Option(help="Use only N prompts, evenly spread over the file.")] = 40,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens an answer may have.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    model: ModelName = embedded.NAME,
    adapter: Adapter = "auto",
    dtype: Dtype = None,
    device: Device = None,
    max_context: MaxContext = None,
) -> None:
    """Compare every policy's tokens with ar's, and show where they part and by how much.

    Exit status 1 when a divergence is not explained by rounding.

    Example: recguide audit --dtype float32
    """
    specs = words(POLICIES if policies is None else policies, "--policies")
    for spec in specs:
        parse_policy(spec)
    console = Console()
    loaded = open_model(model, dtype, device, adapter, console)
    if policies is None and shipped_controller(loaded) is not None:
        specs = (*specs, RecGuide.name)
    encoded = [encode(loaded, p) for p in spread(load_prompts(prompts), limit)]
    params = [
        SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=i) for i in range(len(encoded))
    ]
    with progress_bar(console) as progress:
        task = progress.add_task("ar", total=len(encoded) * (1 + len(specs)))
        audits = run_audit(
            loaded,
            encoded,
            specs,
            params,
            concurrency=concurrency,
            max_context=max_context,
            on_policy=lambda spec: progress.update(task, description=spec),
            on_text=lambda: progress.advance(task),
        )
    console.print(_table(audits))
    if not all(a.explained for a in audits):
        raise typer.Exit(1)


def _table(audits: list[Audit]) -> Table:
    table = Table("policy", "equal texts", "diverged", "largest gap", "rounding explains")
    for a in audits:
        worst = max(a.divergences, key=lambda d: d.gap - d.tolerance, default=None)
        gap = "-" if worst is None else f"{worst.gap:.3f} (allowed {worst.tolerance:.3f})"
        verdict = "[green]all[/green]" if a.explained else "[red]not all[/red]"
        equal = a.texts - len(a.divergences)
        table.add_row(a.policy, f"{equal} of {a.texts}", str(len(a.divergences)), gap, verdict)
    return table
