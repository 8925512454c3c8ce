"""Tables of README.md, made from stored result files, so that no figure in it is typed by hand.

python -m recguide.bench.readme            # rewrite the tables of README.md in this folder
python -m recguide.bench.readme --check    # exit status 1 when they are not what the results say
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from recguide.bench.cases import where
from recguide.bench.llamacpp import OTHER
from recguide.commands.entry import run
from recguide.errors import RecGuideError

RESULTS = Path("data/results")
app = typer.Typer(add_completion=False)


def policies_table(result: dict) -> str:
    """Aggregate throughput by policy and concurrency, ratio to ar in brackets; the best of a row in bold."""
    summary = result["summary"]
    levels = sorted({row["concurrency"] for row in summary})
    policies = list(dict.fromkeys(row["policy"] for row in summary))
    best = {level: max(r["aggregate_tok_s"] for r in summary if r["concurrency"] == level) for level in levels}
    rows = []
    for policy in policies:
        cells = []
        for level in levels:
            row = next(r for r in summary if (r["policy"], r["concurrency"]) == (policy, level))
            text = f"{row['aggregate_tok_s']:.0f} ({row['ratio_to_ar']:.2f}x)"
            cells.append(f"**{text}**" if row["aggregate_tok_s"] == best[level] else text)
        first = next(r for r in summary if (r["policy"], r["concurrency"]) == (policy, levels[0]))
        length = first["mean_acceptance_length"]
        cells += [f"{first['tpf']:.2f}", "-" if length is None else f"{length:.2f}"]
        rows.append([f"`{policy}`", *cells])
    heads = ["policy", *(f"C={level}" for level in levels), "tokens per forward", "acceptance length"]
    return markdown(heads, rows) + f"\n\n{about(result)}"


def changing_load_table(result: dict) -> str:
    """Throughput over a walk of loads, and the learned controller's gain over each policy."""
    kinds = ("equal time", "equal tokens")
    rows = [
        [f"`{row['policy']}`", *(text for kind in kinds for text in _rate_and_gain(row[kind]))]
        for row in result["summary"]
    ]
    heads = ["policy", "equal time, tokens/s", "`recguide` to it", "equal tokens, tokens/s", "`recguide` to it"]
    walk = " -> ".join(map(str, result["settings"]["loads"]))
    s = result["settings"]
    return markdown(heads, rows) + (
        f"\n\nConcurrency walks {walk}: {s['seconds']:g} s a stretch, or {s['tokens']} tokens for each request of it; "
        f"medians of {s['repeats']}, gains paired. {_made(result)}"
    )


def _rate_and_gain(figures: dict) -> tuple[str, str]:
    rate, gain = figures["tok_s"], figures["learned_gain"]  # None where the walk was stopped before
    return "-" if rate is None else f"{rate:.0f}", "-" if gain is None else f"{gain:.2f}x"


def versus_table(result: dict) -> str:
    """This engine beside llama.cpp, every policy at every concurrency."""
    policies = result["settings"]["policies"]
    rows = []
    for row in result["versus"]:
        cells = [str(row["concurrency"]), f"{row[OTHER]:.0f}"]
        for policy in policies:
            entry = row["policies"].get(policy)
            if entry is None:  # the run was stopped before its turn
                cells.append("-")
                continue
            text = f"{entry['aggregate_tok_s']:.0f} ({entry['ratio']:.2f}x)"
            cells.append(f"**{text}**" if policy == row["best"] and entry["ratio"] > 1 else text)
        rows.append(cells)
    heads = ["concurrency", "llama.cpp server, 4-bit", *(f"`{p}`, bfloat16" for p in policies)]
    return markdown(heads, rows) + f"\n\n{about(result)}"


def about(result: dict) -> str:
    return f"Aggregate output tokens/s, medians of {result['settings']['repeats']} interleaved runs. {_made(result)}"


def _made(result: dict) -> str:
    prompts, model = result["prompts"], result["model"]
    return (
        f"{prompts['count']} prompts (set `{prompts['fingerprint']}`) x at most {result['settings']['max_new_tokens']} "
        f"tokens, greedy, {model['name']} in {model['dtype']}; {_source(result)}"
    )


def _source(result: dict) -> str:
    """Where figures were measured, and by which command."""
    return f"{where(result)}. Made by `{result['provenance']['command']}`."


def forward_table(result: dict) -> str:
    """One forward beside transformers', and what more rows cost."""
    rows = [
        [
            f"{row['requests']} x {row['rows']}",
            f"{row['transformers_ms']:.1f}",
            f"{row['ours_ms']:.1f} ({row['ratio']:.2f}x)",
            f"{row['ratio_to_one_row']:.2f}x",
        ]
        for row in result["cases"]
    ]
    s = result["settings"]
    return markdown(["requests x rows", "transformers, ms", "here, ms", "to one row"], rows) + (
        f"\n\nMedians of {s['repeats']} paired samples of one forward behind {s['context']} tokens, logits of all rows "
        f"included; {result['model']['name']} in {result['model']['dtype']}; {_source(result)}"
    )


def planning_table(result: dict) -> str:
    """What planning takes of a step at each load, and how good the forecasts were meanwhile."""
    rows = []
    for row in result["rows"]:
        quality = ["-" if row[k] is None else f"{row[k]:.3f}" for k in ("auc", "ece", "ece_by_chance")]
        times = f"{row['step_ms']:.1f}", f"{row['plan_ms']:.2f}", f"{row['share']:.1%}", f"{row['mean_share']:.1%}"
        rows.append([str(row["load"]), *times, str(row["positions"]), *quality])
    heads = ["C", "step, ms", "planning, ms", "share", "share of all time", "drafts reached", "AUC", "ECE", "by chance"]
    s = result["settings"]
    return markdown(heads, rows) + (
        f"\n\nMedians of `{s['policy']}` in a closed loop, {s['seconds']:g} s a load; {_source(result)}"
    )


