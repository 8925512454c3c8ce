"""What benchmarks of single forwards and steps share: what they ran on, and a run that shows and keeps what is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from recguide.bench.prompts import Prompt, fingerprint
from recguide.commands.options import progress_bar
from recguide.control.step_time import step_time_of
from recguide.engine.clock import SimulatedClock, Stopwatch
from recguide.models.loader import Model
from recguide.provenance import write_json


class Cases(Protocol):
    """Measures case by case; ``result()`` is complete at any moment."""

    def run(self) -> Iterator[str]: ...
    def result(self) -> dict[str, Any]: ...


def about_model(model: Model) -> dict[str, Any]:
    """A model as results name it."""
    return {"name": model.name, "fingerprint": model.fingerprint, "dtype": model.dtype_name}


def about_prompts(prompts: Sequence[Prompt]) -> dict[str, Any]:
    """A prompt set as results name it."""
    return {"count": len(prompts), "fingerprint": fingerprint(prompts)}


def clock_of(model: Model) -> Stopwatch | SimulatedClock:
    """A stopwatch, or the clock of the device whose cost table the model was given."""
    return Stopwatch() if model.cost_table is None else SimulatedClock(step_time_of(model)[0].predict)


def about_device(model: Model) -> dict[str, Any] | None:
    """What the simulated device's steps were measured on; None where the clock was this device's."""
    return None if model.cost_table is None else step_time_of(model)[0].about["provenance"]


def where(result: dict[str, Any]) -> str:
    """The device that a result is of, in words."""
    table, p = result.get("simulated"), result["provenance"]
    if table is not None:
        return f"step times simulated, as measured on {table['device']} ({table['created'][:10]})"
    return f"{p['device']}, {p['threads']} threads, torch {p['torch']}, {p['created'][:10]}"


def run_cases(
    cases: Cases, total: int, first: str, table: Callable[[dict], Table], json_out: Path | None, console: Console
) -> None:
    """Measure with a bar that first says ``first``, then show and write; on Ctrl-C, what is done."""
    try:
        with progress_bar(console) as progress:
            task = progress.add_task(first, total=total)
            for line in cases.run():
                progress.update(task, advance=1, description=line)
    finally:
        result = cases.result()
        console.print(table(result))
        if json_out is not None:
            write_json(json_out, result)
