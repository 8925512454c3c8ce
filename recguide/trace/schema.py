"""Tables of a decision log. Readers pass these schemas, so that a column is never dropped or guessed silently."""

from __future__ import annotations

import pyarrow as pa

VERSION = 1

REQUESTS = pa.schema(
    [
        ("request", pa.int64()),
        ("prompt_tokens", pa.int32()),
        ("max_new_tokens", pa.int32()),
        ("temperature", pa.float32()),
        ("seed", pa.int64()),
        ("completion_tokens", pa.int32()),
        ("forwards", pa.int32()),
        ("rows", pa.int32()),
        ("cut_tokens", pa.int32()),
        ("finish_reason", pa.string()),
    ]
)
STEPS = pa.schema(
    [
        ("step", pa.int64()),
        ("at_s", pa.float64()),  # since the recording began
        ("policy", pa.string()),
        ("requests", pa.int32()),
        ("rows", pa.int32()),
        ("prefill_rows", pa.int32()),
        ("draft_rows", pa.int32()),
        ("committed", pa.int32()),
        ("seconds", pa.float32()),
        ("forward_s", pa.float32()),
    ]
)
PLANS = pa.schema(
    [
        ("step", pa.int64()),
        ("request", pa.int64()),
        ("position", pa.int32()),  # tokens of text before the step
        ("round", pa.int32()),  # drafts verified before
        ("held", pa.int16()),  # draft tokens at hand
        ("held_kind", pa.string()),
        ("verify", pa.int16()),  # -1: no trunk
        ("branch_parents", pa.list_(pa.int16())),
        ("branch_tokens", pa.list_(pa.int32())),  # -1: masks only
        ("branch_masks", pa.list_(pa.int16())),
        ("propensity", pa.float64()),
        ("predicted_value", pa.float32()),
        ("predicted_ms", pa.float32()),
        ("alternatives", pa.string()),  # JSON: value less price of rows, by drafts verified
        ("accepted", pa.int16()),  # -1: nothing was verified
        ("committed", pa.int16()),
        ("reused", pa.int8()),  # number of the branch whose draft is next; -1: none
    ]
)
DRAFT_POSITIONS = pa.schema(
    [
        ("step", pa.int64()),  # of the verification
        ("request", pa.int64()),
        ("round", pa.int32()),
        ("position", pa.int16()),  # in the draft, from 1
        ("block", pa.int16()),  # tokens of the draft
        ("kind", pa.string()),
        ("token", pa.int32()),
        ("second", pa.int32()),
        ("top1", pa.float32()),
        ("margin", pa.float32()),
        ("entropy", pa.float32()),  # nats
        ("verified", pa.bool_()),
        ("reached", pa.bool_()),
        ("accepted", pa.bool_()),
        ("correct", pa.int32()),  # the verifier's token, where reached
    ]
)
TABLES: dict[str, pa.Schema] = {
    "requests": REQUESTS,
    "steps": STEPS,
    "plans": PLANS,
    "draft_positions": DRAFT_POSITIONS,
}
