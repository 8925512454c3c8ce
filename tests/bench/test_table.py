"""The table that people see: a line per policy and concurrency, the best in bold, a dash where there is nothing."""

import io

from rich.console import Console

from recguide.bench.table import bench_table


def row(concurrency, policy, rate, **other):
    base = {"concurrency": concurrency, "policy": policy, "aggregate_tok_s": rate, "per_request_tok_s": rate / 2}
    return base | {"tpf": 1.25, "rows_per_token": 3.14, "mean_acceptance_length": 2.718, "ratio_to_ar": 1.5} | other


def lines(summary, caption="", **settings):
    console = Console(width=120, record=True, file=io.StringIO(), **settings)
    console.print(bench_table(summary, caption))
    return console.export_text(styles=bool(settings)).splitlines()


def cells(summary):
    return [[c.strip() for c in line.split("│")[1:-1]] for line in lines(summary) if line.startswith("│")]


def test_figures_of_a_row():
    assert cells([row(4, "linear:8", 123.456)]) == [["4", "linear:8", "123.5", "1.50", "61.7", "1.25", "3.1", "2.72"]]


def test_what_is_not_there_is_a_dash():
    bare = row(1, "x", 10.0, per_request_tok_s=None, mean_acceptance_length=None, tpf=None, rows_per_token=None)
    del bare["ratio_to_ar"]
    assert cells([bare]) == [["1", "x", "10.0", "-", "-", "-", "-", "-"]]


def test_rows_are_grouped_by_concurrency():
    summary = [row(1, "ar", 1.0), row(4, "ar", 2.0), row(1, "x", 3.0), row(4, "x", 4.0)]
    assert [line[:2] for line in cells(summary)] == [["1", "ar"], ["1", "x"], ["4", "ar"], ["4", "x"]]


def test_the_best_of_each_concurrency_is_bold():
    summary = [row(1, "ar", 10.0), row(1, "x", 30.0), row(4, "ar", 90.0), row(4, "x", 40.0)]
    bold = [line for line in lines(summary, force_terminal=True, color_system="standard") if "\x1b[1m" in line]
    shown = [line for line in bold if "30.0" in line or "90.0" in line]
    assert len(shown) == 2
    assert not any("10.0" in line or "40.0" in line for line in bold)


def test_the_table_fits_into_80_columns_uncut():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(bench_table([row(32, "quadratic:4", 1234.567, per_request_tok_s=123.45, rows_per_token=12.3)]))
    shown = console.export_text()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_caption_is_below():
    shown = lines([row(1, "ar", 1.0)], "measured somewhere")
    assert shown[-1].strip() == "measured somewhere"


def test_an_empty_summary_is_a_table_without_rows():
    assert cells([]) == []
