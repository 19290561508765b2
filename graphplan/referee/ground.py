"""Ground: what the prices oblige a program to contain, derived once for all rules."""

from __future__ import annotations

from graphplan.nouns.prices import PricedStages

Ends = tuple[int, int]


class Ground:
    """Facts of priced stages whose numbers are known to be sane."""

    def __init__(self, priced: PricedStages) -> None:
        self.priced = priced
        self.num_devices = len(priced.memory_bytes_by_device)
        self.sizes = [stage.micro_batch_size for stage in priced.stages]
        self.counts = [priced.batch_size // size for size in self.sizes]
        """Micro-batches by stage."""
        groups = [frozenset(stage.devices) for stage in priced.stages]
        self.kind_by_ends: dict[Ends, str] = {}
        """Transfers that must take place, by sending and receiving stage."""
        self.local_forward: list[list[int]] = [[] for _ in groups]
        """Stages on the same devices that a stage reads from."""
        self.local_backward: list[list[int]] = [[] for _ in groups]
        """Stages on the same devices that send a stage gradients."""
        for src, dst in priced.edges:
            if groups[src] == groups[dst]:
                self.local_forward[dst].append(src)
            else:
                self.kind_by_ends[src, dst] = "F"
        for src, dst in priced.backward_edges:
            if groups[src] == groups[dst]:
                self.local_backward[src].append(dst)
            else:
                self.kind_by_ends[dst, src] = "B"
        self.readers: list[list[Ends]] = [[] for _ in groups]
        """Transfers that a stage sends, those of activations first."""
        self.senders: list[list[Ends]] = [[] for _ in groups]
        """Transfers that a stage receives."""
        for ends in self.kind_by_ends:
            self.readers[ends[0]].append(ends)
            self.senders[ends[1]].append(ends)
        self.readers_of: dict[tuple[int, int, int], list[int]] = {}
        """Devices to which a device sends a message of a transfer: (src, dst, device)."""
        self.senders_to: dict[tuple[int, int, int], list[int]] = {}
        """Devices from which a device gets one."""
        for transfer in priced.transfers:
            if (transfer.src, transfer.dst) in self.kind_by_ends:
                for each in transfer.messages:
                    key = (transfer.src, transfer.dst)
                    self.readers_of.setdefault((*key, each.src), []).append(each.dst)
                    self.senders_to.setdefault((*key, each.dst), []).append(each.src)

    def first_reader(self, src: int, micro_batch: int, dst: int) -> int:
        """The first micro-batch of `dst` with samples of a micro-batch of `src`."""
        return micro_batch * self.sizes[src] // self.sizes[dst]

    def last_needed(self, dst: int, micro_batch: int, src: int) -> int:
        """The last micro-batch of `src` with samples of a micro-batch of `dst`."""
        return ((micro_batch + 1) * self.sizes[dst] - 1) // self.sizes[src]

    def all_needed(self, dst: int, micro_batch: int, src: int) -> range:
        """The micro-batches of `src` with samples of a micro-batch of `dst`."""
        first = micro_batch * self.sizes[dst] // self.sizes[src]
        return range(first, self.last_needed(dst, micro_batch, src) + 1)
