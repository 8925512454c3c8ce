"""Training end to end on a small model's log: the file is scikit-learn's model, the engine takes it, faults are
told."""

import os

import numpy as np
import pytest
from recguide.predictors.dataset import read_dataset
from recguide.predictors.fit import PLACES, FitSettings, train_controller
from recguide.predictors.models import CalibratedChoice, Rows

from recguide.control.controller import load_controller
from recguide.control.features import GROUPS
from recguide.engine.engine import Engine
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from tests.helpers import small_model
from tests.recorded import PROMPTS


@pytest.fixture(scope="module")
def trained(log, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "c.safetensors"
    told = []
    report = train_controller([log], path, on_progress=lambda what, share: told.append(share))
    assert told == sorted(told) and told[-1] == 1.0
    return path, report


def test_the_file_predicts_what_scikit_learn_does(trained, log):
    controller, data = load_controller(trained[0]), read_dataset([log])
    rows = Rows.of(data.draft_rows(), data.accepted, data.reached, data.group)
    again = CalibratedChoice().fit(rows.x, rows.y, rows.groups)
    assert np.abs(controller.mismatch(rows.x) - again.predict_proba(rows.x)[:, 1]).max() < 1e-6
    assert min(len(rows) for rows, _ in controller.golden.values()) >= 32


def test_what_the_controller_holds(trained):
    controller = load_controller(trained[0])
    samples = controller.samples
    assert samples.open.shape[1] == PLACES == controller.places
    assert ((samples.open >= 0) & (samples.open <= 1)).all() and (np.diff(samples.open, axis=1) <= 1e-12).all()
    assert (
        set(samples.open_bucket.tolist()) <= {0, 1, 2} and controller.draft_shift == 1 and controller.open_chance == 1
    )
    assert controller.usual.shape == (len(GROUPS), PLACES)
    assert controller.about["report"]["models"]["mismatch"]["rows"] > 200


def test_an_open_branch_that_guesses_has_a_chance_below_one(unshifted_log, tmp_path):
    train_controller([unshifted_log], tmp_path / "c.safetensors")
    assert 0 < load_controller(tmp_path / "c.safetensors").open_chance < 1


def test_the_engine_runs_it_without_changing_a_token(trained):
    model = small_model(shift=1)
    params = [SamplingParams(max_new_tokens=30, temperature=0.5, seed=i) for i in range(8)]
    texts = []
    for spec in ("ar", f"recguide:{trained[0]}"):
        engine = Engine(model, spec, max_concurrency=4, max_context=128)
        texts.append([r.output for r in engine.generate(PROMPTS[:8], params)])
    assert texts[0] == texts[1]


def test_the_report_says_it_all(trained, tmp_path):
    _, report = trained
    content = report.to_dict()
    for name in ("mismatch", "utility", "second"):
        model = content["models"][name]
        assert {"auc", "log_loss", "brier", "ece", "by_position", "reliability", "importance"} <= set(model)
        assert set(model["log_loss_by_candidate"]) == {"logistic", "trees"}
    assert set(content["baselines"]) == {"constant", "top1", "margin", "ewma", "table"}
    assert content["models"]["mismatch"]["log_loss"] < content["baselines"]["constant"]["log_loss"]
    report.save_html(tmp_path / "r.html")
    report.save_json(tmp_path / "r.json")
    page = (tmp_path / "r.html").read_text()
    assert page.count("plotly-graph-div") == 4 and "https://cdn" not in page.split("<script")[0]


def test_ablations(log, tmp_path):
    out = tmp_path / "c.safetensors"
    report = train_controller([log], out, settings=FitSettings(only="trees", calibrate=False, drop=("top1", "margin")))
    model = report.to_dict()["models"]["mismatch"]
    assert model["chosen"] == "trees" and model["importance"]["top1"] == 0 == model["importance"]["margin"]
    assert report.to_dict()["baselines"]["top1"]["auc"] > 0.5  # what the model lacks, they do not
    with pytest.raises(RecGuideError, match="feature 'luck' is unknown; known: position"):
        FitSettings(drop=("luck",))
    with pytest.raises(RecGuideError, match="allowed: logistic, trees"):
        FitSettings(only="forest")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_folder_is_told_before_any_work(log, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RecGuideError, match="cannot write"):
        train_controller([log], tmp_path / "c.safetensors")


def test_a_place_that_cannot_be_written_is_told_before_any_work(log, tmp_path):
    (tmp_path / "file").write_text("")
    told = []
    with pytest.raises(RecGuideError, match="cannot write"):
        train_controller([log], tmp_path / "file" / "c.safetensors", on_progress=lambda *a: told.append(a))
    assert not told


def test_an_interrupted_training_leaves_no_half_file(log, tmp_path):
    def stop(what, share):
        if share > 0.5:
            raise KeyboardInterrupt

    out = tmp_path / "c.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train_controller([log], out, on_progress=stop)
    assert list(tmp_path.iterdir()) == []
