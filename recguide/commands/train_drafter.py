"""``recguide train-drafter``: make dialogues, train the draft adapter, in as many sittings as it takes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from recguide.bench.prompts import Prompt, load_prompts
from recguide.commands.entry import say
from recguide.commands.options import Device, Dtype, ModelName, progress_bar
from recguide.drafter.dialogues import DialogueSettings, read_dialogues, write_answers, write_dialogues
from recguide.drafter.train import Report, Trainer, TrainSettings
from recguide.errors import RecGuideError
from recguide.models import embedded
from recguide.models.loader import Model, load_model
from recguide.provenance import check_writable

DEFAULTS = TrainSettings()


def train_drafter(
    out: Annotated[Path, typer.Argument(help="Run folder: dialogues, state, log, and the adapter.")],
    dialogues: Annotated[int, typer.Option(help="How many dialogues the model writes for itself.")] = 1500,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Text or JSONL of prompts to answer, such as your own users'. Default: write user turns too."
        ),
    ] = None,
    answer_tokens: Annotated[int, typer.Option(help="Longest answer.")] = DialogueSettings.answer_tokens,
    steps: Annotated[int, typer.Option(help="Training steps in all sittings together.")] = DEFAULTS.steps,
    minutes: Annotated[float, typer.Option(help="Stop training after this sitting's minutes.")] = math.inf,
    rows: Annotated[int, typer.Option(help="Draft rows a step.")] = DEFAULTS.rows,
    rank: Annotated[int, typer.Option(help="Rank of the LoRA factors.")] = DEFAULTS.rank,
    learning_rate: Annotated[float, typer.Option(help="Peak of the cosine schedule.")] = DEFAULTS.learning_rate,
    soft: Annotated[
        float, typer.Option(help="Share of the loss that follows the verifier's probabilities.")
    ] = DEFAULTS.soft,
    draft_shift: Annotated[
        int, typer.Option(help="1: rows predict the position behind them; 0: their own, as Nemotron's do.")
    ] = DEFAULTS.draft_shift,
    adapt_tokens: Annotated[
        bool, typer.Option(help="Serve the known token of a block too, as Nemotron's adapter does.")
    ] = DEFAULTS.adapt_tokens,
    targets: Annotated[
        str, typer.Option(help="Projections that get factors. Each costs a product in every step that drafts.")
    ] = ",".join(DEFAULTS.targets),
    layers: Annotated[str, typer.Option(help="Layers that get factors, such as 12-29 (from 0 on). Default: all.")] = "",
    chain: Annotated[
        int, typer.Option(help="Rank of the chain, by which drafts of a block know those before them. 0: none.")
    ] = DEFAULTS.chain,
    start_from: Annotated[
        Path | None, typer.Option(help="An adapter folder to start from, of at most this rank.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of initial factors and data order.")] = DEFAULTS.seed,
    eval_every: Annotated[int, typer.Option(help="Steps between evaluations on held-out dialogues.")] = 100,
    model: ModelName = embedded.NAME,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Train the draft adapter by self-distillation. Interrupt it whenever you like: the same command goes on.

    The model answers your prompts, or writes its own and answers these. It then learns to draft its own text block by
    block, with LoRA on draft rows only. Use the result with --adapter OUT/adapter.

    Example: recguide train-drafter runs/drafter --minutes 60
    """
    settings = TrainSettings(
        steps=steps,
        rows=rows,
        rank=rank,
        learning_rate=learning_rate,
        soft=soft,
        seed=seed,
        draft_shift=draft_shift,
        adapt_tokens=adapt_tokens,
        targets=tuple(targets.split(",")),
        layers=_layers(layers),
        chain=chain,
    )
    if eval_every < 1:
        raise RecGuideError(f"eval_every is {eval_every}; allowed: >= 1")
    path = out / "dialogues.jsonl"
    check_writable(path)
    console = Console()
    given = None if prompts is None else load_prompts(prompts)
    writing = DialogueSettings(answer_tokens=answer_tokens, seed=seed)
    _dialogues(load_model(model, dtype=dtype, device=device, adapter=None), path, given or dialogues, writing, console)
    trainable = load_model(model, dtype=dtype, device=device, adapter=None, pack=False)
    trainer = Trainer(trainable, read_dialogues(path), settings, out, start_from)
    _train(trainer, minutes, eval_every, console)
    say(console, "adapter", str(out / "adapter"), "green")


def _layers(text: str) -> tuple[int, ...]:
    """Layer numbers of a range such as 12-29."""
    if not text:
        return ()
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise RecGuideError(f"layers is {text!r}; give a range such as 12-29, or nothing for all")
    return tuple(range(int(first), int(last) + 1))


def _dialogues(
    model: Model, path: Path, wanted: list[Prompt] | int, settings: DialogueSettings, console: Console
) -> None:
    """Answers to the ``wanted`` prompts, or as many self-made dialogues."""
    count = wanted if isinstance(wanted, int) else len(wanted)
    with progress_bar(console, transient=False) as progress:
        task = progress.add_task("dialogues", total=count, completed=len(read_dialogues(path)))

        def on_dialogue(done: int, tokens: int) -> None:
            progress.update(task, completed=done, description=f"dialogues, {tokens} answer tokens")

        if isinstance(wanted, int):
            write_dialogues(model, path, wanted, settings, on_dialogue)
        else:
            write_answers(model, path, wanted, settings, on_dialogue)


def _train(trainer: Trainer, minutes: float, eval_every: int, console: Console) -> None:
    with progress_bar(console, transient=False) as progress:
        task = progress.add_task("training", total=trainer.settings.steps, completed=trainer.step)

        def on_report(report: Report) -> None:
            progress.update(task, completed=report.step, description=f"training, loss {report.loss:.3f}")
            if not console.is_terminal and report.step % 20 == 0:
                console.print(f"step {report.step}, {report.seconds / 60:.1f} min, loss {report.loss:.3f}")
            if report.conditional_acceptance is not None:
                shown = " ".join(f"{c:.2f}" for c in report.conditional_acceptance)
                progress.console.print(
                    f"step {report.step}, {report.seconds / 60:.1f} min: {report.accepted:.2f} drafts accepted a round "
                    f"on held-out text, by position {shown}",
                    highlight=False,
                    soft_wrap=True,
                )

        trainer.run(on_report, eval_every=eval_every, minutes=minutes)
