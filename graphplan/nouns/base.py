"""The base of every noun: a frozen, strict, comparable record."""

from __future__ import annotations

import msgspec


class Noun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frozen record; `msgspec.structs.replace` makes a changed copy."""
