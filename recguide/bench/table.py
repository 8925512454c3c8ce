"""A bench result as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text


def bench_table(summary: Sequence[dict], caption: str = "") -> Table:
    """Rows as ``summarise`` makes them, 80 columns wide; the best aggregate of each concurrency C stands in bold."""
    table = Table(caption=Text(caption), caption_justify="left")
    table.add_column("C", justify="right", no_wrap=True)
    table.add_column("policy", overflow="fold")  # a long one must not cost the figures their digits
    headings = ("all,\ntokens/s", "x ar", "each,\ntokens/s", "tokens /\nforward", "rows /\ntoken", "accepted\nlength")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    best = {c: max(r["aggregate_tok_s"] for r in summary if r["concurrency"] == c) for c in _levels(summary)}
    for level in _levels(summary):
        for row in (r for r in summary if r["concurrency"] == level):
            style = "bold" if row["aggregate_tok_s"] == best[level] else None
            table.add_row(*_cells(row), style=style)
        table.add_section()
    return table


def _levels(summary: Sequence[dict]) -> list[int]:
    return list(dict.fromkeys(row["concurrency"] for row in summary))


def _cells(row: dict) -> tuple[str, ...]:
    return (
        str(row["concurrency"]),
        row["policy"],
        _number(row["aggregate_tok_s"], 1),
        _number(row.get("ratio_to_ar"), 2),
        _number(row["per_request_tok_s"], 1),
        _number(row["tpf"], 2),
        _number(row["rows_per_token"], 1),
        _number(row["mean_acceptance_length"], 2),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
