"""Attacks on every reader; `tools/attack.py` runs many more mutants."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest
import torch

from graphplan.errors import ModelFileError
from graphplan.frontend import load_model_file
from graphplan.frontend.pt2check import check_program
from tools import attack_watch
from tools.attack import attack, list_mutants
from tools.attack_edits import CODE, MARKER
from tools.attack_programs import list_programs
from tools.attack_readers import list_readers, make_program, read_member, repack
from tools.attack_watch import Case, run_cases

NUM_MUTANTS = 60


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Forks of a process with threads of OpenMP would wait for them."""
    torch.set_num_threads(1)


def test_nothing_gets_in(tmp_path: Path) -> None:
    """Attacks by hand and some mutants: valid or refused, nothing else."""
    found = attack(NUM_MUTANTS, 2026, tmp_path, trace=False, most_uses=1)
    assert found["findings"] == []
    num_attacks = sum(sum(each.values()) for each in found["attacks"].values())
    assert num_attacks >= 60
    assert sum(sum(each.values()) for each in found["mutants"].values()) == NUM_MUTANTS
    refused = sum(each["refused"] for each in found["attacks"].values())
    assert refused > num_attacks / 3


def test_findings_are_found(tmp_path: Path) -> None:
    """Code that runs, tracebacks, memory and death are each seen, and the case is named."""

    def act(folder: Path) -> None:
        eval("1")

    def write(folder: Path) -> None:
        (tmp_path / "outside").write_text("")

    def fail(folder: Path) -> None:
        raise KeyError("x")

    def fill(folder: Path) -> None:
        # Well over the limit: pages of libraries that the kernel takes back count against it.
        bytearray(b"\1") * 2_600_000_000

    def die(folder: Path) -> None:
        os.abort()

    runs = (act, write, fail, fill, die, act)
    cases = [Case(run.__name__, "test", run) for run in runs]
    outcomes, _ = run_cases(cases, tmp_path / "cases")
    verdicts = [outcome.verdict for outcome in outcomes]
    assert verdicts == ["acted", "acted", "traceback", "memory", "died", "acted"]


def test_waiting_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that waits for a pipe takes no processor time, and hangs all the same."""

    def wait(folder: Path) -> None:
        os.mkfifo(folder / "pipe")
        (folder / "pipe").read_bytes()

    monkeypatch.setattr(attack_watch, "WAIT_S", 1.0)
    outcomes, _ = run_cases([Case("wait", "test", wait)], tmp_path / "cases")
    assert [outcome.verdict for outcome in outcomes] == ["hang"]


def test_mutants_can_be_repeated(tmp_path: Path) -> None:
    """The same seed makes the same cases."""
    readers = list_readers(tmp_path)
    first, again = (list_mutants(readers, 30, 1) for _ in range(2))
    assert [case[:2] for case in first] == [case[:2] for case in again]


def test_guards_of_a_saved_program_do_not_run(tmp_path: Path) -> None:
    """torch.export stores guards as code; they are not asked for."""
    sound = make_program()
    graph = json.loads(read_member(sound, "models/model.json"))
    graph["guards_code"] = [CODE]
    changed = {"models/model.json": json.dumps(graph).encode()}
    (tmp_path / "model.pt2").write_bytes(repack(sound, changed))
    load_model_file(tmp_path / "model.pt2").build()
    assert not MARKER.exists()


def test_a_saved_program_has_one_table_of_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch reads the one that the archive's end names, Python the last one: a second is refused.

    That of an archive of more than 4 GB has other places, and is found there.
    """
    sound, path = make_program(), tmp_path / "model.pt2"
    programs = list_programs(sound)
    for name in ("two tables of contents", "two tables in its example inputs"):
        path.write_bytes(programs[name])
        with pytest.raises(ModelFileError, match="its table of contents is not at its end"):
            check_program(path)
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    path.write_bytes(repack(sound, {}))
    assert b"PK\6\6" in path.read_bytes()
    load_model_file(path).build()
