"""Scene: a draft with what the moves of a local search look at."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy

from graphplan.nouns.problem import Floats, Problem
from graphplan.partition.assemble import Draft, Part
from graphplan.partition.drafts.appraise import Appraisal, Appraiser


class Scene:
    """A draft, its appraisal, and views of it that are made when asked for."""

    def __init__(
        self,
        appraiser: Appraiser,
        work: Floats,
        draft: Draft,
        appraisal: Appraisal,
        *,
        everywhere: bool = False,
    ) -> None:
        self.appraiser, self.problem = appraiser, appraiser.problem
        self.work, self.draft, self.appraisal = work, draft, appraisal
        self.everywhere = everywhere

    @cached_property
    def focus(self) -> list[int]:
        """Parts whose change may help: crowded, busiest, on the longest way; or all of them."""
        if self.everywhere:
            return list(range(len(self.draft)))
        found = [*self.appraisal.crowded, *self.appraisal.busiest, *self.appraisal.critical]
        return list(dict.fromkeys(found))

    @cached_property
    def part_of(self) -> list[int]:
        """The part of every node."""
        found = [0] * self.problem.num_nodes
        for p, part in enumerate(self.draft):
            for node in part.nodes:
                found[node] = p
        return found

    @cached_property
    def after(self) -> list[set[int]]:
        """Parts that read from each part."""
        found: list[set[int]] = [set() for _ in self.draft]
        for src, dst in self.problem.edges:
            a, b = self.part_of[src], self.part_of[dst]
            if a != b:
                found[a].add(b)
        return found

    @cached_property
    def before(self) -> list[set[int]]:
        """Parts that each part reads from."""
        found: list[set[int]] = [set() for _ in self.draft]
        for src, readers in enumerate(self.after):
            for dst in readers:
                found[dst].add(src)
        return found

    @cached_property
    def load(self) -> dict[tuple[int, ...], float]:
        """Seconds of one sample by group of devices."""
        found: dict[tuple[int, ...], float] = {}
        for p, part in enumerate(self.draft):
            found[part.devices] = found.get(part.devices, 0.0) + self.seconds(p)
        return found

    @cached_property
    def free(self) -> tuple[int, ...]:
        """Devices without a part."""
        used = {device for part in self.draft for device in part.devices}
        return tuple(d for d in range(len(self.problem.cluster.devices)) if d not in used)

    def seconds(self, p: int) -> float:
        """Seconds of one sample in a part."""
        part = self.draft[p]
        price = self.appraiser.price(part)
        return (price.forward_s + price.backward_s) / part.micro_batch_size

    def is_alone(self, p: int) -> bool:
        """Whether no other part has the same devices."""
        return sum(part.devices == self.draft[p].devices for part in self.draft) == 1

    def neighbours(self, p: int) -> list[int]:
        """Parts that exchange tensors with a part."""
        return sorted(self.after[p] | self.before[p])

    def lightest(self, count: int) -> list[int]:
        """Parts on the least busy devices."""
        order = sorted(range(len(self.draft)), key=lambda p: (self.load[self.draft[p].devices], p))
        return order[:count]

    def list_components(self, p: int) -> list[tuple[int, ...]]:
        """The pieces of a part that no edge inside the part connects, each sorted."""
        return list_components(self.problem, self.draft[p].nodes)

    def replace(self, changes: dict[int, Part | None], added: Sequence[Part] = ()) -> Draft:
        """The draft with some parts changed, left out (None) or added."""
        kept = [changes.get(p, part) for p, part in enumerate(self.draft)]
        return (*(part for part in kept if part is not None), *added)


def list_components(problem: Problem, nodes: Sequence[int]) -> list[tuple[int, ...]]:
    """Connected pieces of a set of nodes, each sorted, the earliest first."""
    inside = set(nodes)
    found: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for start in nodes:
        if start in seen:
            continue
        piece, waiting = {start}, [start]
        while waiting:
            node = waiting.pop()
            for other in (*problem.predecessors[node], *problem.successors[node]):
                if other in inside and other not in piece:
                    piece.add(other)
                    waiting.append(other)
        seen |= piece
        found.append(tuple(sorted(piece)))
    return found


def change_nodes(part: Part, *, add: Sequence[int] = (), drop: Sequence[int] = ()) -> Part:
    """A part with other nodes."""
    gone = set(drop)
    nodes = tuple(sorted([*(node for node in part.nodes if node not in gone), *add]))
    return msgspec.structs.replace(part, nodes=nodes)


def sum_work(work: Floats, nodes: Sequence[int]) -> Floats:
    """Work of the first k nodes, k from 1."""
    total: Floats = numpy.cumsum(work[list(nodes)])
    return total


def is_legal_draft(problem: Problem, draft: Sequence[Part]) -> bool:
    """Whether devices are shared whole, micro-batches split evenly, and pins are obeyed."""
    group_of: dict[int, tuple[int, ...]] = {}
    for part in draft:
        if not part.nodes or not _is_legal_part(problem, part):
            return False
        for device in part.devices:
            if group_of.setdefault(device, part.devices) != part.devices:
                return False
    sizes = sorted({part.micro_batch_size for part in draft})
    # Stages that take turns on a device need micro-batches of one size; neighbours' sizes nest.
    shares = len({part.devices for part in draft}) < len(draft)
    nests = all(larger % smaller == 0 for smaller, larger in itertools.pairwise(sizes))
    return nests and not (shares and len(sizes) > 1)


def _is_legal_part(problem: Problem, part: Part) -> bool:
    count = len(part.devices)
    if part.micro_batch_size % count or part.micro_batch_size // count not in problem.size_index:
        return False
    if not problem.pins:
        return True
    wanted = {problem.pins[node] for node in part.nodes if node in problem.pins}
    return not wanted or (len(wanted) == 1 and part.devices == tuple(wanted))
