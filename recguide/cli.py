"""The command line: ``recguide COMMAND``. Each command lives in ``recguide/commands``; this file wires them up."""

from __future__ import annotations

from typing import Annotated

import typer

from recguide import __version__
from recguide.commands.audit import audit
from recguide.commands.bench import bench
from recguide.commands.demo import demo
from recguide.commands.doctor import doctor
from recguide.commands.entry import run
from recguide.commands.export import export
from recguide.commands.generate import generate
from recguide.commands.lab import lab
from recguide.commands.models import models
from recguide.commands.profile import profile
from recguide.commands.replay import replay
from recguide.commands.trace import trace
from recguide.commands.train import train
from recguide.commands.train_drafter import train_drafter

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(generate)
app.command()(bench)
app.command()(audit)
app.command()(profile)
app.command()(train)
app.command()(export)
app.command()(replay)
app.command()(train_drafter)
app.command()(lab)
app.command()(doctor)
app.add_typer(models, name="models")
app.add_typer(trace, name="trace")


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Decode with diffusion-AR self-speculation, watch it, and measure it.

    Start with [bold]recguide demo[/bold]. Every command has its own --help.
    """


def main() -> None:
    """The console script."""
    run(app)


if __name__ == "__main__":
    main()
