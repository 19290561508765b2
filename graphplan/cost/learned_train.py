"""Training of the graph network: Laplace loss on the units that were timed, early stopping."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from graphplan.cost.features import Floats
from graphplan.cost.learned_network import (
    CostNetwork,
    Scaler,
    TrainedNetwork,
    fit_scaler,
    to_tensors,
)
from graphplan.cost.lessons import FLOOR_S, Lesson

BATCH = 6
"""Lessons in a step."""
LEARNING_RATE = 4e-3
WEIGHT_DECAY = 1e-3
FORGET = 0.02
"""Share of ops whose kind is hidden in training, so that the unknown kind is known."""
PATIENCE = 25

Report = Callable[[int, float], None]
"""Told the number of epochs and the error on validation."""


@dataclass(frozen=True)
class _Material:
    """A lesson as tensors."""

    values: Tensor
    kinds: Tensor
    edges: Tensor
    reference_s: Tensor
    unit: Tensor
    """[op of a size]: its unit, counted over all sizes."""
    goal: Tensor
    """[unit, pass]: log of measured seconds."""
    weight: Tensor
    """[unit, pass]: 0 where a unit has no such pass; equal units of a lesson count once."""


def train_network(
    train: Sequence[Lesson],
    valid: Sequence[Lesson],
    *,
    seed: int,
    epochs: int = 150,
    report: Report | None = None,
) -> TrainedNetwork:
    """The network with the least error on the validation lessons."""
    with torch.random.fork_rng(devices=[]), _use_one_thread():
        return _train(train, valid, seed=seed, epochs=epochs, report=report)


@contextlib.contextmanager
def _use_one_thread() -> Iterator[None]:
    """The network is so small that several threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(
    train: Sequence[Lesson],
    valid: Sequence[Lesson],
    *,
    seed: int,
    epochs: int,
    report: Report | None,
) -> TrainedNetwork:
    torch.manual_seed(seed)
    source = numpy.random.default_rng(seed)
    kinds = tuple(sorted({kind for lesson in train for kind in lesson.features.kinds}))
    scaler = fit_scaler(
        numpy.concatenate([lesson.features.values.reshape(-1, lesson.features.values.shape[2])
                           for lesson in train])
    )  # fmt: skip
    learning, checking = (
        [_prepare(lesson, scaler, kinds) for lesson in each] for each in (train, valid)
    )
    network = CostNetwork(len(kinds))
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    num_batches = math.ceil(len(learning) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=epochs * num_batches, pct_start=0.15
    )
    best, best_epoch, best_state = math.inf, 0, copy.deepcopy(network.state_dict())
    for epoch in range(1, epochs + 1):
        order = source.permutation(len(learning))
        for batch in numpy.array_split(order, num_batches):
            _take_step(network, [learning[i] for i in batch], optimizer)
            schedule.step()
        error = _find_error(network, checking)
        if error < best:
            best, best_epoch, best_state = error, epoch, copy.deepcopy(network.state_dict())
        if report is not None:
            report(epoch, best)
        if epoch - best_epoch >= PATIENCE:
            break
    network.load_state_dict(best_state)
    return TrainedNetwork(network.eval(), scaler, kinds, best_epoch)


def _take_step(
    network: CostNetwork, batch: Sequence[_Material], optimizer: torch.optim.Optimizer
) -> None:
    network.train()
    joined = _join(batch)
    hidden = torch.rand(joined.kinds.shape) < FORGET
    joined_kinds = joined.kinds.masked_fill(hidden, 0)
    mean, scale = network(joined.values, joined_kinds, joined.edges)
    error, spread = _compare(joined, mean, scale)
    loss = (joined.weight * (error.abs() / spread + spread.log())).sum() / joined.weight.sum()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()


def _compare(given: _Material, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Error of every unit in log seconds, and the scale that the network expects of it."""
    seconds = given.reference_s * mean.clamp(-8.0, 8.0).exp()
    total = torch.zeros_like(given.goal).index_add(0, given.unit, seconds)
    share = seconds / total[given.unit].clamp_min(1e-12)
    spread = torch.zeros_like(given.goal).index_add(0, given.unit, share * scale.exp())
    return (total + FLOOR_S).log() - given.goal, spread.clamp_min(1e-3)


def _find_error(network: CostNetwork, lessons: Sequence[_Material]) -> float:
    """Mean absolute error of the units of validation."""
    network.eval()
    total = weight = 0.0
    with torch.no_grad():
        for each in lessons:
            mean, scale = network(each.values, each.kinds, each.edges)
            error, _ = _compare(each, mean, scale)
            total += float((error.abs() * each.weight).sum())
            weight += float(each.weight.sum())
    return total / max(weight, 1e-9)


def _prepare(lesson: Lesson, scaler: Scaler, kinds: Sequence[str]) -> _Material:
    values, own, edges = to_tensors(lesson.features, scaler, kinds)
    num_sizes = len(lesson.features.batch_sizes)
    unit = numpy.concatenate([lesson.unit_by_op + j * lesson.num_units for j in range(num_sizes)])
    goal = numpy.log(lesson.measured_s + FLOOR_S).reshape(-1, lesson.measured_s.shape[2])
    return _Material(
        values=values,
        kinds=own,
        edges=edges,
        reference_s=_flatten(lesson.features.reference_s),
        unit=torch.from_numpy(unit),
        goal=torch.from_numpy(goal).float(),
        weight=_flatten(_weigh(lesson)),
    )


def _weigh(lesson: Lesson) -> Floats:
    """1 for every unit that has a pass; equal units of a lesson share it."""
    exists = lesson.sum_units(lesson.features.reference_s) > 0
    count: dict[bytes, int] = {}
    keys = [[row.tobytes() for row in column] for column in lesson.measured_s]
    for column in keys:
        for key in column:
            count[key] = count.get(key, 0) + 1
    share = numpy.array([[1 / math.sqrt(count[key]) for key in column] for column in keys])
    return numpy.asarray(exists * share[:, :, None])


def _flatten(array: Floats) -> Tensor:
    return torch.from_numpy(array.reshape(-1, array.shape[2])).float()


def _join(lessons: Sequence[_Material]) -> _Material:
    """Several lessons as one graph of separate parts."""
    nodes = numpy.cumsum([0, *(len(each.values) for each in lessons)])
    units = numpy.cumsum([0, *(len(each.goal) for each in lessons)])
    return _Material(
        values=torch.cat([each.values for each in lessons]),
        kinds=torch.cat([each.kinds for each in lessons]),
        edges=torch.cat([e.edges + int(n) for e, n in zip(lessons, nodes[:-1], strict=True)], 1),
        reference_s=torch.cat([each.reference_s for each in lessons]),
        unit=torch.cat([e.unit + int(n) for e, n in zip(lessons, units[:-1], strict=True)]),
        goal=torch.cat([each.goal for each in lessons]),
        weight=torch.cat([each.weight for each in lessons]),
    )
