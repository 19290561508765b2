"""Parcels: which rows of which value go from which piece of a stage to which piece of another.

A *piece* is what one replica computes of one micro-batch. Rows of a value travel between every
piece of its producer and every piece of a reader that have rows in common, whatever the numbers of
replicas and micro-batches on both sides; the gradient takes the same ways back. A value without a
batch dimension goes whole to every reader, from the piece that holds the reader's first row, so
that its gradient comes back once for every reader and is added there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from graphplan.errors import InvalidProgram
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.stages import StageEdge, StageGraph
from graphplan.nouns.task import Transfer
from graphplan_runtime.messages.rows import find_axis, overlap_rows, split_rows


class Piece(NamedTuple):
    """What one replica of a stage computes of one micro-batch."""

    stage: int
    micro_batch: int
    replica: int
    rows: range


class Parcel(NamedTuple):
    """Rows of one value between two pieces; `rows` is None when the whole tensor goes."""

    edge: StageEdge
    producer: Piece
    reader: Piece
    rows: range | None


@dataclasses.dataclass(frozen=True)
class Split:
    """A batch of `num_rows` samples, split over the micro-batches and replicas of every stage."""

    stages: StageGraph
    counts: tuple[int, ...]
    """Micro-batches by stage."""
    num_rows: int
    graph: OpGraph
    """Tells the shapes of the values; they may differ from those that were planned."""
    has_backward: tuple[bool, ...]
    """Whether each stage runs a backward."""

    def piece(self, stage: int, micro_batch: int, replica: int) -> Piece:
        """The rows of one replica's share of one micro-batch."""
        whole = split_rows(range(self.num_rows), self.counts[stage], micro_batch)
        rows = split_rows(whole, len(self.stages.stages[stage].devices), replica)
        return Piece(stage, micro_batch, replica, rows)

    def pieces(self, stage: int, micro_batch: int) -> list[Piece]:
        """All replicas' shares of one micro-batch."""
        replicas = range(len(self.stages.stages[stage].devices))
        return [self.piece(stage, micro_batch, replica) for replica in replicas]

    def device_of(self, piece: Piece) -> int:
        """Where a piece is computed."""
        return self.stages.stages[piece.stage].devices[piece.replica]

    def returns_gradient(self, edge: StageEdge) -> bool:
        """Whether the reader of a value sends its gradient back."""
        return edge.needs_grad and self.has_backward[edge.dst]

    def covering(self, stage: int, micro_batch: int, other: int) -> range:
        """Micro-batches of `other` that hold the rows of one micro-batch of `stage`."""
        ours, theirs = self.counts[stage], self.counts[other]
        return range(micro_batch * theirs // ours, -(-(micro_batch + 1) * theirs // ours))


def split_batch(plan: Plan, graph: OpGraph, num_rows: int) -> Split:
    """How a batch of `num_rows` samples is worked on under a plan."""
    counts = tuple(plan.prices.num_micro_batches(s) for s in range(len(plan.stages.stages)))
    split = Split(
        stages=plan.stages,
        counts=counts,
        num_rows=num_rows,
        graph=graph,
        has_backward=tuple(stage.needs_backward for stage in plan.prices.stages),
    )
    if graph.batch == "fixed" and num_rows != graph.batch_size * counts[0]:
        raise InvalidProgram(
            f"The batch has {num_rows} samples; the model was captured with micro-batches of"
            f" {graph.batch_size} samples, of which the plan has {counts[0]}.",
            remedy=f"Feed batches of {graph.batch_size * counts[0]} samples.",
        )
    return split


def list_parcels(split: Split, transfer: Transfer) -> Iterator[Parcel]:
    """All parcels of a transfer between all devices, in one order for everybody."""
    ends = (transfer.src, transfer.dst)
    if transfer.kind == "B":
        yield from _join(split, ends[::-1], reader_micro_batch=transfer.micro_batch)
    else:
        yield from _join(split, ends, producer_micro_batch=transfer.micro_batch)


def _join(
    split: Split,
    ends: tuple[int, int],
    *,
    producer_micro_batch: int | None = None,
    reader_micro_batch: int | None = None,
) -> Iterator[Parcel]:
    """Parcels from stage ends[0] to stage ends[1]; gradients when the reader's is given."""
    producer, reader = ends
    if producer_micro_batch is not None:
        produced = range(producer_micro_batch, producer_micro_batch + 1)
        read = split.covering(producer, producer_micro_batch, reader)
    else:
        assert reader_micro_batch is not None
        read = range(reader_micro_batch, reader_micro_batch + 1)
        produced = split.covering(reader, reader_micro_batch, producer)
    for edge in split.stages.edges_by_ends[ends]:
        if reader_micro_batch is not None and not split.returns_gradient(edge):
            continue
        sources = [piece for m in produced for piece in split.pieces(producer, m)]
        targets = [piece for m in read for piece in split.pieces(reader, m)]
        for source, target in _meet(sources, targets):
            parcel = _pack(split, edge, source, target)
            if parcel is not None:
                yield parcel


def _meet(sources: Sequence[Piece], targets: Sequence[Piece]) -> Iterator[tuple[Piece, Piece]]:
    """Pairs whose rows may meet, found in one pass: both sides lie in the order of their rows."""
    first = 0
    for source in sources:
        while first < len(targets) and targets[first].rows.stop <= source.rows.start:
            first += 1
        for target in islice(targets, first, None):
            if target.rows.start >= source.rows.stop:
                break
            yield source, target


def _pack(split: Split, edge: StageEdge, source: Piece, target: Piece) -> Parcel | None:
    """The parcel between two pieces, None when they have nothing to exchange."""
    spec = split.graph.spec_of(edge.value)
    assert spec is not None, "a value between stages is one tensor"
    if not spec.has_batch:
        leads = target.rows and target.rows.start in source.rows
        return Parcel(edge, source, target, None) if leads else None
    rows = overlap_rows(source.rows, target.rows)
    if not rows:
        return None
    if rows == source.rows == target.rows:
        return Parcel(edge, source, target, None)
    axis = find_axis(spec)
    if axis is None or axis.scale != 1:
        raise InvalidProgram(
            f"Stage {edge.src} sends {edge.value!r} ({spec}) to stage {edge.dst}, which works on"
            " other groups of samples; this tensor cannot be split by samples.",
            remedy=f"Give stages {edge.src} and {edge.dst} equal micro-batch sizes and numbers of"
            " devices, or cut elsewhere.",
        )
    return Parcel(edge, source, target, rows)
