"""A real browser on a real ``recguide lab``: servers with settings of their own, and pages that remember complaints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

READY = 90  # seconds; the machine may be busy with other tests
QUIET_SETTINGS = {"@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false"}}
FLAGS = (
    "--no-sandbox",  # tests may run as root in a container
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Server(NamedTuple):
    """A running ``recguide lab``: its address, token, working folder and log."""

    url: str
    token: str
    folder: Path
    log: Path


def pytest_collection_modifyitems(items):
    """Browser tests need a browser; playwright's own download is not used."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        reason = "pytest-playwright is not installed; pip install -e '.[dev]'"
    else:
        reason = None if CHROMIUM else "no chromium on this machine; apt-get install chromium"
    for item in items:
        if reason and "page" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args):
    return {**browser_type_launch_args, "executable_path": CHROMIUM, "args": list(FLAGS)}


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args):
    return {**browser_context_args, "viewport": {"width": 1280, "height": 1000}}


def serve(base: Path, *options: str) -> Iterator[Server]:
    """Start ``recguide lab`` away from the user's own Jupyter settings, and end it by its own process."""
    env = dict(os.environ)
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        env[name] = str(base / name)
    settings = base / "JUPYTER_CONFIG_DIR"
    for name, value in QUIET_SETTINGS.items():
        path = settings / "lab" / "user-settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    (settings / "jupyter_lab_config.json").write_text(json.dumps({"LabApp": {"expose_app_in_browser": True}}))
    folder, log = base / "work", base / "log"
    command = [sys.executable, "-m", "recguide.cli", "lab", "--no-browser", "--port=0", f"--folder={folder}", *options]
    with log.open("w") as sink:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True, env=env)
        try:
            yield _when_ready(child, folder, log)
        finally:
            child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()


def _when_ready(child: subprocess.Popen, folder: Path, log: Path) -> Server:
    """Read the address that the command prints, and wait until somebody answers there."""
    for line in child.stdout:
        if found := re.match(r"(?:lab|dashboard): (http://[^/]+/)(?:lab\?token=(\w+))?", line):
            break
    else:
        pytest.fail(f"recguide lab ended: {log.read_text()[-2000:]}")
    url, token = found[1], found[2] or ""
    until = time.monotonic() + READY
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(url + ("api" if token else "voila/static/favicon.ico"), timeout=10)
        except urllib.error.HTTPError:
            break
        except OSError:
            time.sleep(0.2)
        else:
            break
    return Server(url, token, folder, log)


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory):
    yield from serve(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="session")
def app_server(tmp_path_factory):
    yield from serve(tmp_path_factory.mktemp("app"), "--app")


@pytest.fixture
def shots(tmp_path) -> Path:
    """Where screenshots go: RECGUIDE_SHOTS, to look at them, or a folder that is thrown away."""
    folder = Path(os.environ.get("RECGUIDE_SHOTS", tmp_path / "shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
