"""Train a controller: decision logs in, one file and a report out.

Four predictions are learned (DESIGN section 7): whether a drafted token is accepted (mismatch), how far a block that is
not drafted yet would go (utility), whether the second-best token is the correction (second choice), and how often an
open branch guesses the verifier's token (continuation; certain where drafts make no guess). Every figure of the report
is of requests that the model did not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sklearn
from recguide.predictors import baselines, metrics
from recguide.predictors.dataset import Dataset, dataset_of
from recguide.predictors.export import to_scorer
from recguide.predictors.models import CalibratedChoice, Rows
from recguide.predictors.report import Report

from recguide.control.controller import COLUMNS, Controller, load_controller
from recguide.control.features import GROUP, GROUPS, KINDS, MISMATCH, block_features
from recguide.control.solve import Samples
from recguide.errors import RecGuideError
from recguide.provenance import check_writable, provenance
from recguide.trace.reader import Trace, read_traces

PLACES = 8  # draft positions a plan may go to
SAMPLES = 60
BUCKETS = 3
GOLDEN = 64
LEAST_REJECTED = 40


OnProgress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """``only`` names one candidate (logistic, trees) instead of the better; ``drop`` are features held constant, and
    without ``calibrate`` raw probabilities are used: for ablations."""

    seed: int = 0
    only: str | None = None
    calibrate: bool = True
    drop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = [feature.name for feature in MISMATCH]
        unknown = [name for name in self.drop if name not in known]
        if unknown:
            raise RecGuideError(f"feature {unknown[0]!r} is unknown; known: {', '.join(known)}")
        if self.only not in (None, "logistic", "trees"):
            raise RecGuideError(f"only is {self.only!r}; allowed: logistic, trees")


def train_controller(
    folders: Sequence[Path],
    out: Path,
    *,
    settings: FitSettings = FitSettings(),
    on_progress: OnProgress = lambda what, share: None,
) -> Report:
    """Fit all models on the runs in ``folders`` and write the controller to ``out``.

    Raises RecGuideError for logs without enough to learn from, of different models, or an unwritable ``out``.
    """
    check_writable(out)
    on_progress("reading logs", 0.0)
    traces = read_traces(folders)
    data = dataset_of(traces)
    on_progress("mismatch model", 0.1)
    fitted = {"mismatch": _fit(data.draft_rows(), data.accepted, data.reached, data, settings, "mismatch")}
    on_progress("utility model", 0.4)
    fitted["utility"] = _fit(data.block_rows(), data.accepted, data.reached, data, settings, "utility")
    on_progress("second-choice model", 0.6)
    fitted["second"] = _fit_second(data, settings)
    on_progress("baselines and report", 0.8)
    report = _report(data, fitted, folders)
    controller = _controller(data, fitted, _open_chance(traces, data), report)
    controller.save(out)
    load_controller(out)  # checks the golden rows of what was written
    on_progress("done", 1.0)
    return report


@dataclass(frozen=True)
class Fitted:
    """A model with the rows it was fitted on."""

    model: CalibratedChoice
    rows: Rows


def _fit(features, outcome, chosen, data: Dataset, settings: FitSettings, name: str) -> Fitted:
    names = [column.name for column in COLUMNS[name]]
    features = features.copy()
    features[..., [names.index(name) for name in settings.drop if name in names]] = 0.0
    rows = Rows.of(features, outcome, chosen, data.group)
    model = CalibratedChoice(settings.seed, settings.only, settings.calibrate)
    return Fitted(model.fit(rows.x, rows.y, rows.groups), rows)


def _fit_second(data: Dataset, settings: FitSettings) -> Fitted:
    """Rows are rejected drafts. With too few of them, or one outcome only, the verdict cannot be learned."""
    rejected = data.reached & ~data.accepted
    if rejected.sum() < LEAST_REJECTED:
        raise RecGuideError(f"{int(rejected.sum())} rejected drafts are too few; record a longer run")
    return _fit(data.draft_rows(), data.second_right, rejected, data, settings, "second")


def _open_chance(traces: Sequence[Trace], data: Dataset) -> float:
    """P(an open branch's first token is the verifier's | its outcome came true); 1 where it makes no guess."""
    if data.draft_shift == 1:
        return 1.0
    tried = came_true = 0
    for trace in traces:
        plans = trace.tables["plans"].to_pydict()
        for parents, tokens, accepted, reused in zip(
            plans["branch_parents"], plans["branch_tokens"], plans["accepted"], plans["reused"], strict=True
        ):
            for number, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
                if token < 0 and parent == accepted + 1:
                    tried += 1
                    came_true += reused == number
    return (came_true + 1) / (tried + 2)


def _controller(data: Dataset, fitted: Mapping[str, Fitted], chance: float, report: Report) -> Controller:
    scorers = {name: to_scorer(f.model) for name, f in fitted.items()}
    mismatch = fitted["mismatch"].model
    expected = _expected(fitted["utility"].model, data)
    edges = np.quantile(expected, np.linspace(0, 1, BUCKETS + 1)[1:-1])
    bucket = np.digitize(expected, edges)
    group = np.array(GROUP)[data.kind]
    usual = np.array([_usual(data.take(group == number)) for number in range(len(GROUPS))])
    rejected = (data.reached & ~data.accepted)[:, :PLACES]
    right = (data.second_right & data.reached & ~data.accepted)[:, :PLACES]
    chance_second = (right.sum(0) + right.sum() / max(rejected.sum(), 1)) / (rejected.sum(0) + 1)
    chooser = np.random.default_rng(0)
    samples = {"second": chance_second, "buckets": BUCKETS}
    for number, name in enumerate(GROUPS):
        among = group == number
        if not among.any() and name != "tail":
            among = np.ones(len(data), bool)  # a log without such drafts: all others stand for them
        samples[name], samples[f"{name}_bucket"] = _samples(data, mismatch, bucket, among)
    about = {
        "report": report.summary(),
        "provenance": provenance(),
        "scikit_learn": sklearn.__version__,
        "numpy": np.__version__,
    }
    return Controller(
        model=data.model,
        draft_shift=data.draft_shift,
        **scorers,
        open_chance=chance,
        samples=Samples(**samples),
        edges=edges,
        usual=usual,
        golden={name: _golden(f, chooser) for name, f in fitted.items()},
        about=about,
    )


def _usual(data: Dataset) -> np.ndarray:
    """The share of accepted among reached drafts [PLACES], places with few of them leaning on all."""
    reached, accepted = data.reached[:, :PLACES].sum(0), data.accepted[:, :PLACES].sum(0)
    overall = (accepted.sum() + 1) / (reached.sum() + 2)
    return (accepted + 10 * overall) / (reached + 10)


def _golden(fitted: Fitted, chooser: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows and what scikit-learn itself says of them."""
    rows = fitted.rows.x[chooser.choice(len(fitted.rows.x), min(GOLDEN, len(fitted.rows.x)), replace=False)]
    rows = np.resize(rows, (max(len(rows), 32), rows.shape[1]))
    return rows, fitted.model.predict_proba(rows)[:, 1]


