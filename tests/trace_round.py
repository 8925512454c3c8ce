"""One round of a LinearSpec confidence trace."""

ROUND = {
    "schema_version": 2,
    "event": "linearspec_confidence_round",
    "request_id": "a-0",
    "block_size": 4,
    "matched_draft_tokens": 1,
    "emitted_tokens": 2,
    "accepted_draft_tokens": 1,
    "eos_hit": False,
    "has_rejection": True,
    "accepted_draft_confidences": [0.9],
    "accepted_draft_token_ids": [5],
    "rejected_draft_token_id": 6,
    "rejected_correct_token_id": 7,
    "rejected_draft_confidence": 0.4,
    "rejected_correct_token_rank": 2,
}
