"""Attacks made by hand: files that try to run code, to write, to hang or to fill the memory.

Each is a change of a sound file; the marker stands for a file that must never come to exist.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from graphplan.errors import GraphplanError
from graphplan_runtime.checkpoints.snapshot import restore_scheduler
from tools.attack_edits import (
    CAPTURES,
    CLUSTERS,
    GRAPHS,
    LATESTS,
    LEARNED,
    LINKS,
    MANIFESTS,
    MARKER,
    PLANS,
    TABLES,
    TENSORS,
    TIMELINES,
    TOMLS,
    Edit,
    edit,
)
from tools.attack_kinds import Reader
from tools.attack_programs import list_programs
from tools.attack_readers import load_program
from tools.attack_watch import Case


def check_marker(name: str, kind: str, run: Callable[[Path], str | None]) -> Case:
    """A case that also fails when the marker exists afterwards: C++ raises no audit events."""

    def guarded(folder: Path) -> str | None:
        try:
            wrong = run(folder)
        except GraphplanError:
            if not MARKER.exists():
                raise
        if MARKER.exists():
            MARKER.unlink()
            return "acted: the marker was made"
        return wrong

    return Case(name, kind, guarded)


def try_file(reader: Reader, text: bytes, folder: Path) -> str | None:
    """Read a file; when it is sound, do with it all that users do."""
    reader.place(folder, text)
    refusal: GraphplanError | None = None
    try:
        reader.read(folder)
    except GraphplanError as error:
        refusal = error
    for use in reader.uses:
        wrong = use(folder)
        if wrong is not None:
            return wrong
    if refusal is not None:
        raise refusal
    return None


def _resume_injected(state: Mapping[str, Any]) -> Callable[[Path], str | None]:
    """A checkpoint whose schedule gives attributes that are not its own."""

    def run(folder: Path) -> str | None:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        restore_scheduler(scheduler, state)
        return None

    return run


def _place_special(reader: Reader, make: Callable[[Path], None]) -> Callable[[Path], str | None]:
    def run(folder: Path) -> str | None:
        reader.place(folder, reader.seeds[0])
        path = folder / reader.name
        path.unlink()
        make(path)
        reader.read(folder)
        return None

    return run


def _place_link(reader: Reader, name: str) -> Callable[[Path], str | None]:
    """A folder of checkpoints with a link to a place outside, where a run would write."""

    def run(folder: Path) -> str | None:
        reader.place(folder, reader.seeds[0])
        path = folder / "saved" / name
        path.unlink(missing_ok=True)
        path.symlink_to(MARKER)
        for use in reader.uses:
            use(folder)
        return None

    return run


def list_attacks(readers: Mapping[str, Reader]) -> Iterator[Case]:
    """All attacks, by kind of file."""
    edits: dict[str, Mapping[str, Edit]] = {
        "graph": GRAPHS, "plan": PLANS, "table": TABLES, "learned": LEARNED, "cluster": CLUSTERS,
        "timeline": TIMELINES, "capture": CAPTURES, "checkpoint manifest.json": MANIFESTS,
    }  # fmt: skip
    texts: dict[str, Mapping[str, bytes]] = {
        "toml": TOMLS,
        "checkpoint latest": LATESTS,
        "plan.gz": {"a bomb": gzip.compress(b" " * (80 << 20)), "half": b"\x1f\x8b\x08\x00"},
        "failure": {"deep JSON": b"[" * 100_000, "no JSON": b"\xff"},
        "status": {"an unknown phase": struct.pack("<4q", 99, 0, 0, 0), "31 bytes": bytes(31)},
        "cache": {"negative times": b'{"x": {"forward_s": -1}}', "deep": b"[" * 100_000},
        "costset": {"a graph": readers["graph"].seeds[0], "deep": b'{"x":' * 100_000},
        "workload": {"deep": b'{"x":' * 100_000, "a plan": readers["plan"].seeds[0]},
    }
    for kind, changes in edits.items():
        texts = texts | {kind: {n: edit(readers[kind].seeds[0], c) for n, c in changes.items()}}
    tensors = readers["checkpoint rank-0000.safetensors"]
    texts[tensors.kind] = dict(_list_tensor_files())
    for kind, named in texts.items():
        for name, text in named.items():
            yield check_marker(name, kind, _bind(readers[kind], text))
    special = {
        "a pipe": os.mkfifo,
        "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    }
    for name, make in special.items():
        yield check_marker(name, tensors.kind, _place_special(tensors, make))
    for name in LINKS:
        yield check_marker(f"{name} is a link", "checkpoint", _place_link(tensors, name))
    for key, value in {"optimizer": 5, "step": "x", "get_lr": None, "_last_lr": [{}]}.items():
        yield check_marker(f"a schedule's {key}", "checkpoint", _resume_injected({key: value}))
    pt2 = readers["pt2"]._replace(uses=(load_program,))
    for name, content in list_programs(pt2.seeds[0]).items():
        yield check_marker(name, "pt2", _bind(pt2, content))


def _bind(reader: Reader, text: bytes) -> Callable[[Path], str | None]:
    return lambda folder: try_file(reader, text, folder)


def _list_tensor_files() -> Iterator[tuple[str, bytes]]:
    data = bytes(24)
    for name, entry in TENSORS.items():
        text = json.dumps({"w": {"dtype": "F32"} | entry}).encode()
        yield name, struct.pack("<Q", len(text)) + text + data
    yield "a header of 2^63 bytes", struct.pack("<Q", 1 << 63) + data
    yield "deep JSON", struct.pack("<Q", 200_000) + b"[" * 200_000
    yield "metadata", struct.pack("<Q", 38) + b'{"__metadata__": {"format": "pt"}}    ' + data
