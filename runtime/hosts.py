"""Hosts: whether every rank runs where its device of the plan is.

A plan's times and its choice of who talks to whom rest on the types of the devices and on who
shares a node. Ranks on other hardware train just as exactly, only not as fast as was planned: a
warning, told before training.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec
import torch

from graphplan.cost.hardware import list_device_types
from graphplan.cost.measure_clock import find_clock, name_device_type
from graphplan.nouns.cluster import Cluster
from graphplan_runtime.faults.board import Board


class Seat(msgspec.Struct, frozen=True):
    """Where a rank runs."""

    host: str
    device_type: str
    """As in profiles/hardware; "" where there is no choice (ranks on a CPU)."""


def find_seat(device: torch.device) -> Seat:
    """The seat of this rank."""
    if device.type == "cpu":
        return Seat(socket.gethostname(), "")
    return Seat(socket.gethostname(), name_device_type(find_clock(str(device))))


def gather_seats(board: Board, seat: Seat, *, rank: int, num_ranks: int) -> list[Seat]:
    """The seats of all ranks, at rank 0; nothing elsewhere."""
    board.put(f"seat/{rank}", msgspec.json.encode(seat))
    if rank:
        return []
    texts = [board.take(f"seat/{each}") for each in range(num_ranks)]
    return [msgspec.json.decode(text, type=Seat) for text in texts]


def compare_seats(cluster: Cluster, seats: Sequence[Seat]) -> list[str]:
    """What is not as planned, in sentences."""
    found = []
    for rank, (device, seat) in enumerate(zip(cluster.devices, seats, strict=False)):
        known = seat.device_type in list_device_types()
        if known and seat.device_type != device.type.name:
            found.append(
                f"Rank {rank} runs on {seat.device_type}, its device of the plan is"
                f" {device.type.name}: the run will not take the time that was planned."
            )
            break
    hosts_by_node: dict[int, dict[str, int]] = {}
    for rank, (device, seat) in enumerate(zip(cluster.devices, seats, strict=False)):
        hosts = hosts_by_node.setdefault(device.node, {})
        hosts.setdefault(seat.host, rank)
        if len(hosts) > 1:
            (one, first), (other, second) = list(hosts.items())[:2]
            found.append(
                f"Ranks {first} and {second} share node {device.node} of the plan, and run on the"
                f" hosts {one} and {other}: messages between them take the network. Number the"
                " ranks host by host, or search again with a cluster of such nodes."
            )
            break
    return found
