"""The capture cache: the same question is answered from disk, a changed one never is."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from graphplan.captures.witness import watching

DRIVER = """
import importlib.util, json, sys
from graphplan.captures import load_model_graph
from graphplan.nouns.opgraph import OpGraph

def capture(model, settings):
    print("captured")
    sys.path.insert(0, model.rpartition("/")[0])
    spec = importlib.util.spec_from_file_location("graphplan_model", model)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    value = str(module.build(**settings))
    nothing = dict(inputs=(), weights=(), ops=(), outputs=())
    return OpGraph(name=value, batch="none", batch_size=1, **nothing)

model, settings = sys.argv[1], json.loads(sys.argv[2])
print(load_model_graph(model, settings, capture=capture).name)
"""
MODEL = """
import os, sys
import helper
from pack import part
try:
    import fast
except ImportError:
    fast = None

def build(width=1):
    table = os.path.join(os.path.dirname(__file__), "table.txt")
    text = open(table).read()
    return (width, helper.VALUE, part.VALUE, os.environ.get("MODEL_SIZE"), text, fast is None)
"""


class Place:
    """A folder with a model, and a cache of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.variables: dict[str, str] = {}
        self.settings: dict[str, object] = {}
        self.arguments: list[str] = []
        self.folder = root
        for name, text in {
            "model.py": MODEL,
            "helper.py": "VALUE = 1\n",
            "pack/__init__.py": "",
            "pack/part.py": "VALUE = 1\n",
            "table.txt": "a",
        }.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        """Write a file, as old as files are that nobody has just saved."""
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.utime(path, (1e9, 1e9))

    def ask(self) -> tuple[bool, str]:
        """Whether the model was captured, and the answer."""
        given = [str(self.root / "model.py"), json.dumps(self.settings), *self.arguments]
        found = subprocess.run(
            [sys.executable, "-c", DRIVER, *given],
            capture_output=True,
            text=True,
            check=True,
            cwd=self.folder,
            env={**os.environ, "GRAPHPLAN_CACHE_DIR": str(self.root / "cache"), **self.variables},
        )
        *captured, answer = found.stdout.splitlines()
        return captured == ["captured"], answer


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def change_folder(place: Place) -> None:
    place.folder = place.root / "pack"


CHANGES: dict[str, Callable[[Place], None]] = {
    "the model file": lambda p: p.write("model.py", MODEL.replace("width=1", "width=2")),
    "a helper": lambda p: p.write("helper.py", "VALUE = 2\n"),
    "a helper of the same size and age": lambda p: p.write("helper.py", "VALUE = 3\n"),
    "a module of a package": lambda p: p.write("pack/part.py", "VALUE = 2\n"),
    "a package's own file": lambda p: p.write("pack/__init__.py", "from . import part\n"),
    "a setting": lambda p: p.settings.update(width=2),
    "the type of a setting": lambda p: p.settings.update(width=1.0),
    "a variable that it reads": lambda p: p.variables.update(MODEL_SIZE="3"),
    "a variable of a library": lambda p: p.variables.update(TORCH_LOGS="all"),
    "a file that it reads": lambda p: p.write("table.txt", "b"),
    "a module that was missing": lambda p: p.write("fast.py", ""),
    "a package in place of a helper": lambda p: p.write("helper/__init__.py", "VALUE = 9\n"),
    "a module that hides a library's": lambda p: p.write("msgspec.py", ""),
    "a module that hides the standard one": lambda p: p.write("json.py", ""),
    "the folder it starts in": change_folder,
    "the import path": lambda p: p.variables.update(PYTHONPATH=str(p.root / "pack")),
}


def test_the_same_question_is_answered_from_disk(place: Place) -> None:
    """The second time nothing runs, also with another command line and other variables."""
    captured, answer = place.ask()
    assert captured
    place.arguments = ["-o", "other.json"]
    place.variables["UNRELATED"] = "1"
    assert place.ask() == (False, answer)


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_stale_is_ever_answered(place: Place, change: str) -> None:
    """Whatever the model could have read has changed: it is captured again."""
    assert place.ask()[0]
    CHANGES[change](place)
    try:
        assert place.ask()[0]
    except subprocess.CalledProcessError as error:  # a hidden json or msgspec breaks the program
        assert "hides" in change, error.stderr


UNKEPT = {
    "a process": "import subprocess\nsubprocess.run(['true'])\n",
    "a connection": "import socket\ns = socket.socket()\ns.settimeout(0.1)\n"
    "try:\n    s.connect(('127.0.0.1', 9))\nexcept OSError:\n    pass\n",
    "a file that it writes": "open(__file__ + '.log', 'w').close()\n",
    "a folder that it lists": "import os\nos.listdir(os.path.dirname(__file__) + '/..')\n",
}


@pytest.mark.parametrize("what", UNKEPT)
def test_what_cannot_be_repeated_is_not_kept(place: Place, what: str) -> None:
    """The outside world answers anew each time."""
    place.write("helper.py", UNKEPT[what] + "VALUE = 1\n")
    assert place.ask()[0]
    assert place.ask()[0]


def test_a_model_that_reads_the_command_line_depends_on_it(place: Place) -> None:
    """Sources that speak of argv are kept for one command line only."""
    place.write("helper.py", "import sys\nVALUE = len(sys.argv)\n")
    assert place.ask()[0]
    assert not place.ask()[0]
    place.arguments = ["more"]
    assert place.ask()[0]


def test_a_file_that_cannot_be_read_counts_as_none(place: Place) -> None:
    """Half a file, or one that somebody edited, is captured again and replaced."""
    place.ask()
    (entry,) = (place.root / "cache" / "captures").glob("*.json")
    entry.write_bytes(entry.read_bytes()[:-40])
    assert place.ask()[0]
    assert not place.ask()[0]


def test_our_own_packages_are_no_part_of_a_model() -> None:
    """A search has read the profiles of hardware before it captures, maybe from a work tree."""
    assert importlib.import_module("graphplan_profiles").__path__
    with watching() as witness:
        pass
    assert witness.refusal is None or "graphplan_profiles" not in witness.refusal
