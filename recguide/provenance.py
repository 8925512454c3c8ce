"""What produced a file: command, versions, source revision, device and time; and how such a file is written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from recguide import __version__
from recguide.errors import RecGuideError
from recguide.kernels.backend import Choice, choose


def provenance() -> dict[str, Any]:
    """A JSON-ready record of this process and machine."""
    return {
        "command": _command(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "recguide": __version__,
        "revision": _revision(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device_name(),
        "threads": torch.get_num_threads(),
        "kernels": kernels().backend,
        "profile": profile_fingerprint(),
    }


def profile_fingerprint() -> str:
    """16 hex digits of what step times depend on besides the model: device, threads, torch, kernels."""
    facts = f"{device_name()}/{torch.get_num_threads()}/{torch.__version__}/{kernels().backend}"
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def kernels(device: torch.device | None = None) -> Choice:
    """Which version of the kernels serves a device (None: the machine's best), and why. RecGuideError tells a fault of
    the user's choice."""
    try:
        return choose(device or torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    except ValueError as fault:
        raise RecGuideError(str(fault)) from None


def _command() -> str:
    """The command line as one would type it here; absolute paths become relative ones."""
    module = getattr(sys.modules["__main__"].__spec__, "name", "")  # of python -m MODULE
    start = ["python", "-m", module] if module.startswith("recguide.") else [Path(sys.argv[0]).name]
    return shlex.join([*start, *(os.path.relpath(a) if os.path.isabs(a) else a for a in sys.argv[1:])])


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
    source = Path(__file__)

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=source.parent, capture_output=True, text=True)

    try:
        if git("ls-files", "--error-unmatch", source.name).returncode:
            return None
        dirty = git("status", "--porcelain").stdout.strip()
        return git("rev-parse", "--short=12", "HEAD").stdout.strip() + ("+" if dirty else "")
    except OSError:
        return None


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all. RecGuideError says why it could not be written."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all. RecGuideError says why it could not be written."""
    partial = _partial(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text)
        partial.replace(path)
    except OSError as fault:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise _unwritable(path, fault) from None


def check_writable(path: Path) -> None:
    """RecGuideError when ``path`` could not be written; found before the work whose result it is to hold."""
    partial = _partial(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        partial.touch()
        partial.unlink()
    except OSError as fault:
        raise _unwritable(path, fault) from None


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _unwritable(path: Path, fault: OSError) -> RecGuideError:
    return RecGuideError(f"{path}: cannot write ({fault.strerror or fault}); choose another place or free space")
