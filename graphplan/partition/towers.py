"""Towers: drafts for graphs whose branches meet in a heavy node.

Such a node (a wide layer that reads many towers, a large table) pays for every replica with a
reduction and an update at the end of the step, while its towers share little. So it gets devices of
its own, few of them, and the pieces that are left when it is taken out fill the others, one after
the other. What is too much for a device is cut along the order and goes on where there is room:

    towers a b c d e f g of equal work, core x on devices 0-1, six devices left
    2: a   3: b   4: c   5: d   6: e   7: f     g is cut: one third of it to 2, one to 3, one to 4

The drafts are few and cheap: for every core, number of replicas, micro-batch size and level of
filling one, of which the best by their appraisals are proposed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy

from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Floats
from graphplan.partition.assemble import Draft, Part
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.drafts.scene import is_legal_draft, list_components
from graphplan.partition.proposal import Proposals, Wish

MAX_CORES = 2
MAX_CORE_REPLICAS = 4
LEVELS = (1.0, 1.1, 1.25)
"""How full a device may get, relative to an even share of all work outside the core."""
NUM_JUDGED = 8
"""Drafts that are proposed."""
MAX_PIECES = 64
"""Pieces beyond which a graph is a chain, not towers."""


def propose(cost: CostModel, wish: Wish) -> Proposals:
    """The best drafts by their appraisals."""
    problem = cost.problem
    if problem.pins or len(problem.cluster.types) > 1 or len(problem.cluster.devices) < 3:
        return ""
    appraiser = Appraiser(cost, relaxed=wish.searched and wish.is_step)
    found: dict[Draft, float] = {}
    for draft in list_drafts(cost):
        appraisal = appraiser.appraise(draft) if is_legal_draft(problem, draft) else None
        if appraisal is not None and not appraisal.excess_bytes:
            found[draft] = appraisal.step_s
        yield None
    for draft in sorted(found, key=lambda each: found[each])[:NUM_JUDGED]:
        yield draft
    return ""


def list_drafts(cost: CostModel) -> Iterator[Draft]:
    """A draft for every core, number of its replicas, micro-batch size and level."""
    problem = cost.problem
    work, num_devices = cost.mean_times.work, len(problem.cluster.devices)
    widths = range(1, min(MAX_CORE_REPLICAS, num_devices - 2) + 1)
    for core in find_cores(cost):
        inside = set(core)
        rest = [node for node in range(problem.num_nodes) if node not in inside]
        pieces = list_components(problem, rest)
        if not 2 < len(pieces) <= MAX_PIECES:
            continue
        for width, level in itertools.product(widths, LEVELS):
            chunks = fill_devices(work, pieces, range(width, num_devices), level)
            for size in problem.micro_batch_sizes:
                parts = [Part(nodes=core, devices=tuple(range(width)), micro_batch_size=size)]
                parts += [
                    Part(nodes=nodes, devices=(device,), micro_batch_size=size)
                    for nodes, device in chunks
                ]
                yield tuple(parts)


def find_cores(cost: CostModel) -> list[tuple[int, ...]]:
    """The nodes with the most weights, each with what only gathers its inputs."""
    problem = cost.problem
    heaviest = numpy.argsort(-problem.trained_elements, kind="stable")[:MAX_CORES]
    cores: list[tuple[int, ...]] = []
    for node in map(int, heaviest):
        sources = problem.predecessors[node]
        gathers = [s for s in sources if problem.successors[s] == (node,)]
        light = [s for s in gathers if not problem.trained_elements[s]]
        cores += [(node,), tuple(sorted((node, *light)))] if light else [(node,)]
    return list(dict.fromkeys(cores))


def fill_devices(
    work: Floats, pieces: Sequence[tuple[int, ...]], devices: range, level: float
) -> list[tuple[tuple[int, ...], int]]:
    """Nodes and the device of every chunk: whole pieces first, the heaviest first."""
    share = level * float(sum(work[list(piece)].sum() for piece in pieces)) / len(devices)
    load = dict.fromkeys(devices, 0.0)
    chunks: list[tuple[tuple[int, ...], int]] = []
    whole = sorted(pieces, key=lambda piece: (-float(work[list(piece)].sum()), piece))
    for piece in whole:
        left = piece
        while left:
            device = min(load, key=lambda each: (load[each], each))
            total = numpy.cumsum(work[list(left)])
            room = share - load[device]
            if total[-1] <= max(room, 0.0) or len(left) == 1:
                taken = len(left)
            else:
                taken = max(1, int(numpy.searchsorted(total, room, side="right")))
            chunks.append((left[:taken], device))
            load[device] += float(total[taken - 1])
            left = left[taken:]
    return chunks
