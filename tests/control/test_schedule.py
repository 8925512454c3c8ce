"""Load -> block: big blocks while rows are free, none when they are dear, and what that gives away."""

import pytest

from recguide.control.schedule import best_blocks
from recguide.control.step_time import RowCost
from tests.controllers import handmade

LOADS = (1, 2, 4, 8, 16, 32)


def test_blocks_shrink_with_load():
    entries = best_blocks(handmade("abc", 1), RowCost(20.0, 0.6), LOADS, 256)
    blocks = [entry.block for entry in entries]
    assert [entry.load for entry in entries] == list(LOADS)
    assert blocks == sorted(blocks, reverse=True) and blocks[0] > 2 and blocks[-1] == 1


def test_the_loss_is_a_share_and_none_where_nothing_pays():
    entries = best_blocks(handmade("abc", 1), RowCost(0.1, 10.0), LOADS, 256)
    assert all(entry.block == 1 and entry.loss == pytest.approx(0, abs=1e-12) for entry in entries)
    entries = best_blocks(handmade("abc", 1), RowCost(20.0, 0.1), LOADS, 256)
    assert all(0 <= entry.loss < 1 for entry in entries) and entries[0].loss > 0
