"""A real ``recguide lab`` for tests and the soak, away from the user's own Jupyter settings, and the browser to use."""

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
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from recguide.lab.serve import end

from recguide.errors import RecGuideError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

PATIENCE = 20  # seconds for a process to end
READY = 90  # seconds for a server to answer; the machine may be busy
OWN_SETTINGS = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
NO_NEWS = "lab/user-settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
FLAGS = (
    "--no-sandbox",  # tests may run as root in a container
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def chromium() -> str | None:
    """The system's browser, if there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def launch(play: Playwright) -> Browser:
    """The system's browser, started. RecGuideError where there is none."""
    return play.chromium.launch(executable_path=_browser(), args=list(FLAGS))


def _browser() -> str:
    found = chromium()
    if found is None:
        raise RecGuideError("no chromium on this machine; apt-get install chromium")
    return found


@contextmanager
def running_browser(base: Path) -> Iterator[str]:
    """The system's browser on its own, and the address where playwright may connect to it and leave again: while it is
    connected, a page grows by some megabytes a minute that are the debugger's."""
    found = _browser()
    options = ("--headless=new", "--remote-debugging-port=0", f"--user-data-dir={base}", *FLAGS)
    child = subprocess.Popen([found, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    told = base / "DevToolsActivePort"
    try:
        until = time.monotonic() + READY
        while not (told.exists() and told.read_text().strip()):
            if child.poll() is not None or time.monotonic() > until:
                raise RecGuideError(f"{found} does not start (exit status {child.poll()})")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{told.read_text().split()[0]}"
    finally:
        end(child, PATIENCE)


class Server(NamedTuple):
    """A running ``recguide lab``: its address, token, working folder and log."""

    url: str
    token: str
    folder: Path
    log: Path


@contextmanager
def running_lab(base: Path, *options: str) -> Iterator[Server]:
    """``recguide lab`` away from the user's own Jupyter settings; ended by its own process."""
    settings = base / OWN_SETTINGS[0]
    (settings / NO_NEWS).parent.mkdir(parents=True)
    (settings / NO_NEWS).write_text(json.dumps({"fetchNews": "false"}))
    (settings / "jupyter_lab_config.json").write_text(json.dumps({"LabApp": {"expose_app_in_browser": True}}))
    env = {**os.environ, **{name: str(base / name) for name in OWN_SETTINGS}}
    folder, log = base / "work", base / "log"
    command = [sys.executable, "-m", "recguide.cli", "lab", "--no-browser", "--port=0", f"--folder={folder}", *options]
    with log.open("w") as sink:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True, env=env)
        try:
            yield _when_ready(child, folder, log)
        finally:
            end(child, PATIENCE)


def _when_ready(child: subprocess.Popen, folder: Path, log: Path) -> Server:
    """Read the address that the command prints, and wait until somebody answers there."""
    lines = (re.match(r"(?:lab|dashboard): (http://[^/]+/)(?:lab\?token=(\w+))?", line) for line in child.stdout)
    found = next(filter(None, lines), None)
    if found is None:
        raise RecGuideError(f"recguide lab ended: {log.read_text()[-2000:]}")
    server = Server(found[1], found[2] or "", folder, log)
    until = time.monotonic() + READY
    while time.monotonic() < until and not _answers(server.url + "static/favicon.ico"):
        time.sleep(0.2)
    return server


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=10)
    except urllib.error.HTTPError:
        return True  # an answer, if not a good one
    except OSError:
        return False
    return True
