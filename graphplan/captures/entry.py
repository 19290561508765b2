"""Entry: a captured graph on disk, and everything that capturing it was seen to depend on."""

from __future__ import annotations

from typing import Literal

from graphplan.nouns.base import Noun
from graphplan.nouns.opgraph import OpGraph


class Evidence(Noun, frozen=True, kw_only=True):
    """What a capture read. A graph is used again only where all of it is as it was."""

    files: dict[str, str | None]
    """Hash of each file outside of libraries that was read; None for one that was not there."""
    stamps: dict[str, str]
    """Size and time of change of each file of a library that was imported."""
    folders: dict[str, tuple[str, ...]]
    """By folder that imports look into: what is there under one of `names`."""
    names: tuple[str, ...]
    """All modules that something tried to import, the last part of dotted ones."""
    missing: tuple[str, ...]
    """Modules that something tried to import and that could not be found."""
    variables: dict[str, str | None]
    """Hash of each environment variable that was asked for; None for one that was not set."""
    arguments: tuple[str, ...] | None
    """The command line, where the sources speak of it."""


class Entry(Noun, frozen=True, kw_only=True):
    """One capture."""

    format: Literal["graphplan/capture"] = "graphplan/capture"
    version: Literal[1] = 1
    request: str
    """What was asked for, and by which software, as text."""
    evidence: Evidence
    graph: OpGraph
