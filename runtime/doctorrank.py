"""One rank of `graphplan doctor`: what groups cost, what links carry, and whether order matters.

    python -m graphplan_runtime.doctorrank FOLDER RANK NUM_RANKS KIND

All ranks do the same steps in the same order, and write down which one they are at, so that
whoever waits for them can name the one that never ended.

groups       a communicator for every ordered pair of devices, as the runtime makes them, and one of
             all devices
messages     to and fro between two devices, one pair after the other; then every device sends to
             the next one at the same time
sums         over all devices, by size
orders       every device receives from the others in ascending order and sends to them in
             descending order, all of it posted before the first wait: what pipelines do
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from graphplan_runtime.messages.doors import shut_doors
from graphplan_runtime.messages.transport import GROUP_TIMEOUT, Transport
from graphplan_runtime.worker import name_backend

SHORT, LONG = 8, 1 << 24
"""Bytes of messages."""
SUMMED_SIZES = (1 << 16, 1 << 20, 1 << 24)
REPEATS = 5
STEPS = ("connecting", "groups", "messages", "crowd", "sums", "orders", "done")


class Figures(msgspec.Struct):
    """What one rank has measured; messages are those that it was the first end of."""

    group_s: float = 0.0
    num_groups: int = 0
    group_bytes: int | None = None
    delay_s: dict[int, tuple[float, float]] = {}
    """By peer: seconds of a short and of a long message, one way."""
    crowd_s: float = 0.0
    sum_s: dict[int, float] = {}
    is_ordered: bool = False


class Probe:
    """The steps of one rank."""

    def __init__(self, folder: Path, rank: int, num_ranks: int, kind: str) -> None:
        self.folder, self.rank, self.num_ranks = folder, rank, num_ranks
        self.device = torch.device(kind, rank) if kind != "cpu" else torch.device("cpu")
        self.figures = Figures()

    def run(self) -> Figures:
        """All steps; all ranks must call it."""
        self._enter("connecting")
        if self.device.type != "cpu":
            torch.accelerator.set_device_index(self.rank)
        store = FileStore(str(self.folder / "store"), self.num_ranks)
        with shut_doors():
            dist.init_process_group(
                name_backend(self.device),
                store=store,
                rank=self.rank,
                world_size=self.num_ranks,
                timeout=GROUP_TIMEOUT,
                device_id=None if self.device.type == "cpu" else self.device,
            )
        for step in (self._groups, self._messages, self._crowd, self._sums, self._orders):
            self._enter(step.__name__.strip("_"))
            step()
        self._enter("done")
        self.transport.meet()
        dist.destroy_process_group()
        return self.figures

    def _enter(self, step: str) -> None:
        (self.folder / f"step-{self.rank}").write_text(step)

    # -- steps -----------------------------------------------------------------------------------

    def _groups(self) -> None:
        everybody = tuple(range(self.num_ranks))
        pairs = [*itertools.permutations(everybody, 2)]
        before, start = self._count_free(), time.perf_counter()
        self.transport = Transport(self.device, pairs=pairs, groups=[everybody])
        self.everybody = everybody
        if self.num_ranks > 1:  # Communicators are complete when they have been used.
            self._sum(torch.zeros(1, device=self.device))
            self._exchange_with_all(SHORT)
        own = 1 + (0 if self.transport.has_tags else 2 * (self.num_ranks - 1))
        self.figures.group_s = (time.perf_counter() - start) / own
        self.figures.num_groups = own
        if before is not None:
            self.figures.group_bytes = max(0, (before - (self._count_free() or 0)) // own)

    def _messages(self) -> None:
        for first, second in itertools.permutations(self.everybody, 2):
            self.transport.meet()
            if self.rank in (first, second):
                found = [
                    self._time_message(first, second, num_bytes) for num_bytes in (SHORT, LONG)
                ]
                if self.rank == first:
                    self.figures.delay_s[second] = (found[0], found[1])

    def _crowd(self) -> None:
        """Every device sends to the next one."""
        after, before = (self.rank + 1) % self.num_ranks, (self.rank - 1) % self.num_ranks

        def pass_on() -> None:
            self._exchange({before}, {after}, LONG)

        if self.num_ranks > 1:
            self.figures.crowd_s = self._time(pass_on)

    def _sums(self) -> None:
        if self.num_ranks > 1:
            for num_bytes in SUMMED_SIZES:
                tensor = torch.zeros(num_bytes // 4, device=self.device)
                self.figures.sum_s[num_bytes] = self._time(lambda: self._sum(tensor))  # noqa: B023

    def _orders(self) -> None:
        if self.num_ranks > 1:
            self._exchange_with_all(LONG)
        self.figures.is_ordered = True

    # -- pieces ----------------------------------------------------------------------------------

    def _sum(self, tensor: torch.Tensor) -> None:
        self.transport.sum_over(self.everybody, tensor).wait()
        self._finish()

    def _time_message(self, first: int, second: int, num_bytes: int) -> float:
        """Half of the way to and fro."""
        tensor = torch.zeros(num_bytes // 4, device=self.device)
        peer = second if self.rank == first else first

        def send() -> None:
            self.transport.send(tensor, peer, 0).wait()

        def hear() -> None:
            buffer = self.transport.queues.take(tensor.shape, tensor.dtype)
            self.transport.receive(buffer, peer, 0).wait()
            self._finish()

        acts = (send, hear) if self.rank == first else (hear, send)
        found = []
        for _ in range(REPEATS + 1):
            start = time.perf_counter()
            for act in acts:
                act()
            self._finish()
            found.append(time.perf_counter() - start)
        return statistics.median(found[1:]) / 2

    def _exchange_with_all(self, num_bytes: int) -> None:
        others = {*self.everybody} - {self.rank}
        self._exchange(others, others, num_bytes)

    def _exchange(self, sources: set[int], targets: set[int], num_bytes: int) -> None:
        """Receives in ascending order, sends in descending order, then the first wait."""
        sizes, works = torch.Size([num_bytes // 4]), []
        for peer in sorted(sources):
            buffer = self.transport.queues.take(sizes, torch.float32)
            works.append((self.transport.receive(buffer, peer, 1), buffer))
        for peer in sorted(targets, reverse=True):
            tensor = torch.zeros(sizes, device=self.device)
            works.append((self.transport.send(tensor, peer, 1), tensor))
        for work, _ in works:
            work.wait()
        self._finish()

    def _time(self, act: Callable[[], None]) -> float:
        found = []
        for _ in range(REPEATS + 1):
            self.transport.meet()
            start = time.perf_counter()
            act()
            found.append(time.perf_counter() - start)
        return statistics.median(found[1:])

    def _finish(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def _count_free(self) -> int | None:
        """Free bytes of the device, of which communicators take some."""
        if self.device.type == "cpu":
            return None
        self._finish()
        return int(torch.get_device_module(self.device).mem_get_info(self.device)[0])


def main() -> None:
    """One rank."""
    folder, rank, num_ranks, kind = sys.argv[1:]
    torch.set_num_threads(1)
    figures = Probe(Path(folder), int(rank), int(num_ranks), kind).run()
    Path(folder, f"figures-{rank}").write_bytes(msgspec.json.encode(figures))


if __name__ == "__main__":
    main()
