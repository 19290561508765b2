"""Cast: the devices that are played, and the wires between them.

A *wire* is one message of a transfer's price: which bytes can pass between which two devices. All
devices are played for a timeline. For the time of a step alone, replicas that do the same at the
same time are played once (`fold_replicas`):

    stage 0 on devices 0 1 2 3, stage 1 on devices 4 5 6 7, a channel for every pair

    0 - 4    1 - 5    2 - 6    3 - 7        four islands, which nothing but an all-reduce joins

Devices that wires or channels join form an *island*. Islands with equal stages, wires, seconds and
sharing of channels run in lock step: their machines meet the same events in the same order, and a
bucket or an R, which starts when the last replica is there, finds all of them there at once. So one
island of each kind gives the times of all, to the last bit. What buckets occupy (*lanes*) are
channels like others, except that a bucket takes those of all islands at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphplan.nouns.prices import PricedStages
from graphplan.play.script import (
    WEIGHT_GRAD,
    Buckets,
    Floats,
    Ints,
    Script,
    Tasks,
    find_fillers,
    gather_groups,
    no_buckets,
)


class Wires(NamedTuple):
    """The rows of `TransferPrice.messages`."""

    src: Ints
    """Sending stage."""
    dst: Ints
    src_device: Ints
    dst_device: Ints
    backward: Ints
    transfer: Ints
    channel: Ints
    seconds: Floats
    latency_s: Floats


class Lanes(NamedTuple):
    """What the buckets of a stage occupy: a channel for each of its devices."""

    stage: Ints
    device: Ints
    channel: Ints


class Cast(NamedTuple):
    """Devices, in the order of their numbers, with wires and lanes whose ends are places among
    them."""

    devices: Ints
    wires: Wires
    lanes: Lanes
    num_channels: int


def lay_wires(priced: PricedStages) -> tuple[Wires, Lanes, tuple[str, ...]]:
    """The wires of all transfers, the lanes of all reductions, and the names of their channels."""
    channels: dict[str, int] = {}
    ints: list[tuple[int, ...]] = []
    floats: list[tuple[float, float]] = []
    for x, each in enumerate(priced.transfers):
        for message in each.messages:
            channel = channels.setdefault(message.channel, len(channels))
            ends = (each.src, each.dst, message.src, message.dst)
            ints.append((*ends, int(each.backward), x, channel))
            floats.append((message.seconds, message.latency_s))
    for a, b, backward in _list_unpriced(priced):
        senders, readers = priced.stages[a].devices, priced.stages[b].devices
        for i, device in enumerate(readers):
            channel = channels.setdefault(f"{a}>{b} {device}", len(channels))
            ends = (a, b, senders[i % len(senders)], device)
            ints.append((*ends, backward, len(priced.transfers), channel))
            floats.append((0.0, 0.0))
    whole = np.array(ints, dtype=np.int64).reshape(-1, 7).T
    seconds = np.array(floats, dtype=np.float64).reshape(-1, 2).T
    wires = Wires._make(np.ascontiguousarray(each) for each in (*whole, *seconds))
    lanes = [
        (s, device, channels.setdefault(lane, len(channels)))
        for s, stage in enumerate(priced.stages)
        if stage.reduction is not None
        for device, lane in zip(stage.devices, stage.reduction.lanes, strict=True)
    ]
    columns = np.array(lanes, dtype=np.int64).reshape(-1, 3).T
    return wires, Lanes._make(map(np.ascontiguousarray, columns)), tuple(channels)


def _list_unpriced(priced: PricedStages) -> list[tuple[int, int, int]]:
    """Edges between different devices that have no transfer: what flows there takes no time."""
    ends = [(a, b, 0) for a, b in priced.edges] + [(b, a, 1) for a, b in priced.backward_edges]
    stages, known = priced.stages, priced.transfer_by_ends
    return [
        (a, b, backward)
        for a, b, backward in ends
        if (a, b) not in known and set(stages[a].devices) != set(stages[b].devices)
    ]


def cast_devices(priced: PricedStages, *, fold: bool) -> Cast:
    """All devices, or one island of each kind."""
    wires, lanes, channels = lay_wires(priced)
    devices = np.arange(len(priced.memory_bytes_by_device))
    if fold and any(len(stage.devices) > 1 for stage in priced.stages):
        devices = fold_replicas(priced, wires, lanes, len(channels))
        kept = np.isin(lanes.device, devices)
        lanes = Lanes._make(each[kept] for each in lanes)
        lanes = lanes._replace(device=np.searchsorted(devices, lanes.device))
        kept = np.isin(wires.src_device, devices)
        wires = Wires._make(each[kept] for each in wires)
        wires = wires._replace(
            src_device=np.searchsorted(devices, wires.src_device),
            dst_device=np.searchsorted(devices, wires.dst_device),
        )
    return Cast(devices, wires, lanes, len(channels))


def fold_replicas(priced: PricedStages, wires: Wires, lanes: Lanes, num_channels: int) -> Ints:
    """The devices of the first island of each kind; those without stages are left out."""
    hosted = priced.stages_by_device
    island = _find_islands(wires, lanes, len(hosted), num_channels)
    members: dict[int, list[int]] = {}
    for device, name in enumerate(island.tolist()[: len(hosted)]):
        if hosted[device]:
            members.setdefault(name, []).append(device)
    rows_by_island: dict[int, list[int]] = {}
    for wire, name in enumerate(island[wires.src_device].tolist()):
        rows_by_island.setdefault(name, []).append(wire)
    columns = [each.tolist() for each in wires]
    lanes_by_device: dict[int, list[tuple[int, int]]] = {}
    for s, device, lane in zip(*(each.tolist() for each in lanes), strict=True):
        lanes_by_device.setdefault(device, []).append((s, lane))
    seen: set[tuple[object, ...]] = set()
    chosen: list[int] = []
    for name, devices in members.items():
        place = {device: i for i, device in enumerate(devices)}
        channel: dict[int, int] = {}
        rows = [[column[wire] for column in columns] for wire in rows_by_island.get(name, ())]
        wiring = tuple(
            (x, place[a], place[b], channel.setdefault(c, len(channel)), seconds, latency)
            for _, _, a, b, _, x, c, seconds, latency in rows
        )
        lining = tuple(
            tuple((s, channel.setdefault(c, len(channel))) for s, c in lanes_by_device.get(d, ()))
            for d in devices
        )
        kind = (tuple(hosted[device] for device in devices), wiring, lining)
        if kind not in seen:
            seen.add(kind)
            chosen += devices
    return np.array(sorted(chosen), dtype=np.int64)


def _find_islands(wires: Wires, lanes: Lanes, num_devices: int, num_channels: int) -> Ints:
    """By device, then by channel: the least number of what it is joined with."""
    label = np.arange(num_devices + num_channels)
    ends = (wires.src_device, wires.dst_device, num_devices + wires.channel)
    pairs = (lanes.device, num_devices + lanes.channel)
    while True:
        before = label.copy()
        for joined in (ends, pairs):
            least = np.minimum.reduce([label[each] for each in joined])
            for each in joined:
                np.minimum.at(label, each, least)
        if np.array_equal(label, before):
            return label


def assemble_script(
    priced: PricedStages,
    tasks: Tasks,
    seconds: Floats,
    cast: Cast,
    wire: Ints,
    reader: Ints,
    posts: tuple[Ints, Ints],
) -> Script:
    """The script of a program: its tasks and their seconds, the wires and readers of its messages,
    and what every slot posts."""
    num = len(tasks.stage)
    group, group_first, group_task = gather_groups(tasks.stage, tasks.kind, tasks.micro_batch)
    buckets = _fill_buckets(priced, tasks, cast.lanes, group, group_task[group_first[:-1]])
    waits = np.diff(buckets.bucket_first)[group] > 0 if len(group_task) else group
    return Script(
        line_first=tasks.first,
        line=np.arange(num),
        task_machine=tasks.device,
        task_seconds=seconds,
        task_missing=np.bincount(reader, minlength=num)[:num] + ((group >= 0) & waits),
        task_group=group,
        post_first=posts[0],
        post_message=posts[1],
        message_reader=reader,
        message_channel=cast.wires.channel[wire],
        message_seconds=cast.wires.seconds[wire],
        message_latency_s=cast.wires.latency_s[wire],
        group_first=group_first,
        group_task=group_task,
        num_channels=cast.num_channels,
        is_queued=True,
        **buckets._asdict(),
    )


def _fill_buckets(
    priced: PricedStages, tasks: Tasks, lanes: Lanes, group: Ints, leaders: Ints
) -> Buckets:
    """The buckets of all groups; `leaders` has the first R of each."""
    if not len(lanes.stage) or not len(leaders):
        return no_buckets(len(tasks.kind))._replace(
            bucket_first=np.zeros(len(leaders) + 1, dtype=np.int64)
        )
    fills = find_fillers(tasks, group)
    filler = np.full(len(leaders), -1, dtype=np.int64)
    chosen = np.flatnonzero(fills >= 0)[::-1]
    filler[fills[chosen]] = chosen
    rows: dict[tuple[int, bool], tuple[Floats, Floats, Ints, float, float]] = {}
    found = []
    for leader, task in zip(leaders.tolist(), filler.tolist(), strict=True):
        stage, is_split = int(tasks.stage[leader]), bool(tasks.kind[task] == WEIGHT_GRAD)
        key = (stage if task >= 0 else -1, is_split)
        if key not in rows:
            rows[key] = _list_buckets(priced, *key, lanes)
        found.append(rows[key])
    ready, seconds, lane, slows, slowed = zip(*found, strict=True)
    counts, widths = [len(each) for each in seconds], [len(each) for each in lane]
    fills[(fills >= 0) & (np.array(counts)[fills] == 0)] = -1
    return Buckets(
        task_fills=fills,
        bucket_first=np.cumsum([0, *counts]),
        bucket_ready_s=np.concatenate(ready),
        bucket_seconds=np.concatenate(seconds),
        lane_first=np.cumsum([0, *widths]),
        lane_channel=np.concatenate(lane),
        group_slows=np.array(slows),
        group_slowed=np.array(slowed),
    )


def _list_buckets(
    priced: PricedStages, stage: int, is_split: bool, lanes: Lanes
) -> tuple[Floats, Floats, Ints, float, float]:
    """When the buckets of a stage are complete, their seconds, lanes, and what they slow."""
    reduction = priced.stages[stage].reduction if stage >= 0 else None
    if reduction is None:
        return np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64), 0.0, 0.0
    whole = priced.stages[stage].weight_grad_s if is_split else priced.stages[stage].backward_s
    ready = [b.weight_grad_s if is_split else b.backward_s for b in reduction.buckets]
    return (
        np.minimum(np.array(ready), whole),
        np.array([bucket.seconds for bucket in reduction.buckets]),
        np.unique(lanes.channel[lanes.stage == stage]),
        reduction.slows,
        reduction.slowed,
    )
