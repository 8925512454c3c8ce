"""Where downloaded and converted files live: the user's cache folder, or ``RECGUIDE_CACHE``."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

ENVIRONMENT = "RECGUIDE_CACHE"


def cache_dir() -> Path:
    """The cache folder (not created here)."""
    moved = os.environ.get(ENVIRONMENT)
    return Path(moved).expanduser() if moved else Path(platformdirs.user_cache_dir("recguide"))
