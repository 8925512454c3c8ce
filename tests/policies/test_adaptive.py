"""The adaptive baselines decide as they say: thresholds, hysteresis, allocation, price, and what they learn from."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.control.step_time import RowCost
from recguide.engine.plan import RequestPlan
from recguide.engine.request import Draft, Request
from recguide.engine.sampling import SamplingParams
from recguide.policies import parse_policy
from recguide.policies.budget import allocate, survival
from recguide.policies.values import PRIOR, Counts, ValueTable


def request(id=0, draft=None):
    made = Request(id, [1, 2, 7], SamplingParams(seed=0), frozenset(), 500)
    made.draft, made.draft_shift = draft, 1
    return made


def block_of(plan):
    """The block a plan drafts, seed included; 1 for plain AR."""
    return plan.branches[0].drafts + 1 if plan.branches else 1


def blocks(policy, *requests):
    return [block_of(plan) for plan in policy.plan(requests)]


# -- tiers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("load", "block"), [(1, 8), (2, 8), (3, 5), (4, 5), (5, 3), (8, 3), (9, 1), (32, 1), (500, 1)])
def test_tiers_change_behind_their_limits(load, block):
    assert blocks(parse_policy("tiers"), *map(request, range(load))) == [block] * load


def test_tiers_verify_a_draft_at_hand_whatever_the_load():
    made = [request(i, Draft([4, 5, 6])) for i in range(20)]
    assert parse_policy("tiers").plan(made) == [RequestPlan(3)] * 20


def test_t15_tiers_follow_a_load_that_falls_again():
    policy = parse_policy("tiers:8@2/1")
    assert [blocks(policy, *map(request, range(n)))[0] for n in (1, 16, 1, 3, 2)] == [8, 1, 8, 1, 8]


# -- ema-tiers ---------------------------------------------------------------------------------------------------------


def walked(spec, rounds):
    """The blocks chosen while round after round ``rounds[i]`` drafts would be accepted of however many are drafted."""
    policy, made, chosen = parse_policy(spec), request(), []
    for most in rounds:
        chosen += blocks(policy, made)
        drafted = chosen[-1] - 1
        made.accepted_history.append((drafted, min(most, drafted)))
    return chosen


def test_ema_tiers_start_in_the_middle_and_move_one_tier_at_a_time():
    assert walked("ema-tiers:2/4/8/16:1:0", [7, 15, 15, 15])[:3] == [8, 16, 16]
    assert walked("ema-tiers:2/4/8/16:1:0", [0, 0, 0, 0]) == [8, 4, 2, 2]


@given(st.integers(0, 20), st.sampled_from([0.05, 0.2, 0.5, 1.0]))
def test_t15_ema_tiers_settle_under_constant_acceptance(most, alpha):
    chosen = walked(f"ema-tiers:2/4/8:{alpha}", [most] * 120)
    assert len(set(chosen[100:])) == 1
    assert sum(a != b for a, b in itertools.pairwise(chosen)) <= 2


def test_ema_tiers_draft_one_token_more_than_is_accepted():
    assert walked("ema-tiers:2/4/8", [0] * 60)[-1] == 2
    assert walked("ema-tiers:2/4/8", [2] * 60)[-1] == 4
    assert walked("ema-tiers:2/4/8", [7] * 60)[-1] == 8


def test_t15_ema_tiers_do_not_oscillate_at_a_border():
    """Acceptance goes back and forth across the border of two tiers: with the gap the tier holds, without it flips."""
    rounds = [3, 2] * 80
    flips = {
        gap: sum(a != b for a, b in itertools.pairwise(walked(f"ema-tiers:2/4/8:0.2:{gap}", rounds)))
        for gap in (0.0, 0.25)
    }
    assert flips[0.25] <= 1 < flips[0.0]


def test_ema_tiers_take_every_round_once_and_keep_requests_apart():
    policy, mine, other = parse_policy("ema-tiers:2/4/8:1"), request(0), request(1)
    mine.accepted_history.append((3, 3))
    assert [blocks(policy, mine, other) for _ in range(3)] == [[8, 4]] * 3


# -- budget ------------------------------------------------------------------------------------------------------------

curves = st.lists(st.lists(st.floats(0, 1), max_size=7).map(lambda s: sorted(s, reverse=True)), max_size=8)


@given(curves, st.integers(0, 60))
def test_t15_a_growing_budget_only_lengthens_prefixes(survivals, rows):
    smaller, larger = allocate(survivals, rows), allocate(survivals, rows + 1)
    assert all(a <= b for a, b in zip(smaller, larger, strict=True))
    assert sum(larger) == min(rows + 1, sum(map(len, survivals)))


@given(curves, st.integers(0, 20))
def test_the_budget_buys_the_likeliest_tokens(survivals, rows):
    """No prefixes of as many rows are worth more than those allocated."""
    sizes = allocate(survivals, rows)
    bought = sorted((s for curve, n in zip(survivals, sizes, strict=True) for s in curve[:n]), reverse=True)
    assert bought == sorted((s for curve in survivals for s in curve), reverse=True)[:rows]


def test_among_equals_earlier_positions_come_first():
    assert allocate([[0.5] * 4, [0.5] * 4], 5) == [3, 2]


def test_budget_trims_unsure_drafts_and_lets_requests_without_one_draft():
    sure, unsure = Draft([4, 5, 6], top1=[0.9, 0.9, 0.9]), Draft([4, 5, 6], top1=[0.5, 0.9, 0.9])
    plans = parse_policy("budget:4:4").plan([request(0, sure), request(1, unsure), request(2)])
    assert plans[:2] == [RequestPlan(3), RequestPlan(1)]
    assert (plans[2].verify, block_of(plans[2])) == (0, 4)


def test_t15_budget_takes_a_draft_made_without_signals():
    assert survival(Draft([4, 5])) == pytest.approx([0.7, 0.49])
    assert survival(Draft([])) == []
    assert parse_policy("budget:8:0").plan([request(0, Draft([4, 5]))]) == [RequestPlan(0)]


# -- paper-adaptive ----------------------------------------------------------------------------------------------------


def round_of(made, drafted, accepted, entropy):
    """What the engine leaves behind after an AR row and a verification."""
    made.accepted_history.append((drafted, accepted))
    made.verifier_entropy += [entropy] * (accepted + 2)
    made.tokens += [0] * (accepted + 2)


def trained(rounds=60, **costs):
    """Requests that accept all at low entropy, and nothing after a failed round at high entropy."""
    policy = parse_policy("paper-adaptive:1/2/4/8")
    policy.step_time = RowCost(**costs)
    for accepted, entropy in ((7, 0.1), (0, 3.0)):
        made = request()
        for _ in range(rounds):
            policy.plan([made])
            round_of(made, 7, accepted, entropy)
    return policy


def at(policy, accepted, entropy, load=1):
    """The block of a request behind two such rounds of block 8, with ``load`` - 1 others."""
    made = request()
    for _ in range(2):
        policy.plan([made])
        round_of(made, 7, accepted, entropy)
    return blocks(policy, made, *(request(i) for i in range(1, load)))[0]


def test_paper_adaptive_drafts_more_after_full_acceptance_at_low_entropy():
    policy = trained(floor_ms=20, row_ms=1.0)
    assert (at(policy, 7, 0.1), at(policy, 0, 3.0)) == (8, 1)


def test_paper_adaptive_shrinks_its_blocks_to_ar_as_time_gets_dear():
    free, dear = RowCost(floor_ms=20, row_ms=0.0), RowCost(floor_ms=0.1, row_ms=5.0)
    policy = trained()
    chosen = []
    for policy.step_time in (free, dear):
        policy._times.clear()
        chosen.append(blocks(policy, request())[0])
    assert chosen == [8, 1]


def test_paper_adaptive_shrinks_as_the_load_rises():
    sizes = [at(trained(), 7, 0.8, load) for load in (1, 8, 64, 512)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


class Staircase:
    """Step times that jump at tiles of rows, and fall behind one of them."""

    def predict(self, requests, causal_rows, draft_rows, context):
        return {1: 20, 2: 20, 4: 60}.get(causal_rows + draft_rows, 24)


def test_t15_paper_adaptive_assumes_no_shape_of_the_cost():
    """Block 4 verifies four rows, which cost more than eight do: it is stepped over, even where all is accepted."""
    policy = trained()
    policy.step_time = Staircase()
    policy._times.clear()
    chosen = {blocks(policy, request())[0], at(policy, 7, 0.1), at(policy, 0, 3.0)}
    assert 4 not in chosen
    assert 8 in chosen


def test_paper_adaptive_plans_a_new_request_by_the_average_of_all():
    policy = parse_policy("paper-adaptive:2/4/8")
    policy.step_time = RowCost(floor_ms=20, row_ms=0.5)
    fresh = blocks(policy, request())
    for _ in range(100):
        policy.values.learn(None, 7, 0)
    assert (fresh[0] > 2, blocks(policy, request())) == (True, [2])


def test_t15_paper_adaptive_keeps_its_plan_while_nothing_happens():
    policy, made = trained(), request()
    policy.plan([made])
    round_of(made, 7, 3, 1.2)
    before = policy.values.pooled.reached.copy()
    assert len({blocks(policy, made)[0] for _ in range(20)}) == 1
    assert policy.values.pooled.reached[0] == before[0] + 1


def test_paper_adaptive_counts_drafts_that_did_not_fit_the_ar_row():
    """Where drafts guess the AR row's token and guess wrong, a round is one token, and drafting is worth less."""
    policy, made = parse_policy("paper-adaptive:1/8"), request()
    assert policy._usable == 1
    made.stats.branches_drafted["continuation"], made.stats.branches_reused["continuation"] = 1000, 0
    policy.plan([made])
    assert policy._usable < 0.01
    assert blocks(policy, made) == [1]


