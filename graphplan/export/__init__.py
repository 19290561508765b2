"""Exports: a plan in the words of other runtimes, or a clear refusal with the reason."""

from __future__ import annotations

from pathlib import Path


def torch_launcher_path() -> Path:
    """The script that an exported folder gets as run.py; it is copied, never imported here."""
    return Path(__file__).with_name("torch_launcher.py")
