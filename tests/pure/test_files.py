"""Files are strict, deterministic and written whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphplan.errors import InvalidFile
from graphplan.files import decode_noun, encode_noun, read_noun, write_noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.table import ProfileTable
from graphplan.referee import check_plan

OLD_PLAN = Path(__file__).with_name("plan_version_1.json")
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


def test_plans_of_version_1_are_read() -> None:
    """A stage that recomputed recomputes all of its ops; what was not known then has its default.

    A field that version 1 did not have is still an error, and so is a key that stands twice.
    """
    text = OLD_PLAN.read_bytes()
    plan = decode_noun(text, Plan, name="old.json")
    stages = plan.stages.stages
    assert plan.version == 2
    assert [stage.recompute == stage.ops for stage in stages] == [s == 1 for s in range(5)]
    assert {stage.zero for stage in stages} == {0}
    assert plan.training.bucket_bytes == 25_000_000
    assert check_plan(plan).is_legal
    assert decode_noun(encode_noun(plan), Plan, name="new.json") == plan
    for old, new, message in (
        (b'"recompute": true', b'"zero": 1', "unknown field `zero`"),
        (b'"recompute": true', b'"recompute": []', "Expected `bool`, got `array`"),
        (b'"recompute": true', b'"recompute": true, "recompute": false', "stands twice"),
        (b'"stages": {', b'"parts": {', "unknown field `parts`|missing required field"),
        (b'"micro_batch_size": 4,\n    "recompute": true', b'"micro_batch_size": 0', "at least 1"),
    ):
        assert text.count(old) == 1
        with pytest.raises(InvalidFile, match=message):
            decode_noun(text.replace(old, new), Plan, name="old.json")
