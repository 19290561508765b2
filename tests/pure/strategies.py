"""Priced stages written by hand, and Hypothesis strategies that draw random ones."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from graphplan.nouns.prices import (
    Bucket,
    Message,
    PricedStages,
    Reduction,
    StagePrice,
    TransferPrice,
)

ROOMY_BYTES = 1 << 40

Edges = Sequence[tuple[int, int]]
PerStage = float | Sequence[float]


def chain_edges(num_stages: int) -> list[tuple[int, int]]:
    """The edges of a chain 0 -> 1 -> ..."""
    return [(s, s + 1) for s in range(num_stages - 1)]


def branch_edges(num_branches: int, length: int) -> list[tuple[int, int]]:
    """Branches of equal length that meet in one last stage, which is the highest number."""
    last = num_branches * length
    edges = [
        (branch * length + i, branch * length + i + 1 if i + 1 < length else last)
        for branch in range(num_branches)
        for i in range(length)
    ]
    return sorted(edges)


def chain_prices(num_stages: int, num_micro_batches: int, **options: object) -> PricedStages:
    """A chain, one stage on a device; the options are those of `dag_prices`."""
    edges = chain_edges(num_stages)
    return dag_prices(edges, num_micro_batches, num_stages=num_stages, **options)  # type: ignore[arg-type]


def dag_prices(
    edges: Edges,
    num_micro_batches: int = 4,
    *,
    num_stages: int | None = None,
    forward_s: PerStage = 1.0,
    backward_s: PerStage = 1.0,
    input_grad_s: PerStage | None = None,
    weight_grad_s: PerStage | None = None,
    transfer_s: float = 0.0,
    latency_s: float = 0.0,
    devices: Sequence[tuple[int, ...]] | None = None,
    micro_batch_sizes: Sequence[int] | None = None,
    batch_size: int | None = None,
    needs_backward: Sequence[bool] | None = None,
    reduce_s: PerStage = 0.0,
    update_s: PerStage = 0.0,
    fixed_bytes: int = 0,
    saved_bytes: int = 2,
    saved_for_weights_bytes: int = 1,
    workspace_bytes: int = 0,
    memory_bytes: int | Sequence[int] = ROOMY_BYTES,
    channels: str = "pair",
) -> PricedStages:
    """A stage graph with these prices; a scalar counts for every stage.

    Stage s is alone on device s unless `devices` says otherwise. The halves of the backward are
    equal unless given. `transfer_s` is the time of one whole micro-batch on a channel; `channels`
    is `pair` or `device` as in `Cluster`. A stage that needs no backward gets no gradients.
    """
    num = num_stages or 1 + max((dst for _, dst in edges), default=0)
    placed = list(devices) if devices else [(s,) for s in range(num)]
    sizes = list(micro_batch_sizes) if micro_batch_sizes else [1] * num
    trains = list(needs_backward) if needs_backward else [True] * num
    backward = per_stage(backward_s, num)
    halves = [b / 2 for b in backward]
    inputs = halves if input_grad_s is None else per_stage(input_grad_s, num)
    weights = halves if weight_grad_s is None else per_stage(weight_grad_s, num)
    forward, reduce, update = (per_stage(each, num) for each in (forward_s, reduce_s, update_s))
    stages = tuple(
        StagePrice(
            devices=placed[s],
            micro_batch_size=sizes[s],
            forward_s=forward[s],
            backward_s=backward[s] if trains[s] else 0.0,
            input_grad_s=inputs[s] if trains[s] else 0.0,
            weight_grad_s=weights[s] if trains[s] else 0.0,
            reduce_s=reduce[s] if trains[s] and len(placed[s]) > 1 else 0.0,
            update_s=update[s] if trains[s] else 0.0,
            fixed_bytes=fixed_bytes,
            saved_bytes=saved_bytes if trains[s] else 0,
            saved_for_weights_bytes=saved_for_weights_bytes if trains[s] else 0,
            workspace_bytes=workspace_bytes,
            needs_backward=trains[s],
        )
        for s in range(num)
    )
    num_devices = 1 + max(device for each in placed for device in each)
    memory = [memory_bytes] * num_devices if isinstance(memory_bytes, int) else memory_bytes
    pairs = tuple(sorted(set(edges)))
    back = tuple((src, dst) for src, dst in pairs if trains[src] and trains[dst])
    transfers = [
        price_transfer(stages, src, dst, transfer_s, latency_s, channels=channels)
        for src, dst in (*pairs, *((dst, src) for src, dst in back))
        if set(placed[src]) != set(placed[dst])
    ]
    return PricedStages(
        batch_size=batch_size or num_micro_batches * max(sizes),
        stages=stages,
        edges=pairs,
        backward_edges=back,
        transfers=tuple(transfers),
        memory_bytes_by_device=tuple(memory),
    )


def per_stage(value: PerStage, num_stages: int) -> list[float]:
    """One number for each stage."""
    if isinstance(value, int | float):
        return [float(value)] * num_stages
    return [float(each) for each in value]


def price_transfer(
    stages: Sequence[StagePrice],
    src: int,
    dst: int,
    transfer_s: float,
    latency_s: float,
    *,
    channels: str,
) -> TransferPrice:
    """One message for every pair of replicas whose rows of a micro-batch overlap."""
    senders, receivers = stages[src].devices, stages[dst].devices
    same_rows = stages[src].micro_batch_size == stages[dst].micro_batch_size
    messages = []
    for i, a in enumerate(senders):
        for j, b in enumerate(receivers):
            overlap = min((i + 1) / len(senders), (j + 1) / len(receivers)) - max(
                i / len(senders), j / len(receivers)
            )
            share = overlap if same_rows else 1 / (len(senders) * len(receivers))
            if share > 1e-9:
                channel = f"d{a}>d{b}" if channels == "pair" else f"d{a}>"
                messages.append(
                    Message(
                        src=a,
                        dst=b,
                        bytes=round(1000 * share),
                        seconds=transfer_s * share,
                        latency_s=latency_s,
                        channel=channel,
                    )
                )
    return TransferPrice(src=src, dst=dst, backward=src > dst, messages=tuple(messages))


@st.composite
def dag_edges(draw: st.DrawFn, *, num_stages: int) -> list[tuple[int, int]]:
    """Edges of a random DAG in which every stage but 0 has a predecessor."""
    edges = set()
    for dst in range(1, num_stages):
        sources = st.sets(st.integers(0, dst - 1), min_size=1, max_size=2)
        edges |= {(src, dst) for src in draw(sources)}
    return sorted(edges)


@st.composite
def priced_stages(
    draw: st.DrawFn,
    *,
    max_stages: int = 5,
    max_micro_batches: int = 5,
    chain: bool = False,
    transfers: bool = True,
    replicas: bool = False,
    shared_devices: bool = False,
    mixed_sizes: bool = False,
    frozen: bool = False,
    tight_memory: bool = False,
    updates: bool = False,
    buckets: bool = False,
) -> PricedStages:
    """A random stage graph with small whole times, so that sums of seconds are exact.

    Flags switch on what a test can bear; with `tight_memory` every device holds the activations of
    h(s)+1 micro-batches of its hungriest stage for each of its stages, and no more.
    """
    num = draw(st.integers(1, max_stages), label="stages")
    edges = chain_edges(num) if chain else draw(dag_edges(num_stages=num))
    seconds = st.integers(1, 4).map(float)
    by_stage = st.lists(seconds, min_size=num, max_size=num)
    inputs, weights = draw(by_stage, label="input_grad_s"), draw(by_stage, label="weight_grad_s")
    sizes = [1] * num
    if mixed_sizes:
        sizes = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=num, max_size=num))
    placed = draw_devices(draw, num, replicas=replicas, shared=shared_devices)
    trains = [True] * num
    if frozen:
        trains = [draw(st.booleans()) or s == num - 1 for s in range(num)]
    num_devices = 1 + max(device for each in placed for device in each)
    heights = heights_of(num, edges)
    hosted = max(sum(d in each for each in placed) for d in range(num_devices))
    roomy = hosted * 2 * (1 + max(heights)) * max(sizes)
    priced = dag_prices(
        edges,
        draw(st.integers(1, max_micro_batches), label="micro-batches"),
        num_stages=num,
        forward_s=draw(by_stage, label="forward_s"),
        backward_s=[i + w for i, w in zip(inputs, weights, strict=True)],
        input_grad_s=inputs,
        weight_grad_s=weights,
        transfer_s=float(draw(st.integers(0, 2), label="transfer_s")) if transfers else 0.0,
        latency_s=float(draw(st.integers(0, 2), label="latency_s")) if transfers else 0.0,
        devices=placed,
        micro_batch_sizes=sizes,
        needs_backward=trains,
        reduce_s=1.0 if updates else 0.0,
        update_s=1.0 if updates else 0.0,
        memory_bytes=roomy if tight_memory else ROOMY_BYTES,
    )
    return draw_buckets(draw, priced) if buckets else priced


def draw_buckets(draw: st.DrawFn, priced: PricedStages) -> PricedStages:
    """The same, with up to three buckets for every stage with replicas; lanes of their own, or
    channels that messages take, too."""
    is_shared = draw(st.booleans(), label="lanes are channels")
    stages = []
    for price in priced.stages:
        if len(price.devices) > 1 and price.needs_backward:
            lanes = tuple(f"d{d}>" if is_shared else f"lane {d}" for d in price.devices)
            shares = sorted(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
            seconds = [float(draw(st.integers(0, 3))) for _ in shares]
            slows, slowed = (draw(st.sampled_from([0.0, 0.0, 1.0])) for _ in range(2))
            price = with_buckets(
                price,
                [share / 4 for share in shares],
                seconds,
                lanes=lanes,
                slows=slows,
                slowed=slowed,
            )
        stages.append(price)
    return msgspec.structs.replace(priced, stages=tuple(stages))


def with_buckets(
    price: StagePrice,
    shares: Sequence[float],
    seconds: Sequence[float],
    *,
    lanes: Sequence[str] = (),
    slows: float = 0.0,
    slowed: float = 0.0,
) -> StagePrice:
    """The price with buckets that are complete after these shares of the backward."""
    reduction = Reduction(
        buckets=tuple(
            Bucket(
                bytes=1000,
                seconds=each,
                backward_s=share * price.backward_s,
                weight_grad_s=share * price.weight_grad_s,
            )
            for share, each in zip(shares, seconds, strict=True)
        ),
        lanes=tuple(lanes) or tuple(f"d{d}>" for d in price.devices),
        slows=slows,
        slowed=slowed,
    )
    held = 1000 * len(reduction.buckets)
    return msgspec.structs.replace(price, reduction=reduction, trained_bytes=held)


def draw_devices(
    draw: st.DrawFn, num_stages: int, *, replicas: bool, shared: bool
) -> list[tuple[int, ...]]:
    """Device groups, one of them for each stage; every group is used."""
    num_groups = draw(st.integers(1, num_stages)) if shared else num_stages
    groups, first = [], 0
    for _ in range(num_groups):
        size = draw(st.sampled_from([1, 2])) if replicas else 1
        groups.append(tuple(range(first, first + size)))
        first += size
    return [groups[s % num_groups] for s in range(num_stages)]


def heights_of(num_stages: int, edges: Edges) -> list[int]:
    """h(s): the longest path in edges from each stage to a sink."""
    heights = [0] * num_stages
    for src, dst in sorted(edges, reverse=True):
        heights[src] = max(heights[src], heights[dst] + 1)
    return heights
