"""The cache folder: where measurements and captures are kept for the next command."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def default_folder() -> Path:
    """GRAPHPLAN_CACHE_DIR, else the folder `graphplan` of the user's cache."""
    if chosen := os.environ.get("GRAPHPLAN_CACHE_DIR"):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "graphplan"
    try:
        return Path.home() / ".cache" / "graphplan"
    except RuntimeError:  # A user without a home, as in containers.
        return Path(tempfile.gettempdir()) / f"graphplan-{os.getuid()}"
