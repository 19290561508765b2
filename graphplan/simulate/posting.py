"""Posting: the two ends of every message, found and matched."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import numpy as np

from graphplan.errors import InvalidProgram
from graphplan.simulate.compiled import FORWARD, INPUT_GRAD, Ints, Messages, Tasks, Wires
from graphplan.simulate.listing import Listing
from graphplan.simulate.places import Places, count_out, cover_micro_batches, name_task
from graphplan.simulate.wiring import Wiring


class Posts(NamedTuple):
    """Ends of messages in the order of the lists. `instance` numbers the pairs (wire, micro-batch
    of the sender): `base[wire] + micro_batch`."""

    slot: Ints
    instance: Ints
    is_send: Ints
    base: Ints
    position: Ints
    """Of the transfer in the listing."""


def find_posts(wiring: Wiring, listing: Listing, num_micro_batches: Ints) -> Posts:
    """The ends of messages that the transfers of the program stand for."""
    transfer = wiring.find_transfers(listing.post_src, listing.post_dst)
    src_seat = wiring.find_seats(listing.post_device, listing.post_src)
    dst_seat = wiring.find_seats(listing.post_device, listing.post_dst)
    _check_transfers(wiring, listing, transfer, src_seat, dst_seat)
    base = np.concatenate(([0], np.cumsum(num_micro_batches[wiring.wires.src])))
    parts = []
    for seat, first, rows, stage in (
        (src_seat, wiring.send_first, wiring.sends, listing.post_src),
        (dst_seat, wiring.receive_first, wiring.receives, listing.post_dst),
    ):
        chosen = np.flatnonzero((seat >= 0) & (transfer >= 0))
        row = first[transfer[chosen]] + seat[chosen] - wiring.seat_first[stage[chosen]]
        owner, wire = rows.expand(row)
        position = chosen[owner]
        parts.append((position, base[wire] + listing.post_micro_batch[position]))
    position = np.concatenate([part[0] for part in parts])
    order = np.argsort(position, kind="stable")
    position = position[order]
    is_send = np.repeat([1, 0], [len(part[0]) for part in parts])[order]
    return Posts(
        slot=listing.post_after[position] + listing.post_device[position],
        instance=np.concatenate([part[1] for part in parts])[order],
        is_send=is_send,
        base=base,
        position=position,
    )


def make_messages(
    wiring: Wiring, listing: Listing, tasks: Tasks, places: Places, posts: Posts
) -> tuple[Messages, Ints]:
    """The messages, and the message of every post."""
    send_at = _find_ends(wiring, posts, is_send=True)
    receive_at = _find_ends(wiring, posts, is_send=False)
    for lonely in np.flatnonzero((send_at >= 0) != (receive_at >= 0))[:1]:
        _refuse_lonely(wiring, posts, int(lonely), is_sent=bool(send_at[lonely] >= 0))
    instance = np.flatnonzero(send_at >= 0)
    number = np.full(len(send_at), -1, dtype=np.int64)
    number[instance] = np.arange(len(instance))
    wires = wiring.wires
    wire = np.repeat(np.arange(len(wires.src)), np.diff(posts.base))[instance]
    send_at, receive_at = send_at[instance], receive_at[instance]
    messages = Messages(
        wire=wire,
        micro_batch=instance - posts.base[wire],
        channel=wires.channel[wire],
        seconds=wires.seconds[wire],
        latency_s=wires.latency_s[wire],
        consumer=_find_consumers(wiring, tasks, places, posts.base, number),
        send_slot=posts.slot[send_at],
        receive_slot=posts.slot[receive_at],
    )
    _check_producers(wiring, listing, places, messages, posts.position[send_at])
    _check_order(wires, messages, send_at, receive_at)
    return messages, number[posts.instance]


def name_message(wires: Wires, wire: int, micro_batch: int) -> str:
    """The text of the transfer that a message belongs to."""
    kind = "B" if wires.backward[wire] else "F"
    return f"{wires.src[wire]}>{wires.dst[wire]}{kind}{micro_batch}"


def _check_transfers(
    wiring: Wiring, listing: Listing, transfer: Ints, src_seat: Ints, dst_seat: Ints
) -> None:
    foreign = (src_seat < 0) & (dst_seat < 0)
    unpriced = (transfer < 0) & ~((src_seat >= 0) & (dst_seat >= 0))
    turned = np.zeros(len(transfer), dtype=bool)
    known = transfer >= 0
    backward = np.zeros(len(wiring.send_first), dtype=np.int64)
    backward[wiring.wires.transfer] = wiring.wires.backward
    has_wires = np.zeros(len(wiring.send_first), dtype=bool)
    has_wires[wiring.wires.transfer] = True
    turned[known] = has_wires[transfer[known]] & (
        backward[transfer[known]] != listing.post_backward[known]
    )
    for mask, what in (
        (foreign, "which has neither end there"),
        (unpriced, "which has no price"),
        (turned, "whose direction has the other kind"),
    ):
        for bad in np.flatnonzero(mask)[:1]:
            raise InvalidProgram(
                f"Device {listing.post_device[bad]} posts {listing.name_post(int(bad))}, {what}.",
                remedy="Lower the schedule again for these prices.",
            )


def _find_ends(wiring: Wiring, posts: Posts, *, is_send: bool) -> Ints:
    """Post of each instance at one end, -1 for none."""
    chosen = np.flatnonzero(posts.is_send == int(is_send))
    found = np.full(int(posts.base[-1]), -1, dtype=np.int64)
    instance = posts.instance[chosen]
    found[instance] = chosen
    for twice in instance[found[instance] != chosen][:1]:
        wire = int(np.searchsorted(posts.base, twice, side="right")) - 1
        wires = wiring.wires
        device = wires.src_device[wire] if is_send else wires.dst_device[wire]
        raise InvalidProgram(
            f"Device {device} {'sends' if is_send else 'receives'}"
            f" {name_message(wires, wire, int(twice - posts.base[wire]))} twice.",
            remedy="Keep one of the two.",
        )
    return found


def _refuse_lonely(wiring: Wiring, posts: Posts, instance: int, *, is_sent: bool) -> NoReturn:
    wire = int(np.searchsorted(posts.base, instance, side="right")) - 1
    wires = wiring.wires
    name = name_message(wires, wire, int(instance - posts.base[wire]))
    src, dst = wires.src_device[wire], wires.dst_device[wire]
    raise InvalidProgram(
        f"Device {src} sends {name} to device {dst}, which never receives it."
        if is_sent
        else f"Device {dst} receives {name} from device {src}, which never sends it.",
        remedy=f"Post {name} on both devices.",
    )


def expand_needs(wiring: Wiring, tasks: Tasks) -> tuple[Ints, Ints, Ints]:
    """Every message that a task reads: the task, the wire, the sender's micro-batch."""
    chosen = np.flatnonzero(tasks.kind <= INPUT_GRAD)  # W, R and U read no messages
    owner, wire = wiring.needs.expand(2 * tasks.seat[chosen] + (tasks.kind[chosen] != FORWARD))
    task = chosen[owner]
    reach = cover_micro_batches(
        tasks.micro_batch[task],
        wiring.size[tasks.stage[task]],
        wiring.size[wiring.wires.src[wire]],
    )
    again, micro_batch = count_out(*reach)
    return task[again], wire[again], micro_batch


