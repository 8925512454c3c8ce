"""Pinned runs as a table: each against the first."""

from __future__ import annotations

import html

from recguide.lab.measure import Measurement


def pins_table(pins: list[Measurement]) -> str:
    """Pinned runs against the first of them."""
    if not pins:
        return "<i>No pinned runs: measure quietly, then pin; or measure the baselines.</i>"
    names = ("run", "C", "all, tokens/s", "to the first", "each, tokens/s", "ms a step")
    return f"<table>{_row('th', names)}{''.join(_row('td', _cells(pin, pins[0])) for pin in pins)}</table>"


def _cells(pin: Measurement, first: Measurement) -> tuple[str, ...]:
    ratio = f"{pin.aggregate.value / first.aggregate.value:.2f}x"
    return pin.name, str(pin.concurrency), str(pin.aggregate), ratio, str(pin.per_request), f"{pin.step_ms:.1f}"


def _row(cell: str, texts: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{cell}>{html.escape(text)}</{cell}>' for text in texts)}</tr>"
