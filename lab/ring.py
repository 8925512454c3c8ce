"""A bounded table of numbers: the newest rows of a run, written by one thread and read by others."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np


class Ring:
    """``capacity`` rows of the named columns in float64 (times need it); older rows are overwritten."""

    def __init__(self, columns: Sequence[str], capacity: int):
        self.columns, self.capacity = tuple(columns), capacity
        self._rows = np.full((capacity, len(self.columns)), np.nan)
        self._count = 0
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return min(self._count, self.capacity)

    @property
    def count(self) -> int:
        """Rows ever added."""
        return self._count

    def add(self, *row: float) -> None:
        """One row, in the order of the columns."""
        with self._guard:
            self._rows[self._count % self.capacity] = row
            self._count += 1

    def skip(self, count: int) -> None:
        """Forget what is older, as if ``count`` rows had been added in all; rows not written read as NaN."""
        with self._guard:
            for place in range(self._count, min(count, self._count + self.capacity)):
                self._rows[place % self.capacity] = np.nan
            self._count = max(self._count, count)

    def last(self, rows: int | None = None) -> dict[str, np.ndarray]:
        """Copies of the newest rows' columns, oldest first."""
        with self._guard:
            kept = len(self) if rows is None else min(rows, len(self))
            places = np.arange(self._count - kept, self._count) % self.capacity
            taken = self._rows[places]  # fancy indexing copies
        return dict(zip(self.columns, taken.T, strict=True))
