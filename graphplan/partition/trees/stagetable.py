"""Stage tables: seconds and bytes of every stage between two cuts, for one number of device units.

Links are those that a stage of this size meets when stages sit side by side in the cluster's order:
inside a node while both neighbours fit there, between nodes otherwise.
"""

from __future__ import annotations

import dataclasses

import numpy

from graphplan.cost.model import CostModel
from graphplan.nouns.cluster import Link
from graphplan.nouns.problem import Floats, Ints, Problem
from graphplan.partition.trees.closing import measure_closing
from graphplan.partition.trees.lattice import Lattice
from graphplan.partition.trees.line import Line

COLUMNS = (
    "seconds",
    "forward",
    "message",
    "closing",
    "resting",
    "saved",
    "recomputing",
    "entering",
)
"""Seconds: forward and backward (or messages, if they take longer), forward, the message that comes
in, reduction and update. Bytes: whatever is in flight, of one micro-batch in flight; the same two
with recomputation."""
SECONDS, FORWARD, MESSAGE, CLOSING, RESTING, SAVED, RECOMPUTING, ENTERING = range(len(COLUMNS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """How a search hands out devices and samples."""

    micro_batch_size: int
    unit: int
    """Devices that are handed out together."""
    num_units: int
    num_micro_batches: int
    memory_bytes: float
    roomy: bool = False
    """Whether every stage fits whatever is in flight, so that depths need not be told apart."""


@dataclasses.dataclass(frozen=True)
class StageTable:
    """Stages with `num_units` units: entries [start, column, end] over cuts."""

    num_units: int
    entries: Floats
    """Stages whose end does not hold their start take forever."""

    def list_ends(self, start: int, limit_s: float) -> Ints:
        """Cuts up to which a stage from `start` keeps the limit."""
        ends: Ints = (self.entries[start, SECONDS] <= limit_s).nonzero()[0]
        return ends


def make_tables(cost: CostModel, cuts: Line | Lattice, setting: Setting) -> list[StageTable]:
    """A table for each number of units that a stage may have."""
    return [_make_table(cost, cuts, setting, units) for units in list_widths(cost.problem, setting)]


def list_widths(problem: Problem, setting: Setting) -> list[int]:
    """Units of a stage: they divide the micro-batch, and grow by half to double."""
    size, unit = setting.micro_batch_size, setting.unit
    legal = [
        units
        for units in range(1, setting.num_units + 1)
        if size % (units * unit) == 0 and size // (units * unit) in problem.size_index
    ]
    kept: list[int] = []
    for units in legal:
        if not kept or units >= 1.5 * kept[-1] or units == setting.num_units:
            kept.append(units)
    return kept


def _make_table(
    cost: CostModel, cuts: Line | Lattice, setting: Setting, num_units: int
) -> StageTable:
    problem = cost.problem
    replicas = num_units * setting.unit
    size = problem.size_index[setting.micro_batch_size // replicas]
    forward, backward = (each[None, :] - each[:, None] for each in cuts.seconds(size))
    needs = cuts.needs(size)
    link, share = choose_link(problem, replicas)
    wire = needs.received * share / link.bandwidth_bytes_per_s
    closing = measure_closing(cost, replicas)
    trained = cuts.trained_elements
    legal = cuts.legal if isinstance(cuts, Lattice) else numpy.tri(len(forward), k=-1).T > 0
    columns = {
        SECONDS: numpy.where(legal, numpy.maximum(forward + backward, wire), numpy.inf),
        FORWARD: forward,
        MESSAGE: numpy.where(needs.received > 0, wire + link.latency_s, 0.0),
        CLOSING: (trained > 0) * closing.start_s + trained * closing.seconds_per_element,
        RESTING: needs.fixed + needs.workspace,
        SAVED: needs.saved,
        RECOMPUTING: needs.fixed + needs.workspace + needs.saved,
        ENTERING: needs.entering,
    }
    entries = numpy.stack([columns[i] for i in range(len(COLUMNS))], axis=1)
    return StageTable(num_units, entries)


def choose_link(problem: Problem, num_replicas: int) -> tuple[Link, int]:
    """The link into a stage, and how many replicas share one channel of it."""
    cluster = problem.cluster
    smallest = min(len(node.devices) for node in cluster.nodes)
    if len(cluster.nodes) == 1 or 2 * num_replicas <= smallest:
        links = [node.link for node in cluster.nodes]
        inside = min(links, key=lambda link: link.bandwidth_bytes_per_s)
        return inside, num_replicas if inside.scope == "node" else 1
    return cluster.link, min(num_replicas, smallest) if cluster.link.scope == "node" else 1
