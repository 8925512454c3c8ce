"""Policies under a load that changes: the same walk of concurrencies for each, in equal time and for equal tokens.

A closed loop keeps as many requests running as the walk says. In equal time every stretch lasts ``--seconds`` and
tokens are counted; for equal tokens every stretch lasts until ``--tokens`` are committed and time is. Policies take
turns of a fraction of a second, and every figure is paired with the same repeat of ``recguide``.

python -m recguide.bench.changing_load --prompts FILE --json data/results/changing_load.json
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recguide.bench.cases import about_device, about_model, about_prompts, clock_of
from recguide.bench.measure import encode
from recguide.bench.prompts import Prompt, load_prompts, spread
from recguide.bench.turns import take_turns
from recguide.commands.entry import run
from recguide.commands.options import PromptsFile, Simulate, integers, open_model, progress_bar, words
from recguide.engine.engine import Engine
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from recguide.models import embedded
from recguide.models.loader import Model
from recguide.policies import parse_policy
from recguide.provenance import check_writable, provenance, write_json

WALK = (1, 32, 4, 16, 1)
LEARNED = "recguide"
app = typer.Typer(add_completion=False)


@dataclass(frozen=True, kw_only=True)
class Walk:
    """A schedule of loads, and how long each stretch of it lasts: ``seconds``, or until ``tokens`` are committed for
    each request of it."""

    loads: tuple[int, ...] = WALK
    seconds: float = 5.0
    tokens: int = 48
    max_new_tokens: int = 64
    repeats: int = 2

    def __post_init__(self) -> None:
        if not self.loads or min(self.loads) < 1:
            raise RecGuideError(f"loads are {self.loads}; give numbers from 1 on")
        for name in ("seconds", "tokens", "max_new_tokens", "repeats"):
            if getattr(self, name) <= 0:
                raise RecGuideError(f"{name} is {getattr(self, name)}; allowed: > 0")


class ClosedLoop:
    """An engine that always has something to do: whoever ends is followed by the next prompt, in order."""

    def __init__(self, model: Model, spec: str, prompts: Sequence[list[int]], walk: Walk):
        self.engine = Engine(model, spec, max_concurrency=max(walk.loads), clock=clock_of(model))
        self._prompts, self._numbers, self._tokens = prompts, itertools.count(), walk.max_new_tokens

    def stretch(self, load: int, ended: Callable[[float, int], bool]) -> None:
        """Run at ``load`` until ``ended(seconds, tokens)``."""
        with self.engine.clock.running():
            for _ in self.steps(load, ended):
                pass

    def steps(self, load: int, ended: Callable[[float, int], bool]) -> Generator[None, None, tuple[float, int]]:
        """The same, a step at a time; returns seconds and tokens."""
        self.engine.set_concurrency(load)
        now = self.engine.clock.now
        started, before = now(), self.engine.stats.committed
        while True:
            self._step(load)
            spent, tokens = now() - started, self.engine.stats.committed - before
            if ended(spent, tokens):
                return spent, tokens
            yield

    def _step(self, load: int) -> None:
        while len(self.engine.waiting) + len(self.engine.running) < load + 1:
            number = next(self._numbers)
            params = SamplingParams(max_new_tokens=self._tokens, seed=number)
            self.engine.submit(self._prompts[number % len(self._prompts)], params)
        self.engine.step()


class Walking:
    """One policy on its walk, a step at a time: seconds and tokens of every stretch."""

    def __init__(self, model: Model, spec: str, prompts: Sequence[list[int]], walk: Walk, *, equal_time: bool):
        self.spec, self.kind = spec, "equal time" if equal_time else "equal tokens"
        self.stretches: list[dict] = []
        loop = ClosedLoop(model, spec, prompts, walk)
        self.clock, self.steps = loop.engine.clock, self._steps(loop, walk, equal_time)

    def _steps(self, loop: ClosedLoop, walk: Walk, equal_time: bool) -> Iterator[None]:
        for load in walk.loads:
            wanted = walk.tokens * load

            def ended(spent: float, tokens: int, wanted: int = wanted) -> bool:
                return spent >= walk.seconds if equal_time else tokens >= wanted

            seconds, tokens = yield from loop.steps(load, ended)
            self.stretches.append({"load": load, "seconds": seconds, "tokens": tokens})

    def result(self, stretches: int) -> dict:
        """What came of its first stretches."""
        done = self.stretches[:stretches]
        return {
            "policy": self.spec,
            "kind": self.kind,
            "stretches": done,
            "seconds": sum(s["seconds"] for s in done),
            "tokens": sum(s["tokens"] for s in done),
        }


def summarise(runs: Sequence[dict]) -> list[dict]:
    """Per policy: median tokens/s of both kinds, and the learned controller's gain over it, paired by repeat."""
    rows = []
    for policy in dict.fromkeys(r["policy"] for r in runs):
        row: dict = {"policy": policy}
        for kind in ("equal time", "equal tokens"):
            mine = {r["repeat"]: _rate(r) for r in runs if (r["policy"], r["kind"]) == (policy, kind)}
            learned = {r["repeat"]: _rate(r) for r in runs if r["policy"].startswith(LEARNED) and r["kind"] == kind}
            gains = [learned[k] / mine[k] for k in mine if k in learned]
            row[kind] = {
                "tok_s": statistics.median(mine.values()) if mine else None,
                "learned_gain": statistics.median(gains) if gains else None,
            }
        rows.append(row)
    return rows


