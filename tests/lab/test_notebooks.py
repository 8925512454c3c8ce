"""Every notebook runs from top to bottom in a kernel of its own, and what it finds is checked there.

A check is a last cell that the notebook does not have; it sees the notebook's own variables.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed; pip install -e '.[dev]'")
import nbformat  # noqa: E402

FOLDER = Path(str(resources.files("recguide.lab"))) / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LIMIT = 300  # seconds a cell may take; the issue allows five minutes a notebook on two quiet cores

CHECKS = {
    "1_inside_a_round": """
        assert stats.completion_tokens == len(request.output) == 48
        assert {fate for r in watcher.rounds for _, fate, _ in fates(r)} >= {"accepted", "correction"}
        assert min(agreeing.values()) >= 16 and agreeing["ar"] == 48
        forwards = {policy: count for policy, count, *_ in rows}
        assert forwards["ar"] == 48 and forwards["ar-row:5"] < 48 and forwards["overlap:5"] < 48
    """,
    "2_record_a_log": """
        plans = trace.tables["plans"]
        assert trace.cut == () and len(trace.tables["requests"]) == 12
        assert sum(plans["committed"].to_pylist()) == engine.stats.committed
        assert kept[1] > 0.5 and reached.sum() > 100 and share[-1] > share[0]
        assert 0 < propensity.min() < propensity.max() <= 1
    """,
    "3_train_and_read": """
        assert OUT.stat().st_size > 1000 and found and Path("controller.html").stat().st_size > 10_000
        assert audited.texts == 4 and audited.explained
    """,
    "4_live_lab": """
        import asyncio, threading, time
        def wait(holds):
            until = time.monotonic() + 60
            while not holds():
                assert time.monotonic() < until
                time.sleep(0.05)
        wait(lambda: session.settings.concurrency == 2 and session.engine.concurrency == 2)
        wait(lambda: session.engine.stats.committed > 50)
        lab.dashboard.draw()
        from recguide.lab.figure import points
        import numpy as np
        assert np.nanmax(points(lab.dashboard.figure, "aggregate")) > 0
        assert "rg-token" in lab.dashboard.rounds.value
        lab.stop()
        assert session.state == "stopped"
        assert [t for t in threading.enumerate() if t.name.startswith("recguide")] == []
    """,
    "5_pareto_frontier": """
        assert len(summary) == len(settings.policies) * 2
        by = {(r["policy"], r["concurrency"]): r for r in summary}
        for policy in settings.policies:
            assert by[policy, 8]["aggregate_tok_s"] > by[policy, 1]["aggregate_tok_s"]
            assert by[policy, 8]["per_request_tok_s"] < by[policy, 1]["per_request_tok_s"]
        assert by["ar-row:5", 1]["tpf"] > by["ar", 1]["tpf"] == 1
        assert len(figure.data) == len(settings.policies)
    """,
    "6_export_and_load": """
        assert done.returncode == 0 and "POLICY recguide" in done.stdout
        assert refused.returncode != 0 and "RecGuideError" in refused.stderr
    """,
}
IMPORTS = "from recguide.lab.tokens import fates\nfrom pathlib import Path\n"


def dedent(code: str) -> str:
    return IMPORTS + "\n".join(line.removeprefix(" " * 8) for line in code.strip("\n").splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_a_notebook_runs_and_finds_what_it_says(name, tmp_path):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(dedent(CHECKS[name])))
    client = nbclient.NotebookClient(
        notebook, timeout=LIMIT, resources={"metadata": {"path": str(tmp_path)}}, store_widget_state=False
    )
    client.execute()


def test_every_notebook_has_its_check():
    assert {path.stem for path in NOTEBOOKS} == {*CHECKS, "app"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_stored_notebooks_hold_no_outputs(path):
    """No output, no count, no widget state (5 MB a figure), and cell ids that do not change from run to run."""
    stored = json.loads(path.read_text())
    assert set(stored["metadata"]) == {"kernelspec", "language_info"}
    for number, cell in enumerate(stored["cells"]):
        assert cell["id"] == f"cell-{number:02d}"
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if p.stem != "app"], ids=lambda p: p.stem)
def test_notebooks_end_with_what_to_try_next(path):
    last = json.loads(path.read_text())["cells"][-1]
    assert last["cell_type"] == "markdown"
    assert "What to try next" in "".join(last["source"])
