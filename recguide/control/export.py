"""Export a schedule from load to block, such as a controller's, in the forms that serving engines read.

A schedule is ``{concurrency: block}``: ascending loads, each with the block that is best there, seed included (1: plain
AR). A block holds for loads above the one before it and up to its own. Nothing is said of loads above the last one;
what engines do there is said where each form is made (``recguide.control.export_forms``), with the other meanings in
which they differ from ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from recguide.control import export_forms as forms
from recguide.errors import RecGuideError
from recguide.provenance import provenance, write_json, write_text


@dataclass(frozen=True, kw_only=True)
class Form:
    """One engine's form: ``suffix`` of its file, ``use`` in words, its schema, how it is made and read."""

    suffix: str
    use: str
    schema: dict[str, Any]
    make: Callable[[list[forms.Run]], dict[str, Any]]
    read: Callable[[dict[str, Any]], dict[int, int]]


FORMS: dict[str, Form] = {
    "linearspec": Form(
        suffix=".yaml",
        use="keys of the --dllm-algorithm-config file, --dllm-algorithm LinearSpec",
        schema=forms.LINEARSPEC,
        make=forms.linearspec_form,
        read=forms.linearspec_runs,
    ),
    "vllm": Form(
        suffix=".json",
        use="keys of --speculative-config, beside method and model",
        schema=forms.VLLM,
        make=forms.vllm_form,
        read=forms.vllm_runs,
    ),
    "tensorrt-llm": Form(
        suffix=".yaml",
        use="keys of the options file, beside decoding_type and the model under speculative_config",
        schema=forms.TENSORRT_LLM,
        make=forms.tensorrt_llm_form,
        read=forms.tensorrt_llm_runs,
    ),
    "sglang": Form(
        suffix=".json",
        use="the --speculative-adaptive-config file, with --speculative-adaptive",
        schema=forms.SGLANG,
        make=forms.sglang_form,
        read=forms.sglang_runs,
    ),
}


def export(schedule: Mapping[int, int], to: str) -> str:
    """The schedule as the text of one form; checked against the form's schema, and read back."""
    form, runs = form_named(to), runs_of(schedule)
    if max(block for _, _, block in runs) == 1:
        raise RecGuideError("the schedule is plain AR at every load: run the engine without speculation")
    value = form.make(runs)
    if form.suffix == ".yaml":
        text = yaml.safe_dump(value, sort_keys=False)
    else:
        text = json.dumps(value, indent=2) + "\n"
    read_export(text, to)
    return text


def read_export(text: str, to: str) -> dict[int, int]:
    """``{first load: block}`` of an exported text; RecGuideError when it is not what the form allows."""
    form = form_named(to)
    try:
        value = yaml.safe_load(text)  # JSON is YAML too
        # a schema knows text keys only
        jsonschema.validate(json.loads(json.dumps(value)), form.schema)
    except (yaml.YAMLError, TypeError) as fault:
        raise RecGuideError(f"{to}: not readable ({fault})".replace("\n", " ")) from None
    except jsonschema.ValidationError as fault:
        raise RecGuideError(f"{to}: {fault.json_path} {fault.message}") from None
    return form.read(value)


def limits_of(schedule: Mapping[int, int], to: str) -> list[str]:
    """What the form cannot say of this schedule, in words."""
    runs = runs_of(schedule)
    told = [f"says nothing of more than {runs[-1][1]} requests at once"]
    plain = [str(first) for first, _, block in runs if block == 1]
    if to == "linearspec" and plain:
        told.append(
            f"plain AR is best from {', '.join(plain)} requests on, but LinearSpec always drafts: block "
            f"{forms.SMALLEST_BLOCK} stands in its place"
        )
    return told


def write_export(schedule: Mapping[int, int], to: str, path: Path, **about: Any) -> None:
    """Write the text, and beside it ``NAME.provenance.json``: the schedule, what the form cannot say, where it is from.

    Engines refuse keys they do not know, so none of this can stand in the file itself. ``about`` is kept as it is.
    """
    text = export(schedule, to)
    write_json(
        path.with_name(path.name + ".provenance.json"),
        {
            "form": to,
            "use": FORMS[to].use,
            "schedule": {str(load): block for load, block in schedule.items()},
            "limits": limits_of(schedule, to),
            "provenance": provenance(),
            **about,
        },
    )
    write_text(path, text)


def form_named(to: str) -> Form:
    if to not in FORMS:
        raise RecGuideError(f"form {to!r} is unknown; known: {', '.join(FORMS)}")
    return FORMS[to]


def runs_of(schedule: Mapping[int, int]) -> list[forms.Run]:
    """[(first load, last load, block)], without breaks where the block stays; RecGuideError for what is no schedule."""
    if not schedule:
        raise RecGuideError("the schedule is empty; give at least one load with its block")
    for name, values in (("load", schedule.keys()), ("block", schedule.values())):
        wrong = [v for v in values if not isinstance(v, int) or isinstance(v, bool) or v < 1]
        if wrong:
            raise RecGuideError(f"the schedule has {name} {wrong[0]!r}; allowed: whole numbers >= 1")
    if list(schedule) != sorted(schedule):
        raise RecGuideError(f"the schedule's loads are {list(schedule)}; give them ascending")
    runs: list[forms.Run] = []
    for load, block in schedule.items():
        first = runs[-1][1] + 1 if runs else 1
        if runs and runs[-1][2] == block:
            first = runs.pop()[0]
        runs.append((first, load, block))
    return runs
