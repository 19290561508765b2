"""The store: entries on disk, one file for each request, the oldest removed when it grows large."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from graphplan.cachefolder import default_folder
from graphplan.captures.entry import Entry, Evidence
from graphplan.captures.witness import SOFTWARE, still_holds
from graphplan.errors import GraphplanError
from graphplan.files import decode_noun, encode_noun, write_bytes
from graphplan.nouns.opgraph import OpGraph

MOST_BYTES = 256 << 20
"""What all entries together may take."""


def describe_request(model: str, settings: Mapping[str, Any]) -> str:
    """What is asked for, and the software that would answer, as text."""
    path, _, builder = model.partition(":") if ".py:" in model else (model, "", "")
    variables = {key: os.environ[key] for key in sorted(os.environ) if key.startswith(SOFTWARE)}
    facts = {
        "model": str(Path(path).resolve()),
        "given": path,
        "builder": builder,
        "settings": {key: [type(value).__name__, value] for key, value in settings.items()},
        "folder": str(Path.cwd()),
        "path": sys.path,
        "python": [sys.version, sys.flags.optimize, platform.platform(), platform.node()],
        "graphplan": _hash_ours(),
        "installed": _list_installed(),
        "devices": sorted(map(str, Path("/dev").glob("nvidia*"))),
        "variables": hashlib.sha256(repr(variables).encode()).hexdigest(),
    }
    return msgspec.json.encode(facts).decode()


def _hash_ours() -> str:
    """A hash of the sources that make a graph, which a developer may change."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for folder in ("frontend", "nouns", "captures"):
        for path in sorted((root / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _list_installed() -> str:
    """Names and versions of all that is installed: `torch-2.13.0.dist-info`."""
    found = []
    for entry in sys.path:
        with contextlib.suppress(OSError):
            found += [each.name for each in Path(entry).iterdir() if each.name.endswith("-info")]
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()


def captures_folder() -> Path:
    """Where entries are."""
    return default_folder() / "captures"


def _place(request: str) -> Path:
    model = msgspec.json.decode(request)["model"]
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(model).stem)[:40]
    return captures_folder() / f"{stem}-{hashlib.sha256(request.encode()).hexdigest()[:24]}.json"


def find_capture(request: str) -> OpGraph | None:
    """The graph of an entry that still holds; a file that cannot be read counts as none."""
    path = _place(request)
    try:
        entry = decode_noun(path.read_bytes(), Entry, name=str(path))
    except (OSError, GraphplanError):
        return None
    if entry.request != request or not still_holds(entry.evidence):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return entry.graph


def keep_capture(request: str, evidence: Evidence, graph: OpGraph) -> None:
    """Write an entry; no disk, no cache."""
    entry = Entry(request=request, evidence=evidence, graph=graph)
    with contextlib.suppress(OSError, GraphplanError):
        captures_folder().mkdir(parents=True, exist_ok=True)
        write_bytes(encode_noun(entry), _place(request))
        _bound_size()


def _bound_size() -> None:
    """Remove the entries that were used longest ago."""
    files = sorted(captures_folder().glob("*.json"), key=lambda path: path.stat().st_mtime)
    total = sum(path.stat().st_size for path in files)
    for path in files[:-1]:
        if total <= MOST_BYTES:
            return
        total -= path.stat().st_size
        path.unlink(missing_ok=True)
