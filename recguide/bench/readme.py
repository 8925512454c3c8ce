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

from recguide.bench.llamacpp import OTHER

RESULTS = Path("data/results")


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


def versus_table(result: dict) -> str:
    """This engine beside llama.cpp, every policy at every concurrency."""
    policies = result["settings"]["policies"]
    rows = []
    for row in result["versus"]:
        cells = [str(row["concurrency"]), f"{row[OTHER]:.0f}"]
        for policy in policies:
            entry = row["policies"][policy]
            text = f"{entry['aggregate_tok_s']:.0f} ({entry['ratio']:.2f}x)"
            cells.append(f"**{text}**" if policy == row["best"] and entry["ratio"] > 1 else text)
        rows.append(cells)
    heads = ["concurrency", "llama.cpp server, 4-bit", *(f"`{p}`, bfloat16" for p in policies)]
    return markdown(heads, rows) + f"\n\n{about(result)}"


def about(result: dict) -> str:
    p, s = result["provenance"], result["settings"]
    return (
        f"Aggregate output tokens/s, medians of {s['repeats']} interleaved runs; {result['prompts']['count']} prompts "
        f"(set `{result['prompts']['fingerprint']}`) x at most {s['max_new_tokens']} tokens, greedy, "
        f"{result['model']['name']} in {result['model']['dtype']}; {p['device']}, {p['threads']} threads, "
        f"torch {p['torch']}, {p['created'][:10]}. Made by `{p['command']}`."
    )


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


TABLES: dict[str, Callable[[dict], str]] = {"policies": policies_table, "versus": versus_table}


def fill(readme: str, results: Path) -> str:
    """``readme`` with the text between ``<!-- NAME -->`` and ``<!-- /NAME -->`` replaced by the stored results."""
    for name, make in TABLES.items():
        body = make(json.loads((results / f"{name}.json").read_text()))
        pattern = re.compile(f"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
        readme = pattern.sub(lambda match, body=body: match[1] + body + match[2], readme)
    return readme


def main(
    check: Annotated[bool, typer.Option(help="Change nothing; fail when a table is not up to date.")] = False,
) -> None:
    """Put the stored results into the tables of README.md."""
    path = Path("README.md")
    text = path.read_text()
    filled = fill(text, RESULTS)
    if check and filled != text:
        typer.echo("README.md: tables differ from data/results; run python -m recguide.bench.readme")
        raise typer.Exit(1)
    if not check:
        path.write_text(filled)


if __name__ == "__main__":
    typer.run(main)