def _expected(model: CalibratedChoice, data: Dataset) -> np.ndarray:
    """Drafts that the utility model expects to be accepted of a continuation [drafts]."""
    kind = np.full(len(data), KINDS.index("continuation"))
    return np.cumprod(_yes(model, block_features(PLACES, kind, data.histories)), 1).sum(1)


def _yes(model: CalibratedChoice, rows: np.ndarray) -> np.ndarray:
    """P(yes) [drafts, places] of feature rows [drafts, places, features]."""
    return model.predict_proba(rows.reshape(-1, rows.shape[2]))[:, 1].reshape(rows.shape[:2])


def _samples(data: Dataset, model: CalibratedChoice, bucket, among) -> tuple[np.ndarray, np.ndarray]:
    """Survivals [drafts, PLACES] of the drafts ``among`` [drafts], as the mismatch model sees them, and their buckets.

    A short draft goes on as the longer one does that was about as likely to get so far: good places come together.
    SAMPLES of them stand for all, from the worst to the best of each bucket.
    """
    mine = np.flatnonzero(among)
    if not len(mine):
        return np.zeros((0, PLACES)), mine
    survival = np.cumprod(_yes(model, data.take(mine).draft_rows()[:, :PLACES]), 1)
    for size in range(PLACES - 1, 0, -1):
        short, longer = (np.flatnonzero(found) for found in (data.length[mine] == size, data.length[mine] > size))
        if len(short) and len(longer):
            known = survival[longer, size - 1]
            order = np.argsort(known)
            near = longer[order[np.searchsorted(known[order], survival[short, size - 1]).clip(max=len(longer) - 1)]]
            survival[short, size:] = np.minimum(survival[near, size:], survival[short, size - 1 : size])
    order = np.lexsort((survival.sum(1), bucket[mine]))
    chosen = order[np.linspace(0, len(order) - 1, min(SAMPLES, len(order))).round().astype(int)]
    return survival[chosen], bucket[mine[chosen]]


def _report(data: Dataset, fitted: Mapping[str, Fitted], folders: Sequence[Path]) -> Report:
    draft, _ = np.nonzero(data.reached)
    seen = Rows.of(data.draft_rows(), data.accepted, data.reached, data.group)  # baselines keep what is dropped
    entropy = np.where(np.isfinite(data.entropy), data.entropy, 0.0).sum(1) / np.maximum(data.length, 1)
    return Report.make(
        {name: (f.model, f.rows, [c.name for c in COLUMNS[name]]) for name, f in fitted.items()},
        baselines.left_out(seen, data.previous[draft], entropy[draft]),
        metrics.value_curves(_filled(fitted["utility"].model, data), data.reached, data.accepted),
        {"requests": len(np.unique(data.group)), "drafts": len(data), "folders": [str(folder) for folder in folders]},
    )


def _filled(model: CalibratedChoice, data: Dataset) -> np.ndarray:
    """P(accepted | reached) [drafts, K] of every place; reached ones from models that did not see them."""
    out = _yes(model, data.block_rows())
    out[data.reached] = model.left_out_
    return out
