"""Clocks: how far the clock of this rank is from that of rank 0.

Processes of one host share a monotonic clock. Between hosts the offset is found as NTP does: of
several round trips the shortest one counts, and the other end's reading is taken to lie in its
middle.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import torch

from graphplan_runtime.faults.board import Board
from graphplan_runtime.messages.transport import Transport

ROUNDS = 8
TAG = 1
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def measure_offset(board: Board, transport: Transport) -> float:
    """Seconds to add to this rank's clock to get rank 0's; all ranks must call it."""
    board.put(f"host/{transport.rank}", _name_host().encode())
    transport.meet()
    first = board.take("host/0")
    offset_s = 0.0
    for rank in range(1, transport.num_ranks):
        if transport.rank in (0, rank) and board.take(f"host/{rank}") != first:
            if transport.rank == 0:
                _answer(transport, rank)
            else:
                offset_s = _ask(transport)
    return offset_s


def _name_host() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        import socket

        return socket.gethostname()


def _ask(transport: Transport) -> float:
    best_s, offset_s = float("inf"), 0.0
    reading = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        start = perf_counter()
        transport.exchange_figure(reading, 0, TAG, first=True)
        trip_s = perf_counter() - start
        if trip_s < best_s:
            best_s, offset_s = trip_s, float(reading) - (start + trip_s / 2)
    return offset_s


def _answer(transport: Transport, rank: int) -> None:
    reading = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        transport.exchange_figure(reading, rank, TAG, first=False)
