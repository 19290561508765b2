"""The profile cache: measurements on disk, so that equal calls are measured once.

One JSON file for each device, torch version and setting. It is written whole and atomically;
entries that another process added meanwhile are kept. A file that cannot be read counts as empty:
a cache must never stop a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from pathlib import Path

import msgspec

from graphplan.cachefolder import default_folder
from graphplan.errors import GraphplanError
from graphplan.files import UNREADABLE, read_bytes, write_bytes
from graphplan.nouns.base import Noun
from graphplan.nouns.table import Host

VERSION = 3
"""Part of every file name: measurements of an older kind are not found."""


class Measurement(Noun, frozen=True, kw_only=True):
    """Seconds and bytes of one call."""

    forward_s: float
    input_grad_s: float = 0.0
    weight_grad_s: float = 0.0
    workspace_bytes: int = 0
    spread: float = 0.0
    """Interquartile range over the median, the worst of the passes."""

    def __post_init__(self) -> None:
        if min(self.forward_s, self.input_grad_s, self.weight_grad_s, self.workspace_bytes) < 0:
            raise ValueError("a measurement is negative")

    @property
    def total_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s

    def merge(self, other: Measurement) -> Measurement:
        """The faster of two measurements of the same call, pass by pass."""
        return Measurement(
            forward_s=min(self.forward_s, other.forward_s),
            input_grad_s=min(self.input_grad_s, other.input_grad_s),
            weight_grad_s=min(self.weight_grad_s, other.weight_grad_s),
            workspace_bytes=max(self.workspace_bytes, other.workspace_bytes),
            spread=min(self.spread, other.spread),
        )

    def mean(self, other: Measurement) -> Measurement:
        """The mean of two measurements of the same call."""
        return Measurement(
            forward_s=(self.forward_s + other.forward_s) / 2,
            input_grad_s=(self.input_grad_s + other.input_grad_s) / 2,
            weight_grad_s=(self.weight_grad_s + other.weight_grad_s) / 2,
            workspace_bytes=max(self.workspace_bytes, other.workspace_bytes),
            spread=max(self.spread, other.spread),
        )


class ProfileCache:
    """Measurements by signature for one device and software; `save` writes what is new."""

    def __init__(self, environment: str, *, folder: Path | None = None) -> None:
        """`environment` names all that timings depend on besides the call itself."""
        slug = re.sub(r"[^a-z0-9.]+", "-", environment.lower()).strip("-")[:80]
        digest = hashlib.sha256(environment.encode()).hexdigest()[:8]
        self.path = (folder or default_folder()) / f"profile-v{VERSION}-{slug}-{digest}.json"
        self._known = self._read()
        self._fresh: dict[str, Measurement] = {}
        self._saved_at = time.monotonic()

    def find(self, signature: str) -> Measurement | None:
        """What is known about a call."""
        return self._known.get(_hash(signature))

    def add(self, signature: str, measurement: Measurement) -> None:
        """Remember a measurement; on disk after the next `save`."""
        self._known[_hash(signature)] = self._fresh[_hash(signature)] = measurement

    def save(self) -> None:
        """Write the new entries beside those that the file holds now; no disk, no cache."""
        self._saved_at = time.monotonic()
        if not self._fresh:
            return
        merged = self._read() | self._fresh
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(msgspec.json.encode(merged, order="deterministic"), self.path)
        except (OSError, GraphplanError):
            return
        self._fresh = {}

    def save_sometimes(self, *, every_s: float = 5.0) -> None:
        """`save`, unless it was done a moment ago."""
        if time.monotonic() - self._saved_at > every_s:
            self.save()

    def find_host(self) -> Host | None:
        """What is known of the host itself."""
        try:
            return msgspec.json.decode(read_bytes(self._host_path), type=Host)
        except (GraphplanError, *UNREADABLE):
            return None

    def save_host(self, host: Host) -> None:
        """Remember what was measured of the host; no disk, no cache."""
        with contextlib.suppress(OSError, GraphplanError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(msgspec.json.encode(host), self._host_path)

    @property
    def _host_path(self) -> Path:
        return self.path.with_name(self.path.name.replace("profile-", "host-", 1))

    def _read(self) -> dict[str, Measurement]:
        try:
            return msgspec.json.decode(read_bytes(self.path), type=dict[str, Measurement])
        except (GraphplanError, *UNREADABLE):
            return {}


def _hash(signature: str) -> str:
    return hashlib.sha256(signature.encode()).hexdigest()[:24]
