"""Which replicas exchange rows, and which of them need a communicator."""

from __future__ import annotations

import itertools
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.stages import Stage, StageEdge, StageGraph
from graphplan.nouns.task import Transfer
from graphplan.nouns.tensor import TensorSpec
from graphplan_runtime.messages.parcels import Parcel, Split, _pack, list_parcels
from graphplan_runtime.placement import list_pairs

SHAPES = {
    "rows": TensorSpec(dtype="float32", shape=("b", 3)),
    "whole": TensorSpec(dtype="float32", shape=(3,)),
}


class Shapes:
    """All that parcels ask of an op graph."""

    def spec_of(self, name: str) -> TensorSpec:
        return SHAPES[name]


class Pairing:
    """All that pairs ask of a plan."""

    def __init__(self, stages: StageGraph) -> None:
        self.stages = stages


def make_split(replicas: tuple[int, int], counts: tuple[int, int], num_rows: int) -> Split:
    """Two stages on different devices, for a batch of any number of rows."""
    batch = counts[0] * counts[1] * replicas[0] * replicas[1]
    devices = (range(replicas[0]), range(replicas[0], sum(replicas)))
    stages = tuple(
        Stage(ops=(f"op{s}",), devices=tuple(devices[s]), micro_batch_size=batch // counts[s])
        for s in range(2)
    )
    edges = tuple(StageEdge(src=0, dst=1, value=name, spec=SHAPES[name]) for name in SHAPES)
    return Split(
        stages=StageGraph(stages=stages, edges=edges),
        counts=counts,
        num_rows=num_rows,
        graph=cast(OpGraph, Shapes()),
        has_backward=(True, True),
    )


def list_naively(split: Split, micro_batch: int) -> list[Parcel]:
    """Every piece of the sender against every piece of the reader."""
    read = split.covering(0, micro_batch, 1)
    found = []
    for edge in split.stages.edges:
        targets = [piece for m in read for piece in split.pieces(1, m)]
        for source, target in itertools.product(split.pieces(0, micro_batch), targets):
            parcel = _pack(split, edge, source, target)
            found += [] if parcel is None else [parcel]
    return found


SPLITS = st.builds(
    make_split,
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.sampled_from([(1, 1), (2, 2), (4, 2), (2, 4), (4, 4)]),
    st.integers(1, 40),
)


@settings(max_examples=300, deadline=None)
@given(SPLITS)
def test_parcels_are_those_of_all_pairs_of_pieces(split: Split) -> None:
    """One pass over both sides finds them in the same order, for batches of any size."""
    for m in range(split.counts[0]):
        found = list(list_parcels(split, Transfer(0, 1, "F", m)))
        assert found == list_naively(split, m)


@settings(max_examples=300, deadline=None)
@given(SPLITS)
def test_whoever_exchanges_rows_has_a_communicator(split: Split) -> None:
    """In both directions, whatever is left of the last batch."""
    pairs = set(list_pairs(cast(Plan, Pairing(split.stages))))
    for m in range(split.counts[0]):
        for parcel in list_parcels(split, Transfer(0, 1, "F", m)):
            ends = (split.device_of(parcel.producer), split.device_of(parcel.reader))
            assert {ends, ends[::-1]} <= pairs


def test_communicators_grow_with_the_replicas_not_with_their_square() -> None:
    """Two stages of 32 replicas need 64 of them, where all pairs would be 2,048."""
    split = make_split((32, 32), (4, 4), 4 * 32 * 32)
    assert len(set(list_pairs(cast(Plan, Pairing(split.stages))))) == 64
    eight = StageGraph(
        stages=tuple(
            Stage(
                ops=(f"op{s}",), devices=tuple(range(128 * s, 128 * s + 128)), micro_batch_size=128
            )
            for s in range(8)
        ),
        edges=tuple(
            StageEdge(src=s, dst=s + 1, value="rows", spec=SHAPES["rows"]) for s in range(7)
        ),
    )
    assert len(set(list_pairs(cast(Plan, Pairing(eight))))) == 2 * 7 * 128
