"""``recguide lab``: a working copy of the notebooks, and JupyterLab or Voila started on it as a child process.

Knows nothing of sessions or widgets; those live in the kernels that the server starts.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from recguide.errors import RecGuideError

APP = "app.ipynb"
TOKEN = "JUPYTER_TOKEN"
IDLE = 600  # seconds after which the app's kernel ends when its page is gone


def copy_notebooks(folder: Path) -> list[str]:
    """Copy the notebooks that are not in ``folder`` yet; returns the names of those that were there and differ.

    What a person changed stays.
    """
    kept = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sorted(Path(str(resources.files("recguide.lab"))).joinpath("notebooks").glob("*.ipynb")):
            target = folder / source.name
            if not target.exists():
                shutil.copyfile(source, target)
            elif target.read_bytes() != source.read_bytes():
                kept.append(target.name)
    except OSError as fault:
        raise RecGuideError(f"{folder}: cannot write ({fault.strerror or fault}); give another --folder") from None
    return kept


def serve(folder: Path, *, app: bool, port: int, browser: bool, say: Callable[[str, str], None]) -> int:
    """Run the server until it ends; Ctrl-C ends it. Returns its exit status."""
    _require("voila" if app else "jupyterlab", "ipywidgets", "plotly", "anywidget")
    port = _free_port(port)
    token = secrets.token_hex(16)
    command = _voila(port, browser) if app else _jupyterlab(port, browser)
    where = f"http://127.0.0.1:{port}/" + ("" if app else f"lab?token={token}")
    say("folder", str(folder))
    say("dashboard" if app else "lab", where)
    child = subprocess.Popen(command, cwd=folder, env=os.environ if app else {**os.environ, TOKEN: token})
    try:
        return child.wait()
    except KeyboardInterrupt:
        end(child)
        return 0


def _jupyterlab(port: int, browser: bool) -> list[str]:
    return [
        *_module("jupyterlab", port, browser),
        "--port-retries=0",
        "--ServerApp.root_dir=.",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        *(["--allow-root"] if _is_root() else []),  # in a container; it listens on this machine only, with a token
    ]


def _voila(port: int, browser: bool) -> list[str]:
    return [
        *_module("voila", port, browser),
        APP,
        "--Voila.ip=127.0.0.1",
        "--show_tracebacks=True",  # else the page says only that there was an error
        f"--MappingKernelManager.cull_idle_timeout={IDLE}",
        "--MappingKernelManager.cull_interval=60",
    ]


def _module(name: str, port: int, browser: bool) -> list[str]:
    return [sys.executable, "-m", name, f"--port={port}", *([] if browser else ["--no-browser"])]


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _require(*names: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise RecGuideError(f"{', '.join(missing)} not installed; pip install 'recguide[lab]'")


def _free_port(wanted: int) -> int:
    """The port itself, or a free one for 0; RecGuideError when it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as fault:
            raise RecGuideError(f"port {wanted} is not free ({fault.strerror}); give another --port") from None
        return probe.getsockname()[1]


def end(child: subprocess.Popen, patience: float = 10) -> None:
    """Ask a process to end, and insist after so many seconds."""
    child.terminate()
    try:
        child.wait(patience)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
