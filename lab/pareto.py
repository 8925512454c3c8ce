"""The Pareto plane of a stored result: what each request gets against what all get together.

Every policy is a line through its loads; further up and to the right is better.

    python -m recguide.lab.pareto data/results/policies.json data/figures/pareto.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import plotly.graph_objects as go
import typer
from plotly.colors import qualitative
from recguide.lab.robot_server import launch

from recguide.bench.cases import where
from recguide.commands.entry import run
from recguide.errors import RecGuideError
from recguide.provenance import check_writable

LEARNED = "recguide"
MANY = qualitative.Dark24  # the template has ten colours, and takes the first again for the eleventh policy
NEARLY_BLACK = "#222A2A"  # of them: the learned policy is black
WIDTH, HEIGHT = 900, 560
app = typer.Typer(add_completion=False)


def pareto(result: dict) -> go.Figure:
    """One trace a policy, one point a load (``result`` as ``recguide bench --json`` writes it)."""
    figure = go.Figure()
    for policy in dict.fromkeys(row["policy"] for row in result["summary"]):
        rows = sorted((r for r in result["summary"] if r["policy"] == policy), key=lambda row: row["concurrency"])
        learned = policy.startswith(LEARNED)
        figure.add_scatter(
            x=[row["per_request_tok_s"] for row in rows],
            y=[row["aggregate_tok_s"] for row in rows],
            text=[str(row["concurrency"]) for row in rows],
            name=policy,
            mode="lines+markers+text" if learned else "lines+markers",
            textposition="top right",
            line={"width": 4, "color": "#222"} if learned else {"width": 1.5},
            marker={"size": 9 if learned else 6},
            hovertemplate=policy + " at %{text}: %{x:.1f} each, %{y:.1f} in all<extra></extra>",
        )
    figure.update_layout(
        template="plotly_white",
        colorway=[colour for colour in MANY if colour != NEARLY_BLACK],
        width=WIDTH,
        height=HEIGHT,
        title={"text": f"What each gets, what all get<br><sup>{where(result)}; numbers: requests at once</sup>"},
        xaxis={"title": "tokens/s of a request, median", "rangemode": "tozero"},
        yaxis={"title": "tokens/s of all together", "rangemode": "tozero"},
        legend={"title": "policy"},
    )
    return figure


@app.command()
def main(
    result: Annotated[Path, typer.Argument(help="A result of 'recguide bench --json'.")],
    out: Annotated[Path, typer.Argument(help="Figure to write: .html, or .png with the system's chromium.")],
) -> None:
    """Draw the Pareto plane of a result."""
    check_writable(out)
    try:
        figure = pareto(json.loads(result.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise RecGuideError(f"{result}: not a result of 'recguide bench --json' ({fault!r})") from None
    page = figure.to_html(include_plotlyjs=True)
    if out.suffix == ".png":
        _screenshot(page, out)
    else:
        out.write_text(page)


def _screenshot(page: str, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play, launch(play) as browser:
        shown = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=2)
        shown.set_content(page)
        shown.locator(".main-svg").first.wait_for()
        shown.locator(".plotly-graph-div").screenshot(path=out)


if __name__ == "__main__":
    run(app)
