"""The judge: what a stage graph is worth under the user's options, for every planner alike.

Where orders are searched for, a draft is worth what the best of a few quick list schedules makes of
it, with messages that queue (schedule/rehearse.py); else what its 1F1B order takes. Memory is
checked in both. Under an asynchronous policy it is the steady state that counts (streaming.py).

Batches of many micro-batches are cut to a few more than the pipeline is deep, and again to a few
more than those: the difference says what every further micro-batch adds, at least the time of the
busiest device or channel. The plan itself is simulated in full.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from graphplan.cost.model import CostModel
from graphplan.errors import InvalidOption, NoFeasiblePlan
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.stages import StageGraph
from graphplan.planner.loads import measure_channels
from graphplan.planner.options import DEFAULTS, SearchOptions
from graphplan.planner.sequential import chain_stages
from graphplan.planner.streaming import judge_stream
from graphplan.schedule.auto import count_tasks
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.interleaved import build_interleaved
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.queued import has_contention, measure_queued
from graphplan.schedule.quick import is_plain, measure_1f1b
from graphplan.schedule.rehearse import rehearse_orders
from graphplan.schedule.shop import make_shop

Window = tuple[int, int]
"""Further micro-batches between which the pace of a pipeline in full swing is measured."""
WINDOWS: tuple[Window, Window] = ((0, 6), (8, 24))
"""With one stage on a device, and with several, whose turns take longer to settle."""
REHEARSED: Window = (8, 20)
"""The same for rehearsals of batches with too many tasks."""
MAX_REHEARSED_TASKS = 4_000
"""Tasks up to which a whole batch is rehearsed: no more than two shorter ones have."""
SEARCHED = ("auto", "list", "cpsat")
"""Schedules that are searched for, so that a rehearsal says more than 1F1B does."""

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
        self.searched = self.is_step and options.schedule in SEARCHED
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
        if self.searched:
            return rehearse_stages(self.cost, stages, sequential=self.sequential)
        return evaluate_stages(
            self.cost,
            stages,
            policy=self.policy if self.policy.is_synchronous else None,
            objective=self.options.objective,
            sequential=self.sequential,
        )


def rehearse_stages(cost: CostModel, stages: StageGraph, *, sequential: bool = False) -> float:
    """Step seconds of the best of a few quick orders; infinity when a device cannot hold it."""
    priced = cost.price_stages(stages)
    if sequential:
        priced = chain_stages(priced)
    if not fits_once(priced):
        return float("inf")
    if count_tasks(priced, allow_split=True) <= MAX_REHEARSED_TASKS:
        return rehearse_orders(make_shop(priced)).step_s
    near, far = (shorten_batch(priced, num_further=num) for num in REHEARSED)
    step_s = rehearse_orders(make_shop(near)).step_s
    left, further = priced.batch_size - near.batch_size, far.batch_size - near.batch_size
    if left and step_s < float("inf"):
        pace_s = (rehearse_orders(make_shop(far)).step_s - step_s) / further
        step_s += left * max(pace_s, _measure_busiest(priced))
    return max(step_s, priced.batch_size * measure_channels(priced))


def evaluate_stages(
    cost: CostModel,
    stages: StageGraph,
    *,
    policy: WeightPolicy | None = None,
    objective: str = "throughput",
    sequential: bool = False,
    windows: tuple[Window, Window] = WINDOWS,
) -> float:
    """Step seconds (or what the objective asks for); infinity when a device cannot hold it."""
    priced = cost.price_stages(stages, policy or WeightPolicy())
    if sequential:
        priced = chain_stages(priced)
    if not fits_once(priced):
        return float("inf")
    if objective == "throughput":
        step_s = _measure_batch(priced, windows[_shares_devices(priced)])
        return max(step_s, priced.batch_size * measure_channels(priced))
    peaks = _run_order(shorten_batch(priced, num_further=0))[1]
    limits = priced.memory_bytes_by_device
    if any(peak > limit for peak, limit in zip(peaks, limits, strict=True)):
        return float("inf")
    if objective == "memory":
        return max(peak / limit for peak, limit in zip(peaks, limits, strict=True))
    single = msgspec.structs.replace(priced, batch_size=_largest_micro_batch(priced))
    return _run_order(single)[0]


def _measure_batch(priced: PricedStages, window: Window) -> float:
    """Step seconds of a shorter batch, and of what was left out at the pace of the window."""
    near, far = (shorten_batch(priced, num_further=num) for num in window)
    step_s = _measure_order(near)
    left = priced.batch_size - near.batch_size
    if not left or step_s == float("inf"):
        return step_s
    pace_s = (_measure_order(far) - step_s) / (far.batch_size - near.batch_size)
    return step_s + left * max(pace_s, _measure_busiest(priced))


def _measure_order(priced: PricedStages) -> float:
    """Step seconds; infinity when a device cannot hold it."""
    step_s, peaks = _run_order(priced)
    limits = priced.memory_bytes_by_device
    fits = all(peak <= limit for peak, limit in zip(peaks, limits, strict=True))
    return step_s if fits else float("inf")


def _run_order(priced: PricedStages) -> tuple[float, tuple[int, ...]]:
    """Step seconds and peak bytes; stages that share devices take turns in interleaved order."""
    contended = has_contention(priced)
    if is_plain(priced) and not contended:
        return measure_1f1b(priced)
    build = build_interleaved if _shares_devices(priced) else build_1f1b
    schedule = build(priced)
    found = evaluate_schedule(priced, schedule)
    step_s = measure_queued(priced, schedule) if contended else found.step_s
    return step_s, found.peak_bytes_by_device


def _shares_devices(priced: PricedStages) -> bool:
    return any(len(hosted) > 1 for hosted in priced.stages_by_device)


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


def _measure_busiest(priced: PricedStages) -> float:
    """Seconds of one sample on the busiest device."""
    return max(
        sum(_seconds_per_sample(priced, s) for s in hosted) for hosted in priced.stages_by_device
    )


def _seconds_per_sample(priced: PricedStages, s: int) -> float:
    stage = priced.stages[s]
    return (stage.forward_s + stage.backward_s) / stage.micro_batch_size


def _largest_micro_batch(priced: PricedStages) -> int:
    return max(stage.micro_batch_size for stage in priced.stages)
