"""Profiled workloads as op graphs with tables, so that all of graphplan can plan for them.

Assumptions about a file that was measured on one device type at one batch: an op's time is straight
in the samples and never below the launch time of the device (or its own measured time); half of the
backward of an op with weights is its weight gradient, of any other op nothing is; an op keeps what
it reads for its backward; activations and weights are float32. They break for ops that are slow on
small batches: profile the model itself where that matters.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy

from graphplan.coarsen import coarsen_graph
from graphplan.cost.problem import make_problem
from graphplan.cost.sums import SINGLE, bytes_per_trained_element
from graphplan.errors import InvalidOption
from graphplan.nouns.cluster import Cluster, DeviceType
from graphplan.nouns.opgraph import Op, OpGraph, Weight
from graphplan.nouns.problem import Problem, Recompute
from graphplan.nouns.table import OpProfile, ProfileTable
from graphplan.nouns.tensor import ITEM_BYTES, TensorSpec
from graphplan.nouns.training import Training
from tools.workloads.workload import ProfiledOp, ProfiledWorkload

DTYPE = "float32"
MAX_GUESSED_BATCH = 256


def pose_profiled(
    workload: ProfiledWorkload,
    cluster: Cluster,
    training: Training,
    *,
    micro_batch_sizes: Sequence[int] | None = None,
    measured_batch_size: int | None = None,
    speed_by_type: Mapping[str, float] | None = None,
    max_share: float | None = None,
    recompute: Recompute = "auto",
    pins: Mapping[str, int] | None = None,
) -> Problem:
    """The problem of a profiled file on a cluster.

    `measured_batch_size` is the batch of the measurement, guessed from the ops when not given.
    `speed_by_type` says how much faster a device type is than the measured one (default 1). Ops are
    nodes of their own unless `max_share` asks for coarsening. Pins are by op name.
    """
    measured = measured_batch_size or guess_batch_size(workload)
    graph = build_graph(workload, measured_batch_size=measured)
    speeds = speed_by_type or {}
    tables = {
        kind.name: build_table(
            workload,
            graph,
            kind,
            measured_batch_size=measured,
            speed=speeds.get(kind.name, 1.0),
        )
        for kind in cluster.types
    }
    seconds = {op.name: op.forward_s + op.backward_s for op in workload.ops}
    groups = (
        [(op.name,) for op in graph.ops]
        if max_share is None
        else coarsen_graph(graph, seconds_by_op=seconds, max_share=max_share)
    )
    problem = make_problem(
        graph,
        tables,
        cluster,
        training,
        groups,
        micro_batch_sizes=micro_batch_sizes,
        recompute=recompute,
        pins=pins,
    )
    return _hold_as_measured(problem, workload, measured)


def _hold_as_measured(problem: Problem, workload: ProfiledWorkload, measured: int) -> Problem:
    """The problem with the memory of the file, where it has any."""
    op_by_name = {op.name: op for op in workload.ops}
    nodes = [[op_by_name[name] for name in node.ops] for node in problem.nodes]
    if any(op.stashed_bytes is None or op.fixed_bytes is None for op in workload.ops):
        return problem
    stashed = numpy.array([sum(op.stashed_bytes or 0 for op in ops) for ops in nodes]) / measured
    fixed = numpy.array([sum(op.fixed_bytes or 0 for op in ops) for ops in nodes])
    own = sum(bytes_per_trained_element(problem.training, problem.element_bytes, SINGLE))
    return dataclasses.replace(
        problem,
        saves=(),
        saved_bytes=numpy.ceil(numpy.outer(problem.sample_sizes, stashed)).astype(numpy.int64),
        held_bytes=numpy.ceil(numpy.maximum(fixed - own * problem.trained_elements, 0)).astype(
            numpy.int64
        ),
    )


def build_graph(workload: ProfiledWorkload, *, measured_batch_size: int) -> OpGraph:
    """The op graph of a profiled file; the op's name serves as its module path."""
    if measured_batch_size < 1:
        raise InvalidOption(
            f"A measured batch of {measured_batch_size} is too small.", remedy="Use 1 or more."
        )
    position = {name: i for i, name in enumerate(workload.order)}
    inputs: dict[str, list[str]] = {op.name: [] for op in workload.ops}
    for src, dst in dict.fromkeys(workload.pairs):
        inputs[dst].append(src)
    trained: set[str] = set()
    ops = []
    for op in sorted(workload.ops, key=lambda op: position[op.name]):
        if op.param_bytes or trained.intersection(inputs[op.name]):
            trained.add(op.name)
        ops.append(_build_op(op, inputs[op.name], measured_batch_size, trained=op.name in trained))
    read = {name for names in inputs.values() for name in names}
    return OpGraph(
        name=workload.name,
        batch="dynamic",
        batch_size=measured_batch_size,
        inputs=(),
        weights=tuple(
            Weight(
                name=_weight_name(op),
                kind="parameter",
                spec=TensorSpec(dtype=DTYPE, shape=(-(-op.param_bytes // ITEM_BYTES[DTYPE]),)),
                trainable=True,
            )
            for op in workload.ops
            if op.param_bytes
        ),
        ops=tuple(ops),
        outputs=tuple(op.name for op in ops if op.name not in read),
        capture="profiled workload",
    )


def _build_op(op: ProfiledOp, inputs: Sequence[str], measured: int, *, trained: bool) -> Op:
    elements = -(-op.output_bytes // (ITEM_BYTES[DTYPE] * measured))
    return Op(
        name=op.name,
        target="profiled",
        call=op.op,
        inputs=tuple(inputs),
        weights=(_weight_name(op),) if op.param_bytes else (),
        output=TensorSpec(dtype=DTYPE, shape=("b", elements)),
        module=op.name,
        needs_backward=trained,
        saved=tuple(inputs) if trained else (),
    )


def _weight_name(op: ProfiledOp) -> str:
    return f"{op.name}.weight"


def build_table(
    workload: ProfiledWorkload,
    graph: OpGraph,
    device: DeviceType,
    *,
    measured_batch_size: int,
    speed: float = 1.0,
) -> ProfileTable:
    """Times at one sample and at the measured batch, on a device that is `speed` times faster."""
    if not 0 < speed < math.inf:
        raise InvalidOption(f"A speed of {speed} is impossible.", remedy="Use 1 for an equal one.")
    sizes = (1, max(2, measured_batch_size))

    def column(seconds: float) -> tuple[float, ...]:
        whole = seconds / speed
        least = min(device.launch_s, whole)
        return tuple(max(whole * size / measured_batch_size, least) for size in sizes)

    return ProfileTable(
        graph=graph.fingerprint,
        device=device.name,
        source="measured",
        batch_sizes=sizes,
        rows=tuple(
            OpProfile(
                op=op.name,
                forward_s=column(op.forward_s),
                input_grad_s=column(op.backward_s / (2 if op.param_bytes else 1)),
                weight_grad_s=column(op.backward_s / 2 if op.param_bytes else 0.0),
                workspace_bytes=(0, 0),
            )
            for op in workload.ops
        ),
        provenance=f"profiled workload {workload.name}",
    )


def guess_batch_size(workload: ProfiledWorkload) -> int:
    """The batch at which a file was measured, where it does not say so.

    Linear layers give it away (`out_features=1000` with 512,000 bytes of float32: 128); else it is
    the largest power of two up to 256 that divides every output but the smallest ones, which may be
    shapes and scalars.
    """
    if workload.batch_size is not None:
        return workload.batch_size
    votes: Counter[int] = Counter()
    for op in workload.ops:
        found = re.search(r"out_features=(\d+)", op.op)
        rows, rest = divmod(op.output_bytes, ITEM_BYTES[DTYPE] * int(found[1]) if found else 1)
        if found and rows and not rest:
            votes[rows] += 1
    if votes:
        return max(votes, key=lambda rows: (votes[rows], -rows))
    largest = max(op.output_bytes for op in workload.ops)
    elements = [
        op.output_bytes // ITEM_BYTES[DTYPE]
        for op in workload.ops
        if op.output_bytes * 1000 >= largest
    ]
    return math.gcd(*elements, MAX_GUESSED_BATCH)
