"""Traces of another engine: start-up requests left out, two ways of counting the end made one."""

import json
from pathlib import Path

import pytest

from recguide.errors import RecGuideError
from recguide.trace.linearspec import import_linearspec
from recguide.trace.reader import read_trace
from tests.trace_round import ROUND

REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference"


def write(path, *rounds):
    path.write_text("".join(json.dumps(ROUND | change) + "\n" for change in rounds))
    return path


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs the reference traces beside the project")
@pytest.mark.parametrize(
    ("name", "rounds", "accepted"),
    [("nld8b_gsm8k_lora_pytorch", (15, 15), 7.200), ("nld8b_gsm8k_nolora_sglang", (20, 17), 5.649)],
)
def test_the_reference_traces_give_the_figures_stored_with_them(tmp_path, name, rounds, accepted):
    assert import_linearspec(REFERENCE / f"{name}.jsonl", tmp_path / "run") == sum(rounds)
    trace = read_trace(tmp_path / "run")
    plans = trace.tables["plans"].to_pylist()
    each = [[p for p in plans if p["request"] == i] for i in (0, 1)]
    assert [len(mine) for mine in each] == list(rounds)
    assert sum(p["accepted"] for p in plans) / len(plans) == pytest.approx(accepted, abs=5e-4)
    positions = trace.tables["draft_positions"].to_pylist()
    assert all(p["reached"] and 0 < p["top1"] <= 1 for p in positions)
    assert sum(p["accepted"] for p in positions) == sum(p["accepted"] for p in plans)
    ends = {mine[-1]["step"] for mine in each}
    rejections = [p for p in plans if p["step"] not in ends and p["accepted"] < p["verify"]]
    assert sum(not p["accepted"] for p in positions) == len(rejections)


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs the reference traces beside the project")
def test_the_same_text_is_as_long_whoever_traced_it(tmp_path):
    """Both reference files end in the same texts."""
    lengths = []
    for name in ("nld8b_gsm8k_lora_pytorch", "nld8b_gsm8k_nolora_sglang"):
        import_linearspec(REFERENCE / f"{name}.jsonl", tmp_path / name)
        lengths.append(read_trace(tmp_path / name).tables["requests"]["completion_tokens"].to_pylist())
    assert lengths[0] == lengths[1]


def test_a_round_becomes_a_plan_and_its_positions(tmp_path):
    import_linearspec(write(tmp_path / "t.jsonl", {}), tmp_path / "run")
    trace = read_trace(tmp_path / "run")
    (plan,) = trace.tables["plans"].to_pylist()
    assert (plan["verify"], plan["accepted"], plan["committed"]) == (3, 1, 2)
    first, second = trace.tables["draft_positions"].to_pylist()
    assert (first["position"], first["accepted"], first["token"], first["correct"]) == (1, True, 5, 5)
    assert (second["position"], second["accepted"], second["token"]) == (2, False, 6)
    assert (second["correct"], second["second"]) == (7, 7)
    assert second["top1"] == pytest.approx(0.4)


def test_the_end_counts_alike_whoever_counted(tmp_path):
    end = {"eos_hit": True, "has_rejection": False, "matched_draft_tokens": 3, "accepted_draft_tokens": 2}
    end |= {"accepted_draft_confidences": [0.9, 0.8], "accepted_draft_token_ids": [5, 11]}
    for name, emitted in (("pytorch", 2), ("sglang", 3)):
        import_linearspec(write(tmp_path / f"{name}.jsonl", end | {"emitted_tokens": emitted}), tmp_path / name)
        (plan,) = read_trace(tmp_path / name).tables["plans"].to_pylist()
        assert (plan["accepted"], plan["committed"]) == (2, 2)


def test_start_up_requests_are_left_out(tmp_path):
    source = write(tmp_path / "t.jsonl", {"request_id": "warmup-0"}, {"request_id": "healthcheck-1"}, {})
    assert import_linearspec(source, tmp_path / "run") == 1
    with pytest.raises(RecGuideError, match="nothing to import"):
        import_linearspec(write(tmp_path / "u.jsonl", {"request_id": "warmup-0"}), tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 3}, ":2: .*of schema 3"),
        ({"event": "other"}, ":2: other"),
        ({"emitted_tokens": 9}, ":2: not a LinearSpec round"),
        ({"accepted_draft_tokens": None}, ":2: not a LinearSpec round"),
    ],
)
def test_a_line_that_is_no_round_is_told_with_its_number(tmp_path, change, words):
    with pytest.raises(RecGuideError, match=words):
        import_linearspec(write(tmp_path / "t.jsonl", {}, change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(RecGuideError, match="cannot read"):
        import_linearspec(tmp_path / "gone.jsonl", tmp_path / "run")
