"""Figures and numbers out of a session, each with where it came from."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import plotly.graph_objects as go
from recguide.lab.figure import INK
from recguide.lab.session import LabSession

from recguide.provenance import provenance, write_json, write_text


def export_csv(session: LabSession, path: Path) -> str:
    """Every step the session remembers, a row each; provenance lies beside it as JSON. Returns what was written."""
    columns = session.watcher.steps.last()
    names = list(session.watcher.policies)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        named = dict(zip(columns, row, strict=True)) | {"policy": names[int(row[-1])]}
        writer.writerow(named.values())
    write_text(path, text.getvalue())
    write_json(path.with_suffix(".json"), about(session))
    return f"{len(columns['at'])} steps written to {path}, their origin to {path.with_suffix('.json').name}"


def export_figure(figure: go.Figure, session: LabSession, path: Path) -> str:
    """A page of its own that zooms and hovers without a kernel, on a white ground."""
    still = go.Figure(figure.to_dict())
    still.update_layout(font_color=INK["light"], paper_bgcolor="white", plot_bgcolor="white")
    note = json.dumps(about(session), indent=1)
    page = still.to_html(include_plotlyjs=True).replace("</body>", f"<pre>{note}</pre></body>")
    write_text(path, page)
    return f"figure written to {path}"


def about(session: LabSession) -> dict:
    """What a file from this session is of."""
    model = session.model
    return {
        "session": session.id,
        "model": model.name,
        "model_fingerprint": model.fingerprint,
        "dtype": model.dtype_name,
        "settings": session.settings.to_dict(),
        "provenance": provenance(),
    }
