"""Piper's question, under Piper's own rule (Tarnawski et al., NeurIPS 2021), without its shards.

A pipeline is cut where down-sets of the graph end; what counts is the time per sample of its
slowest stage in the steady state, not a step. A stage of the nodes S on d replicas, which take
turns at the micro-batches, with k devices from it to the end of the pipeline, takes

    (sum of the times in S + twice the bytes of every edge that crosses its border / bandwidth) / d
    + 4 (d - 1) / d * bytes of weights / bandwidth / N        the reduction, spread over a batch

for one of N micro-batches, and holds ceil(k / d) stashes of all its nodes besides what is fixed.
Every node may recompute: those that save most for the time it takes do until the stage fits. d
divides N. Unlike here, micro-batches are not split by replicas, transfers add to the computing, and
a schedule plays no role, so that seconds are not comparable with those of plans.

The dynamic program is ours (pipelines/pipeline.py), over all down-sets, with tables of this rule in
place of the cost model's; the least target that it can keep is found by bisection.

    python -m tools.workloads.piper FILE --devices 8,64 --gib 8
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy

from graphplan.errors import InvalidFile
from graphplan.nouns.dag import collect_neighbours
from graphplan.nouns.problem import Floats, Ints
from graphplan.partition.dag.downsets import enumerate_downsets
from graphplan.partition.pipelines.pipeline import NEVER, Cut, PlaceTables, cut_pipeline
from tools.workloads.workload import ProfiledWorkload, read_workload

GIB = 2.0**30
BANDWIDTH_GIB = 25.0
"""Gibibytes a second of the published answers."""
MAX_DOWNSETS = 2_000
TOLERANCE = 1e-7
"""Relative width at which the bisection ends."""

Place = tuple[int, int]
"""Devices from a stage to the end of the pipeline, and those of the stage."""


class PiperStages:
    """All stages between two down-sets of a workload, and what Piper's rule says of them."""

    def __init__(
        self,
        workload: ProfiledWorkload,
        *,
        num_micro_batches: int,
        memory_bytes: float,
        bandwidth: float,
    ) -> None:
        self.num_micro_batches, self.memory_bytes = num_micro_batches, memory_bytes
        index = {name: i for i, name in enumerate(workload.order)}
        ops = sorted(workload.ops, key=lambda op: index[op.name])
        if any(None in (op.stashed_bytes, op.fixed_bytes, op.recomputed) for op in ops):
            raise InvalidFile(
                f"{workload.name!r} does not say what its ops stash, hold and recompute.",
                remedy="Use tools/workloads/profiled-piper-bert32.json or -resnet.json.",
            )
        edges = [(index[edge.src], index[edge.dst]) for edge in workload.edges]
        before = collect_neighbours(len(ops), ((dst, src) for src, dst in edges))
        after = collect_neighbours(len(ops), edges)
        found = enumerate_downsets(before, after, limit=MAX_DOWNSETS)
        if found is None:
            raise InvalidFile(
                f"{workload.name!r} has more than {MAX_DOWNSETS} down-sets.",
                remedy="Use a workload with fewer branches.",
            )
        self.downsets = sorted(found, key=lambda each: (each.bit_count(), each))
        held = numpy.array([[d >> i & 1 for i in range(len(ops))] for d in self.downsets], bool)
        sizes = held.sum(axis=1)
        nested = held.astype(int) @ held.T.astype(int) == sizes[:, None]
        self.first, self.last = (nested & (sizes[:, None] < sizes)).nonzero()
        self.inside = (held[self.last] & ~held[self.first]).astype(float)
        """[stage, op]"""
        src, dst = numpy.array(edges).T
        crosses = self.inside[:, src] != self.inside[:, dst]
        self.moving_s = crosses @ [2 * edge.bytes / bandwidth for edge in workload.edges]
        self.weights_s = self.inside @ [op.param_bytes / bandwidth for op in ops]
        rows = [
            (
                op.forward_s + op.backward_s,
                op.stashed_bytes,
                op.fixed_bytes,
                again.seconds,
                again.stashed_bytes,
                again.fixed_bytes,
            )
            for op in ops
            for again in [op.recomputed]
            if again is not None
        ]
        self.figures = numpy.array(rows, dtype=float).T
        self._computing: dict[int, Floats] = {}

    def compute_times(self, stashes: int) -> Floats:
        """Seconds of a micro-batch in every stage that holds so many stashes, infinity where that
        does not fit."""
        if stashes not in self._computing:
            self._computing[stashes] = self._time_nodes(stashes)
        return self._computing[stashes]

    def _time_nodes(self, stashes: int) -> Floats:
        plain_s, stashed, fixed, again_s, stashed_again, fixed_again = self.figures
        saved = fixed + stashes * stashed - (fixed_again + stashes * stashed_again)
        price = numpy.where(
            saved > 0, (again_s - plain_s) / numpy.maximum(saved, 1e-300), numpy.inf
        )
        order = [i for i in numpy.argsort(price, kind="stable") if saved[i] > 0]
        left = self.inside @ (fixed + stashes * stashed) - self.memory_bytes
        seconds: Floats = self.inside @ plain_s
        for op in order:
            # What is missing before a node decides whether it recomputes.
            recomputes = (left > 0) * self.inside[:, op]
            left = left - recomputes * saved[op]
            seconds = seconds + recomputes * (again_s[op] - plain_s[op])
        found: Floats = numpy.where(left > 0, numpy.inf, seconds)
        return found

    def time_stages(self, place: Place) -> Floats:
        """Seconds per sample of every stage at a place."""
        behind, replicas = place
        computing = self.compute_times(math.ceil(behind / replicas))
        reducing = 4 * (replicas - 1) / replicas * self.weights_s / self.num_micro_batches
        seconds: Floats = (computing + self.moving_s) / replicas + reducing
        return seconds


