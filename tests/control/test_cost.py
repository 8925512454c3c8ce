"""The cost table: read at its points exactly, between them on lines, refined by what is seen, refused where foreign."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.control.cost import ENOUGH, Axes, CostTable, Identity, load_cost_table
from recguide.errors import RecGuideError

HERE = Identity(model="abc", adapter="lora2x4", dtype="bfloat16", profile="123")
AXES = Axes((1, 4, 16), (1, 2, 8), (64, 256))
CAUSAL = np.array([[[10.0, 11], [10, 11], [14, 16]], [[12, 14], [11, 13], [30, 35]], [[20, 40], [30, 55], [90, 130]]])
DRAFTING = CAUSAL * 1.5


def table(identity=HERE):
    return CostTable(identity, AXES, CAUSAL.copy(), DRAFTING.copy(), {"repeats": 3})


def test_grid_points_are_read_as_measured():
    made = table()
    for i, requests in enumerate(AXES.requests):
        for j, rows in enumerate(AXES.rows):
            for k, context in enumerate(AXES.contexts):
                assert made.predict(requests, requests * rows, 0, context) == pytest.approx(CAUSAL[i, j, k])


def test_drafting_points_too():
    """One causal row and so many drafts for every request: the drafting table itself."""
    made = table()
    for i, requests in enumerate(AXES.requests):
        for j, rows in enumerate(AXES.rows):
            found = made.predict(requests, requests, requests * rows, 64)
            assert found == pytest.approx(DRAFTING[i, j, 0])


@given(st.floats(1, 16), st.floats(1, 8), st.floats(64, 256))
def test_between_points_the_time_lies_between_its_neighbours(requests, rows, context):
    made = table()
    found = made._read(made._causal, requests, rows, context)
    assert CAUSAL.min() <= found <= CAUSAL.max()


def test_it_may_fall_where_the_measurements_do():
    made = table()
    assert made.predict(4, 8, 0, 64) < made.predict(4, 4, 0, 64)


def test_beyond_the_grid_the_last_line_goes_on():
    assert table().predict(1, 14, 0, 64) == pytest.approx(14 + (14 - 10) / 6 * 6)
    assert table().predict(1, 1, 0, 448) == pytest.approx(12)
    assert table().predict(1, 1, 0, 1) > 0


@given(st.floats(8, 200), st.floats(16, 200), st.floats(640, 4000))
def test_a_last_point_that_was_measured_too_low_makes_nothing_free(rows, requests, context):
    axes = Axes((1, 8), (1, 4, 8), (128, 640))
    rising = np.array([[10.0, 20.0, 18.0], [40.0, 80.0, 70.0]])[:, :, None]
    low = np.concatenate((rising, 0.8 * rising), 2)
    made = CostTable(HERE, axes, low, 1.5 * low, {})
    here = made.predict(1, rows, 0, 128)
    assert made.predict(1, 2 * rows, 0, 128) > here
    assert made.predict(requests, requests * 8, 0, 128) > made.predict(8, 64, 0, 128)
    assert made.predict(1, 1, 3 * rows, 128) >= made.predict(1, 1, rows, 128)
    assert made.predict(1, 4, 0, 2 * context) >= made.predict(1, 4, 0, context)


def test_what_is_seen_refines_the_table_where_it_was_seen():
    made = table()
    before = {requests: made.predict(requests, requests, 0, 64) for requests in AXES.requests}
    for _ in range(200):
        made.observe(1.2 * before[4], 4, 4, 0, 64)
        made.observe(before[16], 16, 16, 0, 64)
    assert made.predict(4, 4, 0, 64) / made.predict(16, 16, 0, 64) == pytest.approx(
        1.2 * before[4] / before[16], rel=0.03
    )
    assert made.told(4, 4, 0, 64) == before[4]


@pytest.mark.parametrize("seen", [(4, 4, 0), (4, 4, 12)])
def test_a_slower_machine_is_slower_at_all_steps(seen):
    """Whatever steps show it first, and those that were never made, too; large ones less, since it is mostly the
    weights that it reads more slowly."""
    made = table()
    steps = [(1, 1, 0), (4, 4, 0), (4, 4, 12), (16, 48, 0)]
    before = {step: made.predict(*step, 64) for step in steps}
    for _ in range(40):
        made.observe(1.7 * before[seen], *seen, 64)
    slower = {step: made.predict(*step, 64) / told for step, told in before.items()}
    assert slower[seen] == pytest.approx(1.7, rel=0.02)
    assert slower[1, 1, 0] == pytest.approx(made.pace, rel=0.02) and slower[4, 4, 0] == pytest.approx(
        made.pace, rel=0.02
    )
    assert 1.25 < slower[16, 48, 0] < slower[4, 4, 12] < made.pace < 2.0


def test_steps_that_cost_more_than_the_table_says_are_told_from_a_slower_machine():
    """Drafting steps take 1.3 times what they should, and the machine becomes slower in the middle."""
    made = table()
    plain, drafting = (4, 4, 0), (4, 4, 12)
    should = {plain: made.predict(*plain, 64), drafting: 1.3 * made.predict(*drafting, 64)}
    for pace, steps in ((1.0, 100), (1.6, 50)):
        for _ in range(steps):
            for step, milliseconds in should.items():
                made.observe(pace * milliseconds, *step, 64)
        for step, milliseconds in should.items():
            assert made.predict(*step, 64) == pytest.approx(pace * milliseconds, rel=0.03)
    assert made.predict(*drafting, 64) / made.predict(*plain, 64) == pytest.approx(
        should[drafting] / should[plain], rel=0.03
    )


def test_rows_that_became_cheaper_are_told_from_plain_and_large_steps():
    """The machine reads weights more slowly than when the table was made, and calculates as fast: what a row adds to a
    step is less of it. Sizes that were not seen are told, too, and other loads."""
    made = table()
    plain = made.told(4, 4, 0, 64)
    for causal, draft in 100 * ((4, 0), (4, 12), (8, 0), (6, 4)):
        told = made.told(4, causal, draft, 64)
        made.observe(1.8 * plain * (told / plain) ** 0.5, 4, causal, draft, 64)
    assert made.predict(4, 4, 0, 64) == pytest.approx(1.8 * plain, rel=0.03)
    for requests, rows in ((4, 12), (4, 24), (16, 48)):
        told, one = made.told(requests, rows, 0, 64), made.told(requests, requests, 0, 64)
        assert made.predict(requests, rows, 0, 64) == pytest.approx(1.8 * one * (told / one) ** 0.5, rel=0.06)


def test_drafting_is_seen_once_it_was_timed_often_enough():
    made = table()
    for _ in range(ENOUGH):
        assert not made.drafting_seen(4)
        made.observe(12.0, 4, 4, 0, 64)
        made.observe(18.0, 4, 4, 12, 64)
    assert made.drafting_seen(4) and made.drafting_seen(5) and not made.drafting_seen(16)


def test_the_file_reads_back(tmp_path):
    table().save(tmp_path / "cost.json")
    again = load_cost_table(tmp_path / "cost.json", HERE)
    assert np.array_equal(again.causal, CAUSAL)
    assert np.array_equal(again.drafting, DRAFTING)
    assert (again.axes, again.identity, again.about) == (AXES, HERE, {"repeats": 3})


@pytest.mark.parametrize("name", ["model", "dtype", "profile"])
def test_a_table_of_something_else_is_refused(tmp_path, name):
    table().save(tmp_path / "cost.json")
    other = Identity(**(vars(HERE) | {name: "other"}))
    with pytest.raises(RecGuideError, match=f"was measured for {name} {vars(HERE)[name]}, here it is other"):
        load_cost_table(tmp_path / "cost.json", other)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: p.unlink(), "no cost table; 'recguide profile' measures one"),
        (lambda p: p.write_text("{"), "not a cost table"),
        (lambda p: p.write_text("[]"), "not a cost table"),
        (lambda p: edit(p, axes={}), "not a cost table"),
        (lambda p: edit(p, schema=1), "schema 1, this version reads 2"),
        (lambda p: edit(p, causal_ms=[[[1.0]]]), "expected positive times"),
        (lambda p: edit(p, causal_ms=(-CAUSAL).tolist()), "expected positive times"),
        (lambda p: edit(p, drafting_ms=(np.nan * CAUSAL).tolist()), "expected positive times"),
    ],
)
def test_damage_is_told_in_one_line(tmp_path, damage, words):
    path = tmp_path / "cost.json"
    table().save(path)
    damage(path)
    with pytest.raises(RecGuideError, match=words) as caught:
        load_cost_table(path, HERE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("values", [(), (0, 1), (2, 1), (1, 1)])
def test_axes_must_ascend(values):
    with pytest.raises(RecGuideError, match="requests are"):
        Axes(values, (1,), (64,))
