"""Problems whose coordinates are spread over stages: quadratic, logistic, language model.

quadratic   f(x) = (x - x*)' A (x - x*) / 2 in 64 dimensions, A with a random basis and eigenvalues
            from 0.01 to 1; every micro-batch adds a gradient noise of 0.3 in every coordinate
logistic    1,024 samples in 64 dimensions, a tenth of the labels turned, weight decay 0.001;
            a micro-batch draws 8 samples
charlm      the character-level model of `staleness_tasks`

Every stage of the first two holds an equal share of the coordinates and passes on those that it
got; the last one computes the loss. Runs start from zero; a seed draws noise or samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from tools.staleness_tasks import EVERYTHING, make_charlm
from tools.staleness_torch import StagedModel, StageLayout, Views

DIMENSION = 64
NOISE = 0.3
Loss = Callable[[Tensor, int], Tensor]
"""Points [runs, DIMENSION] and a micro-batch -> the loss of every run."""


def spread_loss(loss: Loss, num_stages: int, seeds: Sequence[int]) -> StagedModel:
    """A model whose last stage computes a loss of the coordinates of all."""

    def run_stage(stage: int, views: Views, inputs: tuple[Tensor, ...], micro_batch: int) -> Tensor:
        points = torch.cat([*inputs, views("x")], dim=1)
        return loss(points, micro_batch) if stage == num_stages - 1 else points

    layout = StageLayout({"x": (DIMENSION // num_stages,)})
    return StagedModel([layout] * num_stages, run_stage, seeds)


def make_quadratic(num_stages: int, seeds: Sequence[int]) -> StagedModel:
    """The quadratic with noise of its own for every seed and micro-batch."""
    matrix, target = _draw_quadratic()

    def loss(points: Tensor, micro_batch: int) -> Tensor:
        away = points - target
        exact = 0.5 * (away * (away @ matrix)).sum(1)
        if micro_batch == EVERYTHING:
            return exact
        noise = torch.stack([_draw_noise(seed, micro_batch) for seed in seeds])
        return exact + (noise * points).sum(1)

    return spread_loss(loss, num_stages, seeds)


@lru_cache(maxsize=1)
def _draw_quadratic() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    basis, _ = torch.linalg.qr(torch.randn(DIMENSION, DIMENSION, generator=generator))
    matrix = basis @ torch.diag(torch.logspace(-2, 0, DIMENSION)) @ basis.T
    return matrix, torch.randn(DIMENSION, generator=generator)


@lru_cache(maxsize=64)
def _draw_noise(seed: int, micro_batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(100_003 * seed + micro_batch)
    return NOISE * torch.randn(DIMENSION, generator=generator)


def make_logistic(num_stages: int, seeds: Sequence[int]) -> StagedModel:
    """Logistic regression on samples of its own for every seed and micro-batch."""
    features = _draw_features()

    def loss(points: Tensor, micro_batch: int) -> Tensor:
        decay = 0.0005 * (points * points).sum(1)
        if micro_batch == EVERYTHING:
            return functional.softplus(-points @ features.T).mean(1) + decay
        chosen = features[torch.stack([_draw_samples(seed, micro_batch) for seed in seeds])]
        margins = torch.bmm(chosen, points.unsqueeze(2)).squeeze(2)
        return functional.softplus(-margins).mean(1) + decay

    return spread_loss(loss, num_stages, seeds)


@lru_cache(maxsize=1)
def _draw_features() -> Tensor:
    """Samples times their labels."""
    generator = torch.Generator().manual_seed(6)
    scales = torch.logspace(-1, 0, DIMENSION)
    samples = torch.randn(1024, DIMENSION, generator=generator) * scales
    labels = (samples @ torch.randn(DIMENSION, generator=generator)).sign()
    turned = torch.rand(1024, generator=generator) < 0.1
    return samples * torch.where(turned, -labels, labels).unsqueeze(1)


@lru_cache(maxsize=64)
def _draw_samples(seed: int, micro_batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(100_003 * seed + micro_batch)
    return torch.randint(1024, (8,), generator=generator)


def find_optimum(problem: str) -> float:
    """The least loss: 0 of the quadratic, by Newton's method for the regression, 0 for the LM."""
    if problem != "logistic":
        return 0.0
    features = _draw_features().double()
    point = torch.zeros(DIMENSION, dtype=torch.float64)
    for _ in range(30):
        share = torch.sigmoid(-features @ point)
        gradient = -(features * share.unsqueeze(1)).mean(0) + 0.001 * point
        curvature = features.T @ (features * (share * (1 - share)).unsqueeze(1)) / 1024
        point -= torch.linalg.solve(curvature + 0.001 * torch.eye(DIMENSION).double(), gradient)
    decay = 0.0005 * (point * point).sum()
    return float(functional.softplus(-features @ point).mean() + decay)


def make_language(num_stages: int, seeds: Sequence[int]) -> StagedModel:
    """The character-level language model."""
    return make_charlm(num_stages).make_model(seeds)


PROBLEMS: dict[str, Callable[[int, Sequence[int]], StagedModel]] = {
    "quadratic": make_quadratic,
    "logistic": make_logistic,
    "charlm": make_language,
}
