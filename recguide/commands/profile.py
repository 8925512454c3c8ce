"""``recguide profile``: measure what steps cost on this device, for the controller and for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recguide.commands.entry import say
from recguide.commands.options import Adapter, Device, Dtype, ModelName, integers, open_model, run_profiler
from recguide.control.cost import Axes, CostTable, load_cost_table
from recguide.control.profile import Profiler, identity_of
from recguide.control.sweep import table_from_sweep
from recguide.errors import RecGuideError
from recguide.models import embedded
from recguide.models.loader import Model
from recguide.provenance import check_writable, write_text


def profile(
    requests: Annotated[str, typer.Option(help="Requests in a step.")] = "1,2,4,8,16,32",
    rows: Annotated[str, typer.Option(help="Rows of each request.")] = "1,2,4,8,16,32",
    contexts: Annotated[str, typer.Option(help="Tokens in each request's cache.")] = "128,512",
    repeats: Annotated[int, typer.Option(help="Steps a cell; the median counts.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Where to write the table. Default: the cache folder.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also draw what was measured (needs plotly).")] = None,
    sweep: Annotated[
        Path | None, typer.Option(help="Do not measure: take a published sweep (CSV) of --device-name; needs --out.")
    ] = None,
    device_name: Annotated[str, typer.Option(help="What the sweep was measured on, in words.")] = "unknown device",
    force: Annotated[bool, typer.Option(help="Measure again, even if there is a table for this device.")] = False,
    model: ModelName = embedded.NAME,
    adapter: Adapter = "auto",
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Measure step time over requests, rows and context. Nothing else should run on the machine. A few minutes.

    The table is cached for this model, dtype and device, and used from there.

    Example: recguide profile --html cost.html
    """
    if html is not None:
        check_writable(html)
    console = Console()
    if sweep is not None:
        table = _from_sweep(sweep, device_name, integers(requests, "requests"), out, console)
    else:
        axes = Axes(integers(requests, "requests"), integers(rows, "rows"), integers(contexts, "contexts"))
        if repeats < 1:
            raise RecGuideError(f"repeats is {repeats}; allowed: >= 1")
        table = _measured(open_model(model, dtype, device, adapter, console), axes, repeats, out, force, console)
    console.print(_shown(table))
    if html is not None:
        from recguide.lab.cost_figure import cost_figure

        write_text(html, cost_figure(table))
        say(console, "figure", str(html), "green")


def _measured(loaded: Model, axes: Axes, repeats: int, out: Path | None, force: bool, console: Console) -> CostTable:
    path = out or identity_of(loaded).path
    check_writable(path)
    table = load_cost_table(path, identity_of(loaded)) if path.exists() and not force else None
    if table is not None and table.axes == axes:
        say(console, "note", f"read from {path}; --force measures again", "yellow")
    else:
        table = run_profiler(Profiler(loaded, axes, repeats), console)
        table.save(path)
        say(console, "cost table", str(path), "green")
    return table


def _from_sweep(sweep: Path, device: str, requests: tuple[int, ...], out: Path | None, console: Console) -> CostTable:
    if out is None:
        raise RecGuideError("--sweep needs --out FILE: the table is of another device, for --simulate")
    check_writable(out)
    table = table_from_sweep(sweep, device, requests)
    table.save(out)
    say(console, "cost table", str(out), "green")
    return table


def _shown(table: CostTable) -> Table:
    """Milliseconds at the shortest context: causal rows, and with drafts behind one causal row."""
    axes = table.axes
    shown = Table(
        "requests",
        *(f"{rows} rows" for rows in axes.rows),
        caption=f"ms of a step at context {axes.contexts[0]}: causal rows / one causal row and so many drafts",
        caption_justify="left",
    )
    for i, requests in enumerate(axes.requests):
        cells = (f"{table.causal[i, j, 0]:.0f} / {table.drafting[i, j, 0]:.0f}" for j in range(len(axes.rows)))
        shown.add_row(str(requests), *cells)
    return shown
