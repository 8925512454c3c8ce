"""Settings: every knob at its ends, and what is wrong with the others."""

import pytest
from recguide.lab.settings import KNOBS, PRESETS, LabSettings, preset, settings_from

from recguide.errors import RecGuideError


@pytest.mark.parametrize("name", KNOBS)
def test_ends_are_allowed_and_beyond_is_not(name):
    knob = KNOBS[name]
    for value in (knob.low, knob.high):
        assert getattr(LabSettings(**{name: value}), name) == value
    for value in (knob.low - 1, knob.high + 1, float("nan"), float("inf"), "many", None, True):
        with pytest.raises(RecGuideError, match=name):
            LabSettings(**{name: value})


def test_whole_numbers_stay_whole():
    with pytest.raises(RecGuideError, match=r"concurrency is 2\.5; expected int"):
        LabSettings(concurrency=2.5)
    assert LabSettings(concurrency=2.0).concurrency == 2


def test_settings_survive_a_file():
    settings = LabSettings(concurrency=7, policy="overlap:8:0.3", pattern="bursts", temperature=0.5, seed=9)
    assert settings_from(settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"colour": 1}, "unknown setting 'colour'; known: concurrency"),
        ({"pattern": "chaos"}, "pattern is 'chaos'; allowed: closed"),
        ({"policy": ""}, "policy is ''"),
        ({"category": 3}, "category is 3"),
    ],
)
def test_what_is_wrong_is_said(values, words):
    with pytest.raises(RecGuideError, match=words):
        settings_from(values)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_settings_and_keep_what_is_kept(name):
    assert preset(name, seed=5).seed == 5


def test_an_unknown_preset_is_named():
    with pytest.raises(RecGuideError, match="preset 'loud' is unknown; known: quiet"):
        preset("loud")
