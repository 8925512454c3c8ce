"""Measure the cost table: steps as the engine makes them, on random tokens, the median of repeats."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch

from recguide.control.cost import Axes, CostTable, Identity
from recguide.engine.cache import KVCache, StepAttention
from recguide.engine.chaining import Run, choose_along, draw_others
from recguide.engine.drawing import Drawn
from recguide.engine.layout import Layout, Segment, build_layout
from recguide.engine.plan import Branch
from recguide.engine.sampling import Row, SamplingParams
from recguide.errors import RecGuideError
from recguide.models.loader import Model
from recguide.provenance import profile_fingerprint, provenance

SAMPLE_MS, MOST_STEPS = 150.0, 12  # of one sample of a cell
ROW = Row(SamplingParams(seed=0), 0)
QUICK = Axes((1, 2, 4, 8, 16, 32), (1, 2, 4, 8), (256,))
"""A first table in well under a minute, each cell measured once; steps correct it while running."""


def identity_of(model: Model) -> Identity:
    adapter = "none" if model.adapter is None else model.adapter.shape
    return Identity(model=model.fingerprint, adapter=adapter, dtype=model.dtype_name, profile=profile_fingerprint())


class DryStep:
    """A step that commits nothing: ``requests`` with ``trunk`` causal rows and ``masks`` draft rows behind ``context``
    tokens. What is in the cache does not matter for the time."""

    def __init__(self, model: Model, requests: int, trunk: int, masks: int, context: int):
        config, backbone = model.config, model.backbone
        self._model, self._rows = model, trunk + masks
        self._cache = KVCache(config, requests, context, self._rows, backbone.dtype, backbone.device)
        branches = (Branch(trunk, None, masks),) if masks else ()
        slots = [self._cache.take() for _ in range(requests)]
        self._segments = [Segment(slot, context, (5,) * trunk, trunk, 0, branches) for slot in slots]

    @torch.inference_mode()
    def __call__(self) -> float:
        """Milliseconds from the plan to the drawn tokens."""
        model, started = self._model, time.perf_counter()
        config, backbone = model.config, model.backbone
        layout = build_layout(self._segments, config.mask_id)
        layout = layout.to(backbone.device)
        hidden = backbone.forward(
            layout.tokens,
            layout.positions,
            StepAttention(self._cache, layout, config),
            first_draft_row=layout.first_draft_row,
            mask_rows=layout.mask_rows,
            adapter=model.fused_adapter,
        )
        scored = hidden if layout.all_rows_scored else hidden[layout.logit_rows]
        logits, drawn = backbone.logits(scored), Drawn([ROW] * len(scored), layout.trunk_logits[-1].stop, signals=True)
        chain = model.fused_adapter.chain
        runs = [] if chain is None else self._runs(layout)
        draw_others(runs, logits, 0, drawn)
        if runs:
            choose_along(chain, runs, logits, scored, 0, drawn)
        return (time.perf_counter() - started) * 1e3

    @staticmethod
    def _runs(layout: Layout) -> list[Run]:
        """All masks of a request hang together, behind its last trunk row."""
        pairs = zip(layout.trunk_logits, layout.branch_logits, strict=True)
        return [Run(b.start, b.stop - b.start, t.stop - 1, 5, None) for t, branches in pairs for b in branches]


class Profiler:
    """Measures cell by cell; ``table()`` is there once all are done."""

    def __init__(self, model: Model, axes: Axes, repeats: int):
        most = model.config.max_positions - max(axes.rows) - 1
        if max(axes.contexts) > most:
            raise RecGuideError(f"context {max(axes.contexts)} is too long; with these rows the model takes {most}")
        self.model, self.axes, self.repeats = model, axes, repeats
        self._times = np.full((2, *axes.shape, repeats), np.nan)  # to the two plain steps around
        self._plain: list[float] = []

    @property
    def measurements(self) -> int:
        return self._times.size

    def run(self) -> Iterator[str]:
        """Measure everything; yields a line after each measurement.

        The grid is gone over once for each repeat, each time in another order: a slow minute of the machine then spoils
        one sample of some cells that lie apart, not all samples of one, nor all cells of so many requests. Between any
        two cells the same plain step is timed, and a cell is told from the plain steps around it: what counts is what
        steps cost beside each other.
        """
        plain = DryStep(self.model, 1, 1, 0, min(self.axes.contexts))
        before = _sample(plain)
        places = list(np.ndindex(2, *self.axes.shape))
        order = random.Random(0)
        for repeat in range(self.repeats):
            for place in order.sample(places, len(places)):
                kind, at, row, stretch = place
                requests, rows, context = self.axes.requests[at], self.axes.rows[row], self.axes.contexts[stretch]
                trunk, masks = (1, rows) if kind else (rows, 0)
                spent = _sample(DryStep(self.model, requests, trunk, masks, context))
                after = _sample(plain)
                self._times[(*place, repeat)] = spent / (before + after)
                self._plain.append(after)
                before = after
                what = ("causal", "draft")[kind]
                yield f"{requests} requests x {rows} {what} rows, context {context}: {spent:.1f} ms"

    def table(self) -> CostTable:
        about = {"provenance": provenance(), "repeats": self.repeats, "model_name": self.model.name}
        causal, drafting = 2 * np.median(self._plain) * np.median(self._times, -1)
        return CostTable(identity_of(self.model), self.axes, causal, drafting, about)


def _sample(step: DryStep) -> float:
    """The median of a few steps behind the first: more of the short ones, which are the ones that decisions hang on,
    and never one alone unless it is long, so that a hiccup of the machine does not count."""
    first = step()
    fewest = 3 if first < 2 * SAMPLE_MS else 1
    return statistics.median(step() for _ in range(max(fewest, min(MOST_STEPS, int(SAMPLE_MS / first)))))
