"""Deliveries: the program of one device with every transfer resolved to tensors, rows and peers.

Every task reads its tensors from the slots of a *mailbox* (stage, kind, micro-batch): the values
that a forward reads, or the gradients that a backward starts from. A delivery takes a window of a
tensor that one task made and puts it into a window of a slot, on this device or on another one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import Literal, NamedTuple

from graphplan.nouns.schedule import Program
from graphplan.nouns.task import Task, Transfer
from graphplan_runtime.messages.parcels import Parcel, Piece, Split, list_parcels
from graphplan_runtime.messages.rows import find_axis
from graphplan_runtime.messages.transport import NUM_LANES

Sizes = tuple[int, ...]
MAX_TAG = (1 << 31) - 1
"""The largest tag; it belongs to the losses."""


class Mailbox(NamedTuple):
    """Where the tensors of one task arrive: values for F, gradients for B (and I)."""

    stage: int
    kind: Literal["F", "B"]
    micro_batch: int


class Window(NamedTuple):
    """A part of a tensor along one dimension."""

    dim: int
    start: int
    length: int


class Slot(NamedTuple):
    """A tensor that a task reads: its value, and the reader stage whose gradient it is."""

    value: str
    reader: int
    part: int = 0
    """Tells several gradients of one reader apart: those of values without a batch dimension."""


@dataclasses.dataclass(frozen=True, slots=True)
class Delivery:
    """One message, or one hand-over on the same device."""

    value: str
    take: Window | None
    """Of the sender's tensor; None for all of it."""
    sizes: Sizes
    """Of what travels."""
    mailbox: Mailbox
    slot: Slot
    put: Window | None
    """Of the receiver's tensor; None for all of it."""
    slot_sizes: Sizes
    peer: int
    """The other device."""
    tag: int


@dataclasses.dataclass(frozen=True)
class Routes:
    """What one device sends and receives under a program, for one number of rows."""

    split: Split
    device: int
    program: Program

    def sends(self, transfer: Transfer) -> list[Delivery]:
        """Messages that leave this device with a transfer."""
        return [each for src, dst, each in self._list(transfer) if src == self.device != dst]

    def receives(self, transfer: Transfer) -> list[Delivery]:
        """Messages that reach this device with a transfer."""
        return [each for src, dst, each in self._list(transfer) if dst == self.device != src]

    def handovers(self, task: Task) -> list[Delivery]:
        """What a task gives to other stages of this device."""
        if task.kind == "W":
            return []
        found: list[Delivery] = []
        for other in self._local_neighbours(task):
            kind: Literal["F", "B"] = "F" if task.kind == "F" else "B"
            transfer = Transfer(task.stage, other, kind, task.micro_batch)
            found += [each for src, dst, each in self._list(transfer) if src == dst == self.device]
        return found

    def _local_neighbours(self, task: Task) -> Iterator[int]:
        stages = self.split.stages
        if task.kind == "F":
            others = stages.successors[task.stage]
        else:
            others = tuple(
                other
                for other in stages.predecessors[task.stage]
                if any(map(self.split.returns_gradient, stages.edges_by_ends[other, task.stage]))
            )
        for other in others:
            if self.device in stages.stages[other].devices:
                yield other

    def _list(self, transfer: Transfer) -> Iterator[tuple[int, int, Delivery]]:
        """Every delivery of a transfer with its sending and its receiving device."""
        for number, parcel in enumerate(list_parcels(self.split, transfer)):
            ends = (self.split.device_of(parcel.producer), self.split.device_of(parcel.reader))
            src, dst = ends if transfer.kind == "F" else ends[::-1]
            if self.device in (src, dst):
                peer = dst if src == self.device else src
                tag = self._tag(transfer, number)
                yield src, dst, self._address(parcel, transfer, peer=peer, tag=tag)

    def _tag(self, transfer: Transfer, number: int) -> int:
        """A number that both ends compute and that tells the messages of a step apart.

        Its last digit is the micro-batch's, so that neighbours take different lanes (transport.py).
        """
        num_stages = len(self.split.stages.stages)
        block, lane = divmod(transfer.micro_batch, NUM_LANES)
        ends = (block * num_stages + transfer.src) * num_stages + transfer.dst
        return ((ends * 64 + number) * NUM_LANES + lane) % (MAX_TAG - 1)

    def _address(self, parcel: Parcel, transfer: Transfer, *, peer: int, tag: int) -> Delivery:
        edge, producer, reader = parcel.edge, parcel.producer, parcel.reader
        ends = (producer, reader) if transfer.kind == "F" else (reader, producer)
        spec = self.split.graph.spec_of(edge.value)
        assert spec is not None
        target = ends[1]
        part = 0
        if transfer.kind == "B" and not spec.has_batch:
            replicas = len(self.split.stages.stages[reader.stage].devices)
            part = reader.micro_batch * replicas + reader.replica
        rows = reader.rows if parcel.rows is None else parcel.rows
        return Delivery(
            value=edge.value,
            take=self._window(parcel, ends[0]),
            sizes=spec.sizes(len(rows)),
            mailbox=Mailbox(target.stage, transfer.kind, target.micro_batch),
            slot=Slot(edge.value, reader.stage, part),
            put=self._window(parcel, target),
            slot_sizes=spec.sizes(len(target.rows)),
            peer=peer,
            tag=tag,
        )

    def _window(self, parcel: Parcel, piece: Piece) -> Window | None:
        """The rows of a parcel within a piece's tensor."""
        if parcel.rows is None or parcel.rows == piece.rows:
            return None
        spec = self.split.graph.spec_of(parcel.edge.value)
        assert spec is not None
        axis = find_axis(spec)
        assert axis is not None
        start = parcel.rows.start - piece.rows.start
        return Window(axis.dim, start, len(parcel.rows))

    @cached_property
    def gradient_slots(self) -> dict[Mailbox, tuple[Slot, ...]]:
        """For every backward on this device the gradients that arrive, in the order of adding."""
        found: dict[Mailbox, set[Slot]] = {}
        for transfer in self._gradient_transfers():
            for _, dst, each in self._list(transfer):
                if dst == self.device:
                    found.setdefault(each.mailbox, set()).add(each.slot)
        return {mailbox: tuple(sorted(slots)) for mailbox, slots in found.items()}

    def _gradient_transfers(self) -> Iterator[Transfer]:
        stages = self.split.stages
        for (src, dst), edges in stages.edges_by_ends.items():
            hosted = self.device in stages.stages[src].devices
            if hosted and any(map(self.split.returns_gradient, edges)):
                for m in range(self.split.counts[dst]):
                    yield Transfer(dst, src, "B", m)
