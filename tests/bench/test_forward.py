"""The forward benchmark: both sides compute the same logits, again and again, and the figures come from its samples."""

import json

import pytest
import torch
from typer.testing import CliRunner

from recguide.bench import forward
from recguide.bench.forward import CASES, Case, ForwardBench, compare, load_reference
from recguide.models.loader import load_model


@pytest.fixture(scope="module")
def model(folder):
    return load_model(str(folder), dtype="float32", adapter=None)


@pytest.fixture(scope="module")
def reference(model):
    return load_reference(model)


@pytest.mark.parametrize("case", [*CASES, Case(3, 5)], ids=lambda case: case.name)
@torch.inference_mode()
def test_both_sides_compute_the_same_logits_however_often(model, reference, case):
    ours, theirs = compare(model, reference, case, context=19)
    for _ in range(3):
        mine, other = ours(), theirs()
        assert mine.shape == other.shape == (case.requests * case.rows, model.config.vocab_size)
        assert torch.allclose(mine, other, atol=1e-4)
    assert mine.std() > 0.1


def test_figures_are_medians_and_ratios_within_a_repeat(model):
    bench = ForwardBench(model, context=8, repeats=3)
    one, case = CASES[0], CASES[1]
    bench.ours[one], bench.theirs[one] = [1.0, 2.0, 4.0], [2.0, 8.0, 40.0]
    bench.ours[case], bench.theirs[case] = [3.0, 3.0, 3.0], [6.0, 12.0]
    first, second = bench.result()["cases"]
    assert (first["ours_ms"], first["transformers_ms"], first["ratio"], first["ratio_to_one_row"]) == (2, 8, 0.25, 1)
    assert (second["ours_ms"], second["transformers_ms"], second["ratio"]) == (3, 9, 0.375)
    assert second["ratio_to_one_row"] == 1.5


def test_the_script_writes_what_it_prints(folder, tmp_path):
    out = tmp_path / "forward.json"
    words = ["--model", folder, "--dtype", "float32", "--context", 8, "--repeats", 2, "--json", out]
    ended = CliRunner().invoke(forward.app, [str(word) for word in words])
    assert ended.exit_code == 0
    result = json.loads(out.read_text())
    assert [(row["requests"], row["rows"]) for row in result["cases"]] == [(c.requests, c.rows) for c in CASES]
    assert all(row["ours_ms"] > 0 and row["transformers_ms"] > 0 for row in result["cases"])
    assert result["model"]["dtype"] == "float32"
    assert "8 x 8" in ended.output


@pytest.mark.parametrize(("name", "value"), [("context", 0), ("repeats", 0), ("context", 2048)])
def test_bad_numbers_are_refused(model, name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        ForwardBench(model, **({"context": 8, "repeats": 1} | {name: value}))
