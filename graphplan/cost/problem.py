"""Making a Problem: the op graph's costs gathered into the nodes that solvers may move.

Tables are taken at the numbers of samples that a replica may see; a table's calibration ratio is
applied here, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy

from graphplan.cost.host import adopt_hosts
from graphplan.cost.interpolate import expand_table
from graphplan.cost.saved import keep_internal
from graphplan.errors import InvalidFile, InvalidOption
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import Op, OpGraph
from graphplan.nouns.problem import Floats, Flow, Ints, Node, Problem, Recompute, Save, Tie
from graphplan.nouns.stages import ZeroLevel
from graphplan.nouns.table import ProfileTable
from graphplan.nouns.tensor import ITEM_BYTES, TensorSpec
from graphplan.nouns.training import Training

MAX_BYTES = 1 << 60
DIFFERENTIABLE = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
"""Types of values that may have a gradient."""


def make_problem(
    graph: OpGraph,
    tables: Mapping[str, ProfileTable],
    cluster: Cluster,
    training: Training,
    groups: Sequence[Sequence[str]],
    *,
    micro_batch_sizes: Sequence[int] | None = None,
    recompute: Recompute = "auto",
    zero_levels: tuple[ZeroLevel, ...] = (0,),
    pins: Mapping[str, int] | None = None,
) -> Problem:
    """The problem of cutting `graph` into stages; `tables` has one for each device type."""
    cluster = adopt_hosts(cluster, tables)
    sizes = _choose_micro_batches(graph, training, micro_batch_sizes)
    samples = _list_sample_sizes(sizes, len(cluster.devices))
    _check_bytes(graph, training.batch_size)
    node_of = {op: i for i, group in enumerate(groups) for op in group}
    times = _gather_times(graph, tables, cluster, samples, node_of, len(groups))
    accelerated = all(kind.torch_device != "cpu" for kind in cluster.types)
    storages = _Storages(graph, training, samples, node_of, accelerated=accelerated)
    weights = _gather_weights(graph, training, node_of, len(groups))
    edges = {(node_of[edge.src], node_of[edge.dst]) for edge in graph.edges}
    return Problem(
        name=graph.name,
        fingerprint=graph.fingerprint,
        nodes=_name_nodes(graph, groups),
        edges=tuple(sorted((src, dst) for src, dst in edges if src != dst)),
        cluster=cluster,
        training=training,
        micro_batch_sizes=sizes,
        sample_sizes=samples,
        forward_s=times["forward_s"],
        input_grad_s=times["input_grad_s"],
        weight_grad_s=times["weight_grad_s"],
        workspace_bytes=_gather_workspace(tables, samples, node_of, len(groups)),
        saved_bytes=storages.internal(len(groups)),
        saved_for_weights_bytes=storages.for_weights(len(groups)),
        trained_elements=weights.trained,
        held_bytes=weights.held,
        element_bytes=_element_bytes(graph, training),
        needs_backward=_needs_backward(graph, node_of, len(groups)),
        flows=_gather_flows(graph, training, samples, node_of),
        saves=storages.shared(),
        ties=weights.ties,
        recompute=recompute,
        zero_levels=zero_levels,
        pins=_resolve_pins(graph, node_of, cluster, pins or {}),
    )


# -- sizes -----------------------------------------------------------------------------------------


def _check_bytes(graph: OpGraph, batch_size: int) -> None:
    """Refuse graphs whose bytes no machine could count: sums of them are 64-bit numbers."""
    specs = [op.output for op in graph.ops if op.output is not None]
    specs += [weight.spec for weight in graph.weights] + [each.spec for each in graph.inputs]
    total = sum(abs(spec.num_bytes(batch_size)) for spec in specs)
    total += sum(op.saved_bytes[0] + op.saved_bytes[1] * batch_size for op in graph.ops)
    if total >= MAX_BYTES:
        raise InvalidFile(
            f"The tensors of {graph.name!r} have {total:.3g} bytes at a batch of {batch_size}.",
            remedy="Check the shapes of the graph, or give a smaller --batch.",
        )


def _choose_micro_batches(
    graph: OpGraph, training: Training, wanted: Sequence[int] | None
) -> tuple[int, ...]:
    """The user's sizes, or all divisors of the batch that the graph allows."""
    batch = training.batch_size
    if graph.batch != "dynamic":
        only = graph.batch_size
        if batch % only or (wanted and tuple(wanted) != (only,)):
            raise InvalidOption(
                f"{graph.name!r} was captured with a fixed batch of {only}; the batch must be a"
                f" multiple of it, got {batch}.",
                remedy=f"Use --batch {only * max(1, batch // only)} --micro-batch {only}.",
            )
        return (only,)
    for size in wanted or ():
        if size < 1 or batch % size:
            raise InvalidOption(
                f"A batch of {batch} cannot be split into micro-batches of {size}.",
                remedy=f"Use one of {', '.join(map(str, _divisors(batch)))}.",
            )
    return tuple(sorted(set(wanted))) if wanted else _divisors(batch)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def _list_sample_sizes(micro_batch_sizes: Sequence[int], num_devices: int) -> tuple[int, ...]:
    """Samples that one of up to num_devices replicas may see."""
    found = {
        size // replicas
        for size in micro_batch_sizes
        for replicas in _divisors(size)
        if replicas <= num_devices
    }
    return tuple(sorted(found))


