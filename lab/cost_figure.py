"""The cost table drawn: where rows are free (memory-bound) and where each one is paid for (compute-bound)."""

from __future__ import annotations

import numpy as np

from recguide.control.cost import CostTable
from recguide.errors import RecGuideError

COLORS = ("#636efa", "#ef553b", "#00cc96", "#ab63fa", "#ffa15a", "#19d3f3", "#ff6692", "#b6e880")  # one a load


def cost_figure(table: CostTable) -> str:
    """A page of its own: step time over rows for each number of requests, and the price of a row as a map."""
    try:
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots
    except ImportError:
        raise RecGuideError("plotly is not installed; pip install plotly, or leave --html out") from None
    axes, about = table.axes, table.about["provenance"]
    figure = make_subplots(
        rows=1,
        cols=2,
        subplot_titles=(
            "Step time: flat while rows are free (memory-bound),<br>rising where they are not (compute-bound)",
            "Price of one more causal row, ms",
        ),
    )
    for i, requests in enumerate(axes.requests):
        for kind, values, dash in (("causal", table.causal, "solid"), ("drafting", table.drafting, "dot")):
            name, style = f"{requests} requests, {kind}", {"dash": dash, "color": COLORS[i % len(COLORS)]}
            figure.add_trace(go.Scatter(x=axes.rows, y=values[i, :, 0], name=name, line=style), 1, 1)
    figure.add_trace(_prices(go, table), 1, 2)
    figure.update_xaxes(title="rows of each request", type="log", tickvals=axes.rows, row=1, col=1)
    figure.update_yaxes(title="ms", type="log", row=1, col=1)
    figure.update_xaxes(title="rows of each request", row=1, col=2)
    figure.update_yaxes(title="requests", row=1, col=2)
    measured = "" if "assumed" in table.about else f", context {axes.contexts[0]}"  # a sweep says nothing of it
    figure.update_layout(
        title=f"{table.about['model_name']} in {table.identity.dtype} on {about['device']}{measured}",
        legend={"orientation": "h", "y": -0.15},  # beside the plots stands the colour bar
        margin={"t": 120},
    )
    return figure.to_html(include_plotlyjs=True)


def _prices(go, table: CostTable):
    """Slope between neighbouring row counts, per row of the whole step."""
    axes = table.axes
    rows, requests = np.array(axes.rows, float), np.array(axes.requests, float)
    slopes = np.diff(table.causal[:, :, 0], axis=1) / np.diff(rows) / requests[:, None]
    steps = [f"{a} to {b}" for a, b in zip(axes.rows, axes.rows[1:], strict=False)]
    return go.Heatmap(z=slopes, x=steps, y=[str(r) for r in axes.requests], colorbar={"title": "ms a row"})
