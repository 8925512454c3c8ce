"""Options that several commands share, and how they become objects."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from recguide.commands.entry import say
from recguide.control.cost import CostTable
from recguide.control.profile import QUICK, Profiler, identity_of
from recguide.errors import RecGuideError
from recguide.models import embedded
from recguide.models.loader import Model, load_model
from recguide.policies import Policy, parse_policy
from recguide.provenance import check_writable

ModelName = Annotated[
    str, typer.Option("--model", "-m", help="The embedded default, a folder in Hugging Face layout, or owner/name.")
]
Dtype = Annotated[
    str | None, typer.Option(help="bfloat16, float16 or float32. Default: bfloat16 where the device has it.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N. Default: a GPU if there is one.")]
Adapter = Annotated[
    str, typer.Option(help="Folder of a draft adapter, 'auto' (the one shipped for the model) or 'none'.")
]
PromptsFile = Annotated[
    Path | None,
    typer.Option(help="Prompts: .txt (one a line), .jsonl or .json (strings, prompt, messages, turns). Default: ours."),
]

Simulate = Annotated[
    Path | None,
    typer.Option(
        help="A cost table of 'recguide profile': steps take what it says instead of what they take here. Tokens, "
        "drafts and acceptance are real. For devices that are not at hand, and without the noise of this one."
    ),
]
MaxContext = Annotated[
    int | None, typer.Option(help="Tokens of prompt and answer together. Default: 2048, or the model's limit.")
]


def open_model(name: str, dtype: str | None, device: str | None, adapter: str, console: Console) -> Model:
    """Load a model with something to look at meanwhile, and say what fell back."""
    with console.status(f"loading {name}") as status:
        if name == embedded.NAME:
            embedded.fetch(status.update)
        chosen = None if adapter == "none" else adapter
        model = load_model(name, dtype=dtype, device=device, adapter=chosen)
    for fallback in model.fallbacks:
        say(console, "note", fallback, "yellow")
    return model


def measure_step_times(model: Model, specs: Iterable[str | Policy], console: Console) -> None:
    """Before a policy plans with step times for the first time on this device: measure a small cost table, once.

    Where it cannot be kept, nothing is measured: the policy says what it falls back to.
    """
    path = identity_of(model).path
    if path.exists() or not any(parse_policy(spec).reads_step_times for spec in specs):
        return
    try:
        check_writable(path)
    except RecGuideError as fault:
        say(console, "note", f"step times cannot be kept ({fault})", "yellow")
        return
    run_profiler(Profiler(model, QUICK, 1), console).save(path)
    say(console, "note", "step times of this device measured once; 'recguide profile' measures more of them", "yellow")


def run_profiler(profiler: Profiler, console: Console) -> CostTable:
    """Measure a cost table behind a progress bar."""
    with progress_bar(console) as progress:
        task = progress.add_task("measuring", total=profiler.measurements)
        for line in profiler.run():
            progress.update(task, advance=1, description=line)
    return profiler.table()


def say_fallbacks(policy: Policy, console: Console) -> None:
    """Say what a policy has to do without."""
    for fallback in policy.fallbacks:
        say(console, "note", fallback, "yellow")


def progress_bar(console: Console, *, transient: bool = True) -> Progress:
    """A bar with done/total, elapsed and remaining time."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=transient)


def integers(text: str, name: str) -> tuple[int, ...]:
    """``1,4,16`` as integers."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise RecGuideError(f"{name} is {text!r}; expected whole numbers separated by commas") from None


def words(text: str, name: str) -> tuple[str, ...]:
    """``a,b`` as words; at least one."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise RecGuideError(f"{name} is empty; give at least one")
    return found
