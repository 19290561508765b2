"""The command itself: its help, its exit codes, and what it says of errors."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import graphplan
from graphplan.__main__ import main as start
from graphplan.cli import main
from graphplan.cli.main import COMMANDS, run_command
from graphplan.errors import NoFeasiblePlan


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Lets `fail_with` replace the command line; what a run puts into the environment goes."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return monkeypatch


def fail_with(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Every command raises this."""

    def fail(**_: object) -> None:
        raise error

    patch.setattr(main.command_line, "main", fail)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`graphplan NAME --help` says what it does and how it is called."""
    assert run_command([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"graphplan {name}" in said
    assert "Example" in said
    module = importlib.import_module(f"graphplan.cli.{name.replace('-', '_')}")
    assert module.command.name == name


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """That of the package."""
    assert run_command(["--version"]) == 0
    assert graphplan.__version__ in capsys.readouterr().out


def test_a_misspelt_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, with the right spelling."""
    assert run_command(["serach"]) == 2
    assert "Did you mean 'search'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (
            NoFeasiblePlan("Nothing fits.", remedy="Use more."),
            1,
            "Error: Nothing fits.\n  Use more.",
        ),
        (click.UsageError("No such option: --gpsu"), 2, "--gpsu"),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (RecursionError("maximum depth"), 2, "nested too deeply"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors_become_exit_codes(
    error: BaseException,
    code: int,
    told: str,
    failing: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Told in a few lines, without Python's."""
    fail_with(failing, error)
    assert run_command(["search", "model.py"]) == code
    said = capsys.readouterr().err
    assert told in said
    assert "Traceback" not in said


def test_errors_that_are_not_ours_are_not_hidden(failing: pytest.MonkeyPatch) -> None:
    """A bug of ours shows as one."""
    fail_with(failing, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run_command(["search", "model.py"])


def test_debug_shows_the_traceback(
    tmp_path: Path, failing: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where an error came from, before what it says."""
    words = ["show", str(tmp_path / "none.json")]
    code = run_command(words)
    plain = capsys.readouterr().err
    assert run_command(["--debug", *words]) == code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in plain
    assert "Traceback" in said and said.endswith(plain)


def test_output_that_cannot_be_written() -> None:
    """One line, as for a reader that has gone."""
    words = [sys.executable, "-m", "graphplan", "clusters"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == "Error: The output cannot be written: No space left on device.\n"
    assert done.returncode == 1


def test_ctrl_c_before_there_is_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while the command line is imported."""

    def interrupt(_: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "run_command", interrupt)
    with pytest.raises(SystemExit, match="130"):
        start()
    assert capsys.readouterr().err == "Interrupted.\n"


def test_ctrl_c_that_an_import_swallows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch clears the interrupt while it loads numpy, which then says that it is loaded twice."""

    def swallow(arguments: list[str]) -> int:
        if arguments:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        raise ImportError("cannot load module more than once per process")

    monkeypatch.setattr(main, "run_command", swallow)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(sys, "argv", ["graphplan", "search"])
        with pytest.raises(SystemExit, match="130"):
            start()
        assert capsys.readouterr().err == "Interrupted.\n"
        signal.signal(signal.SIGINT, signal.default_int_handler)
        monkeypatch.setattr(sys, "argv", ["graphplan"])
        with pytest.raises(ImportError, match="more than once"):
            start()
    finally:
        signal.signal(signal.SIGINT, before)
