"""How fast a policy settles when the load jumps, and whether it stays with a plan while nothing changes.

The load goes 1 -> 16 -> 1 in one run, many times over other prompts. Counted are steps with exactly that many requests
and no prompt rows: ``--grace`` of them after a change are left out, the rate of the next ``--window`` is compared with
that of the rest of the stretch, over all changes to that load: tokens of a request while, by the cost table, a plain
step behind such contexts would have passed, since contexts right behind a change differ from those later on. Changes of
mode (drafting or plain) are counted behind the grace.

python -m recguide.bench.load_steps --simulate data/profiles/smollm2-135m-bfloat16.json --json OUT.json
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recguide.bench.cases import about_device, about_model, about_prompts
from recguide.bench.changing_load import LEARNED, ClosedLoop, Walk, opened
from recguide.commands.entry import run
from recguide.commands.options import PromptsFile, Simulate, integers, progress_bar
from recguide.control.step_time import step_time_of
from recguide.models import embedded
from recguide.models.loader import Model
from recguide.policies import parse_policy
from recguide.provenance import check_writable, provenance, write_json

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, kw_only=True)
class Jumps:
    """A stretch has ``grace + window + rest`` steps; the first ``grace`` are not looked at."""

    loads: tuple[int, ...] = (1, 16)
    rounds: int = 8
    grace: int = 20
    window: int = 20
    rest: int = 60


@dataclass(frozen=True)
class Step:
    """Of one step: seconds, those that a plain step of its requests should take, tokens committed, and whether drafting
    was on."""

    seconds: float
    plain_seconds: float
    tokens: int
    drafting: bool | None


def stretches(
    model: Model, spec: str, prompts: Sequence[list[int]], jumps: Jumps
) -> Iterator[tuple[int, Sequence[Step]]]:
    """Yields (load, the steps that count) for every stretch."""
    loop = ClosedLoop(model, spec, prompts, Walk(loads=jumps.loads))
    engine, step_time = loop.engine, step_time_of(model)[0]
    for load in jumps.loads * jumps.rounds:
        steps: list[Step] = []

        def ended(_seconds: float, _tokens: int, load: int = load, steps: list[Step] = steps) -> bool:
            last = engine.last_step
            if last.requests == load and not last.prefill_rows:
                context = sum(len(request.tokens) for request in engine.running) / max(len(engine.running), 1)
                plain = step_time.predict(load, load, 0, context) / 1e3
                steps.append(Step(last.seconds, plain, last.committed, engine.policy.status().get("drafting")))
            return len(steps) >= jumps.grace + jumps.window + jumps.rest

        loop.stretch(load, ended)
        yield load, steps


def summarise(seen: Sequence[tuple[int, Sequence[Step]]], jumps: Jumps) -> list[dict]:
    """Per load: tokens/s right behind the grace and in the rest, how what was earned there of plain steps compares, and
    changes of mode in 100 steps."""
    rows = []
    for load in dict.fromkeys(at for at, _ in seen):
        settled = [steps[jumps.grace :] for at, steps in seen if at == load]
        early = [step for steps in settled for step in steps[: jumps.window]]
        late = [step for steps in settled for step in steps[jumps.window :]]
        switches = sum(a.drafting != b.drafting for steps in settled for a, b in pairwise(steps))
        rows.append(
            {
                "load": load,
                "early_tok_s": _rate(early),
                "steady_tok_s": _rate(late),
                "ratio": _earned(early) / _earned(late),
                "switches_per_100_steps": 100 * switches / sum(map(len, settled)),
            }
        )
    return rows


def _rate(steps: Sequence[Step]) -> float:
    return sum(step.tokens for step in steps) / sum(step.seconds for step in steps)


def _earned(steps: Sequence[Step]) -> float:
    """Tokens while a plain step should have passed."""
    return sum(step.tokens for step in steps) / sum(step.seconds / step.plain_seconds for step in steps)


@app.command()
def main(
    policy: Annotated[str, typer.Option(help="Whose plans to watch.")] = LEARNED,
    loads: Annotated[str, typer.Option(help="Loads to go through, again and again.")] = "1,16",
    rounds: Annotated[int, typer.Option(min=1, help="How often to go through them.")] = Jumps.rounds,
    prompts: PromptsFile = None,
    simulate: Simulate = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the result.")] = None,
    model: Annotated[str, typer.Option(help="As in recguide bench.")] = embedded.NAME,
) -> None:
    """Jump between loads and see how soon throughput is what it stays. Nothing else should run meanwhile."""
    parse_policy(policy)
    jumps = Jumps(loads=integers(loads, "--loads"), rounds=rounds)
    if json_out is not None:
        check_writable(json_out)
    console = Console()
    loaded, chosen, encoded = opened(model, prompts, None, console, simulate)
    about = {
        "provenance": provenance(),
        "model": about_model(loaded),
        "prompts": about_prompts(chosen),
        "settings": asdict(jumps) | {"policy": policy},
        "simulated": about_device(loaded),
    }
    seen = []
    try:
        with progress_bar(console) as progress:
            task = progress.add_task(policy, total=len(jumps.loads) * rounds)
            for stretch in stretches(loaded, policy, encoded, jumps):
                seen.append(stretch)
                progress.advance(task)
    finally:
        summary = summarise(seen, jumps)
        console.print(_shown(summary))
        if json_out is not None:
            write_json(json_out, about | {"summary": summary})


def _shown(summary: Sequence[dict]) -> Table:
    table = Table("load", "tokens/s behind it", "tokens/s settled", "gains, ratio", "changes of mode in 100 steps")
    for row in summary:
        rates = (f"{row[name]:.1f}" for name in ("early_tok_s", "steady_tok_s"))
        table.add_row(str(row["load"]), *rates, f"{row['ratio']:.3f}", f"{row['switches_per_100_steps']:.1f}")
    return table


if __name__ == "__main__":
    run(app)
