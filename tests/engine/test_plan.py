"""Plans: what is refused, and that clamping buys no row that could not commit a token within the budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.engine.accept import accepted_length, branch_came_true
from recguide.engine.plan import AR, Branch, RequestPlan, clamp

BRANCHES = st.lists(
    st.builds(Branch, st.integers(1, 7), st.none() | st.integers(0, 12), st.integers(1, 9)), max_size=4
).map(tuple)
DRAFT = st.builds(lambda masks: (Branch(0, 3, masks),), st.integers(1, 9))
PLANS = st.builds(RequestPlan, st.integers(0, 6), BRANCHES) | st.builds(RequestPlan, st.none(), DRAFT)
COUNTS = st.integers(0, 8), st.integers(1, 12)


@given(PLANS, *COUNTS)
def test_a_clamped_plan_can_be_laid_out(plan, drafts, remaining):
    clamp(plan, drafts, remaining).check(drafts)


@given(PLANS, *COUNTS)
def test_clamping_twice_changes_nothing(plan, drafts, remaining):
    once = clamp(plan, drafts, remaining)
    assert clamp(once, drafts, remaining) == once


@given(PLANS, *COUNTS)
def test_no_row_can_pass_the_budget(plan, drafts, remaining):
    """A trunk commits verify + 1 tokens; a branch's last draft must still be one that the next trunk may commit."""
    fitted = clamp(plan, drafts, remaining)
    assert fitted.verify is None or fitted.verify + 1 <= remaining
    for branch in fitted.branches:
        drafts_made = branch.masks - (branch.token is None)
        assert drafts_made >= 1
        assert branch.parent + drafts_made + 1 <= remaining


@given(PLANS, *COUNTS)
def test_clamping_only_takes_away(plan, drafts, remaining):
    fitted = clamp(plan, drafts, remaining)
    if fitted.verify is not None and plan.verify is not None:
        assert fitted.verify == min(plan.verify, drafts, remaining - 1)
    kept = {(b.parent, b.token): b.masks for b in fitted.branches}
    offered = {(b.parent, b.token) for b in plan.branches}
    assert set(kept) <= offered
    assert all(any(kept[p, t] <= b.masks for b in plan.branches if (b.parent, b.token) == (p, t)) for p, t in kept)


@given(PLANS, st.integers(0, 8))
def test_with_budget_to_spare_only_missing_drafts_are_cut(plan, drafts):
    fitted = clamp(plan, drafts, 1000)
    if plan.verify is None:
        assert fitted == plan
    else:
        trunk = fitted.verify + 1
        wanted = tuple(b for b in plan.branches if b.parent <= trunk and b.masks >= 1 + (b.token is None))
        assert fitted == RequestPlan(min(plan.verify, drafts), wanted)


def test_the_last_token_is_plain_ar():
    assert clamp(RequestPlan(5, (Branch(6, None, 8),)), 5, 1) == AR
    assert clamp(RequestPlan(None, (Branch(0, 1, 7),)), 0, 1) == AR


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (RequestPlan(None), "no rows"),
        (RequestPlan(4), "verifies 4"),
        (RequestPlan(1, (Branch(3, 2, 2),)), "parent 3"),
        (RequestPlan(1, (Branch(-1, 2, 2),)), "parent -1"),
        (RequestPlan(1, (Branch(1, 2, 0),)), "at least one mask"),
        (RequestPlan(None, (Branch(0, None, 2),)), "parent 0"),
    ],
)
def test_plans_that_cannot_be_laid_out_are_refused(plan, words):
    with pytest.raises(ValueError, match=words):
        plan.check(3)


def test_rows_are_counted():
    assert RequestPlan(3, (Branch(1, 5, 4), Branch(4, None, 6))).rows == 4 + 5 + 6
    assert AR.rows == 1


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), min_size=7, max_size=7))
def test_accepted_length_is_the_common_prefix(drafts, drawn):
    drawn = drawn[: len(drafts) + 1]
    length = accepted_length(drafts, drawn)
    assert drafts[:length] == drawn[:length]
    assert length == len(drafts) or drafts[length] != drawn[length]


@given(st.integers(0, 6), st.integers(0, 2), st.integers(0, 5), st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_a_branch_is_used_only_where_position_and_token_match(parent, first, accepted, drawn):
    branch = Branch(parent, first, 3)
    assert branch_came_true(branch, first, accepted, drawn) == (accepted + 1 == parent and drawn[accepted] == first)
