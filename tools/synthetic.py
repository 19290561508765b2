"""Synthetic problems: multi-branch models as graphs of layers with roofline times.

They have the sizes of published models without the models: for sweeps over branches, ops and
devices, where capturing a model for each point would say nothing more about a planner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy

from graphplan.nouns.cluster import Cluster, DeviceType
from graphplan.nouns.problem import Flow, Node, Problem, Save
from graphplan.nouns.tensor import TensorSpec
from graphplan.nouns.training import Training


@dataclasses.dataclass(frozen=True)
class Layer:
    """A node: FLOPs and elements of its output for one sample, elements of its weights."""

    name: str
    inputs: tuple[int, ...]
    flops: float
    out_elements: int
    weight_elements: int = 0
    kept_elements: int = 0
    """Kept for the backward besides the inputs."""


class Recipe:
    """Layers in a topological order; `add` returns the number of the new one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.layers: list[Layer] = []

    def add(
        self,
        name: str,
        inputs: Sequence[int],
        *,
        flops: float,
        out: int,
        weights: int = 0,
        kept: int = 0,
    ) -> int:
        """Add one layer; ops have no dots in their names."""
        name = name.replace(".", "_")
        self.layers.append(Layer(name, tuple(inputs), flops, out, weights, kept))
        return len(self.layers) - 1

    def add_linear(self, name: str, source: Sequence[int], wide: int, out: int) -> int:
        """Add a linear layer with its activation, for one row a sample."""
        weights = wide * out + out
        return self.add(name, source, flops=2 * wide * out, out=out, weights=weights, kept=out)


def describe_mmt(
    *, branches: int = 4, layers: int = 8, hidden: int = 1024, sequence: int = 256, heads: int = 16
) -> Recipe:
    """GraphPipe's multi-modal transformer: equal branches of transformer layers, concatenated."""
    recipe = Recipe(f"mmt-{branches}x{layers}")
    ends: list[int] = []
    for b in range(branches):
        before: tuple[int, ...] = ()
        for layer in range(layers):
            name = f"branch{b}.layer{layer}"
            flops = 8 * sequence * hidden**2 + 4 * sequence**2 * hidden
            attention = recipe.add(
                f"{name}.attention",
                before,
                flops=flops,
                out=sequence * hidden,
                weights=4 * hidden**2,
                kept=5 * sequence * hidden + heads * sequence**2,
            )
            feed = recipe.add(
                f"{name}.feed",
                (attention,),
                flops=16 * sequence * hidden**2,
                out=sequence * hidden,
                weights=8 * hidden**2,
                kept=9 * sequence * hidden,
            )
            before = (feed,)
        ends += before
    joined = recipe.add("concat", ends, flops=0, out=branches * sequence * hidden)
    recipe.add_linear("head", (joined,), branches * hidden, 1)
    return recipe


def describe_dlrm(*, dense: int = 7, sparse: int = 7, hidden: int = 4096) -> Recipe:
    """GraphPipe's recommender: dense and sparse branches, concatenated, and a top MLP."""
    recipe = Recipe(f"dlrm-{dense}+{sparse}")
    ends: list[int] = []
    for b in range(dense):
        before: tuple[int, ...] = ()
        for layer in range(4):
            before = (recipe.add_linear(f"dense{b}.{layer}", before, hidden, hidden),)
        ends += before
    for b in range(sparse):
        rows, wide = 1_000_000, 64
        ends.append(recipe.add(f"sparse{b}", (), flops=100 * wide, out=wide, weights=rows * wide))
    wide = dense * hidden + sparse * 64
    joined = recipe.add("concat", ends, flops=0, out=wide)
    before = (recipe.add_linear("top0", (joined,), wide, hidden),)
    for layer in range(1, 4):
        before = (recipe.add_linear(f"top{layer}", before, hidden, hidden),)
    return recipe


def describe_candle(*, branches: int = 7, layers: int = 4, hidden: int = 4096) -> Recipe:
    """CANDLE-Uno: equal branches of linear layers, concatenated, and a top MLP as deep."""
    recipe = Recipe(f"candle-{branches}x{layers}")
    ends: list[int] = []
    for b in range(branches):
        before: tuple[int, ...] = ()
        for layer in range(layers):
            before = (recipe.add_linear(f"branch{b}.{layer}", before, hidden, hidden),)
        ends += before
    joined = recipe.add("concat", ends, flops=0, out=branches * hidden)
    before = (recipe.add_linear("top0", (joined,), branches * hidden, hidden),)
    for layer in range(1, layers):
        before = (recipe.add_linear(f"top{layer}", before, hidden, hidden),)
    return recipe


