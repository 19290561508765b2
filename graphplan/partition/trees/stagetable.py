"""Stage tables: seconds and bytes of every stage between two cuts, for one number of device units.

Links are those that a stage of this size meets when stages sit side by side in the cluster's order:
inside a node while both neighbours fit there, between nodes otherwise.
"""

from __future__ import annotations

import dataclasses

import numpy

from graphplan.cost.cuts import Cuts
from graphplan.cost.sums import StageSums
from graphplan.nouns.cluster import Link
from graphplan.nouns.problem import Floats, Ints, Problem

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


def make_tables(cuts: Cuts, setting: Setting) -> list[StageTable]:
    """A table for each number of units that a stage may have."""
    return [_make_table(cuts, setting, units) for units in list_widths(cuts.problem, setting)]


def list_widths(problem: Problem, setting: Setting) -> list[int]:
    """Units that a stage may have: all that divide the micro-batch."""
    size, unit = setting.micro_batch_size, setting.unit
    return [
        units
        for units in range(1, setting.num_units + 1)
        if size % (units * unit) == 0 and size // (units * unit) in problem.size_index
    ]


def _make_table(cuts: Cuts, setting: Setting, num_units: int) -> StageTable:
    problem, replicas = cuts.problem, num_units * setting.unit
    size = problem.size_index[setting.micro_batch_size // replicas]
    sums = cuts.sums(size)
    plain, again = (cuts.costs(size, recompute=each, replicas=replicas) for each in (False, True))
    link, share = choose_link(problem, replicas)
    wire = sums.received_bytes * share / link.bandwidth_bytes_per_s
    left_s = cuts.cost.reductions.left_over(range(replicas), sums.own_elements, plain.backward_s)
    host_s = _time_hosts(link, sums)
    columns = {
        SECONDS: numpy.where(cuts.legal, numpy.maximum(plain.busy_s + 2 * host_s, wire), numpy.inf),
        FORWARD: plain.forward_s + host_s,
        MESSAGE: numpy.where(sums.received_bytes > 0, wire + link.latency_s, 0.0),
        CLOSING: left_s + plain.update_s,
        RESTING: plain.fixed_bytes + plain.workspace_bytes,
        SAVED: plain.saved_bytes,
        RECOMPUTING: again.fixed_bytes + again.workspace_bytes,
        ENTERING: again.saved_bytes,
    }
    entries = numpy.stack([columns[i] for i in range(len(COLUMNS))], axis=1)
    return StageTable(num_units, entries)


def _time_hosts(link: Link, sums: StageSums) -> Floats | float:
    """Seconds that the messages of a forward take from the tasks at both ends."""
    if not link.host_s and not link.host_s_per_byte:
        return 0.0
    ends = (sums.received_bytes, sums.leaving_buffer_bytes / 2)
    taken: Floats = sum(link.host_time(each) * (each > 0) for each in ends)
    return taken


def choose_link(problem: Problem, num_replicas: int) -> tuple[Link, int]:
    """The link into a stage, and how many replicas share one channel of it."""
    cluster = problem.cluster
    smallest = min(len(node.devices) for node in cluster.nodes)
    if len(cluster.nodes) == 1 or 2 * num_replicas <= smallest:
        links = [node.link for node in cluster.nodes]
        inside = min(links, key=lambda link: link.bandwidth_bytes_per_s)
        return inside, num_replicas if inside.scope == "node" else 1
    return cluster.link, min(num_replicas, smallest) if cluster.link.scope == "node" else 1