def _rate(run: dict) -> float:
    return run["tokens"] / run["seconds"]


def opened(
    name: str, prompts: Path | None, limit: int | None, console: Console, simulate: Path | None = None
) -> tuple[Model, list[Prompt], list[list[int]]]:
    """The model, as on the device of the cost table ``simulate``; the prompts taken, and their token ids."""
    model = open_model(name, None, None, "auto", console)
    model.cost_table = simulate
    chosen = spread(load_prompts(prompts), limit)
    return model, chosen, [encode(model, prompt) for prompt in chosen]


@app.command()
def main(
    policies: Annotated[str, typer.Option(help="Policies to compare; recguide is the one gains are of.")] = (
        "recguide,ar,linear:8,ar-row:5,quadratic:3,overlap:8,window"
    ),
    prompts: PromptsFile = None,
    limit: Annotated[int | None, typer.Option(help="Use only N prompts, evenly spread over the file.")] = 80,
    loads: Annotated[str, typer.Option(help="The walk of concurrencies.")] = ",".join(map(str, WALK)),
    seconds: Annotated[float, typer.Option(help="Length of a stretch in equal time.")] = 5.0,
    tokens: Annotated[
        int, typer.Option(help="Tokens of a stretch for equal tokens, for each request of its load.")
    ] = 48,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens an answer may have.")] = 64,
    repeats: Annotated[int, typer.Option(help="Walks of each policy and kind.")] = 2,
    simulate: Simulate = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write the result, after every round of walks.")
    ] = None,
    model: Annotated[str, typer.Option(help="As in recguide bench.")] = embedded.NAME,
) -> None:
    """Walk through a changing load with every policy. Nothing else should run on the machine meanwhile."""
    walk = Walk(
        loads=integers(loads, "--loads"), seconds=seconds, tokens=tokens, max_new_tokens=max_new_tokens, repeats=repeats
    )
    specs = words(policies, "--policies")
    for spec in specs:
        parse_policy(spec)
    if json_out is not None:
        check_writable(json_out)
    console = Console()
    loaded, chosen, encoded = opened(model, prompts, limit, console, simulate)
    runs: list[dict] = []

    def result() -> dict:
        return {
            "provenance": about,
            "model": about_model(loaded),
            "prompts": about_prompts(chosen),
            "settings": asdict(walk) | {"policies": list(specs)},
            "simulated": simulated,
            "summary": summarise(runs),
            "runs": runs,
        }

    about, simulated = provenance(), about_device(loaded)
    try:
        with progress_bar(console) as progress:
            task = progress.add_task("walking", total=2 * repeats * len(specs) * len(walk.loads))
            for repeat, equal_time in itertools.product(range(repeats), (True, False)):
                order = specs if repeat % 2 == 0 else specs[::-1]
                walking = [Walking(loaded, spec, encoded, walk, equal_time=equal_time) for spec in order]
                try:
                    for one in take_turns(walking):
                        stretches = len(runs) * len(walk.loads) + sum(len(w.stretches) for w in walking)
                        progress.update(task, completed=stretches, description=one.kind)
                finally:  # where it is cut short, all are compared by the stretches that all have made
                    if made := min(len(w.stretches) for w in walking):
                        runs += [w.result(made) | {"repeat": repeat} for w in walking]
                    if json_out is not None and runs:
                        write_json(json_out, result())
    finally:
        if runs:
            console.print(_shown(summarise(runs)))


def _shown(summary: Sequence[dict]) -> Table:
    table = Table("policy", "tokens/s, equal time", "recguide / it", "tokens/s, equal tokens", "recguide / it")
    for row in summary:
        cells = []
        for kind in ("equal time", "equal tokens"):
            rate, gain = row[kind]["tok_s"], row[kind]["learned_gain"]
            cells += ["-" if rate is None else f"{rate:.1f}", "-" if gain is None else f"{gain:.2f}x"]
        table.add_row(row["policy"], *cells)
    return table


if __name__ == "__main__":
    run(app)
