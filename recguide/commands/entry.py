"""How a command line ends: one line for a fault that a person can mend, a traceback only with ``--debug``."""

from __future__ import annotations

import signal
import sys

import typer
from rich.console import Console

from recguide.errors import RecGuideError


def say(console: Console, label: str, text: str, style: str) -> None:
    """``label: text`` on one line, the text as it is (no markup)."""
    console.print(f"{label}:", style=style, end=" ", highlight=False)
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def run(app: typer.Typer) -> None:
    """Run an app and exit. Status: 0 done, 1 a failed check, 2 a user error, 130 interrupted."""
    # a polite kill ends like Ctrl-C: what is finished is saved
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    try:
        status = app(args=arguments, standalone_mode=False)
    except RecGuideError as fault:
        if "--debug" in sys.argv:
            raise
        _fail(str(fault))
    except Exception as fault:
        if not hasattr(fault, "format_message"):  # Typer's own errors of usage
            raise
        _usage(fault)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(text: str) -> None:
    say(Console(stderr=True), "error", text, "red")
    sys.exit(2)


def _usage(fault: Exception) -> None:
    if type(fault).__name__ == "NoArgsIsHelpError":
        fault.show()
        sys.exit(0)
    context = getattr(fault, "ctx", None)
    command = context.command_path if context is not None else "recguide"
    _fail(f"{fault.format_message().rstrip('.')}; see '{command} --help'")
