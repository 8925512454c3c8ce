"""Acceptance in Triton: the reference's own results, whatever the step."""

import torch
from hypothesis import given, settings
from recguide.kernels.accept import accept, accept_reference

from tests.kernels.interpreted.guards import guarded, inside_poison
from tests.kernels.verified import most_of, verified_steps


@given(verified_steps())
@settings(max_examples=80)
def test_equals_the_reference(step):
    most, most_branches = most_of(step)
    expected = accept_reference(step, most)
    around = type(step)(*(inside_poison(t) if t.dtype == torch.int64 else t for t in step))
    with guarded():
        made = accept(around, most, most_branches)
    for mine, theirs in zip(made, expected, strict=True):
        assert mine.dtype == torch.int64
        assert torch.equal(mine, theirs)
