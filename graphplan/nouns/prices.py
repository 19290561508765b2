"""PricedStages: a stage graph with seconds and bytes in place of ops.

The cost model makes it; schedules and the simulator read nothing else, so that both can be tested
on graphs written by hand. Times are those of one micro-batch on one replica.

Memory rule, the same for simulator and referee: a device holds `fixed_bytes` of its stages all the
time and `workspace_bytes` of the task that is running. A micro-batch adds `saved_bytes` from the
start of its F to the end of its B; with a split backward it keeps `saved_for_weights_bytes` of them
from the end of its I to the end of its W. A stage that needs no backward saves nothing.

Rule of reductions: the gradients of a stage are reduced over its replicas in buckets, each of them
once in every update. A bucket sets out when it is complete on all replicas, which is in the course
of the last B or W in front of the stage's R, and when the one before it has arrived; R begins when
the last one has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from graphplan.nouns.base import MAX_MICRO_BATCHES, MAX_SECONDS, Noun
from graphplan.nouns.dag import Neighbours, collect_neighbours, measure_heights

MAX_BUCKETS = 2048
"""No stage is cut more finely (planner/pose.py)."""


class Bucket(Noun, frozen=True, kw_only=True):
    """Gradients that the replicas of a stage reduce at once, as soon as they are complete: in the
    course of the last backward that adds to them."""

    bytes: int
    seconds: float
    """Of the collective, with nothing beside it."""
    backward_s: float
    """When they are complete, from the start of that backward (task B)."""
    weight_grad_s: float
    """The same where the backward is split (task W)."""


class Reduction(Noun, frozen=True, kw_only=True):
    """The buckets of a stage in the order in which they are reduced, and what that takes from the
    tasks beside it. Task R waits for the last of them.

    A task takes `1 + slows` times as long while a collective of its device is on its way, and that
    `1 + slowed` times as long while one of its devices computes.
    """

    buckets: tuple[Bucket, ...]
    lanes: tuple[str, ...]
    """By device: the channel on which its part leaves. A bucket occupies all of them at once."""
    slows: float = 0.0
    slowed: float = 0.0

    def __post_init__(self) -> None:
        if len(self.buckets) > MAX_BUCKETS:
            raise ValueError(f"a stage has {len(self.buckets)} buckets, more than {MAX_BUCKETS:,}")
        seconds = [s for b in self.buckets for s in (b.seconds, b.backward_s, b.weight_grad_s)]
        if not self.buckets or max(*map(abs, seconds), self.slows, self.slowed) > MAX_SECONDS:
            raise ValueError(f"a reduction has no buckets, or a time above {MAX_SECONDS:g} s")

    def left_over(self, task_s: float, ready_s: Sequence[float]) -> float:
        """Seconds from where a backward of `task_s` would end by itself to where all buckets are
        reduced, when nothing else is in their way and all replicas are at the same place."""
        now, done = 0.0, 0.0
        for bucket, ready in zip(self.buckets, ready_s, strict=True):
            begun = max(done, min(ready, task_s))
            now += begun - done
            beside = (task_s - begun) * (1 + self.slows)
            alone = bucket.seconds * (1 + self.slowed)
            if alone <= beside:
                now, done = now + alone, begun + alone / (1 + self.slows)
            else:
                now, done = now + beside + bucket.seconds - beside / (1 + self.slowed), task_s
        return now - done


class StagePrice(Noun, frozen=True, kw_only=True):
    """Seconds and bytes of one stage."""

    devices: tuple[int, ...]
    micro_batch_size: int
    forward_s: float
    backward_s: float
    """The whole backward (task B), recomputation included."""
    input_grad_s: float
    """The input-gradient half (task I), recomputation included."""
    weight_grad_s: float
    """The weight-gradient half (task W)."""
    reduce_s: float = 0.0
    """What is reduced when all has been computed, once per update (task R): the gradients of
    weights that several stages hold, and what policy local averages."""
    reduction: Reduction | None = None
    """Of the gradients of the stage's own weights over its replicas."""
    update_s: float = 0.0
    """Optimizer step (task U)."""
    trained_bytes: int = 0
    """One version of the trained weights, in the precision of compute; a part of `fixed_bytes`."""
    tied_bytes: int = 0
    """Of these, the weights that other nodes may read, too: reduced at the end, and shared by
    nobody."""
    fixed_bytes: int = 0
    saved_bytes: int = 0
    saved_for_weights_bytes: int = 0
    workspace_bytes: int = 0
    needs_backward: bool = True

    def __post_init__(self) -> None:
        if not self.devices or self.micro_batch_size < 1:
            raise ValueError("a stage needs devices and a micro-batch size of at least 1")
        seconds = (self.forward_s, self.backward_s, self.input_grad_s, self.weight_grad_s)
        if max(map(abs, (*seconds, self.reduce_s, self.update_s))) > MAX_SECONDS:
            raise ValueError(f"a task of a stage takes more than {MAX_SECONDS:g} s")
        if self.reduction is not None and len(self.reduction.lanes) != len(self.devices):
            raise ValueError(
                f"{len(self.reduction.lanes)} lanes for a stage on {len(self.devices)} devices"
            )

    @property
    def closing_s(self) -> float:
        """From the end of the last backward to the end of the update, when nothing is in the
        way: at least, where the backward is split."""
        if not self.needs_backward:
            return 0.0
        return self.left_s + self.reduce_s + self.update_s

    @property
    def reducing_s(self) -> float:
        """All reductions one after the other, with nothing beside them."""
        buckets = () if self.reduction is None else self.reduction.buckets
        return self.reduce_s + sum(bucket.seconds for bucket in buckets)

    @property
    def left_s(self) -> float:
        """What is left of the reduction when a whole backward has ended."""
        if self.reduction is None:
            return 0.0
        ready = [bucket.backward_s for bucket in self.reduction.buckets]
        return self.reduction.left_over(self.backward_s, ready)


