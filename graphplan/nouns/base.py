"""The base of every noun: a frozen, strict, comparable record."""

from __future__ import annotations

from typing import ClassVar

import msgspec

MAX_SECONDS = 1e12
"""No task takes longer: sums and products of such times stay finite."""
MAX_DEVICES = 65_536
MAX_MICRO_BATCHES = 1 << 20


class Noun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frozen record; `msgspec.structs.replace` makes a changed copy."""

    older_versions: ClassVar[tuple[int, ...]] = ()
    """Of a noun that has files: versions besides its own that are read."""

    @classmethod
    def upgrade(cls, fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """The fields of a file of an older version, as those of this one."""
        return fields
