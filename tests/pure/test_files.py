"""Files are strict, deterministic and written whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphplan.errors import InvalidFile
from graphplan.files import decode_noun, encode_noun, read_noun, write_noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.table import ProfileTable

GRAPH = OpGraph(name="g", batch="none", batch_size=1, inputs=(), weights=(), ops=(), outputs=())


def test_round_trip(tmp_path: Path) -> None:
    """What was written is read back, and the bytes are the same each time."""
    write_noun(GRAPH, tmp_path / "graph.json")
    assert read_noun(tmp_path / "graph.json", OpGraph) == GRAPH
    assert encode_noun(GRAPH) == (tmp_path / "graph.json").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["graph.json"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"version": 1', b'"version": 2', "has version 2; this graphplan reads version 1"),
        (b"graphplan/graph", b"graphplan/plan", "is a 'graphplan/plan' file"),
        (b'"name": "g"', b'"name": 7', r"Expected `str`, got `int` - at `\$.name`"),
        (b'"name": "g"', b'"name": "g", "extra": 1', "unknown field `extra`"),
        (b'"batch_size": 1', b'"batch_size": 0', "must be at least 1"),
        (b"}", b"", "is not a graphplan JSON file"),
    ],
)
def test_bad_files_name_the_place(old: bytes, new: bytes, message: str) -> None:
    """Every error says what is wrong and where."""
    text = encode_noun(GRAPH).replace(old, new)
    with pytest.raises(InvalidFile, match=message) as caught:
        decode_noun(text, OpGraph, name="graph.json")
    assert caught.value.remedy
    assert caught.value.exit_code == 2


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """Neither reading nor writing gives a traceback."""
    with pytest.raises(InvalidFile, match="No such file"):
        read_noun(tmp_path / "none.json", ProfileTable)
    with pytest.raises(InvalidFile, match="Cannot write"):
        write_noun(GRAPH, tmp_path / "none" / "graph.json")
