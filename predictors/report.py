"""The report of a training: one JSON-ready structure, and the same as a page of plotly figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from recguide.predictors import metrics
from recguide.predictors.models import CalibratedChoice, Rows
from sklearn.inspection import permutation_importance

from recguide.provenance import provenance, write_json, write_text

IMPORTANCE_ROWS = 4000


@dataclass(frozen=True)
class Report:
    """Figures of requests that the models did not see. ``content`` is JSON-ready."""

    content: dict[str, Any]

    @classmethod
    def make(
        cls,
        fitted: Mapping[str, tuple[CalibratedChoice, Rows, Sequence[str]]],
        baselines: Mapping[str, np.ndarray],
        curves: Sequence[Mapping[str, float]],
        about: Mapping[str, Any],
    ) -> Report:
        """``fitted``: model, rows and column names of each prediction. ``baselines`` predict the mismatch rows.
        ``curves`` are value curves by block size."""
        _, rows, _ = fitted["mismatch"]
        return cls(
            {
                "about": dict(about),
                "models": {name: _model(*each) for name, each in fitted.items()},
                "baselines": {name: metrics.scores(p, rows.y) for name, p in baselines.items()},
                "value_curves": list(curves),
                "provenance": provenance(),
            }
        )

    def to_dict(self) -> dict[str, Any]:
        return self.content

    def summary(self) -> dict[str, Any]:
        """What travels inside the controller file: overall figures, no curves."""
        models = {
            name: {k: m[k] for k in ("chosen", "rows", "auc", "log_loss", "brier", "ece")}
            for name, m in self.content["models"].items()
        }
        return {"about": self.content["about"], "models": models}

    def save_json(self, path: Path) -> None:
        write_json(path, self.content)

    def save_html(self, path: Path) -> None:
        """One page with every figure; opens without a network."""
        head = f"<h1>Predictors</h1><p>{self._sentence()}</p>"
        figures = [
            _reliability(self.content),
            _values(self.content),
            _positions(self.content),
            _importance(self.content),
        ]
        parts = [f.to_html(full_html=False, include_plotlyjs=number == 0) for number, f in enumerate(figures)]
        page = "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>RecGuide predictors</title></head>"
        write_text(path, f"{page}<body>{head}{''.join(parts)}</body></html>\n")

    def _sentence(self) -> str:
        about, mismatch = self.content["about"], self.content["models"]["mismatch"]
        return (
            f"{about['drafts']} drafts of {about['requests']} requests. Mismatch model ({mismatch['chosen']}): "
            f"AUC {mismatch['auc']:.3f}, ECE {mismatch['ece']:.3f}, on requests it did not see."
        )


def _model(model: CalibratedChoice, rows: Rows, columns: Sequence[str]) -> dict[str, Any]:
    predicted = model.left_out_
    return {
        "chosen": model.name_,
        "log_loss_by_candidate": model.losses_,
        **metrics.scores(predicted, rows.y),
        "by_position": metrics.by_position(predicted, rows.y, rows.position),
        "reliability": metrics.reliability(predicted, rows.y),
        "importance": _permuted(model, rows, columns),
    }


def _permuted(model: CalibratedChoice, rows: Rows, columns: Sequence[str]) -> dict[str, float]:
    """Log loss gained by shuffling a column, of a sample of the rows it was fitted on."""
    some = np.random.default_rng(0).permutation(len(rows.y))[:IMPORTANCE_ROWS]
    found = permutation_importance(
        model, rows.x[some], rows.y[some], scoring="neg_log_loss", n_repeats=3, random_state=0
    )
    return dict(zip(columns, map(float, found.importances_mean), strict=True))


def _reliability(content: dict[str, Any]) -> go.Figure:
    figure = go.Figure(go.Scatter(x=[0, 1], y=[0, 1], mode="lines", line={"dash": "dot"}, name="perfect"))
    for name, model in content["models"].items():
        curve = model["reliability"]
        figure.add_scatter(x=[b["predicted"] for b in curve], y=[b["observed"] for b in curve], name=name)
    return figure.update_layout(
        title="Do predictions come true? Points on the dotted line do",
        xaxis_title="predicted probability", yaxis_title="observed share",
    )  # fmt: skip


def _values(content: dict[str, Any]) -> go.Figure:
    blocks = [point["block"] for point in content["value_curves"]]
    figure = go.Figure()
    for name in ("predicted", "observed"):
        figure.add_scatter(x=blocks, y=[point[name] for point in content["value_curves"]], name=name)
    return figure.update_layout(
        title="What a block is worth before it is drafted", xaxis_title="block, tokens", yaxis_title="tokens a round"
    )


def _positions(content: dict[str, Any]) -> go.Figure:
    figure = make_subplots(rows=1, cols=2, subplot_titles=("AUC by draft position", "ECE by draft position"))
    for column, key in enumerate(("auc", "ece"), 1):
        places = content["models"]["mismatch"]["by_position"]
        figure.add_bar(x=list(places), y=[p[key] for p in places.values()], row=1, col=column, showlegend=False)
    return figure


def _importance(content: dict[str, Any]) -> go.Figure:
    figure = go.Figure()
    for name, model in content["models"].items():
        figure.add_bar(x=list(model["importance"]), y=list(model["importance"].values()), name=name)
    return figure.update_layout(title="What the models look at", yaxis_title="log loss lost when shuffled")