# -- times -----------------------------------------------------------------------------------------


def _gather_times(
    graph: OpGraph,
    tables: Mapping[str, ProfileTable],
    cluster: Cluster,
    samples: Sequence[int],
    node_of: Mapping[str, int],
    num_nodes: int,
) -> dict[str, Floats]:
    """Arrays [type, size, node] of the three kinds of times."""
    shape = (len(cluster.types), len(samples), num_nodes)
    found = {name: numpy.zeros(shape) for name in ("forward_s", "input_grad_s", "weight_grad_s")}
    for t, kind in enumerate(cluster.types):
        table = _find_table(graph, tables, kind.name)
        expanded = expand_table(table, tuple(samples))
        ratio = numpy.array(expanded.calibration or [1.0] * len(samples))
        for row in expanded.rows:
            node = node_of[row.op]
            for name, array in found.items():
                array[t, :, node] += ratio * getattr(row, name)
    return found


def _find_table(graph: OpGraph, tables: Mapping[str, ProfileTable], kind: str) -> ProfileTable:
    table = tables.get(kind)
    if table is None:
        raise InvalidOption(
            f"There is no profile table for the device type {kind!r}.",
            remedy=f"Make one with `graphplan profile`, or use --costs estimate. Given: "
            f"{', '.join(sorted(tables)) or 'none'}.",
        )
    if table.graph != graph.fingerprint or {row.op for row in table.rows} != set(graph.op_by_name):
        raise InvalidOption(
            f"The profile table for {kind!r} was made for another graph"
            f" ({table.graph}, this one is {graph.fingerprint}).",
            remedy="Profile this model again, or give the model file that the table was made from.",
        )
    return table


def _gather_workspace(
    tables: Mapping[str, ProfileTable],
    samples: Sequence[int],
    node_of: Mapping[str, int],
    num_nodes: int,
) -> Ints:
    """[size, node]: the largest workspace of an op of the node, on any device type."""
    found = numpy.zeros((len(samples), num_nodes), dtype=numpy.int64)
    for table in tables.values():
        for row in expand_table(table, tuple(samples)).rows:
            column = found[:, node_of[row.op]]
            numpy.maximum(column, row.workspace_bytes, out=column)
    return found


def _needs_backward(
    graph: OpGraph, node_of: Mapping[str, int], num_nodes: int
) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.bool_]]:
    found = numpy.zeros(num_nodes, dtype=numpy.bool_)
    for op in graph.ops:
        found[node_of[op.name]] |= op.needs_backward
    return found


# -- tensors ---------------------------------------------------------------------------------------


def adapt_spec(spec: TensorSpec, training: Training) -> TensorSpec:
    """The tensor as it is under the training's precision: fp32 becomes the compute dtype."""
    if spec.dtype == "float32" and training.precision != "float32":
        return msgspec.structs.replace(spec, dtype=training.precision)
    return spec


def _element_bytes(graph: OpGraph, training: Training) -> int:
    """Bytes of a trained element: the widest trainable weight decides."""
    specs = [adapt_spec(w.spec, training) for w in graph.weights if w.trainable]
    return max((ITEM_BYTES[spec.dtype] for spec in specs), default=4)


def _gather_flows(
    graph: OpGraph, training: Training, samples: Sequence[int], node_of: Mapping[str, int]
) -> tuple[Flow, ...]:
    """Every tensor that some other node than its owner reads, model inputs included."""
    readers: dict[str, set[int]] = {}
    for op in graph.ops:
        for name in op.inputs:
            readers.setdefault(name, set()).add(node_of[op.name])
    flows = []
    for name, found in readers.items():
        spec, owner = graph.spec_of(name), node_of.get(name)
        others = tuple(sorted(found - {owner})) if owner is not None else tuple(sorted(found))
        if spec is None or not others:
            continue
        adapted = adapt_spec(spec, training)
        producer = graph.op_by_name.get(name)
        flows.append(
            Flow(
                value=name,
                owner=owner,
                readers=others,
                spec=adapted,
                needs_grad=(
                    producer is not None
                    and producer.needs_backward
                    and spec.dtype in DIFFERENTIABLE
                ),
                bytes_by_size=tuple(adapted.num_bytes(size) for size in samples),
            )
        )
    return tuple(flows)


