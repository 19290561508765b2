"""PricedStages: a stage graph with seconds and bytes in place of ops.

The cost model makes it; schedules and the simulator read nothing else, so that both can be tested
on graphs written by hand. Times are those of one micro-batch on one replica.

Memory rule, the same for simulator and referee: a device holds `fixed_bytes` of its stages all the
time and `workspace_bytes` of the task that is running. A micro-batch adds `saved_bytes` from the
start of its F to the end of its B; with a split backward it keeps `saved_for_weights_bytes` of them
from the end of its I to the end of its W. A stage that needs no backward saves nothing.
"""

from __future__ import annotations

from functools import cached_property

from graphplan.nouns.base import MAX_MICRO_BATCHES, MAX_SECONDS, Noun
from graphplan.nouns.dag import Neighbours, collect_neighbours, measure_heights


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
    """All-reduce of the gradients over the replicas, once per update (task R)."""
    update_s: float = 0.0
    """Optimizer step (task U)."""
    trained_bytes: int = 0
    """One version of the trained weights, in the precision of compute; a part of `fixed_bytes`."""
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
