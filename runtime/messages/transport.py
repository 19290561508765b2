"""Transport: messages between devices and reductions over groups, on torch.distributed.

Each direction has communicators of its own: the referee's deadlock proof assumes that transfers *of
one direction* complete in order (nouns/schedule.py), and nothing of the two directions together.

gloo   messages carry tags, so that a few groups of all ranks serve: for messages to higher ranks
       and for those to lower ones, and for neighbours in turn. A call for a connection waits
       while gloo's thread works on it; and when that thread has pushed the caller off its core, it
       asks for the connection in a loop until its slice ends, which takes milliseconds. So what is
       posted and what arrives meanwhile should not share a connection.
NCCL   has no tags and completes the messages of a communicator in the order in which they were
       posted: every ordered pair of devices that exchanges messages has a communicator.

Figures for the host (losses, norms, flags) always travel on gloo.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from itertools import pairwise
from time import perf_counter

import torch
import torch.distributed as dist

from graphplan_runtime.messages.doors import shut_doors
from graphplan_runtime.messages.queues import Queues, Work, find_queues

Group = tuple[int, ...]
"""Devices, sorted."""
GROUP_TIMEOUT = timedelta(hours=1)
"""The monitor ends a run that hangs long before."""
NUM_LANES = 2
"""Connections from one device to another; a message's tag says which one it takes."""


