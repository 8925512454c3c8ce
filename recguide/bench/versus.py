"""This engine against llama.cpp's server: same weights file, prompts, machine and threads, in turn (A B, B A).

Our model is the embedded default, dequantised from the very GGUF file that the server runs in 4 bits. Both decode
greedily to the same budget, prefill included, with no prompt cached from an earlier request. Every given policy is
measured at every concurrency; the table shows all of them.

    python -m recguide.bench.versus --prompts FILE --json out.json
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recguide.bench.llamacpp import OTHER, LlamaServer, measure
from recguide.bench.measure import Bench, BenchSettings
from recguide.bench.prompts import load_prompts, spread
from recguide.commands.entry import run
from recguide.commands.options import MaxContext, PromptsFile, integers, open_model, progress_bar, words
from recguide.errors import RecGuideError
from recguide.models import embedded
from recguide.provenance import check_writable, write_json

app = typer.Typer(add_completion=False)


class Versus:
    """The runs of both engines, pair by pair."""

    def __init__(self, bench: Bench, threads: int):
        self.bench, self.threads = bench, threads
        self.other_runs: list[dict] = []
        self.about: dict[str, str] = {}

    def run(self) -> Iterator[str]:
        """Measure everything; yields a line after each run."""
        settings = self.bench.settings
        self.bench.warm_up()
        for concurrency in settings.concurrency:
            server = LlamaServer(embedded.gguf_path(), concurrency, threads=self.threads, ctx=self.bench.max_context)
            with server:
                self.about = server.about
                for repeat in range(settings.repeats):
                    for name in self._order(repeat):
                        yield self._one(server, name, concurrency, repeat)

    def _order(self, repeat: int) -> tuple[str, ...]:
        names = (OTHER, *self.bench.settings.policies)
        return names if repeat % 2 == 0 else names[::-1]

    def _one(self, server: LlamaServer, name: str, concurrency: int, repeat: int) -> str:
        if name == OTHER:
            run = measure(server, self.bench.prompts, concurrency, self.bench.settings.max_new_tokens)
            self.other_runs.append({"repeat": repeat, **run})
        else:
            run = self.bench.measure(name, concurrency, repeat)
        return f"{name} at {concurrency}: {run['aggregate_tok_s']:.0f} tokens/s"

    def result(self) -> dict:
        return {
            **self.bench.result(),
            OTHER: {**self.about, "threads": self.threads, "runs": self.other_runs},
            "versus": [self._row(level) for level in dict.fromkeys(r["concurrency"] for r in self.other_runs)],
        }

    def _row(self, level: int) -> dict:
        """Medians at one concurrency, and the paired ratio of each policy to the server."""
        theirs = {r["repeat"]: r["aggregate_tok_s"] for r in self.other_runs if r["concurrency"] == level}
        policies = {}
        for spec in self.bench.settings.policies:
            mine = {
                r["repeat"]: r["aggregate_tok_s"]
                for r in self.bench.runs
                if r["concurrency"] == level and r["policy"] == spec and not r.get("interrupted")
            }
            ratios = [mine[k] / theirs[k] for k in mine if k in theirs]
            if ratios:
                policies[spec] = {
                    "aggregate_tok_s": statistics.median(mine.values()),
                    "ratio": statistics.median(ratios),
                    "ratio_min": min(ratios),
                    "ratio_max": max(ratios),
                }
        best = max(policies, key=lambda spec: policies[spec]["ratio"], default=None)
        return {"concurrency": level, OTHER: statistics.median(theirs.values()), "best": best, "policies": policies}


def table(result: dict) -> Table:
    policies = result["settings"]["policies"]
    shown = Table(
        "concurrency", OTHER, *policies, "best against llama.cpp", caption="aggregate output tokens/s, medians"
    )
    for row in result["versus"]:
        cells = [row["policies"].get(p) for p in policies]
        rates = ["-" if c is None else f"{c['aggregate_tok_s']:.0f}" for c in cells]
        best = row["policies"].get(row["best"])
        verdict = "-" if best is None else f"{best['ratio']:.2f}x ({row['best']})"
        shown.add_row(str(row["concurrency"]), f"{row[OTHER]:.0f}", *rates, verdict)
    return shown


@app.command()
def main(
    policies: Annotated[str, typer.Option(help="Ours, separated by commas.")] = "ar,quadratic:4,ar-row:6",
    concurrency: Annotated[str, typer.Option(help="Requests at once, separated by commas.")] = "1,4,8,16,32",
    prompts: PromptsFile = None,
    limit: Annotated[int | None, typer.Option(help="Use only N prompts, evenly spread over the file.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens an answer may have.")] = 64,
    repeats: Annotated[int, typer.Option(help="Paired runs.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of the server; ours uses torch's default.")] = 2,
    max_context: MaxContext = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the whole result, after every run.")] = None,
) -> None:
    """Measure this engine and llama.cpp's server in turn. Nothing else should run on the machine. Ctrl-C keeps runs."""
    settings = BenchSettings(
        policies=words(policies, "--policies"),
        concurrency=integers(concurrency, "--concurrency"),
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        max_context=max_context,
    )
    if threads < 1:
        raise RecGuideError(f"threads is {threads}; allowed: >= 1")
    if json_out is not None:
        check_writable(json_out)
    console = Console()
    model = open_model(embedded.NAME, None, None, "auto", console)
    versus = Versus(Bench(model, spread(load_prompts(prompts), limit), settings), threads)
    try:
        with progress_bar(console) as progress:
            task = progress.add_task("starting", total=settings.runs + len(settings.concurrency) * repeats)
            for line in versus.run():
                progress.update(task, advance=1, description=line)
                if json_out is not None:
                    write_json(json_out, versus.result())
    finally:
        if versus.other_runs:
            console.print(table(versus.result()))


if __name__ == "__main__":
    run(app)
