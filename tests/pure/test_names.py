"""Names have an alphabet: what is refused when a noun is made, and how capture makes names fit."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphplan.errors import InvalidFile
from graphplan.files import decode_noun, encode_noun
from graphplan.nouns.names import escape_hidden, fit_path, fit_text, has_hidden, is_path, is_value
from graphplan.nouns.opgraph import OpGraph
from tests.pure.files import make_graph_example


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("linear_1", True),
        ("", False),
        ("1linear", False),
        ("a.b", False),
        ("ünder", False),
        ('y=__import__("os").system("true")', False),
        ("a\n", False),
        ("x" * 1001, False),
    ],
)
def test_values_are_identifiers(name: str, fits: bool) -> None:
    """Nothing else names an input or an op."""
    assert is_value(name) is fits


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("layers.0.weight", True),
        ("heads.left arm/first.weight", True),
        ("", False),
        (".weight", False),
        ("layers..weight", False),
        ("layers.\x1b[2J", False),
        ("layers.\u202eweight", False),
    ],
)
def test_paths_are_printable_words(name: str, fits: bool) -> None:
    """A ModuleDict may call its modules what it likes, as long as it can be printed."""
    assert is_path(name) is fits


@given(st.text(max_size=300), st.integers(30, 100))
def test_what_was_made_to_fit_is_accepted(text: str, most: int) -> None:
    """Printable, short enough, the same for the same text; texts that fit stay as they are."""
    found = fit_text(text, most=most)
    assert found.isprintable() and len(found) <= most
    assert found == fit_text(text, most=most)
    if text.isprintable() and len(text) <= most:
        assert found == text
    assert not has_hidden(escape_hidden(text))
    if text and "" not in text.split("."):
        assert is_path(fit_path(text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"name": "x"', b'"name": "x=print(1)"'),
        (b'"name": "first.weight"', b'"name": "first..weight"'),
        (b'"module": "first"', b'"module": "fi\\u001brst"'),
    ],
)
def test_a_file_with_a_bad_name_is_refused(old: bytes, new: bytes) -> None:
    """When the graph is read, not when a name is used."""
    text = encode_noun(make_graph_example())
    assert old in text
    with pytest.raises(InvalidFile):
        decode_noun(text.replace(old, new), OpGraph, name="graph.json")


def test_mixing_names_ops_that_exist() -> None:
    """A mark on an op that is not there is an error."""
    tree = msgspec.json.decode(encode_noun(make_graph_example()))
    tree["mixing"] = [{"op": "nobody", "kind": "statistics"}]
    with pytest.raises(InvalidFile, match="nobody"):
        decode_noun(msgspec.json.encode(tree), OpGraph, name="graph.json")
