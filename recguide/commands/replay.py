"""``recguide replay``: what another policy would have done with a recorded run, and the worst decisions in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recguide.commands.entry import say
from recguide.commands.options import Adapter, Device, Dtype, ModelName, open_model, say_fallbacks
from recguide.control.controller import Controller, load_controller
from recguide.control.replay import replay as replayed
from recguide.control.shipped import shipped_controller
from recguide.control.step_time import step_time_of
from recguide.engine.plan import RequestPlan
from recguide.errors import RecGuideError
from recguide.models import embedded
from recguide.models.loader import Model
from recguide.policies import parse_policy
from recguide.provenance import check_writable, provenance, write_json
from recguide.trace.reader import read_trace


def replay(
    run: Annotated[Path, typer.Argument(help="A run folder, as 'recguide trace record' makes it.")],
    policy: Annotated[str, typer.Option(help="Whose plans to try on it.")] = "recguide",
    controller: Annotated[
        Path | None,
        typer.Option(help="Controller whose models judge what the log did not see. Default: the shipped one."),
    ] = None,
    worst: Annotated[int, typer.Option(help="How many of the worst decisions to list.")] = 10,
    json_out: Annotated[Path | None, typer.Option("--json", help="Also write every decision as JSON.")] = None,
    model: ModelName = embedded.NAME,
    adapter: Adapter = "auto",
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Try another policy on a recorded run, and find the decisions that cost most.

    Where the log saw a rejection it answers for every trim; beyond that the controller's models do. Earnings are tokens
    less the price of the step's time, at the rate of the run; regret is against an oracle that knows acceptance.

    Example: recguide replay runs/first --policy ar-row:5
    """
    if worst < 0:
        raise RecGuideError(f"worst is {worst}; allowed: >= 0")
    if json_out is not None:
        check_writable(json_out)
    trace, planned = read_trace(run), parse_policy(policy)
    console = Console()
    loaded = open_model(model, dtype, device, adapter, console)
    if trace.manifest["model_fingerprint"] != loaded.fingerprint:
        raise RecGuideError(f"{run}: log of model {trace.manifest['model']}; name that model with --model")
    judge = _judge(controller, loaded)
    planned.attach(loaded)
    say_fallbacks(planned, console)
    result = replayed(trace, planned, judge, step_time_of(loaded)[0])
    console.print(_worst(result.worst(worst)))
    low, high = result.interval
    gain = f"{result.gain:+.3f} tokens a decision against the recorded plans"
    say(console, planned.spec, f"{gain} (95% interval over requests: {low:+.3f} to {high:+.3f})", "green")
    say(
        console,
        "basis",
        f"the log alone answers for {result.known_share:.0%} of its decisions, the models for the rest",
        "yellow",
    )
    regret = sum(d.regret for d in result.decisions) / len(result.decisions)
    say(console, "regret", f"{regret:.3f} tokens a decision against the oracle", "yellow")
    if json_out is not None:
        write_json(
            json_out,
            {
                "provenance": provenance(),
                "rate": result.rate,
                "gain": result.gain,
                "interval": result.interval,
                "known_share": result.known_share,
                "decisions": [_as_json(d) for d in result.decisions],
            },
        )


def _judge(path: Path | None, model: Model) -> Controller:
    """The controller that was named, or the one that ships."""
    if path is not None:
        return load_controller(path)
    found = shipped_controller(model)
    if found is None:
        raise RecGuideError("no controller ships for this model; train one and name it with --controller")
    return found[1]


def _worst(decisions) -> Table:
    table = Table(
        "step", "request", "held", "accepted", "plan", "other plan", "regret", "top-1", title="worst decisions"
    )
    for d in decisions:
        top1 = " ".join(f"{p:.2f}" for p in d.top1)
        table.add_row(
            str(d.step),
            str(d.request),
            str(d.held),
            str(d.accepted),
            _text(d.plan),
            _text(d.other),
            f"{d.regret:.2f}",
            top1,
        )
    return table


def _text(plan: RequestPlan) -> str:
    """``3 +2@4``: verify 3, a branch of 2 drafts at parent 4; ``-`` for no trunk."""
    trunk = "-" if plan.verify is None else str(plan.verify)
    return " ".join([trunk, *(f"+{b.drafts}@{b.parent}" for b in plan.branches)])


def _as_json(d) -> dict:
    fields = ("step", "request", "held", "accepted", "earned", "other_earned", "oracle", "regret", "known", "top1")
    return {name: getattr(d, name) for name in fields} | {"plan": _text(d.plan), "other": _text(d.other)}
