"""FlightNote: what a checkpoint says of the batches in flight, besides their tensors."""

from __future__ import annotations

from typing import Literal

from graphplan.nouns.base import Noun


class FlightNote(Noun, frozen=True, kw_only=True):
    """What a checkpoint says of batches in flight."""

    plan: str
    """Fingerprint of stages, policy and program: another plan cannot go on in mid-stream."""
    first: int
    """The batch with which the stream last began empty."""
    shapes: tuple[dict[str, tuple[int, ...]], ...] = ()
    """Sizes of the inputs of the batches in flight, which are the last ones."""
    told: tuple[float | Literal["nan", "inf", "-inf"], ...] = ()
    """Losses that are known and that the caller of `step` has not been given."""
