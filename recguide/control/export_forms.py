"""The forms in which serving engines read a schedule from load to block, as values before they become text.

Each ``..._form`` takes runs, ``[(first load, last load, block)]`` with blocks that include the seed, and returns what
the engine's file holds; each ``..._runs`` reads it back as ``{first load: block}``. Every schema is JSON Schema 2020-12
of the value with its keys as text.
"""

from __future__ import annotations

from typing import Any

from recguide.errors import RecGuideError

Run = tuple[int, int, int]

POSITIVE = {"type": "integer", "minimum": 1}
COUNT = {"type": "integer", "minimum": 0}
SMALLEST_BLOCK = 2  # of LinearSpec, which always drafts


DIALECT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these keys."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


# -- LinearSpec: the algorithm file of the public SGLang fork ----------------------------------------------------------

LINEARSPEC = DIALECT | _object(
    {
        "block_size": {"type": "integer", "minimum": SMALLEST_BLOCK},
        "block_size_tiers": {
            "type": "array",
            "minItems": 1,
            "items": _object(
                {"max_running_bs": POSITIVE, "block_size": {"type": "integer", "minimum": SMALLEST_BLOCK}}
            ),
        },
    }
)


def linearspec_form(runs: list[Run]) -> dict[str, Any]:
    """Blocks count the seed, as here. The server refuses tiers that end below its ``max_running_requests``."""
    tiers = [{"max_running_bs": last, "block_size": max(block, SMALLEST_BLOCK)} for _, last, block in runs]
    return {"block_size": max(tier["block_size"] for tier in tiers), "block_size_tiers": tiers}


def linearspec_runs(value: dict[str, Any]) -> dict[int, int]:
    tiers = value["block_size_tiers"]
    return _from_limits([(tier["max_running_bs"], tier["block_size"]) for tier in tiers])


# -- vLLM: the value of --speculative-config ---------------------------------------------------------------------------

VLLM = DIALECT | _object(
    {
        "num_speculative_tokens": POSITIVE,
        "num_speculative_tokens_per_batch_size": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "prefixItems": [POSITIVE, POSITIVE, COUNT], "minItems": 3, "maxItems": 3},
        },
    }
)


def vllm_form(runs: list[Run]) -> dict[str, Any]:
    """[first, last, draft tokens], both ends included. Draft tokens are one less than the block; 0 is off.

    Loads above the last range are served as it is. Ignored where the engine runs data parallel.
    """
    ranges = [[first, last, block - 1] for first, last, block in runs]
    return {
        "num_speculative_tokens": max(drafts for _, _, drafts in ranges),
        "num_speculative_tokens_per_batch_size": ranges,
    }


def vllm_runs(value: dict[str, Any]) -> dict[int, int]:
    ranges = value["num_speculative_tokens_per_batch_size"]
    expected = 1
    for first, last, _ in ranges:
        if first != expected or last < first:
            raise RecGuideError(f"range {first}..{last} must begin at {expected}; ranges may not overlap or leave gaps")
        expected = last + 1
    return {first: drafts + 1 for first, _, drafts in ranges}


# -- TensorRT-LLM: part of the options file ----------------------------------------------------------------------------

TENSORRT_LLM = DIALECT | _object(
    {
        "speculative_config": _object(
            {
                "max_draft_len": POSITIVE,
                "draft_len_schedule": {
                    "type": "object",
                    "minProperties": 1,
                    "propertyNames": {"pattern": "^[1-9][0-9]*$"},
                    "additionalProperties": COUNT,
                },
            }
        )
    }
)


def tensorrt_llm_form(runs: list[Run]) -> dict[str, Any]:
    """{largest batch: draft tokens}, one less than the block; 0 is off, and so is every load above the last one.

    The engine wants its longest draft at the smallest load. Older releases read the keys as the smallest batch.
    """
    schedule = {last: block - 1 for _, last, block in runs}
    longest = max(schedule.values())
    if runs[0][2] - 1 != longest:
        raise RecGuideError(
            f"TensorRT-LLM drafts most at the smallest load; here it is {runs[0][2] - 1} there and {longest} at another"
        )
    return {"speculative_config": {"max_draft_len": longest, "draft_len_schedule": schedule}}


def tensorrt_llm_runs(value: dict[str, Any]) -> dict[int, int]:
    schedule = value["speculative_config"]["draft_len_schedule"]
    return _from_limits([(int(last), drafts + 1) for last, drafts in schedule.items()])


# -- SGLang: the file of --speculative-adaptive-config -----------------------------------------------------------------

SGLANG = DIALECT | {
    "type": "object",
    "required": ["1"],
    "propertyNames": {"pattern": "^[1-9][0-9]*$"},
    "additionalProperties": _object(
        {"candidate_steps": {"type": "array", "items": COUNT, "minItems": 1, "maxItems": 1}}
    ),
}


def sglang_form(runs: list[Run]) -> dict[str, Any]:
    """{smallest batch: its one candidate}. Steps are draft tokens, one less than the block; 0 is off.

    One candidate leaves the engine's own adaptation nothing to choose. The last entry has no upper end.
    """
    return {str(first): {"candidate_steps": [block - 1]} for first, _, block in runs}


def sglang_runs(value: dict[str, Any]) -> dict[int, int]:
    firsts = {int(first): entry["candidate_steps"][0] + 1 for first, entry in value.items()}
    _check_ascending(list(firsts))
    return firsts


# -- shared ------------------------------------------------------------------------------------------------------------


def _from_limits(limits: list[tuple[int, int]]) -> dict[int, int]:
    """{first load: block} from [(last load, block)]."""
    _check_ascending([last for last, _ in limits])
    firsts = [1, *(last + 1 for last, _ in limits[:-1])]
    return {first: block for first, (_, block) in zip(firsts, limits, strict=True)}


def _check_ascending(loads: list[int]) -> None:
    if loads != sorted(set(loads)):
        raise RecGuideError(f"loads {loads} must ascend, each once")
