"""make_shape: a bare stage graph with unit times, for figures that depend on the graph alone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from graphplan.nouns.prices import PricedStages, StagePrice

ENDLESS_BYTES = 1 << 50


def make_shape(
    edges: Sequence[tuple[int, int]], *, num_stages: int, num_micro_batches: int = 1
) -> PricedStages:
    """One stage on a device, unit times, free messages and endless memory."""
    pairs = tuple(sorted(set(edges)))
    return PricedStages(
        batch_size=num_micro_batches,
        stages=tuple(
            StagePrice(
                devices=(s,),
                micro_batch_size=1,
                forward_s=1.0,
                backward_s=1.0,
                input_grad_s=0.5,
                weight_grad_s=0.5,
            )
            for s in range(num_stages)
        ),
        edges=pairs,
        backward_edges=pairs,
        transfers=(),
        memory_bytes_by_device=(ENDLESS_BYTES,) * num_stages,
    )


def make_chain(num_stages: int, *, num_micro_batches: int = 1) -> PricedStages:
    """The shape 0 -> 1 -> 2 -> …"""
    edges = [(s, s + 1) for s in range(num_stages - 1)]
    return make_shape(edges, num_stages=num_stages, num_micro_batches=num_micro_batches)


def strip_prices(priced: PricedStages) -> PricedStages:
    """The bare shape of priced stages; those without a backward stay so."""
    shape = make_shape(priced.edges, num_stages=len(priced.stages))
    stages = tuple(
        msgspec.structs.replace(bare, needs_backward=stage.needs_backward)
        for bare, stage in zip(shape.stages, priced.stages, strict=True)
    )
    return msgspec.structs.replace(shape, stages=stages, backward_edges=priced.backward_edges)
