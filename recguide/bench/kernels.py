"""What attention and signals take of a step: their shares of the forward and of the step, plan by plan.

Every case is a step of many requests behind a filled cache, as the policies make them: laid out, one forward, logits of
all rows that need them, draws, and signals of the draft rows. Where one call runs all layers, attention is timed in a
second forward of the same step that calls it layer by layer.

    python -m recguide.bench.kernels --json out.json
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
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
from recguide.commands.options import Adapter, Device, Dtype, ModelName, open_model
from recguide.engine.cache import KVCache, StepAttention
from recguide.engine.engine import LOGIT_ROWS
from recguide.engine.layout import Layout, Segment, build_layout
from recguide.engine.plan import Branch
from recguide.engine.sampling import Row, SamplingParams, draw
from recguide.errors import RecGuideError
from recguide.kernels.backend import choose
from recguide.kernels.signals import signals
from recguide.models import embedded
from recguide.models.backbone import Attend
from recguide.models.loader import Model
from recguide.provenance import check_writable, provenance

ATTENTION_LIMIT, SIGNALS_LIMIT = 0.25, 0.05
GREEDY = SamplingParams(seed=0)
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Case:
    """A plan that every request follows: trunk rows and branches."""

    name: str
    trunk: int
    branches: tuple[Branch, ...] = ()


CASES = (
    Case("ar", 1),
    Case("linear:8, drafting", 0, (Branch(0, 5, 7),)),
    Case("linear:8, verifying", 8),
    Case("ar-row:5", 5, (Branch(5, None, 5),)),
    Case("quadratic:3", 3, tuple(Branch(p, None, 3, loose=True) for p in (1, 2, 3))),
    Case("overlap:8", 8, (Branch(2, 6, 7), Branch(4, 6, 7), Branch(8, None, 8))),
)


class TimedStep:
    """One step of ``requests`` behind ``context`` tokens. What is in the cache does not matter for the time."""

    def __init__(self, model: Model, case: Case, requests: int, context: int):
        config, backbone = model.config, model.backbone
        rows = case.trunk + sum(branch.rows for branch in case.branches)
        self._model, self._device = model, backbone.device
        self._cache = KVCache(config, requests, context, rows, backbone.dtype, backbone.device)
        slots = [self._cache.take() for _ in range(requests)]
        self._segments = [Segment(s, context, (5,) * case.trunk, case.trunk, 0, case.branches) for s in slots]

    @torch.inference_mode()
    def __call__(self) -> dict[str, float]:
        """Milliseconds of the whole step, its forward (logits included), attention, and signals."""
        model, spent = self._model, {"attention": 0.0, "forward": 0.0, "signals": 0.0}
        started = self._now()
        layout = build_layout(self._segments, model.config.mask_id, adapt_tokens=model.adapt_tokens)
        layout = layout.to(self._device)
        attention = StepAttention(self._cache, layout, model.config)
        begun = self._now()
        hidden = self._forward(layout, attention)[layout.logit_rows]
        spent["forward"] = self._now() - begun
        first_draft = layout.trunk_logits[-1].stop
        for first in range(0, len(hidden), LOGIT_ROWS):
            self._logits(hidden[first : first + LOGIT_ROWS], first_draft - first, spent)
        step = self._now() - started

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            begun = self._now()
            out = attention(layer, q, k, v)
            spent["attention"] += self._now() - begun
            return out

        self._forward(layout, attend)
        return spent | {"step": step}

    def _forward(self, layout: Layout, attend: Attend) -> Tensor:
        return self._model.backbone.forward(
            layout.tokens,
            layout.positions,
            attend,
            first_draft_row=layout.first_draft_row,
            mask_rows=layout.mask_rows,
            adapter=self._model.fused_adapter,
        )

    def _logits(self, hidden: Tensor, first_draft: int, spent: dict[str, float]) -> None:
        """Logits, draws, and signals with entropy of the draft rows, as a step that is observed makes them."""
        begun = self._now()
        logits = self._model.backbone.logits(hidden)
        spent["forward"] += self._now() - begun
        draw(logits, [Row(GREEDY, 0)] * len(logits))
        drafts = logits[max(first_draft, 0) :]
        if len(drafts):
            begun = self._now()
            signals(drafts, entropy=True)
            spent["signals"] += self._now() - begun

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() * 1e3


class SharesBench:
    """All cases in turn, repeat by repeat; ``result()`` is complete at any moment."""

    def __init__(self, model: Model, requests: int, context: int, repeats: int):
        for name, value in (("concurrency", requests), ("context", context), ("repeats", repeats)):
            if value < 1:
                raise RecGuideError(f"{name} is {value}; allowed: >= 1")
        self.model, self.requests, self.context, self.repeats = model, requests, context, repeats
        self.samples: dict[Case, list[dict[str, float]]] = {case: [] for case in CASES}
        self._provenance = provenance()

    def run(self) -> Iterator[str]:
        """Measure; yields a line after each sample."""
        for case in CASES:
            step = TimedStep(self.model, case, self.requests, self.context)
            step()
            for repeat in range(self.repeats):
                self.samples[case].append(step())
                yield f"{case.name}, {repeat + 1} of {self.repeats}"

    def result(self) -> dict:
        backend, reason = choose(self.model.backbone.device)
        return {
            "schema": 1,
            "provenance": self._provenance,
            "model": about_model(self.model),
            "kernels": {"backend": backend, "reason": reason},
            "settings": {"concurrency": self.requests, "context": self.context, "repeats": self.repeats},
            "limits": {"attention_of_forward": ATTENTION_LIMIT, "signals_of_step": SIGNALS_LIMIT},
            "cases": [self._row(case, samples) for case, samples in self.samples.items() if samples],
        }

    def _row(self, case: Case, samples: list[dict[str, float]]) -> dict:
        """Medians of times, and medians of the shares of one step."""
        rows = case.trunk + sum(branch.rows for branch in case.branches)
        times = {f"{name}_ms": statistics.median(s[name] for s in samples) for name in samples[0]}
        attention = statistics.median(s["attention"] / s["forward"] for s in samples)
        part = statistics.median(s["signals"] / s["step"] for s in samples)
        shares = {"attention_of_forward": attention, "signals_of_step": part}
        return {"plan": case.name, "rows_per_request": rows, **times, **shares}


def table(result: dict) -> Table:
    names = ("plan", "rows each", "step, ms", "forward, ms", "attention of forward", "signals of step")
    shown = Table(*names)
    for row in result["cases"]:
        shown.add_row(
            row["plan"],
            str(row["rows_per_request"]),
            f"{row['step_ms']:.1f}",
            f"{row['forward_ms']:.1f}",
            f"{row['attention_of_forward']:.1%}",
            f"{row['signals_of_step']:.1%}",
        )
    return shown


@app.command()
def main(
    concurrency: Annotated[int, typer.Option(help="Requests in a step.")] = 32,
    context: Annotated[int, typer.Option(help="Tokens in the cache of every request.")] = 512,
    repeats: Annotated[int, typer.Option(help="Samples of each case.")] = 7,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the result.")] = None,
    model: ModelName = embedded.NAME,
    dtype: Dtype = None,
    device: Device = None,
    adapter: Adapter = "auto",
) -> None:
    """Time attention and signals within steps; nothing else should run on the machine. Ctrl-C keeps what is done."""
    if json_out is not None:
        check_writable(json_out)
    console = Console()
    bench = SharesBench(open_model(model, dtype, device, adapter, console), concurrency, context, repeats)
    run_cases(bench, repeats * len(CASES), "first steps", table, json_out, console)


if __name__ == "__main__":
    run(app)
