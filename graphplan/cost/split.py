"""Splitting a cost set by model: training, validation and models that are held out."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence

from graphplan.errors import InvalidOption, UnknownName
from graphplan.nouns.costset import CostSample

VALIDATION_SHARE = 0.18
LEAST_MODELS = 3


@dataclasses.dataclass(frozen=True)
class Split:
    """Names of models; no model is in two parts."""

    training: frozenset[str]
    validation: frozenset[str]
    held_out: frozenset[str]


def split_models(
    samples: Sequence[CostSample], *, hold_out: Sequence[str] = (), seed: int = 0
) -> Split:
    """A split by model, never by row.

    Validation models are drawn at random among those whose op kinds all occur in two other models
    or more, so that training still sees every kind, as far as the set allows.
    """
    kinds_by_model: dict[str, set[str]] = {}
    for sample in samples:
        found = kinds_by_model.setdefault(sample.model, set())
        found |= {op.kind for op in sample.graph.ops}
    for name in hold_out:
        if name not in kinds_by_model:
            raise UnknownName("model", name, kinds_by_model)
    rest = sorted(set(kinds_by_model) - set(hold_out))
    if len(rest) < LEAST_MODELS:
        raise InvalidOption(
            f"Learning needs tables of {LEAST_MODELS} models or more, here are {len(rest)}.",
            remedy="Profile more models, or add the shipped set to your own.",
        )
    random.Random(seed).shuffle(rest)
    wanted = max(1, round(VALIDATION_SHARE * len(rest)))
    count = Counter(kind for model in rest for kind in kinds_by_model[model])
    chosen: list[str] = []
    for model in rest:
        if len(chosen) < wanted and all(count[kind] > 2 for kind in kinds_by_model[model]):
            chosen.append(model)
            count.subtract(kinds_by_model[model])
    chosen = chosen or rest[:1]
    return Split(frozenset(rest) - frozenset(chosen), frozenset(chosen), frozenset(hold_out))
