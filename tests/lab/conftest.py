"""A running session, and a real browser on a real ``recguide lab``, where there is a browser."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recguide.lab.robot_server import chromium, launch, running_lab

from tests.lab.helpers import make_session


@pytest.fixture
def session(tmp_path):
    """A session on the tiny model, running."""
    made = make_session(tmp_path)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def page():
    """A page of the system's chromium. Playwright's loop ends with the test: no other test could run one beside it."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; pip install -e '.[dev]'")
    if chromium() is None:
        pytest.skip("no chromium on this machine; apt-get install chromium")
    with api.sync_playwright() as play, launch(play) as browser:
        yield browser.new_page(viewport={"width": 1280, "height": 1000})


@pytest.fixture
def lab_server(page, tmp_path):
    with running_lab(tmp_path) as server:
        yield server


@pytest.fixture
def app_server(page, tmp_path):
    with running_lab(tmp_path, "--app") as server:
        yield server


@pytest.fixture
def shots(tmp_path) -> Path:
    """Where screenshots go: RECGUIDE_SHOTS, to look at them, or a folder that is thrown away."""
    folder = Path(os.environ.get("RECGUIDE_SHOTS", tmp_path / "shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
