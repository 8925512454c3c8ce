"""A published sweep becomes a cost table: what it says is kept, what it leaves out is a straight line."""

from pathlib import Path

import pytest

from recguide.control.cost import load_cost_table, stored_identity
from recguide.control.sweep import table_from_sweep
from recguide.errors import RecGuideError

LINES = ["8,1,5.0,4.0", "16,1,6.0,4.8", "8,2,9.0,8.0", "16,2,12.0,10.4"]
HEAD = "block_size,concurrency,draft_ms,verify_ms"


@pytest.fixture
def write(tmp_path):
    def written(*lines, head=HEAD):
        path = tmp_path / "sweep.csv"
        path.write_text("\n".join((head, *lines)) + "\n")
        return path

    return written


def test_the_table_says_what_the_sweep_says(write, tmp_path):
    table = table_from_sweep(write(*LINES), "a device", (1, 2))
    assert table.predict(1, 8, 0, 100) == pytest.approx(4.0)
    assert table.predict(2, 32, 0, 900) == pytest.approx(10.4)
    assert table.predict(1, 1, 0, 100) == pytest.approx(4.0 - 7 * 0.1)  # not in it
    assert table.predict(1, 1, 7, 100) == pytest.approx(5.0)  # a drafting block of 8 rows
    assert table.predict(2, 2, 30, 100) == pytest.approx(12.0)
    table.save(tmp_path / "t.json")
    again = load_cost_table(tmp_path / "t.json", stored_identity(tmp_path / "t.json"))
    assert again.predict(2, 5, 9, 100) == table.predict(2, 5, 9, 100)
    assert again.about["provenance"]["device"] == "a device" and "straight line" in again.about["assumed"]


def test_sweeps_that_cannot_be_used(write, tmp_path):
    with pytest.raises(RecGuideError, match=r"missing: \[\(4, 8\)"):
        table_from_sweep(write(*LINES), "d", (1, 4))
    with pytest.raises(RecGuideError, match="two block sizes"):
        table_from_sweep(write(LINES[0]), "d", (1,))
    with pytest.raises(RecGuideError, match="columns concurrency, block_size"):
        table_from_sweep(write("1,2", head="a,b"), "d", (1,))
    with pytest.raises(RecGuideError, match="expected positive times"):
        table_from_sweep(write("8,1,5.0,0.1", "16,1,6.0,4.8"), "d", (1,))
    with pytest.raises(RecGuideError, match="no such file"):
        table_from_sweep(tmp_path / "none.csv", "d", (1,))


def test_the_public_sweep_of_a_b200():
    path = Path(__file__).parents[3] / "shared" / "reference" / "b200_nld8b_forward_ms.csv"
    if not path.exists():
        pytest.skip(f"the public sweep is not here: {path.name}")
    table = table_from_sweep(path, "B200", (1, 2, 4, 8, 16, 32, 64, 128))
    alone, many = table.predict(1, 1, 0, 500), table.predict(128, 128, 0, 500)
    assert 4.5 < alone < 5.0 and 10 < many < 13
    assert table.predict(1, 9, 16, 500) < 1.2 * alone  # rows are nearly free there
