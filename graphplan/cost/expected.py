"""Expected: how far a predicted step may be off, and what share of the peak it uses.

The error is the mean of whole steps that were measured on the same chip in the same precision and
predicted by these laws (tools/validate_steps.py); where there are none, a prediction is said not to
be validated. MFU is the model's FLOPs of a step, masked attention left out, over what the devices
could do at the peak of the precision.
"""

from __future__ import annotations

import functools
import importlib.resources
import math

import msgspec

from graphplan.cost.flops import count_work
from graphplan.cost.laws.price import find_rate
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.training import Training

SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class Expected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Errors of whole steps on one chip."""

    chip: str
    devices: tuple[str, ...]
    precision: str
    count: int
    error: float

    def __str__(self) -> str:
        precision = SHORT.get(self.precision, self.precision)
        return f"+-{self.error:.0%} ({self.count} steps, {precision}, {self.chip})"


def find_expected(cluster: Cluster, precision: str) -> Expected | None:
    """What was validated on the cluster's devices: the worst of them, None if one was not."""
    found = [
        next(
            (e for e in _load_steps() if kind.name in e.devices and e.precision == precision), None
        )
        for kind in cluster.types
    ]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    return max(known, key=lambda each: each.error)


def count_model_flops(graph: OpGraph, batch_size: int) -> int:
    """FLOPs of products, convolutions and attention in the forward and backward of a batch."""
    return sum(work.counted_flops for work in count_work(graph, batch_size).values())


def find_mfu(graph: OpGraph, cluster: Cluster, training: Training, step_s: float) -> float | None:
    """Share of the devices' peak that a step uses; None where a batch cannot be counted."""
    if graph.batch == "fixed" and training.batch_size % graph.batch_size:
        return None
    if graph.batch == "dynamic":
        flops = count_model_flops(graph, training.batch_size)
    else:
        flops = count_model_flops(graph, graph.batch_size)
        flops *= max(1, training.batch_size // graph.batch_size) if graph.batch == "fixed" else 1
    peak = sum(find_rate(device.type, training.precision) for device in cluster.devices)
    return flops / (step_s * peak) if step_s and flops else None


def count_tokens(graph: OpGraph) -> int | None:
    """Tokens of a sample: the length of the longest integer input with two dimensions."""
    lengths = [
        math.prod(each.spec.sizes(1)[1:])
        for each in graph.inputs
        if each.spec.dtype == "int64" and len(each.spec.sizes(1)) == 2
    ]
    return max(lengths, default=0) or None


@functools.cache
def _load_steps() -> tuple[Expected, ...]:
    path = importlib.resources.files("graphplan_profiles").joinpath("laws", "steps.toml")
    content = msgspec.toml.decode(path.read_bytes())
    return msgspec.convert(content["steps"], tuple[Expected, ...])
