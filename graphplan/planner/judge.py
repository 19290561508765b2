"""The judge: what a stage graph is worth under the user's options, for every planner alike.

A draft is worth what the player makes of it: its orders are lowered to a program, and that is
played with messages that queue (schedule/lower.py, play/player.py), as the simulator does. Where
orders are searched for, it is the best of a few quick list schedules (schedule/greedy.py); else
the order of the schedule that was asked for. Memory is checked in all of them. Under an
asynchronous policy it is the steady state that counts (streaming.py).

Batches with very many tasks are cut to a few micro-batches more than the pipeline is deep, and
again to a few more than those: the difference says what every further micro-batch adds, at least
the time of the busiest device or channel. The plan itself is played in full.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import msgspec

from graphplan.cost.model import CostModel
from graphplan.errors import InvalidOption, NoFeasiblePlan
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.stages import StageGraph
from graphplan.planner.loads import measure_busiest, measure_channels
from graphplan.planner.options import DEFAULTS, SearchOptions
from graphplan.planner.sequential import chain_stages
from graphplan.planner.streaming import judge_stream
from graphplan.schedule.auto import FIXED, count_tasks
from graphplan.schedule.evaluate import Evaluation, evaluate_schedule
from graphplan.schedule.greedy import rehearse_orders
from graphplan.schedule.shop import make_shop

WINDOW = (8, 24)
"""Further micro-batches between which the pace of a pipeline in full swing is measured."""
MAX_PLAYED_TASKS = 20_000
"""Tasks up to which a whole batch is played."""
ONE_STAGE = ("1f1b", "kfkb")
"""Schedules that order one stage on a device only."""


class Judging(Protocol):
    """What a contest asks of a judge."""

    is_step: bool
    """Whether a judgement is the step time of a batch that ends with a barrier."""
    searched: bool
    """Whether the orders of the micro-batches are searched for."""

    def judge(self, stages: StageGraph) -> float:
        """What is minimised; infinity when a device cannot hold it."""


class Judge:
    """Judges the stage graphs of one problem, each of them once."""

    def __init__(
        self, cost: CostModel, options: SearchOptions = DEFAULTS, *, sequential: bool = False
    ) -> None:
        self.cost, self.options, self.sequential = cost, options, sequential
        self.policy = options.make_policy()
        self.is_step = options.objective == "throughput" and self.policy.name == "flush"
        self.searched = self.is_step and options.schedule not in FIXED
        self._known: dict[StageGraph, float] = {}

    def judge(self, stages: StageGraph) -> float:
        """What the objective minimises; infinity when a device cannot hold it."""
        if stages not in self._known:
            try:
                self._known[stages] = self._judge(stages)
            except (InvalidOption, NoFeasiblePlan):  # no order, or none that fits
                self._known[stages] = float("inf")
        return self._known[stages]

    def _judge(self, stages: StageGraph) -> float:
        if self.options.streams(stages):
            return judge_stream(self.cost, stages, self.options)
        if self.policy.name == "local" and not is_replicated(stages):
            return float("inf")
        if self.options.schedule in ONE_STAGE and not has_own_devices(stages):
            return float("inf")
        return judge_stages(
            self.cost,
            stages,
            schedule=self.options.schedule,
            policy=self.policy if self.policy.is_synchronous else None,
            objective=self.options.objective,
            sequential=self.sequential,
        )


def judge_stages(
    cost: CostModel,
    stages: StageGraph,
    *,
    schedule: str = "auto",
    policy: WeightPolicy | None = None,
    objective: str = "throughput",
    sequential: bool = False,
) -> float:
    """Step seconds (or what the objective asks for); infinity when a device cannot hold it."""
    priced = cost.price_stages(stages, policy or WeightPolicy())
    if sequential:
        priced = chain_stages(priced)
    if not fits_once(priced):
        return float("inf")
    if objective == "throughput":
        return _judge_step(priced, schedule)
    is_long = count_tasks(priced, allow_split=True) > MAX_PLAYED_TASKS
    found = _play_plainly(shorten_batch(priced, num_further=0) if is_long else priced, schedule)
    if not found.fits:
        return float("inf")
    if objective == "memory":
        limits = priced.memory_bytes_by_device
        shares = zip(found.peak_bytes_by_device, limits, strict=True)
        return max(peak / limit for peak, limit in shares)
    single = msgspec.structs.replace(priced, batch_size=_largest_micro_batch(priced))
    return _play_plainly(single, schedule).step_s


def _judge_step(priced: PricedStages, schedule: str) -> float:
    """Step seconds of the batch, or of a shorter one and of what was left out at its pace."""
    play = partial(_play_step, schedule=schedule)
    if count_tasks(priced, allow_split=True) <= MAX_PLAYED_TASKS:
        return play(priced)
    near, far = (shorten_batch(priced, num_further=num) for num in WINDOW)
    step_s = play(near)
    left, further = priced.batch_size - near.batch_size, far.batch_size - near.batch_size
    if left and step_s < float("inf"):
        pace_s = (play(far) - step_s) / further
        step_s += left * max(pace_s, measure_busiest(priced))
    return max(step_s, priced.batch_size * measure_channels(priced))


def _play_step(priced: PricedStages, *, schedule: str) -> float:
    """Step seconds of the named order, or of the best quick one; infinity if it does not fit."""
    if schedule in FIXED:
        found = _play_plainly(priced, schedule)
        return found.step_s if found.fits else float("inf")
    best = rehearse_orders(make_shop(priced)).best
    return float("inf") if best is None else best.value_s


def _play_plainly(priced: PricedStages, schedule: str) -> Evaluation:
    """The named order, where no search is asked for, or else the plain one."""
    return evaluate_schedule(priced, order_plainly(priced, schedule))


def order_plainly(priced: PricedStages, schedule: str = "1f1b") -> Schedule:
    """The named order; 1F1B for those that are searched for. Stages that share devices take turns
    in interleaved order."""
    name = schedule if schedule in FIXED else "1f1b"
    if name == "1f1b" and any(len(hosted) > 1 for hosted in priced.stages_by_device):
        name = "interleaved"
    return FIXED[name](priced)


def has_own_devices(stages: StageGraph) -> bool:
    """Whether no device has several stages."""
    devices = [device for stage in stages.stages for device in stage.devices]
    return len(set(devices)) == len(devices)


def is_replicated(stages: StageGraph) -> bool:
    """Whether all stages have as many devices, so that replicas of the whole pipeline exist."""
    return len({len(stage.devices) for stage in stages.stages}) == 1


def fits_once(priced: PricedStages) -> bool:
    """Whether every device can hold its stages with one micro-batch in flight: a quick test."""
    for device, hosted in enumerate(priced.stages_by_device):
        needed = sum(priced.stages[s].fixed_bytes + priced.stages[s].saved_bytes for s in hosted)
        if needed > priced.memory_bytes_by_device[device]:
            return False
    return True


def shorten_batch(priced: PricedStages, *, num_further: int) -> PricedStages:
    """A shorter batch with the same start and end, and so many further micro-batches between."""
    depth = max(priced.heights) + 1
    kept = min(priced.batch_size, _largest_micro_batch(priced) * (depth + 4 + num_further))
    return msgspec.structs.replace(priced, batch_size=kept)


def _largest_micro_batch(priced: PricedStages) -> int:
    return max(stage.micro_batch_size for stage in priced.stages)
