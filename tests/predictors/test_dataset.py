"""Data sets from logs: censoring, histories as the engine saw them, and logs that cannot be learned from."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from recguide.predictors.dataset import read_dataset

from recguide.control.features import KINDS, history
from recguide.errors import RecGuideError
from recguide.trace.reader import read_trace
from tests.helpers import small_model
from tests.recorded import PROMPTS, record


def test_only_reached_positions_are_rows(log):
    data, plans = read_dataset([log]), read_trace(log).tables["plans"].to_pylist()
    verified = [p for p in plans if p["verify"] > 0]
    assert len(data) == len(verified)
    reached = sum(min(p["accepted"] + 1, p["verify"]) for p in verified)
    assert data.reached.sum() == reached and data.accepted.sum() == sum(p["accepted"] for p in verified)
    assert not (data.accepted & ~data.reached).any()
    # reached positions of a draft are its first ones, and all but the last were accepted
    assert (np.diff(data.reached.astype(int), axis=1) <= 0).all()
    for reached_row, accepted_row in zip(data.reached, data.accepted, strict=True):
        assert accepted_row[: reached_row.sum() - 1].all()


def test_a_draft_accepted_whole_says_at_least(log):
    data = read_dataset([log])
    whole = data.reached.sum(1) == data.accepted.sum(1)
    assert whole.any() and (~data.reached[whole, data.length[whole].clip(max=15)]).any()


def test_histories_are_those_of_the_engine(log):
    data, plans = read_dataset([log]), read_trace(log).tables["plans"].to_pylist()
    past, expected = {}, {}
    for p in sorted(plans, key=lambda p: (p["request"], p["step"])):
        if p["verify"] > 0:
            rounds = past.setdefault(p["request"], [])
            expected[p["request"], p["step"]] = history(rounds)
            rounds.append((p["verify"], p["accepted"]))
    assert sorted(map(tuple, data.histories.tolist())) == sorted(expected.values())


def test_places_behind_a_draft_are_empty(log):
    data = read_dataset([log])
    there = np.arange(data.top1.shape[1]) < data.length[:, None]
    assert np.isfinite(data.top1[there]).all() and np.isnan(data.top1[~there]).all()
    assert set(data.kind.tolist()) <= set(range(len(KINDS))) and len(np.unique(data.group)) == len(PROMPTS)


def test_two_runs_keep_their_requests_apart(log, tmp_path):
    shutil.copytree(log, tmp_path / "again")
    once, twice = read_dataset([log]), read_dataset([log, tmp_path / "again"])
    assert len(twice) == 2 * len(once) and len(np.unique(twice.group)) == 2 * len(np.unique(once.group))


def test_too_little_is_refused(tmp_path):
    with pytest.raises(RecGuideError, match="are too few to learn from"):
        read_dataset([record(tmp_path / "one", prompts=PROMPTS[:1])])
    with pytest.raises(RecGuideError, match="holds no decision log"):
        read_dataset([tmp_path / "nothing"])
    with pytest.raises(RecGuideError, match="0 reached draft positions"):
        read_dataset([record(tmp_path / "ar", policy="ar")])


def test_mixed_models_and_conventions_are_refused(log, unshifted_log, tmp_path):
    other = record(tmp_path / "other", model=small_model(seed=1, shift=1), prompts=PROMPTS[:3])
    with pytest.raises(RecGuideError, match="logs of different models"):
        read_dataset([log, other])
    with pytest.raises(RecGuideError, match="different conventions"):
        read_dataset([log, unshifted_log])


def changed(log, folder, change):
    """A copy of the log with its draft positions changed."""
    shutil.copytree(log, folder)
    path = folder / "draft_positions.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    for row in rows:
        change(row)
    pq.write_table(type(table).from_pylist(rows, table.schema), path)
    return folder


def test_all_accepted_all_rejected_and_nan(log, tmp_path):
    with pytest.raises(RecGuideError, match="every draft was accepted"):
        read_dataset([changed(log, tmp_path / "all", lambda r: r.update(accepted=True))])
    with pytest.raises(RecGuideError, match="no draft was accepted"):
        read_dataset([changed(log, tmp_path / "none", lambda r: r.update(accepted=False))])
    with pytest.raises(RecGuideError, match="no finite signals"):
        read_dataset([changed(log, tmp_path / "nan", lambda r: r.update(top1=float("nan")))])
