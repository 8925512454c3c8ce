"""Acceptance of a whole step: the engine's own rule, request by request."""

import torch
from hypothesis import given, settings
from recguide.kernels.accept import StepDrafts, accept

from recguide.engine.accept import accepted_length, branch_came_true
from recguide.engine.plan import Branch
from tests.kernels.verified import most_of, verified_steps


def plainly(step):
    """(accepted, committed, reused) of each request, by the engine's rule on lists."""
    drafts, starts, drawn, trunks, parents, firsts, free, branch_starts = (t.tolist() for t in step)
    for i, trunk in enumerate(trunks):
        mine = drafts[starts[i] : starts[i + 1]]
        emitted = drawn[trunk : trunk + len(mine) + 1]
        accepted = accepted_length(mine, emitted)
        reused = -1
        for number, branch in enumerate(range(branch_starts[i], branch_starts[i + 1])):
            first = drawn[-1 - firsts[branch]] if firsts[branch] < 0 else firsts[branch]
            plan = Branch(parents[branch], None, 1, loose=free[branch])
            if reused < 0 and branch_came_true(plan, first, accepted, emitted):
                reused = number
        yield accepted, emitted[: accepted + 1], reused


@given(verified_steps())
@settings(max_examples=200)
def test_equals_the_engines_rule(step):
    made = accept(step, *most_of(step))
    kept = [[token for token in row if token >= 0] for row in made.tokens.tolist()]
    assert list(zip(made.lengths.tolist(), kept, made.reused.tolist(), strict=True)) == list(plainly(step))


def test_nothing_drafted_and_no_branches():
    none, starts = torch.empty(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    step = StepDrafts(none, starts, torch.tensor([5, 6]), torch.tensor([0, 1]), none, none, none.bool(), starts)
    made = accept(step, 0, 0)
    assert (made.lengths.tolist(), made.tokens.tolist(), made.reused.tolist()) == ([0, 0], [[5], [6]], [-1, -1])
