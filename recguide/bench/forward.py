"""One forward of the engine's backbone against ``transformers``' on the same weights and dtype, in turn (A B, B A).

Every case decodes behind a filled cache and makes the logits of all its rows. The last column is our own cost of more
rows: how much a forward with that many rows takes, compared with one row.

    python -m recguide.bench.forward --json out.json
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from recguide.bench.cases import about_model, run_cases
from recguide.commands.entry import run
from recguide.commands.options import Device, Dtype, ModelName, open_model
from recguide.engine.cache import KVCache, StepAttention
from recguide.engine.layout import Segment, build_layout
from recguide.errors import RecGuideError
from recguide.models import embedded
from recguide.models.loader import Model
from recguide.provenance import check_writable, provenance

FORWARDS = 5  # timed together as one sample; the first forward after the other engine's is not timed
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Case:
    """``requests`` with ``rows`` new tokens each behind their contexts."""

    requests: int
    rows: int

    @property
    def name(self) -> str:
        return f"{self.requests} x {self.rows}"


CASES = (Case(1, 1), Case(1, 8), Case(1, 16), Case(4, 1), Case(8, 8), Case(32, 1))


class Ours:
    """A trunk of the engine, without planning and drawing."""

    def __init__(self, model: Model, case: Case, context: Tensor, new: Tensor):
        self._model, self._new = model, new.tolist()
        self._size = context.shape[1]
        backbone = model.backbone
        self._cache = KVCache(
            model.config, case.requests, self._size + 1, max(case.rows, self._size), backbone.dtype, backbone.device
        )
        self._slots = [self._cache.take() for _ in range(case.requests)]
        self._run(context.tolist(), 0)
        for slot in self._slots:
            self._cache.commit(slot, self._size)

    def __call__(self) -> Tensor:
        return self._run(self._new, self._size)

    def _run(self, tokens: list[list[int]], cached: int) -> Tensor:
        model = self._model
        segments = [Segment(s, cached, tuple(t), len(t)) for s, t in zip(self._slots, tokens, strict=True)]
        layout = build_layout(segments, model.config.mask_id).to(model.backbone.device)
        attend = StepAttention(self._cache, layout, model.config)
        return model.backbone.logits(model.backbone.forward(layout.tokens, layout.positions, attend))


class Transformers:
    """The same through ``transformers``' own model and cache."""

    def __init__(self, reference: torch.nn.Module, context: Tensor, new: Tensor):
        from transformers import DynamicCache

        self._reference, self._new, self._size = reference, new, context.shape[1]
        self._cache = DynamicCache()
        reference(context, past_key_values=self._cache, use_cache=True)

    def __call__(self) -> Tensor:
        logits = self._reference(self._new, past_key_values=self._cache, use_cache=True).logits
        self._cache.crop(self._size - self._cache.get_seq_length())
        return logits.flatten(0, 1)


def load_reference(model: Model) -> torch.nn.Module:
    """``transformers``' model of the same folder, dtype and device."""
    from transformers import AutoModelForCausalLM

    backbone = model.backbone
    return AutoModelForCausalLM.from_pretrained(model.folder, dtype=backbone.dtype).to(backbone.device).eval()


def compare(model: Model, reference: torch.nn.Module, case: Case, context: int) -> tuple[Ours, Transformers]:
    """Both sides of a case behind the same random tokens."""
    chooser = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, model.config.vocab_size - 1, (case.requests, context + case.rows), generator=chooser)
    before, new = tokens.to(model.backbone.device).split((context, case.rows), 1)
    return Ours(model, case, before, new), Transformers(reference, before, new)


def milliseconds(forward: Callable[[], Tensor], device: torch.device) -> float:
    """Time of one forward, the mean of FORWARDS."""
    forward()
    _wait(device)
    started = time.perf_counter()
    for _ in range(FORWARDS):
        forward()
    _wait(device)
    return (time.perf_counter() - started) / FORWARDS * 1e3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class ForwardBench:
    """All cases in turn, repeat by repeat; ``result()`` is complete at any moment."""

    def __init__(self, model: Model, context: int, repeats: int):
        for name, value in (("context", context), ("repeats", repeats)):
            if value < 1:
                raise RecGuideError(f"{name} is {value}; allowed: >= 1")
        most = model.config.max_positions - max(case.rows for case in CASES)
        if context > most:
            raise RecGuideError(f"context is {context}; allowed: up to {most} for this model")
        self.model, self.context, self.repeats = model, context, repeats
        self.ours: dict[Case, list[float]] = {case: [] for case in CASES}
        self.theirs: dict[Case, list[float]] = {case: [] for case in CASES}
        self._provenance = provenance()

    @torch.inference_mode()
    def run(self) -> Iterator[str]:
        """Measure; yields a line after each sample."""
        reference = load_reference(self.model)
        device = self.model.backbone.device
        sides = {case: compare(self.model, reference, case, self.context) for case in CASES}
        for repeat in range(self.repeats):
            for case, (ours, theirs) in sides.items():
                pair = [(ours, self.ours[case]), (theirs, self.theirs[case])]
                for forward, times in pair if repeat % 2 == 0 else reversed(pair):
                    times.append(milliseconds(forward, device))
                yield f"{case.name} rows, {repeat + 1} of {self.repeats}"

    def result(self) -> dict:
        return {
            "schema": 1,
            "provenance": self._provenance,
            "model": about_model(self.model),
            "settings": {"context": self.context, "repeats": self.repeats},
            "cases": [self._row(case) for case in CASES if self.theirs[case]],
        }

    def _row(self, case: Case) -> dict:
        """Medians, and medians of ratios between samples of one repeat."""
        one_row = self.ours[CASES[0]]
        return {
            "requests": case.requests,
            "rows": case.rows,
            "ours_ms": statistics.median(self.ours[case]),
            "transformers_ms": statistics.median(self.theirs[case]),
            "ratio": _paired(self.ours[case], self.theirs[case]),
            "ratio_to_one_row": _paired(self.ours[case], one_row),
        }


def _paired(numerators: list[float], denominators: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=False))


def table(result: dict) -> Table:
    shown = Table("requests x rows", "transformers, ms", "ours, ms", "ratio", "to our one row")
    for row in result["cases"]:
        figures = (row["transformers_ms"], row["ours_ms"])
        shown.add_row(
            f"{row['requests']} x {row['rows']}",
            *(f"{f:.1f}" for f in figures),
            f"{row['ratio']:.2f}x",
            f"{row['ratio_to_one_row']:.2f}x",
        )
    return shown


@app.command()
def main(
    context: Annotated[int, typer.Option(help="Tokens in the cache of every request.")] = 128,
    repeats: Annotated[int, typer.Option(help="Paired samples of each case.")] = 15,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the result.")] = None,
    model: ModelName = embedded.NAME,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Time one forward against transformers. Nothing else should run on the machine. Ctrl-C keeps what is measured."""
    if json_out is not None:
        check_writable(json_out)
    console = Console()
    bench = ForwardBench(open_model(model, dtype, device, "none", console), context, repeats)
    run_cases(bench, repeats * len(CASES), "loading transformers' model", table, json_out, console)


if __name__ == "__main__":
    run(app)
