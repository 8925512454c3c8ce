"""What planning costs: the share of a step that the learned controller spends on features, models and choice.

Decodes in a closed loop at each concurrency and reads the engine's own clock, so that nothing is estimated: the median
time of the plan phase against the median step, and the on-policy quality of the models while they plan.

python -m recguide.bench.planning --prompts FILE --json data/results/planning.json
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recguide.bench.cases import about_model, about_prompts
from recguide.bench.changing_load import ClosedLoop, Walk, opened
from recguide.commands.entry import run
from recguide.commands.options import PromptsFile, integers
from recguide.models import embedded
from recguide.models.loader import Model
from recguide.provenance import check_writable, provenance, write_json

app = typer.Typer(add_completion=False)


def measure(model: Model, spec: str, prompts: list[list[int]], load: int, seconds: float) -> dict:
    """Medians of one load: step and plan in ms, and what the policy says of itself."""
    loop = ClosedLoop(model, spec, prompts, Walk(loads=(load,), seconds=seconds))
    steps = []

    def ended(spent: float, tokens: int) -> bool:
        last = loop.engine.last_step
        if not last.prefill_rows:
            steps.append((last.seconds * 1e3, last.phases["plan"] * 1e3))
        return spent >= seconds

    loop.stretch(load, ended)
    step, plan = (statistics.median(column) for column in zip(*steps, strict=True))
    mean = sum(p for _, p in steps) / sum(s for s, _ in steps)
    row = {
        "load": load,
        "steps": len(steps),
        "step_ms": step,
        "plan_ms": plan,
        "share": plan / step,
        "mean_share": mean,
    }
    status = loop.engine.policy.status()
    return row | {
        k: status.get(k) for k in ("auc", "ece", "ece_by_chance", "brier", "positions", "drift", "branch_hits")
    }


@app.command()
def main(
    prompts: PromptsFile = None,
    limit: Annotated[int | None, typer.Option(help="Use only N prompts, evenly spread over the file.")] = 80,
    policy: Annotated[str, typer.Option(help="The policy whose planning is measured.")] = "recguide",
    loads: Annotated[str, typer.Option(help="Concurrencies.")] = "1,2,4,8,16,32",
    seconds: Annotated[float, typer.Option(help="How long each load runs.")] = 10.0,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the result.")] = None,
) -> None:
    """Measure what planning costs at each load, and how good the forecasts are on policy."""
    if json_out is not None:
        check_writable(json_out)
    console = Console()
    model, chosen, encoded = opened(embedded.NAME, prompts, limit, console)
    rows = []
    for load in integers(loads, "--loads"):
        with console.status(f"{policy} at {load}"):
            rows.append(measure(model, policy, encoded, load, seconds))
    console.print(_shown(rows))
    if json_out is not None:
        about = {"provenance": provenance(), "model": about_model(model), "prompts": about_prompts(chosen)}
        about["settings"] = {"policy": policy, "seconds": seconds}
        write_json(json_out, about | {"rows": rows})


def _shown(rows: list[dict]) -> Table:
    table = Table(
        "C", "step, ms", "plan, ms", "share", "mean share", "AUC", "ECE", "by chance", "positions", "branches used"
    )
    for r in rows:
        quality = ["-" if r[k] is None else f"{r[k]:.3f}" for k in ("auc", "ece", "ece_by_chance")]
        hits = "-" if r["branch_hits"] is None else f"{r['branch_hits']:.0%}"
        shares = f"{r['share']:.2%}", f"{r['mean_share']:.2%}"
        table.add_row(
            str(r["load"]), f"{r['step_ms']:.1f}", f"{r['plan_ms']:.3f}", *shares, *quality, str(r["positions"]), hits
        )
    return table


if __name__ == "__main__":
    run(app)