class _Storages:
    """What autograd keeps, by storage, so that a stage counts every storage once."""

    def __init__(
        self,
        graph: OpGraph,
        training: Training,
        samples: Sequence[int],
        node_of: Mapping[str, int],
        *,
        accelerated: bool,
    ) -> None:
        self.graph, self.samples, self.node_of = graph, samples, node_of
        self.training = training
        self.accelerated = accelerated

    def _bytes_by_size(self, value: str) -> tuple[int, ...]:
        spec = self.graph.size_of(value)
        if spec is None:
            return (0,) * len(self.samples)
        adapted = adapt_spec(spec, self.training)
        return tuple(adapted.num_bytes(size) for size in self.samples)

    def shared(self) -> tuple[Save, ...]:
        """A Save for each storage that some op keeps."""
        savers: dict[str, set[int]] = {}
        for op in self.graph.ops:
            for value in op.saved:
                savers.setdefault(value, set()).add(self.node_of[op.name])
        return tuple(
            Save(savers=tuple(sorted(nodes)), bytes_by_size=self._bytes_by_size(value))
            for value, nodes in savers.items()
        )

    def internal(self, num_nodes: int) -> Ints:
        """[size, node]: masks, statistics and the like that no value names."""
        found = numpy.zeros((len(self.samples), num_nodes), dtype=numpy.int64)
        for op in self.graph.ops:
            found[:, self.node_of[op.name]] += [
                keep_internal(op, size, self._width(op), accelerated=self.accelerated)
                for size in self.samples
            ]
        return found

    def _width(self, op: Op) -> int:
        """Bytes of an element of what an op computes, under the training's precision."""
        return ITEM_BYTES[adapt_spec(op.output, self.training).dtype] if op.output else 0

    def for_weights(self, num_nodes: int) -> Ints:
        """[size, node]: inputs and output gradients of the ops that have trainable weights."""
        found = numpy.zeros((len(self.samples), num_nodes), dtype=numpy.int64)
        for op in self.graph.ops:
            if self._trains(op):
                for value in {*op.saved, op.name}:
                    found[:, self.node_of[op.name]] += self._bytes_by_size(value)
        return found

    def _trains(self, op: Op) -> bool:
        return any(self.graph.weight_by_name[name].trainable for name in op.weights)


# -- weights ---------------------------------------------------------------------------------------


class _Weights(msgspec.Struct):
    trained: Ints
    held: Ints
    ties: tuple[Tie, ...]


def _gather_weights(
    graph: OpGraph, training: Training, node_of: Mapping[str, int], num_nodes: int
) -> _Weights:
    """Weights that one node reads, by node; weights that several read, as ties."""
    readers: dict[str, set[int]] = {}
    for op in graph.ops:
        for name in (*op.weights, *op.mutates):
            readers.setdefault(graph.weight_by_name[name].name, set()).add(node_of[op.name])
    trained = numpy.zeros(num_nodes, dtype=numpy.int64)
    held = numpy.zeros(num_nodes, dtype=numpy.int64)
    ties = []
    for name, nodes in readers.items():
        weight = graph.weight_by_name[name]
        elements = weight.spec.num_elements(1) if weight.trainable else 0
        num_bytes = 0 if weight.trainable else adapt_spec(weight.spec, training).num_bytes(1)
        if len(nodes) == 1:
            trained[min(nodes)] += elements
            held[min(nodes)] += num_bytes
        else:
            ties.append(
                Tie(
                    weight=name,
                    readers=tuple(sorted(nodes)),
                    trained_elements=elements,
                    held_bytes=num_bytes,
                )
            )
    return _Weights(trained, held, tuple(ties))


# -- names -----------------------------------------------------------------------------------------


def _name_nodes(graph: OpGraph, groups: Sequence[Sequence[str]]) -> tuple[Node, ...]:
    """Nodes are called after their first op."""
    return tuple(Node(name=group[0], ops=tuple(group)) for group in groups)


def _resolve_pins(
    graph: OpGraph, node_of: Mapping[str, int], cluster: Cluster, pins: Mapping[str, int]
) -> dict[int, int]:
    """Nodes of every op whose module lies at or below a pinned path."""
    found: dict[int, int] = {}
    for path, device in pins.items():
        ops = [op for op in graph.ops if op.module == path or op.module.startswith(f"{path}.")]
        if not ops:
            raise InvalidOption(
                f"No op belongs to the module {path!r}, which is to be pinned.",
                remedy="`graphplan trace` lists the module of every op.",
            )
        if not 0 <= device < len(cluster.devices):
            raise InvalidOption(
                f"{path!r} is pinned to device {device}; there are {len(cluster.devices)}.",
                remedy=f"Use a device from 0 to {len(cluster.devices) - 1}.",
            )
        for op in ops:
            if found.setdefault(node_of[op.name], device) != device:
                raise InvalidOption(
                    f"The op {op.name!r} is pinned to device {found[node_of[op.name]]} and to"
                    f" device {device}.",
                    remedy="Pin ops that stay together to one device.",
                )
    return found
