"""Controllers that ship with the package, by model name."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def shipped_controller(model: str) -> Path | None:
    """The file of the controller for this model, if there is one."""
    path = Path(str(resources.files("recguide.data") / "controller" / f"{model}.safetensors"))
    return path if path.exists() else None
