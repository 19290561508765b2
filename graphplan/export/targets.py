"""Targets: what each runtime can say of a plan, as one table.

A row answers the questions in which runtimes differ; the gate (gate.py) asks them of a plan, and
`search --for` keeps the search to plans that answer yes. Facts are those of megatron-core 0.16,
torchtitan 0.3, DeepSpeed 0.19 and torch 2.13.
"""

from __future__ import annotations

from typing import Literal

from graphplan.nouns.base import Noun
from graphplan.nouns.stages import ZERO_LEVELS, ZeroLevel
from graphplan.nouns.training import OptimizerName, Training

Recomputes = Literal["stages", "first", "all"]
"""Whole stages, each or not; the first so many layers of every stage, or whole stages of layers;
all layers or none."""
Placing = Literal["anywhere", "loop", "own"]
"""Any stage on any device; stage s of a loop over pp devices on s mod pp; one stage a device, in
their order."""


class Target(Noun, frozen=True, kw_only=True):
    """What one runtime can be told. Every one of them drains its pipeline after each batch."""

    name: str
    title: str
    layered: bool
    """Whether it cuts a list of layers, and nothing finer; else the graph of ops."""
    replicated: bool
    """Whether all stages may have the same number of replicas."""
    zero: tuple[ZeroLevel, ...]
    recompute: Recomputes
    placing: Placing
    orders: tuple[str, ...]
    """Orders of the micro-batches that it knows; () when it takes any that is given."""
    ties: Literal["none", "ends", "any"]
    """What may share a weight across stages: nothing, embedding and head, anything."""
    alike: bool
    """Whether all layers are built alike."""
    freezes: bool
    """Whether weights may be frozen."""
    precisions: tuple[str, ...] = ()
    """Names of `name_precision`; () when it leaves them to the user's program."""
    optimizers: tuple[OptimizerName, ...] = ()
    """Those that it brings; () when the user's program does."""


def name_precision(training: Training) -> str:
    """`bfloat16`, or `mixed bfloat16` with master weights beside."""
    return f"mixed {training.precision}" if training.mixed else training.precision


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            name="megatron",
            title="Megatron-Core",
            layered=True,
            replicated=True,
            zero=(0, 1),
            recompute="first",
            placing="loop",
            orders=("1f1b", "interleaved"),
            ties="ends",
            alike=True,
            freezes=False,
            precisions=("float32", "mixed bfloat16", "mixed float16"),
            optimizers=("adam", "adamw", "momentum", "sgd"),
        ),
        Target(
            name="torchtitan",
            title="torchtitan",
            layered=True,
            replicated=True,
            zero=(0, 2, 3),
            recompute="all",
            placing="loop",
            orders=(),
            ties="none",
            alike=False,
            freezes=False,
            precisions=("float32", "bfloat16", "mixed bfloat16"),
            optimizers=("adam", "adamw"),
        ),
        Target(
            name="deepspeed",
            title="DeepSpeed",
            layered=True,
            replicated=True,
            zero=(0, 1),
            recompute="stages",
            placing="own",
            orders=("1f1b",),
            ties="ends",
            alike=False,
            freezes=True,
            precisions=("float32", "mixed bfloat16", "mixed float16"),
        ),
        Target(
            name="torch",
            title="torch.distributed.pipelining",
            layered=False,
            replicated=False,
            zero=ZERO_LEVELS[:1],
            recompute="stages",
            placing="anywhere",
            orders=(),
            ties="any",
            alike=False,
            freezes=True,
        ),
    )
}
