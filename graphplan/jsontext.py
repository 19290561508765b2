"""find_flaw: what a strict reader refuses although JSON allows it.

A key that stands twice in an object (readers disagree on which counts), integers beyond 2**53
(readers that use doubles, JavaScript among them, round them), and characters that steer a terminal.
The text must already be valid JSON.
"""

from __future__ import annotations

import json
import re

from graphplan.nouns.names import has_hidden

MAX_INTEGER = 1 << 53

_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?|[{}]|(?<![\d.+-])-?(\d{16,})(?![\d.eE])', re.S)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.S)
_LONG_INTEGER = re.compile(rb"(?<![\d.+])\d{16,}(?![\d.eE])")
_CONTROL = re.compile(rb"(?<!\\)(?:\\\\)*\\[bfru]|[\x7f-\xff]")
"""Where a control character may be: an escape, or a character beyond ASCII."""


def find_control(text: bytes) -> str | None:
    """What is wrong when some string would steer a terminal, or hide what it says."""
    if _CONTROL.search(text) is None:
        return None
    for match in _STRING.finditer(text):
        if _CONTROL.search(match[0]) and has_hidden(_decode(match[0])):
            return f"the text {_decode(match[0])[:80]!a} has control characters"
    return None


def find_flaw(text: bytes) -> str | None:
    """What is wrong, None when nothing is."""
    keys_by_object: list[set[bytes]] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == b"{":
            keys_by_object.append(set())
        elif token == b"}":
            keys_by_object.pop()
        elif match[3] is not None:
            if int(match[3][:20]) > MAX_INTEGER:
                return f"an integer of {len(match[3])} digits is too large"
        elif match[2] is not None:
            key = _unescape(match[1])
            if key in keys_by_object[-1]:
                return f"the key {key.decode(errors='replace')[:80]!r} stands twice in one object"
            keys_by_object[-1].add(key)
    return None


def has_long_integer(text: bytes) -> bool:
    """Whether a run of digits could be an integer beyond the limit; quick, and wrong in strings."""
    return _LONG_INTEGER.search(text) is not None


def _unescape(key: bytes) -> bytes:
    if b"\\" not in key:
        return key
    return _decode(b'"' + key + b'"').encode(errors="surrogatepass")


def _decode(string: bytes) -> str:
    return str(json.loads(string))
