"""Controllers that ship with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from recguide.control.controller import Controller, load_controller
from recguide.models.loader import Model


def shipped_controller(model: Model) -> tuple[Path, Controller] | None:
    """The controller of this model and its file, if there is one: of its name, and trained on its weights."""
    path = Path(str(resources.files("recguide.data") / "controller" / f"{model.name}.safetensors"))
    if not path.exists():
        return None
    found = load_controller(path)
    return (path, found) if found.model == model.fingerprint else None