# -- the value table ---------------------------------------------------------------------------------------------------


def test_values_start_from_the_prior():
    assert ValueTable().accepted(None, 3) == pytest.approx([0, PRIOR, PRIOR + PRIOR**2, PRIOR + PRIOR**2 + PRIOR**3])


def test_t16_blocks_accepted_whole_say_nothing_of_what_is_behind_them():
    counts = Counts()
    for _ in range(1000):
        counts.add(2, 2)
    assert counts.chances([0.5] * 4) == pytest.approx([1, 1, 0.5, 0.5], abs=0.01)


@given(st.lists(st.floats(0.2, 0.95), min_size=7, max_size=7), st.integers(0, 1000))
def test_t16_truncated_drafts_leave_the_estimate_where_it_belongs(chances, seed):
    """Rounds of blocks 2, 4 and 8 mixed, cut by chance of nothing that matters: every position is near its own rate."""
    dice, counts = random.Random(seed), Counts()
    for _ in range(3000):
        drafted = dice.choice((1, 3, 7))
        accepted = next((j for j in range(drafted) if dice.random() > chances[j]), drafted)
        counts.add(drafted, accepted)
    for j, found in enumerate(counts.chances([PRIOR] * 7)):
        reached = counts.reached[j]
        assert abs(found - chances[j]) <= 4 / (reached + 1) ** 0.5 + 8 / (reached + 8)


def test_a_cell_leans_on_all_requests_until_it_has_its_own_rounds():
    table = ValueTable()
    for _ in range(500):
        table.learn("bad", 3, 0)
    alone = table.accepted("good", 3)
    assert alone == table.accepted(None, 3)
    for _ in range(100):
        table.learn("good", 3, 3)
    assert table.accepted("good", 3)[-1] > 2.5 > 0.1 > table.accepted("bad", 3)[-1]
