"""``recguide train``: decision logs in, a controller and its report out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recguide.commands.entry import say
from recguide.commands.options import progress_bar
from recguide.provenance import check_writable

RUNS = Annotated[list[Path], typer.Argument(help="Run folders, as 'recguide trace record' makes them.")]


def train(
    runs: RUNS,
    out: Annotated[Path, typer.Option(help="The controller file to write; reports stand beside it.")],
    only: Annotated[str | None, typer.Option(help="logistic or trees, instead of the better of the two.")] = None,
    drop: Annotated[str, typer.Option(help="Features to hold constant, for ablations: top1,margin,...")] = "",
    calibrate: Annotated[bool, typer.Option(help="Calibrate probabilities on requests that were left out.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the trees.")] = 0,
) -> None:
    """Fit the predictors on decision logs and write a controller, with a report of how good they are.

    Logistic regression and boosted trees are compared by cross-validation over requests. Every figure is of requests
    that the model did not see. FILE.html and FILE.json next to the controller hold the whole report.

    Example: recguide train runs/first --out controller.safetensors
    """
    from recguide.predictors.fit import FitSettings, train_controller

    settings = FitSettings(
        seed=seed, only=only, calibrate=calibrate, drop=tuple(name for name in drop.split(",") if name)
    )
    html, figures = out.with_suffix(".html"), out.with_suffix(".json")
    for path in (html, figures):
        check_writable(path)
    console = Console()
    with progress_bar(console) as progress:
        task = progress.add_task("training", total=1.0)
        report = train_controller(
            runs,
            out,
            settings=settings,
            on_progress=lambda what, share: progress.update(task, completed=share, description=what),
        )
    report.save_html(html)
    report.save_json(figures)
    console.print(_models(report.to_dict()))
    console.print(_values(report.to_dict()))
    say(console, "controller", str(out), "green")
    say(console, "report", f"{html}, {figures}", "green")


def _models(content: dict) -> Table:
    table = Table("prediction", "by", "rows", "AUC", "log loss", "Brier", "ECE")
    for name, m in content["models"].items():
        table.add_row(name, m["chosen"], str(m["rows"]), *_figures(m))
    for name, m in content["baselines"].items():
        table.add_row("mismatch", f"({name})", str(m["rows"]), *_figures(m), style="dim")
    return table


def _figures(m: dict) -> list[str]:
    return ["-" if m[key] is None else f"{m[key]:.3f}" for key in ("auc", "log_loss", "brier", "ece")]


def _values(content: dict) -> Table:
    table = Table("block", "predicted", "observed", title="tokens a round")
    for point in content["value_curves"]:
        table.add_row(str(point["block"]), f"{point['predicted']:.2f}", f"{point['observed']:.2f}")
    return table
