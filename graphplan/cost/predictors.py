"""Predictors: the graph network or the boosted trees behind one seam, to and from a file's arrays.

Both answer, for every op, size and pass, the log of seconds over the roofline and its standard
deviation. The network tells its own, scaled to fit the validation data; for the trees it is what
their errors by op kind were there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy

from graphplan.cost.arrays import pack_array, unpack_array
from graphplan.cost.boost import Boost
from graphplan.cost.estimate import PASSES
from graphplan.cost.features import FEATURES, Floats, GraphFeatures
from graphplan.cost.lessons import Ints
from graphplan.cost.trees import Trees
from graphplan.errors import InvalidFile
from graphplan.nouns.learned import Array, LearnedCosts

if TYPE_CHECKING:
    from graphplan.cost.learned_network import TrainedNetwork


class Predictor(Protocol):
    """What a trained cost model answers."""

    def answer(self, features: GraphFeatures) -> tuple[Floats, Floats]:
        """[size, op, pass]: log of seconds over the roofline, and its standard deviation."""

    def pack(self) -> dict[str, Array]:
        """The arrays from which `load_predictor` makes it again."""


@dataclasses.dataclass(frozen=True)
class NetworkPredictor:
    """The graph network; `factor` turns the scale that it tells into a standard deviation."""

    trained: TrainedNetwork
    factor: float

    def answer(self, features: GraphFeatures) -> tuple[Floats, Floats]:
        """One run of the network over all sizes."""
        from graphplan.cost.learned_network import predict_network

        mean, scale = predict_network(
            self.trained.network, features, self.trained.scaler, self.trained.kinds
        )
        return mean, self.factor * scale

    def pack(self) -> dict[str, Array]:
        """Weights, scaling of the features and the factor."""
        weights = {
            f"network.{name}": pack_array(tensor.numpy())
            for name, tensor in self.trained.network.state_dict().items()
        }
        return weights | {
            "scaler.mean": pack_array(self.trained.scaler.mean),
            "scaler.deviation": pack_array(self.trained.scaler.deviation),
            "deviation.factor": pack_array(numpy.array([self.factor])),
        }


@dataclasses.dataclass(frozen=True)
class TreesPredictor:
    """Boosted trees with the deviation of every op kind."""

    boost: Boost
    deviations: Floats
    """[kind]"""

    def answer(self, features: GraphFeatures) -> tuple[Floats, Floats]:
        """Equal rows are asked once."""
        num_sizes, num_ops, width = features.values.shape
        index: dict[tuple[str, str], int] = {}
        pairs = list(zip(features.kinds, features.families, strict=True))
        codes = numpy.array([index.setdefault(pair, len(index)) for pair in pairs], dtype=float)
        flat = features.values.reshape(-1, width)
        coded = numpy.concatenate([numpy.tile(codes, num_sizes)[:, None], flat], axis=1)
        unique, back = numpy.unique(coded, axis=0, return_inverse=True)
        names = list(index)
        asked = [names[int(code)] for code in unique[:, 0]]
        found = self.boost.predict(unique[:, 1:], [k for k, _ in asked], [f for _, f in asked])
        mean = found[back.ravel()].reshape(num_sizes, num_ops, len(PASSES))
        known = {kind: i for i, kind in enumerate(self.boost.kinds)}
        worst = float(self.deviations.max(initial=0.0))
        own = [self.deviations[known[kind]] if kind in known else worst for kind in features.kinds]
        return mean, numpy.broadcast_to(numpy.array(own)[None, :, None], mean.shape)

    def pack(self) -> dict[str, Array]:
        """Means, nodes and deviations."""
        found = {
            "trees.kind_means": pack_array(self.boost.kind_means),
            "trees.family_means": pack_array(self.boost.family_means),
            "deviation.kinds": pack_array(self.deviations),
        }
        for name, trees in zip(PASSES, self.boost.trees, strict=True):
            found[f"trees.columns.{name}"] = pack_array(trees.columns)
            found[f"trees.cuts.{name}"] = pack_array(trees.cuts)
            found[f"trees.leaves.{name}"] = pack_array(trees.leaves)
        return found


def load_predictor(learned: LearnedCosts) -> Predictor:
    """The predictor that a file holds."""
    if learned.features != FEATURES:
        raise InvalidFile(
            "The learned cost model reads other features than this graphplan has.",
            remedy="Train it again: graphplan learn -o cost.json.",
        )
    if learned.predictor == "network":
        return _load_network(learned.arrays, learned.kinds)
    return _load_trees(learned.arrays, learned.kinds, learned.families)


def _load_network(arrays: Mapping[str, Array], kinds: Sequence[str]) -> NetworkPredictor:
    from graphplan.cost.learned_network import load_network

    factor = unpack_array(arrays, "deviation.factor", (1,))
    return NetworkPredictor(load_network(arrays, kinds), float(factor[0]))


def _load_trees(
    arrays: Mapping[str, Array], kinds: Sequence[str], families: Sequence[str]
) -> TreesPredictor:
    boost = Boost(
        kinds=tuple(kinds),
        kind_means=unpack_array(arrays, "trees.kind_means", (len(kinds), len(PASSES))),
        families=tuple(families),
        family_means=unpack_array(arrays, "trees.family_means", (len(families), len(PASSES))),
        trees=tuple(_load_pass(arrays, name) for name in PASSES),
    )
    return TreesPredictor(boost, unpack_array(arrays, "deviation.kinds", (len(kinds),)))


def _load_pass(arrays: Mapping[str, Array], name: str) -> Trees:
    leaves = unpack_array(arrays, f"trees.leaves.{name}", (None, None))
    shape = (leaves.shape[0], leaves.shape[1] - 1)
    columns: Ints = unpack_array(arrays, f"trees.columns.{name}", shape)
    width = len(FEATURES) + len(PASSES)
    power_of_two = leaves.shape[1] & (leaves.shape[1] - 1) == 0
    if not power_of_two or (columns.size and not 0 <= columns.min() <= columns.max() < width):
        raise InvalidFile(
            f"The trees of the {name} look at features that there are not.",
            remedy="Train the model again: graphplan learn -o cost.json.",
        )
    return Trees(columns, unpack_array(arrays, f"trees.cuts.{name}", shape), leaves)
