"""Predict: a profile table from a learned cost model.

Every op gets seconds, an uncertainty (standard deviation of the log) and, where it lies outside the
training data, a mark. The table's `step_uncertainty` adds them up: errors of ops of one kind are
taken to be the same error, those of different kinds to be independent, and the ratio of a step to
the sum of its ops to have an error of its own. It breaks where the model errs in one direction for
all kinds, as it may on a device that was never measured; such ops are marked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from graphplan.cost.arrays import unpack_array
from graphplan.cost.estimate import PASSES
from graphplan.cost.features import DEVICE_COLUMNS, RANGED, Floats, GraphFeatures, extract_features
from graphplan.cost.novelty import Fence, find_novelties
from graphplan.cost.predictors import Predictor, load_predictor
from graphplan.cost.stepratio import RatioFit
from graphplan.errors import InvalidFile
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.learned import LearnedCosts
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.table import OpProfile, ProfileTable

NOVEL = math.log(2.0)
"""Least deviation of an op outside the training data: a factor of two."""
MOST_NOTES = 8


def predict_table(
    learned: LearnedCosts,
    graph: OpGraph,
    device_type: DeviceType,
    *,
    batch_sizes: Sequence[int],
    precision: str | None = None,
) -> ProfileTable:
    """The table that a learned cost model predicts for a graph on a device type."""
    return TablePredictor(learned).predict(
        graph, device_type, batch_sizes=batch_sizes, precision=precision
    )


class TablePredictor:
    """A learned cost model, loaded once for many tables."""

    def __init__(self, learned: LearnedCosts) -> None:
        arrays, num_kinds = learned.arrays, len(learned.kinds)
        self._learned = learned
        self._predictor: Predictor = load_predictor(learned)
        self._roofline_by_name = {each.plain.name: each.roofline for each in learned.devices}
        self._ratio = RatioFit(
            mean=unpack_array(arrays, "ratio.mean", (None,)),
            deviation=unpack_array(arrays, "ratio.deviation", (None,)),
            coefficients=unpack_array(arrays, "ratio.coefficients", (None,)),
            error=float(unpack_array(arrays, "ratio.error", (1,))[0]),
        )
        self._fence = Fence(
            kinds=learned.kinds,
            low=unpack_array(arrays, "fence.low", (num_kinds, len(RANGED))),
            high=unpack_array(arrays, "fence.high", (num_kinds, len(RANGED))),
            dtypes=learned.dtypes,
            devices=unpack_array(arrays, "fence.devices", (None, len(DEVICE_COLUMNS))),
        )

    def predict(
        self,
        graph: OpGraph,
        device_type: DeviceType,
        *,
        batch_sizes: Sequence[int],
        precision: str | None = None,
    ) -> ProfileTable:
        """The table of one graph."""
        features = extract_features(
            graph,
            device_type,
            batch_sizes=batch_sizes,
            roofline=self._roofline_by_name.get(device_type.name),
            precision=precision,
        )
        mean, deviation = self._predictor.answer(features)
        novelties = find_novelties(self._fence, features)
        novel = numpy.array([why is not None for why in novelties], dtype=bool)
        seconds = features.reference_s * numpy.exp(numpy.clip(mean, -8.0, 8.0))
        deviation = numpy.where(novel[None, :, None], numpy.maximum(deviation, NOVEL), deviation)
        try:
            return ProfileTable(
                graph=graph.fingerprint,
                device=device_type.name,
                source="learned",
                batch_sizes=features.batch_sizes,
                rows=_make_rows(graph, features, seconds, deviation, novel),
                calibration=tuple(self._ratio.predict(features, seconds.sum((1, 2))).tolist()),
                provenance=_tell_origin(self._learned, novelties),
                step_uncertainty=_add_up(features, seconds, deviation, self._ratio.error),
            )
        except ValueError as error:  # Each of its numbers is possible, but not all together.
            raise InvalidFile(
                f"The learned costs give times that no op can take: {error}.",
                remedy="Train them again with `graphplan learn`.",
            ) from error


def _make_rows(
    graph: OpGraph,
    features: GraphFeatures,
    seconds: Floats,
    deviation: Floats,
    novel: numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.bool_]],
) -> tuple[OpProfile, ...]:
    total = numpy.maximum(seconds.sum(2), 1e-12)
    own = ((seconds * deviation).sum(2) / total).max(0)
    columns = [seconds[:, :, i].T.tolist() for i in range(len(PASSES))]
    workspace = features.workspace_bytes.T.tolist()
    return tuple(
        OpProfile(
            op=op.name,
            forward_s=tuple(columns[0][i]),
            input_grad_s=tuple(columns[1][i]),
            weight_grad_s=tuple(columns[2][i]),
            workspace_bytes=tuple(workspace[i]),
            uncertainty=float(own[i]),
            extrapolated=bool(novel[i]),
        )
        for i, op in enumerate(graph.ops)
    )


def _add_up(
    features: GraphFeatures, seconds: Floats, deviation: Floats, ratio_error: float
) -> float:
    """Standard deviation of the log of a step: the worst of the sizes."""
    index: dict[str, int] = {}
    place = [index.setdefault(kind, len(index)) for kind in features.kinds]
    worst = 0.0
    for own, spread in zip(seconds, deviation, strict=True):
        by_kind = numpy.zeros(len(index))
        numpy.add.at(by_kind, place, (own * spread).sum(1))
        share = float(numpy.sqrt((by_kind**2).sum())) / max(float(own.sum()), 1e-12)
        worst = max(worst, math.hypot(share, ratio_error))
    return worst


def _tell_origin(learned: LearnedCosts, novelties: Sequence[str | None]) -> str:
    """Which model answered, and what it had to guess."""
    card = learned.card
    origin = (
        f"{learned.predictor} trained {card.date} on {len(card.training.models)} models"
        f" on {', '.join(card.devices)}"
    )
    reasons = tuple(dict.fromkeys(why for why in novelties if why is not None))
    if not reasons:
        return origin
    count = sum(why is not None for why in novelties)
    told = ", ".join(reasons[:MOST_NOTES]) + (", …" if len(reasons) > MOST_NOTES else "")
    return f"{origin}; {count} of {len(novelties)} ops extrapolated ({told})"
