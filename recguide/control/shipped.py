"""Controllers that ship with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from recguide.control.controller import load_controller
from recguide.models.loader import Model


def shipped_controller(model: Model) -> Path | None:
    """The file of the controller for this model, if there is one: of its name, and trained on its weights."""
    path = Path(str(resources.files("recguide.data") / "controller" / f"{model.name}.safetensors"))
    return path if path.exists() and load_controller(path).model == model.fingerprint else None
