"""Training: what one optimizer step does besides the model itself."""

from __future__ import annotations

from typing import Literal

from graphplan.nouns.base import Noun

OptimizerName = Literal["sgd", "momentum", "nesterov", "adam", "adamw"]
Precision = Literal["float32", "bfloat16", "float16"]
STATES_PER_PARAMETER: dict[str, int] = {
    "sgd": 0,
    "momentum": 1,
    "nesterov": 1,
    "adam": 2,
    "adamw": 2,
}
BUCKET_BYTES = 25_000_000
TELLING: frozenset[str] = frozenset({"momentum", "adam", "adamw"})
"""Optimizers whose state tells the direction of their last step."""


class Training(Noun, frozen=True, kw_only=True):
    """Batch, optimizer and precision.

    `precision` is the dtype of compute; `mixed` keeps fp32 master weights beside 16-bit ones.
    Gradients are reduced over replicas in buckets of `bucket_bytes`.
    """

    batch_size: int
    optimizer: OptimizerName = "adam"
    precision: Precision = "float32"
    mixed: bool = False
    bucket_bytes: int = BUCKET_BYTES

    def __post_init__(self) -> None:
        if self.bucket_bytes < 1:
            raise ValueError(f"bucket_bytes is {self.bucket_bytes}, must be at least 1")
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}, must be at least 1")
        if self.mixed and self.precision == "float32":
            raise ValueError("mixed precision needs bfloat16 or float16 compute")