def pose_recipe(
    recipe: Recipe,
    cluster: Cluster,
    *,
    batch_size: int,
    micro_batch_sizes: Sequence[int] | None = None,
    optimizer: str = "adam",
) -> Problem:
    """The problem of a recipe: every layer is a node, times are the roofline of the devices."""
    sizes = tuple(micro_batch_sizes or _list_powers(batch_size))
    samples = sorted(
        {
            size // replicas
            for size in sizes
            for replicas in range(1, min(size, len(cluster.devices)) + 1)
            if size % replicas == 0
        }
    )
    layers = recipe.layers
    forward = numpy.array(
        [[[_time(layer, n, kind) for layer in layers] for n in samples] for kind in cluster.types]
    )
    trained = numpy.array([layer.weight_elements for layer in layers], dtype=numpy.int64)
    zeros = numpy.zeros((len(samples), len(layers)), dtype=numpy.int64)
    kept = numpy.outer(samples, [4 * layer.kept_elements for layer in layers]).astype(numpy.int64)
    edges = {(src, i) for i, layer in enumerate(layers) for src in layer.inputs}
    return Problem(
        name=recipe.name,
        fingerprint="0" * 16,
        nodes=tuple(Node(name=layer.name, ops=(layer.name,)) for layer in layers),
        edges=tuple(sorted(edges)),
        cluster=cluster,
        training=Training(batch_size=batch_size, optimizer=optimizer),  # type: ignore[arg-type]
        micro_batch_sizes=sizes,
        sample_sizes=tuple(samples),
        forward_s=forward,
        input_grad_s=forward.copy(),
        weight_grad_s=forward * (trained > 0),
        workspace_bytes=zeros,
        saved_bytes=kept,
        saved_for_weights_bytes=zeros.copy(),
        trained_elements=trained,
        held_bytes=numpy.zeros(len(layers), dtype=numpy.int64),
        element_bytes=4,
        needs_backward=numpy.ones(len(layers), dtype=numpy.bool_),
        flows=_list_flows(layers, samples),
        saves=_list_saves(layers, samples),
    )


def _list_powers(batch_size: int) -> list[int]:
    return [1 << k for k in range(batch_size.bit_length()) if batch_size % (1 << k) == 0]


def _time(layer: Layer, samples: int, kind: DeviceType) -> float:
    """Compute or memory, whichever takes longer, and at least a launch."""
    rate = 0.75 * kind.flops_per_s_by_dtype["float32"]
    dense = layer.weight_elements if layer.flops >= layer.weight_elements else 0
    moved = 4 * (dense + 2 * samples * layer.out_elements)
    return max(
        kind.launch_s, samples * layer.flops / rate, moved / kind.bandwidth_bytes_per_s / 0.8
    )


def _list_flows(layers: Sequence[Layer], samples: Sequence[int]) -> tuple[Flow, ...]:
    readers: dict[int, list[int]] = {}
    for i, layer in enumerate(layers):
        for src in layer.inputs:
            readers.setdefault(src, []).append(i)
    found = []
    for owner, reading in sorted(readers.items()):
        spec = TensorSpec(dtype="float32", shape=("b", layers[owner].out_elements))
        found.append(
            Flow(
                value=layers[owner].name,
                owner=owner,
                readers=tuple(reading),
                spec=spec,
                needs_grad=True,
                bytes_by_size=tuple(spec.num_bytes(n) for n in samples),
            )
        )
    return tuple(found)


def _list_saves(layers: Sequence[Layer], samples: Sequence[int]) -> tuple[Save, ...]:
    """Every layer keeps what it reads."""
    readers: dict[int, list[int]] = {}
    for i, layer in enumerate(layers):
        for src in layer.inputs:
            readers.setdefault(src, []).append(i)
    return tuple(
        Save(
            savers=tuple(reading),
            bytes_by_size=tuple(4 * n * layers[src].out_elements for n in samples),
        )
        for src, reading in sorted(readers.items())
    )
