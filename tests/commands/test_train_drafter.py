"""``recguide train-drafter`` end to end: dialogues, training in two sittings, an adapter that generate accepts."""

import json

import pytest
import torch

QUICK = ["--dialogues", 8, "--steps", 4, "--rows", 24, "--rank", 2, "--eval-every", 2, "--dtype", "float32"]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """Shared by the tests of this file, in order: what the first sitting leaves is what the second finds."""
    return tmp_path_factory.mktemp("runs") / "run"


@pytest.fixture
def words(folder, run_folder):
    return ["train-drafter", run_folder, "--model", folder, *QUICK]


def test_the_first_sitting_may_be_short(cli, words, run_folder):
    run = cli(*words, "--minutes", 0)
    assert run.status == 0
    dialogues = rows(run_folder / "dialogues.jsonl")
    assert len(dialogues) == 8
    assert all(set(row) == {"prompt", "answer", "category"} and len(row["answer"]) >= 8 for row in dialogues)
    assert torch.load(run_folder / "state.pt", weights_only=True)["step"] == 0


def test_the_second_goes_on_and_reports(cli, words, run_folder):
    before = (run_folder / "dialogues.jsonl").read_bytes()
    run = cli(*words)
    assert run.status == 0
    assert (run_folder / "dialogues.jsonl").read_bytes() == before
    assert torch.load(run_folder / "state.pt", weights_only=True)["step"] == 4
    assert [row["step"] for row in rows(run_folder / "log.jsonl")] == [2, 4]
    assert "step 4" in run.out
    assert "drafts accepted a round on held-out text" in run.out
    assert f"adapter: {run_folder / 'adapter'}" in run.out


def test_the_adapter_drafts(cli, folder, run_folder):
    words = ["generate", "Why is the sky blue?", "--model", folder, "--dtype", "float32", "--max-new-tokens", 16]
    plain = cli(*words, "--adapter", "none", "--policy", "linear:4")
    run = cli(*words, "--adapter", run_folder / "adapter", "--policy", "linear:4")
    assert (run.status, run.out) == (0, plain.out)
    assert "no draft adapter" in plain.err
    assert "no draft adapter" not in run.err


def test_a_run_may_start_from_an_adapter(cli, folder, run_folder, tmp_path):
    import shutil

    shutil.copytree(run_folder, tmp_path / "run")
    (tmp_path / "run" / "state.pt").unlink()
    words = ["train-drafter", tmp_path / "run", "--model", folder, *QUICK, "--start-from"]
    assert cli(*words, run_folder / "adapter").status == 0
    (tmp_path / "run" / "state.pt").unlink()
    assert "not found" in cli(*words, "nowhere").error
    assert "at least the same rank" in cli(*words, run_folder / "adapter", "--rank", 1).error


@pytest.mark.parametrize("layers", ["3", "b-4", "4-1", "-3"])
def test_wrong_layers_are_refused(cli, words, layers):
    assert "give a range such as 12-29" in cli(*words, "--layers", layers).error


def test_other_settings_are_refused(cli, words):
    assert "other settings or another model; choose another folder" in cli(*words, "--rank", 3).error


def test_ctrl_c_while_writing_dialogues_keeps_them(cli, folder, tmp_path, steps):
    words = ["train-drafter", tmp_path / "run", "--model", folder, *QUICK]
    steps.limit = 300
    run = cli(*words, "--dialogues", 500)
    assert run.status == 130
    kept = rows(tmp_path / "run" / "dialogues.jsonl")
    assert 0 < len(kept) < 500


def test_ctrl_c_while_training_saves_the_step(cli, words, run_folder, tmp_path, monkeypatch):
    import shutil

    from recguide.drafter.train import Trainer

    shutil.copytree(run_folder, tmp_path / "run")
    (tmp_path / "run" / "state.pt").unlink()
    plain = Trainer._train_step

    def step(trainer):
        if trainer.step == 3:
            raise KeyboardInterrupt
        return plain(trainer)

    monkeypatch.setattr(Trainer, "_train_step", step)
    run = cli("train-drafter", tmp_path / "run", *words[2:])
    assert run.status == 130
    assert torch.load(tmp_path / "run" / "state.pt", weights_only=True)["step"] == 3


def test_a_model_with_a_short_context(cli, own_folder, tmp_path):
    config = json.loads((own_folder / "config.json").read_text())
    (own_folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    assert cli("train-drafter", tmp_path / "run", "--model", own_folder, *QUICK).status == 0