class Message(Noun, frozen=True, kw_only=True):
    """Bytes between two devices: they occupy `channel` for `seconds`, arrive `latency_s` later."""

    src: int
    dst: int
    bytes: int
    seconds: float
    latency_s: float
    channel: str

    def __post_init__(self) -> None:
        if max(abs(self.seconds), abs(self.latency_s)) > MAX_SECONDS:
            raise ValueError(f"a message takes more than {MAX_SECONDS:g} s")


class TransferPrice(Noun, frozen=True, kw_only=True):
    """All that stage `src` sends to stage `dst` for one micro-batch of `src`.

    Forward transfers follow the stage edges, backward ones run against them. Stages on the same
    devices need no messages. With unequal micro-batch sizes the sender's micro-batches count.
    """

    src: int
    dst: int
    backward: bool
    messages: tuple[Message, ...]


class PricedStages(Noun, frozen=True, kw_only=True, dict=True):
    """The priced stage graph of one batch; edges are pairs of stage numbers, src < dst."""

    batch_size: int
    stages: tuple[StagePrice, ...]
    edges: tuple[tuple[int, int], ...]
    backward_edges: tuple[tuple[int, int], ...]
    """The edges (src, dst) along which a gradient comes back."""
    transfers: tuple[TransferPrice, ...]
    memory_bytes_by_device: tuple[int, ...]
    """Usable memory; its length is the number of devices."""

    def __post_init__(self) -> None:
        num = len(self.stages)
        if list(self.edges) != sorted(set(self.edges)):
            raise ValueError("edges must be sorted and different")
        for src, dst in self.edges:
            if not 0 <= src < dst < num:
                raise ValueError(f"edge {src} -> {dst} does not point to a later stage")
        if not set(self.backward_edges) <= set(self.edges):
            raise ValueError("a backward edge is not an edge")
        for stage in self.stages:
            if self.batch_size % stage.micro_batch_size:
                raise ValueError(
                    f"micro-batch size {stage.micro_batch_size} does not divide the batch of"
                    f" {self.batch_size}"
                )
            if self.batch_size // stage.micro_batch_size > MAX_MICRO_BATCHES:
                raise ValueError(f"a batch has more than {MAX_MICRO_BATCHES:,} micro-batches")
            if any(not 0 <= d < len(self.memory_bytes_by_device) for d in stage.devices):
                raise ValueError(f"a stage uses devices {list(stage.devices)}, which do not exist")
        for transfer in self.transfers:
            if not (0 <= transfer.src < num and 0 <= transfer.dst < num):
                raise ValueError(f"transfer {transfer.src}>{transfer.dst} has an end without stage")
            senders, takers = (self.stages[s].devices for s in (transfer.src, transfer.dst))
            for each in transfer.messages:
                if each.src not in senders or each.dst not in takers:
                    raise ValueError(
                        f"a message of transfer {transfer.src}>{transfer.dst} goes from device"
                        f" {each.src} to {each.dst}, where its stages are not"
                    )

    def num_micro_batches(self, stage: int) -> int:
        """Micro-batches of a stage in one batch."""
        return self.batch_size // self.stages[stage].micro_batch_size

    @cached_property
    def predecessors(self) -> Neighbours:
        """Stages that each stage reads from."""
        return collect_neighbours(len(self.stages), ((dst, src) for src, dst in self.edges))

    @cached_property
    def successors(self) -> Neighbours:
        """Stages that read from each stage."""
        return collect_neighbours(len(self.stages), self.edges)

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """h(s): the longest path in edges from each stage to a sink."""
        return measure_heights(self.successors)

    @cached_property
    def stages_by_device(self) -> tuple[tuple[int, ...], ...]:
        """Stages that each device runs."""
        hosted: list[list[int]] = [[] for _ in self.memory_bytes_by_device]
        for s, stage in enumerate(self.stages):
            for device in stage.devices:
                hosted[device].append(s)
        return tuple(map(tuple, hosted))

    @cached_property
    def transfer_by_ends(self) -> dict[tuple[int, int], TransferPrice]:
        """Transfers by (sending stage, receiving stage); a backward one has src > dst."""
        return {(each.src, each.dst): each for each in self.transfers}
