"""``recguide lab``: the notebooks and the live dashboard, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from recguide.commands.entry import say


def lab(
    app: Annotated[bool, typer.Option("--app", help="Serve the dashboard alone, as a web page (Voila).")] = False,
    folder: Annotated[Path, typer.Option(help="Working folder; takes a copy of the notebooks.")] = Path("recguide-lab"),
    port: Annotated[int, typer.Option(help="Port on this machine; 0 takes a free one.")] = 8888,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser; print the address.")] = False,
) -> None:
    """Open the live lab: drag a slider and watch plans, blocks and throughput change. Ctrl-C ends it.

    Notebooks that you changed stay as they are.

    Example: recguide lab --port 8890
    """
    from recguide.lab.serve import copy_notebooks, serve

    console = Console()
    for name in copy_notebooks(folder):
        say(console, "note", f"{folder / name} differs from the one of this version and was kept", "yellow")
    status = serve(
        folder, app=app, port=port, browser=not no_browser, say=lambda what, text: say(console, what, text, "green")
    )
    if status:
        raise typer.Exit(status)
