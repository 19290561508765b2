"""Flaws of files that have a sentence of their own; `tools/attack.py` mutates every kind."""

from __future__ import annotations

import random

import pytest

from graphplan.errors import GraphplanError, InvalidFile
from graphplan.files import decode_noun, encode_noun
from graphplan.jsontext import MAX_INTEGER, find_flaw
from graphplan.nouns.plan import Plan
from graphplan.nouns.tensor import TensorSpec
from graphplan.nouns.timeline import Timeline
from tests.pure.plans import make_plan_example
from tests.pure.strategies import chain_edges
from tools.mutate import mutate

EXAMPLE = make_plan_example(chain_edges(2), num_micro_batches=2)
TEXT = encode_noun(EXAMPLE.plan)


def test_mutations_are_seeded() -> None:
    """The same seed gives the same mutant, so that a finding can be repeated."""
    assert [mutate(random.Random(3), TEXT) for _ in range(2)] == [
        mutate(random.Random(3), TEXT)
    ] * 2


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (b'"seed": 0', b'"seed": 0, "seed": 0', "the key 'seed' stands twice"),
        (b'"seed": 0', b'"seed": 0, "\\u0073eed": 1', "the key 'seed' stands twice"),
        (b'"seed": 0', b'"seed": 9007199254740993', "an integer of 16 digits is too large"),
        (b'"seed": 0', b'"seed": 1' + b"0" * 400, "an integer of 401 digits is too large"),
        (b'"seed": 0', b'"seed": 0.5', "Expected `int`"),
        (b'"seed": 0', b'"seed": 0, "sede": 1', "unknown field `sede`"),
        (b'"seed": 0', b'"seed": ' + b"[" * 100_000 + b"]" * 100_000, "recursion"),
        (b'"seed": 0', b'"seed": \xff', "invalid"),
        (b'"two-tower"', b'"\\u001b[2J"', "has control characters"),
        (
            b'plan",\n "version": 2',
            b'plan",\n "version": 3',
            "has version 3; this graphplan reads version 1 and 2",
        ),
        (b"graphplan/plan", b"graphplan/graph", "is a 'graphplan/graph' file"),
        (b'"mixed": false', b'"mixed": true', "mixed precision needs"),
    ],
)
def test_each_flaw_is_named(old: bytes, new: bytes, complaint: str) -> None:
    """Duplicate keys, huge integers, deep nesting, wrong versions: each has its own sentence."""
    assert TEXT.count(old) == 1
    with pytest.raises(InvalidFile) as raised:
        decode_noun(TEXT.replace(old, new), Plan, name="plan.json")
    assert complaint in raised.value.message
    assert raised.value.remedy


def test_numbers_in_strings_and_floats_are_no_flaw() -> None:
    """Only whole integers beyond 2**53 are refused; long floats and digits in names are fine."""
    text = b'{"a": 0.30000000000000004, "b": "12345678901234567890", "c": 1e300, "d": -1.5}'
    assert find_flaw(text) is None
    assert find_flaw(f'{{"a": [{MAX_INTEGER}, -{MAX_INTEGER}]}}'.encode()) is None
    assert find_flaw(f'{{"a": {{"b": -{MAX_INTEGER + 1}}}}}'.encode()) is not None
    assert find_flaw(b'{"a": {"b": 1}, "c": [{"b": 1}, {"b": 2}]}') is None


def test_edited_but_sound_files_load() -> None:
    """Another layout and the order of keys do not matter; fields with defaults may be left out."""
    import json

    tree = json.loads(TEXT)
    del tree["labels"]
    shuffled = json.dumps(dict(reversed(tree.items()))).encode()
    loaded = decode_noun(shuffled, Plan, name="plan.json")
    assert loaded.program == EXAMPLE.plan.program
    assert loaded.labels == ()


def test_giant_shapes_are_refused() -> None:
    """A shape beyond what torch can address is an error, not an endless number."""
    for shape in ((2**40, 2**40), ("99999999999999999999*b",), (1,) * 65):
        with pytest.raises(ValueError, match="too large for any tensor"):
            TensorSpec(dtype="float32", shape=shape)
    assert TensorSpec(dtype="float32", shape=(0, "b")).num_bytes(4) == 0


def test_timelines_name_only_devices_that_exist() -> None:
    """A span on a device beyond the last is an error when the file is read."""
    text = encode_noun(EXAMPLE.timeline).replace(b'"num_devices": 2', b'"num_devices": 1')
    with pytest.raises(GraphplanError, match="for 1 devices"):
        decode_noun(text, Timeline, name="timeline.json")
