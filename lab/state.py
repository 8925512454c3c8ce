"""The lab's state as one JSON file: settings, controller and pinned runs. It outlives a kernel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recguide.lab.measure import Measurement, measurement_from
from recguide.lab.settings import LabSettings, settings_from

from recguide.errors import RecGuideError
from recguide.provenance import provenance, write_json

SCHEMA = 1
NAME = "lab-state.json"


@dataclass(frozen=True)
class LabState:
    settings: LabSettings
    pins: tuple[Measurement, ...] = ()


def save_state(path: Path, settings: LabSettings, pins: Sequence[Measurement]) -> None:
    """Write the whole state or nothing."""
    made = {"settings": settings.to_dict(), "pins": [pin.to_dict() for pin in pins]}
    write_json(path, {"schema": SCHEMA, **made, "provenance": provenance()})


def load_state(path: Path) -> LabState:
    """RecGuideError when there is no such file, or it is damaged, of another schema, or holds unknown settings."""
    try:
        raw = json.loads(path.read_text())
        schema, settings, pins = raw["schema"], raw["settings"], raw["pins"]
    except FileNotFoundError:
        raise RecGuideError(f"{path}: no such file; 'Save state' writes one") from None
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise RecGuideError(f"{path}: not a lab state ({fault!r})") from None
    if schema != SCHEMA:
        raise RecGuideError(f"{path}: lab state of schema {schema}, this version reads {SCHEMA}")
    try:
        return LabState(settings_from(settings), tuple(measurement_from(pin) for pin in pins))
    except (RecGuideError, TypeError) as fault:
        raise RecGuideError(f"{path}: {fault}") from None
