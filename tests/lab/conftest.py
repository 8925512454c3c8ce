"""A real browser on a real ``recguide lab``, where there is a browser."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recguide.lab.robot_server import FLAGS, chromium, running_lab

MISSING = None if chromium() else "no chromium on this machine; apt-get install chromium"


def pytest_collection_modifyitems(items):
    for item in items:
        if MISSING and "page" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args):
    return {**browser_type_launch_args, "executable_path": chromium(), "args": list(FLAGS)}


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args):
    return {**browser_context_args, "viewport": {"width": 1280, "height": 1000}}


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory):
    with running_lab(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="session")
def app_server(tmp_path_factory):
    with running_lab(tmp_path_factory.mktemp("app"), "--app") as server:
        yield server


@pytest.fixture
def shots(tmp_path) -> Path:
    """Where screenshots go: RECGUIDE_SHOTS, to look at them, or a folder that is thrown away."""
    folder = Path(os.environ.get("RECGUIDE_SHOTS", tmp_path / "shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
