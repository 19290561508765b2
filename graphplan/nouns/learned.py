"""LearnedCosts: a trained cost model as a file of numbers and names; reading it executes nothing.

Arrays are stored as base64 of their little-endian bytes, beside their dtype and shape. The card
says what the model was trained on, when, by which versions, and how good it is on models that it
has not seen.
"""

from __future__ import annotations

import math
from typing import Literal

from graphplan.nouns.base import Noun
from graphplan.nouns.cluster import DeviceType

ArrayType = Literal["float32", "float64", "int16", "int64"]
ARRAY_BYTES: dict[str, int] = {"float32": 4, "float64": 8, "int16": 2, "int64": 8}
Predictor = Literal["network", "trees"]


class Array(Noun, frozen=True, kw_only=True):
    """An array of numbers."""

    dtype: ArrayType
    shape: tuple[int, ...]
    content: bytes

    def __post_init__(self) -> None:
        if min(self.shape, default=0) < 0:
            raise ValueError(f"an array has the shape {list(self.shape)}")
        needed = math.prod(self.shape) * ARRAY_BYTES[self.dtype]
        if len(self.content) != needed:
            raise ValueError(f"an array of {needed} bytes holds {len(self.content)}")


class Score(Noun, frozen=True, kw_only=True):
    """Errors of one predictor on one part of the data, relative to what was measured."""

    op_error: float
    """Median over units (ops, or groups that were timed together) at all sizes."""
    step_error: float
    """Mean over whole steps, at all sizes."""
    worst_step_error: float


class KindScore(Noun, frozen=True, kw_only=True):
    """Median errors of the units of one op kind, by predictor."""

    kind: str
    num_units: int
    op_error_by_predictor: dict[str, float]


class Part(Noun, frozen=True, kw_only=True):
    """A part of the data: its models, and how the predictors do on it."""

    models: tuple[str, ...]
    num_units: int
    score_by_predictor: dict[str, Score] = {}
    """`network`, `trees`, and `roofline`: the roofline calibrated on the training part."""
    kinds: tuple[KindScore, ...] = ()
    within: float | None = None
    """Share of the units whose error is at most the uncertainty that was told (68% is right)."""


class Card(Noun, frozen=True, kw_only=True):
    """What a reader must know of a trained model."""

    date: str
    versions: dict[str, str]
    seed: int
    devices: tuple[str, ...]
    provenance: tuple[str, ...]
    """Where the measurements come from."""
    training: Part
    validation: Part
    held_out: Part | None = None
    why: str
    """Why this predictor was chosen."""
    epochs: int
    training_s: float


class LearnedDevice(Noun, frozen=True, kw_only=True):
    """A device type of the training data, and its roofline calibrated on them."""

    plain: DeviceType
    roofline: DeviceType


class LearnedCosts(Noun, frozen=True, kw_only=True):
    """A trained cost model."""

    format: Literal["graphplan/learned"] = "graphplan/learned"
    version: Literal[1] = 1
    predictor: Predictor
    card: Card
    devices: tuple[LearnedDevice, ...]
    features: tuple[str, ...]
    """Names of the features, in the order of the arrays."""
    kinds: tuple[str, ...]
    families: tuple[str, ...]
    dtypes: tuple[str, ...]
    arrays: dict[str, Array]

    def __post_init__(self) -> None:
        if not self.devices:
            raise ValueError("a cost model needs the device that it was trained on")
