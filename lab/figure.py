"""The dashboard's one figure: seven panels, built once and only ever given new arrays.

A plotly widget costs 5 MB of script and is never freed by the browser, so it is not rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from recguide.lab.live_figure import LiveFigure
from recguide.lab.series import AGO, STEP_AXIS, STEPS, WINDOW

HEIGHT = 880
SIZES = (0, 1, 2, 3, 4, 6, 8, 12, 16)
SIZE_NAMES = ["0", "1", "2", "3", "4+", "6+", "8+", "12+", "16+"]
BRANCHES = ("correction", "continuation", "open")
INK = {"light": "#222222", "dark": "#e8e8e8"}
GRID = "rgba(128,128,128,0.25)"
# distinct in hue and in lightness, on white and on black; panels do not rely on colour alone
COLOURS = ("#3b7dd8", "#e08214", "#2ca25f", "#c0569b", "#8c6bb1", "#b8860b", "#17a2b8", "#d6604d")
ROWS = {  # column of the watcher: name, colour
    "trunk": ("verify", COLOURS[0]),
    "draft": ("draft", COLOURS[1]),
    "correction": ("correction", COLOURS[3]),
    "continuation": ("continuation", COLOURS[2]),
    "open": ("open", COLOURS[4]),
}
TITLES = (
    "<b>Throughput</b>: what all get, and what each gets",
    "<b>Pareto plane</b>: up and to the right is better",
    "<b>Rows bought</b> in each of the last steps",
    "<b>Step time</b>: measured and predicted; tokens earned per ms",
    "<b>Reliability</b>: on the diagonal is honest",
    "<b>Drafts verified</b> at once, % of steps",
    "<b>Branches</b> whose draft was used, %",
)


def build() -> LiveFigure:
    """All panels, empty."""
    wide, third = {"colspan": 3}, {"colspan": 2}
    grid = make_subplots(
        rows=3,
        cols=6,
        specs=[
            [wide | {"secondary_y": True}, None, None, wide, None, None],
            [wide, None, None, wide | {"secondary_y": True}, None, None],
            [third, None, third, None, third, None],
        ],
        subplot_titles=TITLES,
        vertical_spacing=0.13,
        horizontal_spacing=0.135,
    )
    for trace, row, column, second in _traces():
        grid.add_trace(trace, row, column, secondary_y=second)
    _axes(grid)
    grid.update_annotations(font_size=13, yshift=5)
    grid.update_layout(
        height=HEIGHT,
        autosize=True,
        margin={"l": 55, "r": 15, "t": 60, "b": 45},  # the toolbar hovers above the titles
        uirevision="kept",  # a person's zoom outlives redraws
        legend={"orientation": "h", "y": -0.08, "font_size": 11, "traceorder": "normal"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
        bargap=0.25,
    )
    figure = LiveFigure(grid)
    paint(figure, "light")
    return figure


def _empty(points: int) -> np.ndarray:
    return np.full(points, np.nan, np.float32)


def _traces():
    """(trace, row, column, on the second y axis); names are how ``update`` finds them."""
    yield _line("aggregate", AGO, COLOURS[0], "all requests, tokens/s"), 1, 1, False
    yield _line("each", AGO, COLOURS[1], "each request, tokens/s", dash="dot"), 1, 1, True
    changes = _marks("changes", "triangle-down", "knobs turned", "%{hovertext}<extra></extra>")
    yield changes.update(textposition="top left"), 1, 1, False  # the newest stands at the right end
    for name, symbol, shown in (
        ("trail", "circle", "live, a point every 2 s"),
        ("now", "star", "live, newest of each policy"),
        ("pins", "diamond", "baselines and pinned runs"),
    ):
        tip = "%{hovertext}<br>each %{x:.1f}, all %{y:.1f} tokens/s<extra></extra>"
        yield _marks(name, symbol, shown, tip, labelled=name != "trail"), 1, 4, None
    for column, (shown, colour) in ROWS.items():
        stack = {"stackgroup": "rows", "line": {"width": 0, "shape": "hvh"}, "fillcolor": colour}
        yield go.Scatter(meta=column, x=STEP_AXIS, y=np.zeros(STEPS, np.float32), name=shown, **stack), 2, 1, None
    yield _line("measured", STEP_AXIS, COLOURS[0], "measured, ms"), 2, 4, False
    yield _line("predicted", STEP_AXIS, COLOURS[3], "predicted, ms", dash="dash"), 2, 4, False
    yield _line("achieved", STEP_AXIS, COLOURS[2], "tokens per ms", dash="dot"), 2, 4, True
    yield _line("price", STEP_AXIS, COLOURS[5], "price, tokens per ms", dash="dashdot"), 2, 4, True
    ends = np.array([0, 1], np.float32)
    yield go.Scatter(meta="honest", x=ends, y=ends, line={"color": "#888", "dash": "dot"}, showlegend=False), 3, 1, None
    tip = "predicted %{x:.2f}, came true %{y:.2f}<br>%{hovertext}<extra></extra>"
    curve = _marks("reliability", "circle", "", tip, labelled=False)
    curve.update(mode="lines+markers", line={"color": COLOURS[0], "width": 1.8}, showlegend=False)
    yield curve, 3, 1, None
    yield _bars("mix", SIZE_NAMES, COLOURS[0], "%{x} drafts: %{y:.0f}% of steps<extra></extra>"), 3, 3, None
    yield _bars("hits", list(BRANCHES), COLOURS[2], "%{x}: %{y:.0f}% used<extra></extra>"), 3, 5, None


def _line(key: str, x: np.ndarray, colour: str, name: str, dash: str = "solid") -> go.Scatter:
    style = {"color": colour, "width": 1.8, "dash": dash}
    return go.Scatter(meta=key, x=x, y=_empty(len(x)), mode="lines", line=style, name=name)


def _marks(key: str, symbol: str, name: str, tip: str, *, labelled: bool = True) -> go.Scatter:
    marker = {"symbol": symbol, "size": 10 if labelled else 5, "cmin": 0, "cmax": len(COLOURS) - 1}
    marker["colorscale"] = [[i / (len(COLOURS) - 1), colour] for i, colour in enumerate(COLOURS)]
    mode = "markers+text" if labelled else "markers"
    shown = {"hovertemplate": tip, "textposition": "top center", "cliponaxis": False}
    return go.Scatter(meta=key, mode=mode, marker=marker, name=name, **shown)


def _bars(key: str, names: list[str], colour: str, tip: str) -> go.Bar:
    made = {"marker_color": colour, "hovertemplate": tip, "showlegend": False, "texttemplate": "%{y:.0f}"}
    return go.Bar(meta=key, x=names, y=_empty(len(names)), textposition="outside", cliponaxis=False, **made)


def _axes(grid: go.Figure) -> None:
    for place, title, limits in (
        ((1, 1), "seconds ago", [-WINDOW, 0]),
        ((1, 4), "each request, tokens/s", None),
        ((2, 1), "steps ago", [1 - STEPS, 0]),
        ((2, 4), "steps ago", [1 - STEPS, 0]),
        ((3, 1), "predicted chance", [0, 1]),
        ((3, 3), "drafts", None),
        ((3, 5), "kind of branch", None),
    ):
        grid.update_xaxes(title_text=title, title_standoff=4, range=limits, row=place[0], col=place[1])
    for place, title, second in (
        ((1, 1), "all, tokens/s", False),
        ((1, 1), "each", True),
        ((1, 4), "all, tokens/s", None),
        ((2, 1), "rows", None),
        ((2, 4), "ms", False),
        ((2, 4), "per ms", True),
        ((3, 1), "came true", None),
        ((3, 3), "%", None),
        ((3, 5), "%", None),
    ):
        grid.update_yaxes(title_text=title, title_standoff=4, row=place[0], col=place[1], secondary_y=second)
    grid.update_yaxes(rangemode="tozero")
    grid.update_yaxes(range=[0, 1], row=3, col=1)
    grid.update_xaxes(tickangle=0, tickfont_size=10, row=3, col=3)
    grid.update_xaxes(tickangle=0, tickfont_size=10, row=3, col=5)
    grid.update_yaxes(range=[0, 112], row=3, col=3)
    grid.update_yaxes(range=[0, 112], row=3, col=5)
    grid.update_xaxes(rangemode="tozero", row=1, col=4)
    grid.update_xaxes(gridcolor=GRID, zerolinecolor=GRID)
    grid.update_yaxes(gridcolor=GRID, zerolinecolor=GRID)
    for row, column in ((1, 1), (2, 4)):
        grid.update_yaxes(showgrid=False, tickmode="auto", secondary_y=True, row=row, col=column)


def paint(figure: go.Figure, theme: str) -> None:
    """Ink for a light or a dark page; grounds are transparent and everything else does for both."""
    figure.layout.font.color = INK[theme]


def update(figure: go.FigureWidget, arrays: Mapping[str, Mapping[str, Any]]) -> None:
    """New arrays for traces by key: ``{"aggregate": {"x": ..., "y": ...}}``; nothing is sent for those that are equal.

    A message names every property for every trace in it: the browser forgets what a message leaves open for one trace
    and sets for another. So places go in one, and what only marks have in a second.
    """
    marks = {key: values for key, values in arrays.items() if "text" in values}
    _send(figure, arrays, ("x", "y"))
    _send(figure, marks, ("text", "hovertext", "marker.color"))


def _send(figure: go.FigureWidget, arrays: Mapping[str, Mapping[str, Any]], names: tuple[str, ...]) -> None:
    places = {trace.meta: number for number, trace in enumerate(figure.data)}
    fresh = [key for key in arrays if any(_differs(figure.data[places[key]][n], arrays[key][n]) for n in names)]
    if fresh:
        data = {name: [arrays[key][name] for key in fresh] for name in names}
        figure.plotly_update(restyle_data=data, trace_indexes=[places[key] for key in fresh])


def _differs(old: Any, new: np.ndarray) -> bool:
    if old is None or len(old) != len(new):
        return True
    numbers = new.dtype != object
    return not np.array_equal(np.asarray(old, new.dtype), new, equal_nan=numbers)


def points(figure: go.Figure, key: str) -> np.ndarray:
    """A trace's y values as they are now."""
    found = next(trace for trace in figure.data if trace.meta == key)
    return np.asarray(found.y if found.y is not None else (), np.float32)
