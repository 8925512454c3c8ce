"""``recguide audit`` end to end: equal texts, and an exit status that tells of a policy that writes its own."""

import re

import pytest

import recguide.engine.engine as engine_module
from recguide.engine.accept import accepted_length
from tests.helpers import native_dtype, skip_without_products_in


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_all_policies_write_the_text_of_ar(cli, small, prompts, temperature):
    run = cli("audit", *small, "--prompts", prompts, "--max-new-tokens", 24, "--temperature", temperature)
    assert run.status == 0
    lines = [line for line in run.out.splitlines() if "3 of 3" in line]
    assert [re.split(r"\s*│\s*", line)[1] for line in lines] == [
        "linear:8",
        "ar-row:8",
        "window",
        "quadratic:4",
        "overlap:8",
    ]


def accept_one_more(drafts, drawn):
    return min(len(drafts), accepted_length(drafts, drawn) + 1)


def test_a_policy_that_accepts_too_much_fails_the_audit(cli, small, prompts, monkeypatch):
    monkeypatch.setattr(engine_module, "accepted_length", accept_one_more)
    run = cli("audit", *small, "--prompts", prompts, "--max-new-tokens", 24, "--policies", "linear:4")
    assert run.status == 1
    assert "not all" in run.out
    assert "linear:4" in run.out
    assert "Traceback" not in run.err


def test_a_model_with_a_shorter_context_than_the_default(cli, own_folder, prompts):
    import json

    config = json.loads((own_folder / "config.json").read_text())
    (own_folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    words = ["--model", own_folder, "--dtype", "float32", "--prompts", prompts, "--max-new-tokens", 4]
    assert cli("audit", *words).status == 0


def test_ctrl_c_ends_the_audit(cli, small, prompts, steps):
    steps.limit = 4
    run = cli("audit", *small, "--prompts", prompts)
    assert (run.status, run.err) == (130, "")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_real_model_is_lossless(cli, dtype):
    skip_without_products_in(dtype)
    fast = dtype in ("float32", native_dtype())  # an emulated dtype is many times slower
    limit, tokens = (3, 16) if fast else (2, 12)
    assert cli("audit", "--dtype", dtype, "--limit", limit, "--max-new-tokens", tokens).status == 0