class PiperTables:
    """What the dynamic program asks of stages and devices; it is grid and tables in one."""

    def __init__(self, stages: PiperStages, num_devices: int, *, replicated: bool) -> None:
        self.stages, self.num_units = stages, num_devices
        self.num_blocks = len(stages.downsets) - 1
        widths = range(1, num_devices + 1) if replicated else range(1, 2)
        self.widths = [each for each in widths if stages.num_micro_batches % each == 0]
        self._tables_by_place: dict[Place, PlaceTables] = {}

    @cached_property
    def grid(self) -> PiperTables:
        """Units are devices, all alike."""
        return self

    def place(self, first: int, count: int) -> Place:
        """A stage on `count` devices from `first` on."""
        return self.num_units - first, count

    def devices(self, first: int, count: int) -> tuple[int, ...]:
        """The devices themselves."""
        return tuple(range(first, first + count))

    def at(self, place: Place) -> PlaceTables:
        """The stages that fit at a place."""
        if place not in self._tables_by_place:
            seconds = self.stages.time_stages(place)
            kept = numpy.flatnonzero(numpy.isfinite(seconds))
            free: Ints = numpy.full(len(kept), NEVER - 1, dtype=numpy.int32)
            first, last, own = self.stages.first[kept], self.stages.last[kept], seconds[kept]
            self._tables_by_place[place] = PlaceTables(first, last, own, free, own, free)
        return self._tables_by_place[place]


def solve_piper(
    workload: ProfiledWorkload,
    num_devices: int,
    *,
    num_micro_batches: int,
    memory_bytes: float,
    bandwidth: float = BANDWIDTH_GIB * GIB,
    replicated: bool = True,
) -> Cut | None:
    """The pipeline with the least time per sample; None when nothing fits."""
    stages = PiperStages(
        workload,
        num_micro_batches=num_micro_batches,
        memory_bytes=memory_bytes,
        bandwidth=bandwidth,
    )
    tables: Any = PiperTables(stages, num_devices, replicated=replicated)
    best, low_s = cut_pipeline(tables, math.inf), 0.0
    while best is not None and best.bottleneck_s - low_s > TOLERANCE * best.bottleneck_s:
        middle_s = (low_s + best.bottleneck_s) / 2
        found = cut_pipeline(tables, middle_s)
        best, low_s = (best, middle_s) if found is None else (found, low_s)
    return best


def main(argv: Sequence[str] | None = None) -> int:
    """Print the least time per sample, stages and replicas."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload")
    parser.add_argument("--devices", default="8")
    parser.add_argument("--gib", type=float, default=80.0)
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH_GIB, help="GiB a second")
    parser.add_argument("--micro-batches", type=int, default=1920)
    parser.add_argument("--unreplicated", action="store_true")
    args = parser.parse_args(argv)
    workload = read_workload(args.workload)
    assert isinstance(workload, ProfiledWorkload)
    for count in map(int, args.devices.split(",")):
        cut = solve_piper(
            workload,
            count,
            num_micro_batches=args.micro_batches,
            memory_bytes=args.gib * GIB,
            bandwidth=args.bandwidth * GIB,
            replicated=not args.unreplicated,
        )
        found = "nothing fits" if cut is None else f"{cut.bottleneck_s:.7f} s a sample"
        widths = [] if cut is None else [len(devices) for _, _, devices in cut.stages]
        print(f"{workload.name} on {count}: {found}, {len(widths)} stages on {widths}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
