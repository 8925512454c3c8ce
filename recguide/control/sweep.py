"""A cost table from a published sweep of forwards on a device that is not at hand.

The sweep is a CSV file with the columns ``concurrency``, ``block_size`` (rows of each request), ``draft_ms`` and
``verify_ms``, complete in both. It has no steps of one row a request: those are continued in a straight line from its
two smallest blocks, which is an assumption and is said in the table's ``about``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from recguide.control.cost import Axes, CostTable, Identity
from recguide.errors import RecGuideError
from recguide.provenance import provenance

COLUMNS = ("concurrency", "block_size", "draft_ms", "verify_ms")
CONTEXT = 512  # sweeps have one context a cell; a table with one point on that axis ignores it
ASSUMED = "steps with fewer rows a request than the smallest block: continued in a straight line"


def table_from_sweep(path: Path, device: str, requests: tuple[int, ...]) -> CostTable:
    """Milliseconds of steps of ``requests`` at once, as swept on ``device``.

    Raises RecGuideError for a file that is no such sweep, or is not complete at these requests.
    """
    times = _read(path)
    blocks = sorted({block for _, block in times})
    missing = [(c, b) for c in requests for b in blocks if (c, b) not in times]
    if len(blocks) < 2 or missing:
        raise RecGuideError(f"{path}: needs two block sizes or more at every concurrency; missing: {missing[:3]}")
    axes = Axes(requests, (1, *blocks), (CONTEXT,))
    draft, verify = (np.array([[times[c, b][kind] for b in blocks] for c in requests]) for kind in (0, 1))
    rows = np.array(axes.rows, dtype=float)
    causal, drafting = _lines(verify, blocks, rows), _lines(draft, blocks, rows + 1)  # one causal row is in every block
    about = {"model_name": path.stem, "assumed": ASSUMED, "provenance": provenance() | {"device": device}}
    identity = Identity(model=path.stem, adapter="unknown", dtype="unknown", profile=device)
    return CostTable(identity, axes, causal[:, :, None], drafting[:, :, None], about)


def _read(path: Path) -> dict[tuple[int, int], tuple[float, float]]:
    """(draft ms, verify ms) by (concurrency, block size)."""
    try:
        columns = pyarrow.csv.read_csv(path).select(COLUMNS).to_pydict()
        rows = zip(*(columns[name] for name in COLUMNS), strict=True)
        return {(int(c), int(b)): (float(d), float(v)) for c, b, d, v in rows}
    except FileNotFoundError:
        raise RecGuideError(f"{path}: no such file") from None
    except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError) as fault:
        raise RecGuideError(f"{path}: not a sweep of forwards with columns {', '.join(COLUMNS)} ({fault})") from None


def _lines(times: np.ndarray, blocks: list[int], rows: np.ndarray) -> np.ndarray:
    """[requests, rows] read off ``times`` [requests, blocks], straight between blocks and beyond the ends."""
    place = np.clip(np.searchsorted(blocks, rows, side="right") - 1, 0, len(blocks) - 2)
    low, high = np.array(blocks)[place], np.array(blocks)[place + 1]
    weight = (rows - low) / (high - low)
    return (1 - weight) * times[:, place] + weight * times[:, place + 1]
