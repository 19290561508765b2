"""Wiring: what the priced stages say about seats, wires and needs, whatever the program.

A *seat* is a stage on one of its devices; a *wire* is one message of a transfer's price. A task of
a seat needs the wires that end there, and what other seats of the same device have computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphplan.errors import InvalidProgram
from graphplan.nouns.prices import PricedStages
from graphplan.simulate.compiled import Ints, Wires
from graphplan.simulate.sanity import check_prices


class Rows(NamedTuple):
    """Lists of numbers one after the other: row r is `items[first[r]:first[r + 1]]`."""

    first: Ints
    items: Ints

    def expand(self, rows: Ints) -> tuple[Ints, Ints]:
        """For every item of every given row: the position in `rows`, and the item."""
        starts = self.first[rows]
        counts = self.first[rows + 1] - starts
        if len(rows) and counts.min() == counts.max() == 1:
            return np.arange(len(rows)), self.items[starts]
        owner = np.repeat(np.arange(len(rows)), counts)
        offset = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return owner, self.items[starts[owner] + offset]


def collect_rows(num_rows: int, row: Ints, items: Ints) -> Rows:
    """Rows from pairs (row, item), in the order of the pairs."""
    first = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=num_rows))))
    return Rows(first, items[np.argsort(row, kind="stable")])


class Wiring(NamedTuple):
    """The priced stages as tables."""

    num_stages: int
    seat_first: Ints
    """Stage -> its first seat; one more entry than stages."""
    seat_stage: Ints
    seat_device: Ints
    seat_keys: Ints
    """device * num_stages + stage, sorted."""
    seat_by_key: Ints
    size: Ints
    """Stage -> samples of its micro-batches."""
    wires: Wires
    channels: tuple[str, ...]
    transfer_keys: Ints
    """src * num_stages + dst, sorted."""
    transfer_by_key: Ints
    send_first: Ints
    """Transfer -> row of its first sending seat in `sends`."""
    receive_first: Ints
    sends: Rows
    """Wires by transfer and sending seat."""
    receives: Rows
    """Wires by transfer and receiving seat."""
    needs: Rows
    """Wires by 2 * receiving seat + backward."""
    local_needs: Rows
    """Seats on the same device, by 2 * seat + backward."""

    def find_seats(self, device: Ints, stage: Ints) -> Ints:
        """Seats of stages on devices, -1 where a device does not host the stage."""
        legal = (stage >= 0) & (stage < self.num_stages)
        key = np.where(legal, device * self.num_stages + stage, -1)
        return _look_up(key, self.seat_keys, self.seat_by_key)

    def find_transfers(self, src: Ints, dst: Ints) -> Ints:
        """Positions of transfers among the prices, -1 where there is none."""
        legal = (src >= 0) & (src < self.num_stages) & (dst >= 0) & (dst < self.num_stages)
        key = np.where(legal, src * self.num_stages + dst, -1)
        return _look_up(key, self.transfer_keys, self.transfer_by_key)


def wire_stages(priced: PricedStages) -> Wiring:
    """Lay the prices out as tables."""
    check_prices(priced)
    _check_edges(priced)
    num = len(priced.stages)
    counts = np.array([len(stage.devices) for stage in priced.stages], dtype=np.int64)
    seat_first = np.concatenate(([0], np.cumsum(counts)))
    seat_stage = np.repeat(np.arange(num), counts)
    seat_device = np.array([d for stage in priced.stages for d in stage.devices], dtype=np.int64)
    seat_keys, seat_by_key = _sort_keys(seat_device * num + seat_stage)
    src = np.array([each.src for each in priced.transfers], dtype=np.int64)
    dst = np.array([each.dst for each in priced.transfers], dtype=np.int64)
    transfer_keys, transfer_by_key = _sort_keys(src * num + dst)
    wires, channels = _lay_wires(priced, seat_keys, seat_by_key)
    send_first = np.concatenate(([0], np.cumsum(counts[src])))
    receive_first = np.concatenate(([0], np.cumsum(counts[dst])))
    numbers = np.arange(len(wires.src))
    send_row = send_first[wires.transfer] + wires.src_seat - seat_first[wires.src]
    receive_row = receive_first[wires.transfer] + wires.dst_seat - seat_first[wires.dst]
    need_row = 2 * wires.dst_seat + wires.backward
    return Wiring(
        num_stages=num,
        seat_first=seat_first,
        seat_stage=seat_stage,
        seat_device=seat_device,
        seat_keys=seat_keys,
        seat_by_key=seat_by_key,
        size=np.array([stage.micro_batch_size for stage in priced.stages], dtype=np.int64),
        wires=wires,
        channels=channels,
        transfer_keys=transfer_keys,
        transfer_by_key=transfer_by_key,
        send_first=send_first,
        receive_first=receive_first,
        sends=collect_rows(int(send_first[-1]), send_row, numbers),
        receives=collect_rows(int(receive_first[-1]), receive_row, numbers),
        needs=collect_rows(2 * len(seat_stage), need_row, numbers),
        local_needs=_collect_local_needs(priced, seat_first),
    )


def _sort_keys(keys: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(keys, kind="stable")
    return keys[order], order


def _look_up(key: Ints, keys: Ints, values: Ints) -> Ints:
    if not len(keys):
        return np.full(len(key), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    return np.where(keys[place] == key, values[place], -1)


def _lay_wires(
    priced: PricedStages, seat_keys: Ints, seat_by_key: Ints
) -> tuple[Wires, tuple[str, ...]]:
    rows = [
        (x, each.src, each.dst, each.backward, message)
        for x, each in enumerate(priced.transfers)
        for message in each.messages
    ]
    channels: dict[str, int] = {}
    channel = [channels.setdefault(row[4].channel, len(channels)) for row in rows]
    src = np.array([row[1] for row in rows], dtype=np.int64)
    dst = np.array([row[2] for row in rows], dtype=np.int64)
    src_device = np.array([row[4].src for row in rows], dtype=np.int64)
    dst_device = np.array([row[4].dst for row in rows], dtype=np.int64)
    num = len(priced.stages)
    src_seat = _look_up(src_device * num + src, seat_keys, seat_by_key)
    dst_seat = _look_up(dst_device * num + dst, seat_keys, seat_by_key)
    wires = Wires(
        src=src,
        dst=dst,
        src_device=src_device,
        dst_device=dst_device,
        src_seat=src_seat,
        dst_seat=dst_seat,
        backward=np.array([row[3] for row in rows], dtype=np.int64),
        transfer=np.array([row[0] for row in rows], dtype=np.int64),
        channel=np.array(channel, dtype=np.int64),
        seconds=np.array([row[4].seconds for row in rows], dtype=np.float64),
        latency_s=np.array([row[4].latency_s for row in rows], dtype=np.float64),
    )
    return wires, tuple(channels)


def _check_edges(priced: PricedStages) -> None:
    """Edges between different devices have a transfer; one without messages makes nobody wait."""
    pairs = [*priced.edges, *((dst, src) for src, dst in priced.backward_edges)]
    for src, dst in pairs:
        transfer = priced.transfer_by_ends.get((src, dst))
        reached = {message.dst for message in transfer.messages} if transfer else set()
        missing = set(priced.stages[dst].devices) - set(priced.stages[src].devices) - reached
        if missing and (reached or transfer is None):
            raise InvalidProgram(
                f"The prices have no message from stage {src} to stage {dst} on device"
                f" {min(missing)}.",
                remedy="Give every edge between different devices a transfer that reaches all of"
                " the reader's devices.",
            )


def _collect_local_needs(priced: PricedStages, seat_first: Ints) -> Rows:
    """Edges between stages that share a device: the order of its list must respect them."""
    pairs: list[tuple[int, int]] = []
    backward = set(priced.backward_edges)
    for src, dst in priced.edges:
        senders = {d: int(seat_first[src]) + i for i, d in enumerate(priced.stages[src].devices)}
        for i, device in enumerate(priced.stages[dst].devices):
            if device in senders:
                reader = int(seat_first[dst]) + i
                pairs.append((2 * reader, senders[device]))
                if (src, dst) in backward:
                    pairs.append((2 * senders[device] + 1, reader))
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return collect_rows(2 * int(seat_first[-1]), table[:, 0], table[:, 1])