class Transport:
    """The process groups of one run; a rank is the number of its device in the plan."""

    def __init__(
        self,
        device: torch.device,
        *,
        pairs: Iterable[tuple[int, int]] = (),
        groups: Iterable[Group] = (),
        gathering: Iterable[Group] = (),
        queues: Queues | None = None,
    ) -> None:
        self.device = device
        self.queues = queues or find_queues(device)
        self.rank = dist.get_rank()
        self.num_ranks = dist.get_world_size()
        self._world = _as_group(dist.group.WORLD)
        self.has_tags = device.type == "cpu"
        self._by_direction: dict[tuple[int, int], dist.ProcessGroup] = {}
        with shut_doors():
            self._make_pairs(pairs)
            self._by_group = self._make_groups(groups)
            self._gathering = self._make_groups(gathering)
            """For groups that gather weights beside sums of gradients: the order in which the two
            are posted may differ between their members."""

    def _make_pairs(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Every process takes part in making every group, in the same order."""
        if self.has_tags:
            self._upwards = [_as_group(dist.new_group()) for _ in range(NUM_LANES)]
            self._downwards = [_as_group(dist.new_group()) for _ in range(NUM_LANES)]
        else:
            backend = dist.get_default_backend_for_device(self.device)
            for src, dst in sorted(set(pairs)):
                made = dist.new_group([src, dst], backend=backend, timeout=GROUP_TIMEOUT)
                if self.rank in (src, dst):
                    self._by_direction[src, dst] = _as_group(made)

    def _make_groups(self, groups: Iterable[Group]) -> dict[Group, dist.ProcessGroup]:
        found = {}
        for members in sorted(set(groups)):
            made = dist.new_group(list(members), timeout=GROUP_TIMEOUT)
            if self.rank in members:
                found[members] = _as_group(made)
        return found

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        """Post a send; the tensor must stay as it is until the work is done."""
        if self.has_tags:
            lanes = self._upwards if peer > self.rank else self._downwards
            return lanes[tag % NUM_LANES].send([tensor], peer, tag)
        pair = self._by_direction[self.rank, peer]
        return self.queues.send(tensor, lambda: pair.send([tensor], int(peer > self.rank), 0))

    def receive(self, buffer: torch.Tensor, peer: int, tag: int) -> Work:
        """Post a receive into a buffer."""
        if self.has_tags:
            lanes = self._downwards if peer > self.rank else self._upwards
            return lanes[tag % NUM_LANES].recv([buffer], peer, tag)
        pair = self._by_direction[peer, self.rank]
        return self.queues.receive(lambda: pair.recv([buffer], int(peer > self.rank), 0))

    def sum_over(self, group: Group, tensor: torch.Tensor) -> Work:
        """Post the sum of a tensor over a group, in place."""
        return self._by_group[group].allreduce([tensor])

    def sum_parts(self, group: Group, flat: torch.Tensor, bounds: Sequence[int]) -> Work:
        """Post sums of the ranges of a flat tensor, each at one member only, in place.

        What the other ranges hold afterwards has no meaning.
        """
        pg, own = self._by_group[group], group.index(self.rank)
        if not self.has_tags and _are_equal(bounds):
            part = flat[bounds[own] : bounds[own + 1]]
            return pg._reduce_scatter_base(part, flat, dist.ReduceScatterOptions())

        def post(root: int, part: torch.Tensor) -> Work:
            options = dist.ReduceOptions()
            options.rootRank = root
            return pg.reduce([part], options)

        return _post_parts(post, flat, bounds)

    def gather_parts(self, group: Group, flat: torch.Tensor, bounds: Sequence[int]) -> Work:
        """Post the exchange of ranges, of which every member has its own, in place.

        gloo's own call for ranges takes longer than a broadcast of each, as that for their sums
        does, and wants them to be of one size.
        """
        pg = self._gathering.get(group) or self._by_group[group]
        own = group.index(self.rank)
        if not self.has_tags and _are_equal(bounds):
            return pg._allgather_base(flat, flat[bounds[own] : bounds[own + 1]])

        def post(root: int, part: torch.Tensor) -> Work:
            options = dist.BroadcastOptions()
            options.rootRank = root
            return pg.broadcast([part], options)

        return _post_parts(post, flat, bounds)

    def copy_from_first(self, group: Group, tensor: torch.Tensor) -> None:
        """Give every member of a group the first one's tensor."""
        dist.broadcast(tensor, src=group[0], group=self._by_group[group])

    def sum_figures(self, figures: Collection[float]) -> list[float]:
        """Add figures over all ranks."""
        tensor = torch.tensor(list(figures), dtype=torch.float64)
        dist.all_reduce(tensor)
        return [float(each) for each in tensor]

    def add_figures(self, figures: torch.Tensor) -> Work:
        """Post the sum of some figures over all ranks, in place."""
        return self._world.allreduce([figures])

    def meet(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def exchange_figure(self, tensor: torch.Tensor, peer: int, tag: int, *, first: bool) -> None:
        """One round trip on the host: the first end gets the other end's clock."""
        if first:
            dist.send(tensor, peer, tag=tag)
            dist.recv(tensor, peer, tag=tag)
        else:
            dist.recv(tensor, peer, tag=tag)
            tensor[0] = perf_counter()
            dist.send(tensor, peer, tag=tag)

    def spread_text(self, text: str, *, source: int) -> str:
        """Give every rank the text of one rank."""
        length = int(self.spread_figure(len(text.encode()), source=source))
        buffer = bytearray(text.encode().ljust(length)[:length])
        tensor = torch.frombuffer(buffer, dtype=torch.uint8)
        dist.broadcast(tensor, src=source)
        return bytes(tensor.tolist()).decode()

    def spread_figure(self, figure: float | None, *, source: int) -> float:
        """Give every rank the figure of one rank."""
        tensor = torch.tensor([figure or 0.0], dtype=torch.float64)
        dist.broadcast(tensor, src=source)
        return float(tensor)


@dataclasses.dataclass(frozen=True, slots=True)
class _Works:
    """Several as one."""

    works: Sequence[Work]

    def wait(self) -> None:
        """For all of them."""
        for each in self.works:
            each.wait()


def _post_parts(
    post: Callable[[int, torch.Tensor], Work], flat: torch.Tensor, bounds: Sequence[int]
) -> _Works:
    """One work for every range that is not empty."""
    ranges = [(root, flat[a:b]) for root, (a, b) in enumerate(pairwise(bounds)) if a < b]
    return _Works([post(root, part) for root, part in ranges])


def _are_equal(bounds: Sequence[int]) -> bool:
    return len({b - a for a, b in pairwise(bounds)}) == 1


def _as_group(group: object) -> dist.ProcessGroup:
    assert isinstance(group, dist.ProcessGroup), "torch.distributed is initialised"
    return group
