"""``recguide export``: a controller's load -> block schedule in the forms that serving engines read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recguide.commands.entry import say
from recguide.commands.options import integers
from recguide.control.controller import load_controller
from recguide.control.cost import CostTable, load_cost_table, stored_identity
from recguide.control.schedule import Entry, best_blocks
from recguide.control.step_time import table_of
from recguide.errors import RecGuideError
from recguide.provenance import check_writable


def export(
    controller: Annotated[Path, typer.Argument(help="A controller file, as 'recguide train' writes it.")],
    to: Annotated[str, typer.Option(help="linearspec, vllm, tensorrt-llm or sglang.")],
    out: Annotated[Path | None, typer.Option(help="File to write. Default: print it.")] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Cost table of the device that will serve. Default: this device's, or ours.")
    ] = None,
    loads: Annotated[str, typer.Option(help="Concurrencies to give a block for.")] = "1,2,4,8,16,32",
    context: Annotated[int, typer.Option(help="Tokens in each request's cache.")] = 256,
) -> None:
    """Turn a controller into a schedule from load to block for an engine that takes one block for all requests.

    What such a schedule is predicted to lose against the controller itself is printed with it.

    Example: recguide export controller.safetensors --to vllm --out spec.json
    """
    from recguide.control import export as forms

    form = forms.form_named(to)
    known = integers(loads, "loads")
    if not known or min(known) < 1 or list(known) != sorted(set(known)):
        raise RecGuideError(f"loads are {loads}; give ascending whole numbers from 1 on")
    if context < 1:
        raise RecGuideError(f"context is {context}; allowed: >= 1")
    if out is not None:
        check_writable(out)
    learned = load_controller(controller)
    entries = best_blocks(learned, _cost_table(profile, learned.model), known, context)
    schedule = {entry.load: entry.block for entry in entries}
    console = Console(stderr=out is None)
    console.print(_shown(entries))
    for limit in forms.limits_of(schedule, to):
        say(console, "note", limit, "yellow")
    if out is None:
        typer.echo(forms.export(schedule, to), nl=False)
        return
    losses = {entry.load: round(entry.loss, 4) for entry in entries}
    forms.write_export(schedule, to, out, controller=str(controller), predicted_loss=losses)
    say(console, to, f"{out}: {form.use}", "green")


def _cost_table(path: Path | None, model: str) -> CostTable:
    """A given table, or one of this model that was measured on this device or ships with the package."""
    if path is not None:
        return load_cost_table(path, stored_identity(path))
    found = table_of(model)
    if found is None:
        raise RecGuideError(
            f"no cost table of model {model}; measure one with 'recguide profile', or name it with --profile"
        )
    return found


def _shown(entries: list[Entry]) -> Table:
    table = Table("load", "block", "tokens/s", "controller", "loss", caption="predicted, all requests together")
    for entry in entries:
        figures = f"{entry.fixed:.0f}", f"{entry.controller:.0f}", f"{entry.loss:.1%}"
        table.add_row(str(entry.load), "AR" if entry.block == 1 else str(entry.block), *figures)
    return table
