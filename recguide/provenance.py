"""What produced a file: command, versions, source revision, device and time; and how such a file is written."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from recguide import __version__
from recguide.errors import RecGuideError


def provenance() -> dict[str, Any]:
    """A JSON-ready record of this process and machine."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "recguide": __version__,
        "revision": _revision(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device_name(),
        "threads": torch.get_num_threads(),
    }


def device_name() -> str:
    """The GPU's name, or the processor's as the system gives it."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return f"{named or platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def _revision() -> str | None:
    """The git commit of the source tree, with a + when it is changed; None outside a checkout."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True)
        dirty = subprocess.run(["git", "status", "--porcelain"], cwd=here, capture_output=True, text=True)
    except OSError:
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "") if head.returncode == 0 else None


def write_json(path: Path, value: Any) -> None:
    """Write a file whole or not at all. RecGuideError says why it could not be written."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(value, indent=1) + "\n")
        partial.replace(path)
    except OSError as fault:
        raise RecGuideError(f"{path}: cannot write ({fault.strerror or fault})") from None
