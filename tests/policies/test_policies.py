"""Policies: their text form, their knobs, and the plans of each family."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.engine.plan import AR, Branch, RequestPlan, clamp
from recguide.engine.request import Draft, Request
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from recguide.policies import POLICIES, parse_policy
from recguide.policies.ema_tiers import EmaTiers
from recguide.policies.linear import Linear
from recguide.policies.tiers import Tiers
from tests.helpers import small_model


def request(draft=None, history=()):
    made = Request(0, [1, 2, 7], SamplingParams(seed=0), frozenset(), 100)
    made.draft, made.accepted_history = draft, list(history)
    return made


MODEL = small_model()


def attached(spec):
    policy = parse_policy(spec)
    policy.attach(MODEL)
    return policy


def plan(spec, *args, **rest):
    return attached(spec).plan([request(*args, **rest)])[0]


DRAFT = Draft([4, 5, 6], "draft", [0.9, 0.6, 0.5], [0.8, 0.3, 0.1], [9, 8, 10])


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("ar", {}),
        ("linear", {"block": 8, "threshold": 0.0}),
        ("linear:4:0.5", {"block": 4, "threshold": 0.5}),
        (" linear:5 ", {"block": 5, "threshold": 0.0}),
        ("linear:block=5", {"block": 5, "threshold": 0.0}),
        ("overlap:4", {"block": 4, "delta": 0.5}),
        ("overlap:4:0.25", {"block": 4, "delta": 0.25}),
        ("overlap:delta=1", {"block": 8, "delta": 1.0}),
        ("overlap:delta=0:block=3", {"block": 3, "delta": 0.0}),
        ("window:2:64", {"low": 2, "high": 64}),
        ("paper-adaptive:8/16/32", {"blocks": (8, 16, 32)}),
        ("ema-tiers:3", {"blocks": (3,), "alpha": 0.2, "gap": 0.25}),
        ("ema-tiers:gap=0:blocks=2/8", {"blocks": (2, 8), "alpha": 0.2, "gap": 0.0}),
        ("tiers:8@2/1", {"schedule": ((2, 8), (None, 1))}),
        ("tiers:4", {"schedule": ((None, 4),)}),
        ("budget:5:0", {"block": 5, "rows": 0}),
    ],
)
def test_specs_are_read(spec, values):
    policy = parse_policy(spec)
    assert {knob.name: getattr(policy, knob.name) for knob in policy.knobs} == values


@pytest.mark.parametrize("name", POLICIES)
def test_the_text_form_reads_back(name):
    policy = parse_policy(name)
    again = parse_policy(policy.spec)
    assert (type(again), vars(again)) == (type(policy), vars(policy))
    assert parse_policy(policy) is policy


@given(st.floats(0, 1))
def test_the_text_form_keeps_every_digit(delta):
    policy = parse_policy(f"overlap:8:{delta!r}")
    assert parse_policy(policy.spec).delta == policy.delta == delta


blocks_sets = st.sets(st.integers(2, 64), min_size=1, max_size=6).map(lambda found: tuple(sorted(found)))


@given(blocks_sets, st.lists(st.integers(1, 64), min_size=6, max_size=6))
def test_lists_read_back_from_text_and_from_values(limits, sizes):
    schedule = tuple(zip((*limits, None), sizes, strict=False))
    schedule = (*schedule[:-1], (None, schedule[-1][1]))
    for policy in (Tiers(schedule=schedule), Tiers(schedule=list(map(list, schedule)))):
        assert parse_policy(policy.spec).schedule == policy.schedule == schedule
    made = EmaTiers(blocks=list(limits))
    assert parse_policy(made.spec).blocks == made.blocks == limits


FAULTS = {
    "": ["unknown", *POLICIES],
    "linaer:8": ["linaer", *POLICIES],
    "ar:3": ["ar:3", "takes 0"],
    "linear:8:9": ["linear", "threshold", "0.0..1.0"],
    "linear:8:0:9": ["linear:8:0:9", "takes 2"],
    "linear:": ["linear", "block", "int"],
    "linear:x": ["linear", "block", "'x'", "int"],
    "linear:8.5": ["linear", "block", "8.5", "int"],
    "linear:0": ["linear", "block", "is 0;", "1..64"],
    "linear:65": ["linear", "block", "is 65;", "1..64"],
    "linear:blok=8": ["linear", "blok", "block"],
    "overlap:8:1.5": ["overlap", "delta", "1.5", "0.0..1.0"],
    "overlap:8:-0.1": ["overlap", "delta", "-0.1", "0.0..1.0"],
    "overlap:8:nan": ["overlap", "delta", "nan", "0.0..1.0"],
    "quadratic:0": ["quadratic", "block", "1..64"],
    "window:32:4": ["window", "low", "high"],  # a smallest block above the largest
    "overlap:delta=0.4:0.5": ["overlap", "delta"],  # the same knob twice
    "paper-adaptive:": ["paper-adaptive", "blocks", "1/2/4/8"],
    "paper-adaptive:4/2": ["paper-adaptive", "blocks", "'4/2'", "1..64", "ascending"],
    "paper-adaptive:4/4": ["paper-adaptive", "blocks", "ascending"],
    "paper-adaptive:4/x": ["paper-adaptive", "blocks", "'4/x'", "whole numbers"],
    "ema-tiers:1/4": ["ema-tiers", "blocks", "2..64"],  # nothing is learned of drafts from plain AR
    "ema-tiers:4/99": ["ema-tiers", "blocks", "2..64"],
    "tiers:": ["tiers", "schedule", "8@2/5@4/3@8/1"],
    "tiers:8@2": ["tiers", "schedule", "last block has none"],
    "tiers:8@2/4@2/1": ["tiers", "schedule", "ascend"],
    "tiers:8@0/1": ["tiers", "schedule", "from 1 on"],
    "tiers:8/4/1": ["tiers", "schedule", "last block has none"],
    "tiers:8@2.5/1": ["tiers", "schedule", "BLOCK@REQUESTS"],
    "tiers:0@2/1": ["tiers", "schedule", "block 0", "1..64"],
    "budget:8:-1": ["budget", "rows", "0..4096"],
}


@pytest.mark.parametrize("spec", FAULTS)
def test_faults_name_the_policy_and_what_is_allowed(spec):
    with pytest.raises(RecGuideError) as caught:
        parse_policy(spec)
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in FAULTS[spec]), text


def test_a_fraction_is_not_silently_rounded_to_a_block():
    with pytest.raises(RecGuideError, match=r"block is 8\.5"):
        Linear(block=8.5)


@pytest.mark.parametrize("cls", POLICIES.values())
def test_every_policy_and_knob_describes_itself(cls):
    assert cls.summary
    assert all(k.help and k.check(k.default, cls.name) == k.default for k in cls.knobs)
    assert all(k.check(k.text(k.default), cls.name) == k.default for k in cls.knobs)


@pytest.mark.parametrize("name", POLICIES)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)).map(lambda p: (p[0], min(p))), max_size=6),
    st.booleans(),
)
def test_every_plan_can_be_laid_out(name, margins, history, drafted):
    """With and without a draft, with and without signals."""
    size = len(margins)
    signals = ([0.5] * size, margins, [3] * size) if drafted else ([], [], [])
    for draft in (None, Draft([1] * size, "draft", *signals)):
        plan(name, draft, history).check(size if draft else 0)


def test_ar_never_drafts():
    """No proposer work at all, even with a draft left over from another policy."""
    assert plan("ar") == plan("ar", DRAFT) == AR


def test_linear_drafts_then_verifies():
    assert plan("linear:8") == RequestPlan(None, (Branch(0, 7, 7),))
    assert plan("linear:8", DRAFT) == RequestPlan(3)


def test_linear_goes_on_with_a_draft_of_which_a_part_is_known():
    made = request()
    made.known = [4, None, 5]
    assert parse_policy("linear:8:0.5").plan([made]) == [
        RequestPlan(None, (Branch(0, 7, 3, known=(4, None, 5), threshold=0.5),))
    ]


@pytest.mark.parametrize("name", ["linear", "ar-row", "quadratic", "overlap", "budget", "tiers", "paper-adaptive"])
def test_a_block_of_one_is_plain_ar(name):
    assert clamp(plan(f"{name}:1"), 0, 50) == AR


def test_ar_row_drafts_behind_one_ar_token():
    assert plan("ar-row:8") == RequestPlan(0, (Branch(1, None, 8),))
    assert plan("ar-row:8", DRAFT) == RequestPlan(3)


def test_quadratic_opens_a_branch_after_every_trunk_row():
    assert plan("quadratic:4") == RequestPlan(0, (Branch(1, None, 4, loose=True),))
    assert plan("quadratic:4", DRAFT) == RequestPlan(3, tuple(Branch(p, None, 4, loose=True) for p in (1, 2, 3, 4)))


@pytest.mark.parametrize(
    ("margins", "corrected", "continued"),
    [
        ([0.9, 0.9, 0.9, 0.9], [], True),
        ([0.9, 0.1, 0.9, 0.9], [2], True),
        ([0.9, 0.1, 0.9, 0.4], [2, 4], True),
        ([0.1, 0.9, 0.2, 0.3], [1, 3], False),
        ([0.3, 0.2, 0.1, 0.0], [1, 2], False),
        ([0.5, 0.5, 0.5, 0.5], [], True),  # risky means below delta
    ],
)
def test_overlap_corrects_the_earliest_two_risky_positions(margins, corrected, continued):
    draft = Draft([4, 5, 6, 7], "draft", [0.9] * 4, margins, [10, 11, 12, 13])
    branches = [Branch(j, 9 + j, 7) for j in corrected] + ([Branch(5, None, 8)] if continued else [])
    assert plan("overlap:8:0.5", draft) == RequestPlan(4, tuple(branches))


def test_overlap_without_a_draft_or_signals():
    assert plan("overlap:8") == RequestPlan(0, (Branch(1, None, 8),))
    assert plan("overlap:8", Draft([4, 5, 6])) == RequestPlan(3, (Branch(4, None, 8),))


@pytest.mark.parametrize("delta", [0, 1])
def test_overlap_at_the_ends_of_delta(delta):
    draft = Draft([4, 5, 6, 7], "draft", [1.0] * 4, [0.0, 0.5, 0.99, 0.3], [1, 2, 3, 4])
    made = plan(f"overlap:8:{delta}", draft)
    assert [b.parent for b in made.branches] == ([1, 2] if delta else [5])


def block(spec, *rounds):
    return plan(spec, history=rounds).branches[0].masks + 1


def test_window_doubles_halves_and_holds():
    assert block("window:4:16") == 4
    assert block("window:4:16", (3, 3)) == 8
    assert block("window:4:16", (3, 3), (7, 7)) == 16
    assert block("window:4:16", (3, 3), (7, 7), (15, 15)) == 16
    assert block("window:4:16", (3, 3), (7, 4)) == 8  # more than half, not all: as it was
    assert block("window:4:16", (3, 3), (7, 3)) == 4
    assert block("window:4:16", (3, 0)) == 4
    assert block("window:4:48", *[(3, 3)] * 9) == 48


def test_window_takes_every_round_once():
    """Planning twice on the same history changes nothing, and each request keeps its own window."""
    policy, mine, other = parse_policy("window:4:16"), request(history=[(3, 3)]), request()
    sizes = [[p.branches[0].masks + 1 for p in policy.plan([mine, other])] for _ in range(3)]
    assert sizes == [[8, 4]] * 3
    mine.accepted_history.append((7, 7))
    assert policy.plan([mine])[0].branches[0].masks + 1 == 16


def test_t15_constant_input_gives_constant_plans():
    """A window that holds does not flip, however often it is asked."""
    made = request(history=[(3, 3), (7, 4), (7, 5), (7, 4)])
    policy = parse_policy("window:4:16")
    assert len({policy.plan([made])[0] for _ in range(20)}) == 1


BY_LOAD = {
    "recguide",
    "paper-adaptive",
    "budget",
    "tiers",
}  # what they plan depends on who else runs; what is written does not


@pytest.mark.parametrize("name", sorted(POLICIES.keys() - BY_LOAD))
def test_t15_a_request_is_planned_alike_in_any_company(name):
    made = [request(), request(DRAFT), request(history=[(3, 3)])]
    alone = [parse_policy(name).plan([r])[0] for r in made]
    assert parse_policy(name).plan(made) == alone
    assert parse_policy(name).plan(made[::-1]) == alone[::-1]
