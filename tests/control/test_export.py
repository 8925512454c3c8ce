"""Export: every form says what the schedule says, at every load, and refuses what it cannot say."""

import json

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recguide.control.export import FORMS, export, limits_of, read_export, runs_of, write_export
from recguide.errors import RecGuideError

SCHEDULE = {1: 8, 2: 8, 4: 5, 8: 3, 16: 1, 32: 1}

schedules = st.dictionaries(st.integers(1, 200), st.integers(2, 33), min_size=1, max_size=8).map(
    lambda made: dict(zip(sorted(made), sorted(made.values(), reverse=True), strict=True))
)


def block_at(firsts, load):
    return firsts[max(first for first in firsts if first <= load)]


@pytest.mark.parametrize("form", FORMS)
@given(schedules, st.booleans())
def test_every_form_reads_back_at_every_load(form, schedule, ends_plain):
    if ends_plain and form != "linearspec":
        schedule = {**schedule, max(schedule) + 10: 1}
    firsts = read_export(export(schedule, form), form)
    for load in range(1, max(schedule) + 1):
        expected = next(block for limit, block in schedule.items() if load <= limit)
        assert block_at(firsts, load) == expected, load


def test_linearspec_tiers_count_the_seed_and_end_at_the_largest_load():
    assert yaml.safe_load(export({1: 32, 2: 32, 8: 16, 32: 8}, "linearspec")) == {
        "block_size": 32,
        "block_size_tiers": [
            {"max_running_bs": 2, "block_size": 32},
            {"max_running_bs": 8, "block_size": 16},
            {"max_running_bs": 32, "block_size": 8},
        ],
    }


def test_linearspec_cannot_stop_drafting_and_says_so():
    tiers = yaml.safe_load(export(SCHEDULE, "linearspec"))["block_size_tiers"]
    assert tiers[-1] == {"max_running_bs": 32, "block_size": 2}
    assert any("from 9 requests on" in told and "block 2" in told for told in limits_of(SCHEDULE, "linearspec"))
    assert len(limits_of(SCHEDULE, "vllm")) == 1


def test_vllm_counts_draft_tokens_in_closed_ranges():
    assert json.loads(export(SCHEDULE, "vllm")) == {
        "num_speculative_tokens": 7,
        "num_speculative_tokens_per_batch_size": [[1, 2, 7], [3, 4, 4], [5, 8, 2], [9, 32, 0]],
    }


def test_tensorrt_llm_counts_draft_tokens_up_to_a_batch():
    assert yaml.safe_load(export(SCHEDULE, "tensorrt-llm")) == {
        "speculative_config": {"max_draft_len": 7, "draft_len_schedule": {2: 7, 4: 4, 8: 2, 32: 0}}
    }
    with pytest.raises(RecGuideError, match="drafts most at the smallest load"):
        export({1: 4, 2: 8}, "tensorrt-llm")


def test_sglang_counts_steps_from_a_batch_on():
    assert json.loads(export(SCHEDULE, "sglang")) == {
        "1": {"candidate_steps": [7]},
        "3": {"candidate_steps": [4]},
        "5": {"candidate_steps": [2]},
        "9": {"candidate_steps": [0]},
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({}, "empty"),
        ({4: 5, 2: 8}, "ascending"),
        ({0: 5}, "load 0"),
        ({1: 0}, "block 0"),
        ({1: 2.5}, "block 2.5"),
        ({"1": 4}, "load '1'"),
        ({True: 4}, "load True"),
        ({1: 1, 8: 1}, "without speculation"),
    ],
)
def test_what_is_no_schedule_is_refused(form, schedule, words):
    with pytest.raises(RecGuideError, match=words):
        export(schedule, form)


def test_unknown_forms_are_refused():
    with pytest.raises(RecGuideError, match="'tgi' is unknown; known: linearspec, vllm"):
        export(SCHEDULE, "tgi")


@pytest.mark.parametrize(
    ("form", "text", "words"),
    [
        (
            "vllm",
            '{"num_speculative_tokens": 7, "num_speculative_tokens_per_batch_size": [[1, 4, 7], [4, 8, 2]]}',
            "4..8",
        ),
        ("vllm", '{"num_speculative_tokens": 7, "num_speculative_tokens_per_batch_size": [[2, 4, 7]]}', "begin at 1"),
        ("vllm", '{"num_speculative_tokens": 7, "num_speculative_tokens_per_batch_size": [[1, 4]]}', "too short"),
        ("vllm", '{"num_speculative_tokens": 0, "num_speculative_tokens_per_batch_size": [[1, 4, 0]]}', "minimum"),
        ("vllm", "[[1, 2, 3]]", "not of type 'object'"),
        ("vllm", "{", "not readable"),
        ("linearspec", "block_size: 8\nblock_size_tiers: []\n", "block_size_tiers"),
        ("linearspec", "block_size: 8\nblock_size_tiers: [{max_running_bs: 4, block_size: 1}]\n", "minimum of 2"),
        (
            "linearspec",
            "block_size: 8\nblock_size_tiers: [{max_running_bs: 4, block_size: 8}, {max_running_bs: 2, block_size: 4}]",
            "ascend",
        ),
        ("tensorrt-llm", "speculative_config: {max_draft_len: 4, draft_len_schedule: {4: 4, 2: 2}}", "ascend"),
        ("tensorrt-llm", "speculative_config: {max_draft_len: 4, draft_len_schedule: {0: 4}}", "does not match"),
        ("sglang", '{"2": {"candidate_steps": [3]}}', "required"),
        ("sglang", '{"1": {"candidate_steps": [3, 5]}}', "too long"),
    ],
)
def test_texts_that_a_form_does_not_allow_are_refused(form, text, words):
    with pytest.raises(RecGuideError, match=words) as caught:
        read_export(text, form)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", FORMS)
def test_the_schemas_are_schemas(form):
    jsonschema.Draft202012Validator.check_schema(FORMS[form].schema)


def test_equal_neighbours_are_one_run():
    assert runs_of(SCHEDULE) == [(1, 2, 8), (3, 4, 5), (5, 8, 3), (9, 32, 1)]


@pytest.mark.parametrize("form", FORMS)
def test_files_are_written_with_where_they_are_from(form, tmp_path):
    path = tmp_path / f"deep/schedule{FORMS[form].suffix}"
    write_export(SCHEDULE, form, path, predicted_loss=0.02)
    assert path.read_text() == export(SCHEDULE, form)
    about = json.loads((path.parent / (path.name + ".provenance.json")).read_text())
    assert (about["form"], about["predicted_loss"]) == (form, 0.02)
    assert about["schedule"] == {str(load): block for load, block in SCHEDULE.items()}
    assert {"command", "recguide", "created"} <= set(about["provenance"])
    assert sorted(p.name for p in path.parent.iterdir()) == sorted([path.name, path.name + ".provenance.json"])


def test_a_refused_schedule_leaves_no_file(tmp_path):
    with pytest.raises(RecGuideError):
        write_export({}, "vllm", tmp_path / "schedule.json")
    assert list(tmp_path.iterdir()) == []
