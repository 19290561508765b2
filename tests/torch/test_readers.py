"""No reader of files compiles, executes, imports, writes, starts a process or opens a socket."""

from __future__ import annotations

import ast
import os
import shutil
from pathlib import Path

import pytest

from graphplan.errors import GraphplanError
from tools.attack import warm_up
from tools.attack_kinds import READING, ROOT, Reader
from tools.attack_readers import list_readers
from tools.attack_watch import RUNNING, watch

CALLS = {
    "open", "fdopen", "read_bytes", "read_text", "read_noun", "decode_noun", "read_header",
    "loads", "load", "decode", "GzipFile", "ZipFile", "mmap", "literal_eval",
    "unpack", "genops", "fromfile", "read_training", "read_workload",
}  # fmt: skip
"""Calls by which a module opens or decodes something."""
HARMLESS = {
    "recast.py", "stage.py", "stashed.py", "losses.py", "flight.py", "pipeline.py", "gathered.py",
}  # fmt: skip
"""Modules with an `open` of their own."""


def list_calls(path: Path) -> set[str]:
    """Which of these calls a module makes; `text.decode()` of bytes does not count."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            name = node.func.id
        elif isinstance(node.func, ast.Attribute):
            name = node.func.attr
            holder = ast.unparse(node.func.value)
            of_bytes = name == "decode" and holder not in ("msgspec.json", "msgspec.msgpack")
            if of_bytes or (name == "open" and path.name in HARMLESS):
                continue
        else:
            continue
        if name in CALLS:
            found.add(name)
    return found


def test_every_module_that_reads_is_listed() -> None:
    """A new reader must be added to tools/attack_kinds.py, where."""
    folders = (ROOT / "graphplan", ROOT / "runtime", ROOT / "tools" / "workloads")
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    calls = {str(path.relative_to(ROOT)): list_calls(path) for path in paths}
    reading = {name: sorted(found) for name, found in calls.items() if found}
    assert {name: found for name, found in reading.items() if name not in READING} == {}
    assert READING.keys() - reading.keys() == set()


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reader, ...]:
    """All readers, read once before anybody looks."""
    folder = tmp_path_factory.mktemp("readers")
    found = list_readers(folder)
    warm_up([reader.hurry()._replace(uses=()) for reader in found], folder)
    return found


def test_readers_only_read(readers: tuple[Reader, ...], tmp_path: Path) -> None:
    """Sound files, empty ones and files cut in half: each is read, or refused, and no more."""
    kinds = {kind for each in READING.values() if not each.startswith("no ") for kind in
             each.split(", ")}  # fmt: skip
    assert kinds - {"all", "checkpoint"} <= {reader.kind for reader in readers}
    for number, reader in enumerate(readers):
        for text in (*reader.seeds, b"", reader.seeds[0][: len(reader.seeds[0]) // 2]):
            folder = tmp_path / f"{number}-{len(text)}"
            reader.place(folder, text)
            refused = None
            with watch() as seen:
                try:
                    reader.read(folder)
                except GraphplanError as error:
                    refused = error
            assert seen.found == [], reader.kind
            assert refused is None or text not in reader.seeds, f"{reader.kind}: {refused}"


def test_the_watch_sees_what_it_must(tmp_path: Path) -> None:
    """The hook is not blind: code, imports, files, processes and sockets are all noted."""
    import socket
    import subprocess

    with watch(tmp_path) as seen:
        (tmp_path / "inside").write_text("")
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_text("")
        shutil.rmtree(tmp_path / "folder")
    assert seen.found == []
    with watch(tmp_path / "elsewhere") as seen:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_text("")
        shutil.rmtree(tmp_path / "folder")
        os.kill(os.getpid(), 0)
    assert {found.split()[0] for found in seen.found} == {
        "os.mkdir", "open", "shutil.rmtree", "os.remove", "os.rmdir"
    }  # fmt: skip
    with watch(allowed=RUNNING) as seen:
        eval("1 + 1")
        (tmp_path / "file").write_text("")
    assert [found.split()[0] for found in seen.found] == ["open"]
    with watch() as seen:
        eval("1 + 1")
        (tmp_path / "file").write_text("")
        subprocess.run(["true"], check=True)
        socket.socket().close()
    told = " ".join(seen.found)
    for word in ("compile", "exec", "open for writing", "subprocess.Popen", "socket.__new__"):
        assert word in told