def assign_consumers(num_messages: int, num_tasks: int, message: Ints, task: Ints) -> Ints:
    """For each message the first task that reads it: later ones on that device find it there."""
    consumer = np.full(num_messages, num_tasks, dtype=np.int64)
    # Of equal indices numpy keeps the last value written: here the first task.
    consumer[message[::-1]] = task[::-1]
    return consumer


def _find_consumers(wiring: Wiring, tasks: Tasks, places: Places, base: Ints, number: Ints) -> Ints:
    task, wire, micro_batch = expand_needs(wiring, tasks)
    found = np.full(len(task), -1, dtype=np.int64)
    known = micro_batch < places.num_micro_batches[wiring.wires.src[wire]]
    found[known] = number[base[wire[known]] + micro_batch[known]]
    for bad in np.flatnonzero(found < 0)[:1]:
        name = name_message(wiring.wires, int(wire[bad]), int(micro_batch[bad]))
        waiting = name_task(tasks, int(task[bad]))
        raise InvalidProgram(
            f"Deadlock: device {tasks.device[task[bad]]} runs {waiting}, which needs {name} from"
            f" device {wiring.wires.src_device[wire[bad]]}; the program does not transfer it.",
            remedy=f"Post {name} on both devices, before {waiting} on the receiving one.",
        )
    return assign_consumers(int((number >= 0).sum()), len(tasks.stage), found, task)


def _check_producers(
    wiring: Wiring, listing: Listing, places: Places, messages: Messages, position: Ints
) -> None:
    wires = wiring.wires
    producer = places.find(
        wires.src_seat[messages.wire], messages.micro_batch, wires.backward[messages.wire]
    )
    for bad in np.flatnonzero(producer >= listing.post_after[position])[:1]:
        name = name_message(wires, int(messages.wire[bad]), int(messages.micro_batch[bad]))
        made = name.split(">")[0] + name[name.index(">") :].lstrip(">0123456789")
        raise InvalidProgram(
            f"Device {wires.src_device[messages.wire[bad]]} posts {name} before it has run {made}.",
            remedy=f"Put {name} behind {made}.",
        )


def _check_order(wires: Wires, messages: Messages, send_at: Ints, receive_at: Ints) -> None:
    """Between two devices, both ends must post the messages of one direction in the same order."""
    in_send_order = np.argsort(send_at, kind="stable")
    num_devices = int(wires.dst_device.max(initial=0)) + 1
    pair_of_wire = np.unique(
        wires.src_device * num_devices + wires.dst_device, return_inverse=True
    )[1]
    # Sixteen bits, where they suffice, make numpy sort in linear time.
    small = np.uint16 if len(pair_of_wire) < 1 << 16 else np.int64
    pair = pair_of_wire.astype(small)[messages.wire[in_send_order]]
    order = in_send_order[np.argsort(pair, kind="stable")]
    pair = pair_of_wire[messages.wire[order]]
    received = receive_at[order]
    for bad in np.flatnonzero((pair[1:] == pair[:-1]) & (received[1:] < received[:-1]))[:1]:
        one, two = (
            name_message(wires, int(messages.wire[m]), int(messages.micro_batch[m]))
            for m in order[bad : bad + 2]
        )
        wire = int(messages.wire[order[bad]])
        raise InvalidProgram(
            f"Deadlock: device {wires.src_device[wire]} sends {one} before {two}, device"
            f" {wires.dst_device[wire]} receives {two} before {one}.",
            remedy="Post the transfers between two devices in the same order on both.",
        )
