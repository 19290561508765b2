"""The graph network of the learned costs (torch-geometric).

Every op is a node with its features and an embedding of its kind; messages run along the edges of
the op graph in both directions, so that an op knows who feeds and who reads it (what lies in the
cache, what is measured as a group). It answers, by pass, the log of seconds over the roofline and
the log of the scale of its error (Laplace).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from graphplan.cost.arrays import unpack_array
from graphplan.cost.estimate import PASSES
from graphplan.cost.features import FEATURES, Floats, GraphFeatures
from graphplan.errors import MissingExtra
from graphplan.nouns.learned import Array

HIDDEN = 64
KIND_WIDTH = 24
ROUNDS = 2
"""Rounds of messages: an op sees so many steps up and down the graph."""
WIDEST = 6.0
"""Standardised features are cut off here: far away, the answer is that of the edge."""


def import_geometric() -> Any:
    """torch-geometric's layers, or an error with the line that installs it."""
    try:
        import torch_geometric.nn
    except ImportError as error:
        raise MissingExtra("torch-geometric", "learned") from error
    return torch_geometric.nn


class CostNetwork(nn.Module):
    """Features of ops and the edges between them -> (mean, log of scale) by pass."""

    def __init__(self, num_kinds: int) -> None:
        super().__init__()
        layers = import_geometric()
        self.kinds = nn.Embedding(num_kinds + 1, KIND_WIDTH)
        self.start = nn.Linear(len(FEATURES) + KIND_WIDTH, HIDDEN)
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(ROUNDS))
        self.down = nn.ModuleList(layers.SAGEConv(HIDDEN, HIDDEN) for _ in range(ROUNDS))
        self.up = nn.ModuleList(
            layers.SAGEConv(HIDDEN, HIDDEN, root_weight=False) for _ in range(ROUNDS)
        )
        self.head = nn.Sequential(
            nn.Linear(2 * HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 2 * len(PASSES))
        )

    def forward(self, values: Tensor, kinds: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        own = nn.functional.silu(self.start(torch.cat([values, self.kinds(kinds)], 1)))
        x, back = own, edges.flip(0)
        for norm, down, up in zip(self.norms, self.down, self.up, strict=True):
            y = norm(x)
            x = x + nn.functional.silu(down(y, edges) + up(y, back))
        mean, scale = self.head(torch.cat([own, x], 1)).chunk(2, 1)
        return mean, scale.clamp(-5.0, 2.0)


@dataclasses.dataclass(frozen=True)
class Scaler:
    """Mean and deviation of every feature in training."""

    mean: Floats
    deviation: Floats

    def scale(self, values: Floats) -> Floats:
        """Standardised features, cut off far outside."""
        return numpy.clip((values - self.mean) / self.deviation, -WIDEST, WIDEST)


def fit_scaler(values: Floats) -> Scaler:
    """The scaler of a table of features; constant ones are left alone."""
    deviation = values.std(0)
    return Scaler(values.mean(0), numpy.where(deviation > 1e-6, deviation, 1.0))


@dataclasses.dataclass(frozen=True)
class TrainedNetwork:
    """A network with what it needs to read features."""

    network: CostNetwork
    scaler: Scaler
    kinds: tuple[str, ...]
    epochs: int = 0
    """After which its error on validation was the least."""


def load_network(arrays: Mapping[str, Array], kinds: Sequence[str]) -> TrainedNetwork:
    """The network whose weights a file holds."""
    network = CostNetwork(len(kinds))
    state = {
        name: torch.from_numpy(unpack_array(arrays, f"network.{name}", tuple(own.shape)))
        for name, own in network.state_dict().items()
    }
    network.load_state_dict(state)
    width = (len(FEATURES),)
    scaler = Scaler(
        unpack_array(arrays, "scaler.mean", width), unpack_array(arrays, "scaler.deviation", width)
    )
    return TrainedNetwork(network.eval(), scaler, tuple(kinds))


def to_tensors(
    features: GraphFeatures, scaler: Scaler, kinds: Sequence[str]
) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes, kinds and edges of all sizes of a graph, as one graph of separate parts.

    Kind 0 stands for kinds that training has not seen.
    """
    num_sizes, num_ops, _ = features.values.shape
    index = {kind: i + 1 for i, kind in enumerate(kinds)}
    own = torch.tensor([index.get(kind, 0) for kind in features.kinds], dtype=torch.int64)
    edges = torch.from_numpy(features.edges)
    shifted = [edges + j * num_ops for j in range(num_sizes)]
    values = scaler.scale(features.values).reshape(num_sizes * num_ops, -1)
    return torch.from_numpy(values).float(), own.repeat(num_sizes), torch.cat(shifted, 1)


def predict_network(
    network: CostNetwork, features: GraphFeatures, scaler: Scaler, kinds: Sequence[str]
) -> tuple[Floats, Floats]:
    """[size, op, pass]: log of seconds over the roofline, and the scale of its error."""
    network.eval()
    with torch.no_grad():
        mean, scale = network(*to_tensors(features, scaler, kinds))
    shape = (*features.values.shape[:2], len(PASSES))
    return mean.double().numpy().reshape(shape), scale.exp().double().numpy().reshape(shape)
