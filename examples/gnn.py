"""GNN: a deep graph network trained on one whole graph (needs torch-geometric).

There is no batch dimension: a step is one pass over all nodes, about the size of ogbn-arxiv.

    graphplan search examples/gnn.py --gpus 4
    graphplan trace examples/gnn.py --set layers=4 --set nodes=1000
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES, CLASSES, DEGREE = 128, 40, 14


def build(layers: int = 28, hidden: int = 256) -> nn.Module:
    from torch_geometric.nn import DeepGCNLayer, GENConv

    class DeepGCN(nn.Module):
        """Residual graph convolutions, pre-activated."""

        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Linear(FEATURES, hidden)
            self.layers = nn.ModuleList(
                DeepGCNLayer(
                    GENConv(hidden, hidden, aggr="softmax", learn_t=True, num_layers=2),
                    nn.LayerNorm(hidden),
                    nn.ReLU(),
                    block="res+",
                    dropout=0.1,
                )
                for _ in range(layers)
            )
            self.classify = nn.Linear(hidden, CLASSES)

        def forward(self, features: Tensor, edges: Tensor) -> Tensor:
            x = self.encode(features)
            for layer in self.layers:
                x = layer(x, edges)
            return self.classify(x)

    return DeepGCN()


def inputs(batch_size: int, nodes: int = 169_343) -> dict[str, Tensor]:
    return {
        "features": torch.randn(nodes, FEATURES),
        "edges": torch.randint(0, nodes, (2, DEGREE * nodes)),
        "labels": torch.randint(0, CLASSES, (nodes,)),
    }


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output, batch["labels"])


def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def data(batch_size: int, nodes: int = 169_343) -> Iterator[dict[str, Tensor]]:
    graph = inputs(batch_size, nodes)
    while True:
        yield graph