def load_steps_table(result: dict) -> str:
    """How a policy does soon after the load has jumped, to what it does once settled."""
    rows = [
        [
            str(row["load"]),
            f"{row['early_tok_s']:.0f}",
            f"{row['steady_tok_s']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['switches_per_100_steps']:.1f}",
        ]
        for row in result["summary"]
    ]
    s = result["settings"]
    heads = ["C", "soon, tokens/s", "settled, tokens/s", "soon to settled", "changes of mode in 100 settled steps"]
    jumps = " -> ".join(map(str, [*s["loads"], s["loads"][0]]))
    return markdown(heads, rows) + (
        f"\n\n`{s['policy']}`, {jumps}, {s['rounds']} rounds; soon: steps {s['grace']} to {s['grace'] + s['window']} "
        f"behind a jump; {_source(result)}"
    )


def soak_table(result: dict) -> str:
    """Whether the lab stays small and fast."""
    slopes, ratios = result["slopes_mb_per_minute"], result["throughput"]["ratio_to_alone"]
    cells = [f"{slopes[name]:+.2f} MB a minute" for name in ("kernel_mb", "page_mb")]
    cells += [f"{result['messages_per_s']:.0f}", *(f"{ratios[mode]:.3f}" for mode in ("drawing", "quiet"))]
    heads = ["kernel", "page", "messages a second", "tokens/s while drawing, to the engine alone", "measuring quietly"]
    turns = len(result["throughput"]["turns"])
    return markdown(heads, [cells]) + (
        f"\n\nSlopes of resident memory over {result['minutes']:g} minutes of changing load, after "
        f"{result['warm_up_minutes']:g} to warm up; medians of {turns} turns; {_source(result)}"
    )


def kernels_table(result: dict) -> str:
    """What attention and signals take of a step."""
    rows = [
        [
            f"`{row['plan']}`",
            str(row["rows_per_request"]),
            f"{row['forward_ms']:.0f}",
            f"{row['step_ms']:.0f}",
            f"{row['attention_of_forward']:.1%}",
            f"{row['signals_of_step']:.1%}",
        ]
        for row in result["cases"]
    ]
    s = result["settings"]
    heads = ["plan", "rows a request", "forward, ms", "step, ms", "attention of the forward", "signals of the step"]
    return markdown(heads, rows) + (
        f"\n\n{s['concurrency']} requests with {s['context']} tokens in the cache, medians of {s['repeats']}; "
        f"{result['model']['name']} in {result['model']['dtype']}; {_source(result)}"
    )


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def drafter_table(result: dict) -> str:
    """Acceptance of the shipped drafter: by position and by category."""
    run = result["runs"][0]
    positions = markdown(
        ["draft position", *map(str, range(1, len(run["conditional_acceptance"]) + 1))],
        [["accepted, of those reached", *(f"{c:.2f}" for c in run["conditional_acceptance"])]],
    )
    rows = [
        [name, str(c["tokens"]), f"{c['mean_acceptance_length']:.2f}"] for name, c in run["by_category"].items()
    ] + [["**all**", f"**{run['tokens']}**", f"**{run['mean_acceptance_length']:.2f}**"]]
    categories = markdown(["category", "tokens", "acceptance length with bonus"], rows)
    return f"{positions}\n\n{categories}\n\n{about(result)}"


Tables = dict[str, Callable[[dict], str]]
README: Tables = {
    "policies": policies_table,
    "simulated": policies_table,
    "simulated_b200": policies_table,
    "changing_load": changing_load_table,
    "ablation": policies_table,
    "planning": planning_table,
    "load_steps": load_steps_table,
    "versus": versus_table,
    "forward": forward_table,
    "soak": soak_table,
    "kernels": kernels_table,
}
DOCUMENTS: dict[Path, Tables] = {
    Path("README.md"): README,
    Path("data/drafter/smollm2-135m/README.md"): {"drafter": drafter_table},
}


def fill(text: str, results: Path, tables: Tables = README) -> str:
    """``text`` with what stands between ``<!-- NAME -->`` and ``<!-- /NAME -->`` replaced by the stored results.

    Raises RecGuideError where a mark or a result file is missing.
    """
    for name, make in tables.items():
        body = make(_result(results / f"{name}.json"))
        pattern = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, found = pattern.subn(lambda match, body=body: f"{match[1]}{body}\n{match[2]}", text)
        if not found:
            raise RecGuideError(f"the marks <!-- {name} --> and <!-- /{name} --> are missing from the text")
    return text


def _result(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as fault:
        raise RecGuideError(f"{path}: no stored result to read ({fault})") from None


@app.command()
def main(
    check: Annotated[bool, typer.Option(help="Change nothing; fail when a table is not up to date.")] = False,
) -> None:
    """Put the stored results into the tables of README.md and of the drafter's card."""
    old = {path: path.read_text() for path in DOCUMENTS if path.exists()}
    new = {path: fill(text, RESULTS, DOCUMENTS[path]) for path, text in old.items()}
    for path in old:
        if check and new[path] != old[path]:
            typer.echo(f"{path}: tables differ from {RESULTS}; run python -m recguide.bench.readme")
            raise typer.Exit(1)
        if not check:
            path.write_text(new[path])


if __name__ == "__main__":
    run(app)
