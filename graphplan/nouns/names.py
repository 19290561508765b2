"""Names: the alphabet of everything that a file calls something, and how long it may be.

Files come from anywhere, so each kind of name has an alphabet that is checked when a noun is made:

    value     an input or an op      an ASCII identifier: `linear_1`
    path      a weight or a module   words joined by dots: `layers.0.weight`
    text      a target, a call       printable

Words of a path are printable, no more: a `ModuleDict` may call its modules what it likes. Names are
looked up and shown, never written into code. Capture makes its names with `fit_path` and
`fit_text`, so that it cannot write what a reader refuses.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

MAX_VALUE = 1_000
MAX_PATH = 4_000
MAX_TARGET = 4_000
MAX_CALL = 1 << 20
"""Most characters of each kind; a call that joins 10,000 tensors has 70,000."""

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, which terminals obey, but tabs and line ends; and marks that turn the
direction of writing, so that a text reads otherwise than it is."""


def is_value(name: str) -> bool:
    """Whether a text can name an input or an op."""
    return len(name) <= MAX_VALUE and name.isascii() and name.isidentifier()


def is_path(name: str) -> bool:
    """Whether a text can name a weight or a module."""
    return 0 < len(name) <= MAX_PATH and name.isprintable() and "" not in name.split(".")


def check_values(names: Iterable[str]) -> None:
    """Refuse names that no input and no op can have."""
    for name in names:
        if not is_value(name):
            raise ValueError(f"{shorten(name)} is no name of a value: letters, digits and _ only")


def check_paths(names: Iterable[str]) -> None:
    """Refuse names that no weight and no module can have."""
    for name in names:
        if not is_path(name):
            raise ValueError(f"{shorten(name)} is no path of a module, such as 'layers.0.weight'")


def check_text(text: str, *, most: int) -> None:
    """Refuse texts that are too long or hold anything that cannot be printed."""
    if len(text) > most or not text.isprintable():
        raise ValueError(f"{shorten(text)} is longer than {most} characters or not printable")


def check_label(text: str) -> None:
    """Refuse a name for people that nobody would read to its end."""
    if len(text) > MAX_PATH:
        raise ValueError(f"{shorten(text)} is longer than {MAX_PATH} characters")


def has_hidden(text: str) -> bool:
    """Whether a text would steer a terminal, or hide what it says."""
    return _HIDDEN.search(text) is not None


def escape_hidden(text: str) -> str:
    """The same text with what is hidden written out: `\\x1b[2J`."""
    return _HIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


def fit_text(text: str, *, most: int) -> str:
    """The same text in printable characters; the end of one that is too long becomes a hash."""
    if not text.isprintable():
        text = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    if len(text) <= most:
        return text
    return f"{text[: most - 20]}...{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def fit_path(path: str) -> str:
    """The path of a module in printable characters; dots stand between its words only."""
    return fit_text(path, most=MAX_PATH)


def shorten(text: str) -> str:
    """The beginning of a text, in quotes and ASCII, for messages."""
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")
