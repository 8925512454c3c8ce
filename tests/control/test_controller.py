"""The controller file: there and back, and refused with the difference named, whatever byte is wrong."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from recguide.control.controller import load_controller
from recguide.errors import RecGuideError
from tests.controllers import handmade


@pytest.fixture
def path(tmp_path):
    handmade().save(tmp_path / "c.safetensors")
    return tmp_path / "c.safetensors"


def rewrite(path, change):
    """The file with its metadata changed, its digest as it was."""
    with safe_open(path, "numpy") as stored:
        metadata = {k: json.loads(v) for k, v in stored.metadata().items()}
        tensors = {k: stored.get_tensor(k) for k in stored.keys()}  # noqa: SIM118, not a dict
    change(metadata)
    save_file(tensors, path, metadata={k: json.dumps(v) for k, v in metadata.items()})


def test_what_is_saved_is_loaded(path):
    saved, loaded = handmade(), load_controller(path)
    rows = np.random.default_rng(5).normal(0, 1, (50, saved.golden["mismatch"][0].shape[1])).astype(np.float32)
    assert np.array_equal(saved.mismatch(rows), loaded.mismatch(rows))
    assert np.array_equal(saved.samples.open, loaded.samples.open) and loaded.samples.buckets == 3
    assert (loaded.model, loaded.draft_shift, loaded.open_chance) == ("abc", 0, 0.6)
    assert loaded.about == {"made": "by hand"} and loaded.places == 8
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_any_changed_byte_is_noticed(path, tmp_path):
    whole = path.read_bytes()
    bad = tmp_path / "bad.safetensors"
    for place in np.random.default_rng(0).choice(len(whole), 150, replace=False).tolist():
        bad.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RecGuideError, match="bad"):
            load_controller(bad)


def test_a_cut_file_and_none_at_all(path, tmp_path):
    whole = path.read_bytes()
    for size in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(RecGuideError, match="not a controller file, or damaged"):
            load_controller(path)
    with pytest.raises(RecGuideError, match="recguide train"):
        load_controller(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(schema=9), "schema is 9, this version reads 2"),
        (lambda m: m.update(feature_schema=0), "feature schema is 0"),
        (lambda m: m.update(model="other"), "digest does not match"),
        (lambda m: m.pop("digest"), "digest"),
    ],
)
def test_other_metadata_is_refused(path, change, message):
    rewrite(path, change)
    with pytest.raises(RecGuideError, match=message):
        load_controller(path)


def test_other_features_are_named(path):
    from recguide.control import controller as module

    def change(metadata):
        metadata["features"]["mismatch"][3][0] = "luck"
        with safe_open(path, "numpy") as stored:
            tensors = {k: stored.get_tensor(k) for k in stored.keys()}  # noqa: SIM118, not a dict
        del metadata["digest"]
        metadata["digest"] = module._digest(tensors, metadata)

    rewrite(path, change)
    with pytest.raises(RecGuideError, match="feature 3 of mismatch is luck, this version's is top1"):
        load_controller(path)


def test_golden_rows_must_come_out_as_they_did(tmp_path):
    controller = handmade()
    rows, expected = controller.golden["second"]
    golden = dict(controller.golden) | {"second": (rows, expected + 1e-5)}
    with pytest.raises(RecGuideError, match="golden rows of second differ"):
        type(controller)(**(vars(controller) | {"golden": golden})).check_golden()


def test_an_unwritable_place_is_named_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecGuideError, match="cannot write"):
        handmade().save(tmp_path / "file" / "c.safetensors")


def test_the_engine_evaluates_it_without_scikit_learn(path):
    code = (
        "import sys; from pathlib import Path; from recguide.control.controller import load_controller; "
        f"import recguide.policies; load_controller(Path({str(path)!r})); "
        "print([m for m in ('sklearn', 'pandas', 'ipywidgets', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
