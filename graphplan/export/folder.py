"""Exported folders: texts that say a plan, and code of ours that reads them.

The code is copied as it is. Nothing of a plan is ever written into code: names and paths, which
come from files, stand in JSON and CSV.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from graphplan.errors import InvalidOption
from graphplan.files import write_bytes


def fill_folder(
    folder: Path,
    texts: Mapping[str, str | bytes],
    *,
    copies: Mapping[str, str | Path],
) -> None:
    """Write the texts, and the copies by their name: files of this package, or paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in copies.items():
            path = Path(__file__).with_name(source) if isinstance(source, str) else source
            shutil.copyfile(path, folder / name)
    except OSError as error:
        raise InvalidOption(
            f"Cannot fill {folder}: {error.strerror or error}.",
            remedy="Give a folder that can be written with -o, and the model file with --model.",
        ) from error
    for name, text in texts.items():
        write_bytes(text.encode() if isinstance(text, str) else text, folder / name)
