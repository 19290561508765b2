"""Evaluation of stage graphs inside a search: 1F1B order, memory checked.

Batches of many micro-batches are cut to a few more than the pipeline is deep; every further
micro-batch then adds the time of the busiest device or channel. Messages of these first few do not
wait for each other, but no step is shorter than what its busiest channel carries. The plan itself
is simulated in full.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from graphplan.cost.model import CostModel
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.stages import StageGraph
from graphplan.partition.answer import Evaluate
from graphplan.planner.loads import measure_channels
from graphplan.planner.options import DEFAULTS, SearchOptions
from graphplan.planner.sequential import chain_stages
from graphplan.planner.streaming import evaluate_stream
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.quick import is_plain, measure_1f1b


def make_evaluator(
    cost: CostModel, options: SearchOptions = DEFAULTS, *, sequential: bool = False
) -> Evaluate:
    """An evaluation that remembers what it has seen; `sequential` runs all stages in one line."""
    policy = options.make_policy()

    @lru_cache(maxsize=8192)
    def evaluate(stages: StageGraph) -> float:
        if options.streams(stages):
            return evaluate_stream(cost, stages, options)
        if policy.name == "local" and not is_replicated(stages):
            return float("inf")
        return evaluate_stages(
            cost,
            stages,
            policy=policy if policy.is_synchronous else None,
            objective=options.objective,
            sequential=sequential,
        )

    return evaluate


def evaluate_stages(
    cost: CostModel,
    stages: StageGraph,
    *,
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
    short, rest_s = shorten_batch(priced)
    step_s, peaks = _measure(short)
    limits = priced.memory_bytes_by_device
    if any(peak > limit for peak, limit in zip(peaks, limits, strict=True)):
        return float("inf")
    if objective == "memory":
        return max(peak / limit for peak, limit in zip(peaks, limits, strict=True))
    if objective == "latency":
        single = msgspec.structs.replace(priced, batch_size=_largest_micro_batch(priced))
        return _measure(single)[0]
    return max(step_s + rest_s, priced.batch_size * measure_channels(priced))


def _measure(priced: PricedStages) -> tuple[float, tuple[int, ...]]:
    """Step seconds and peak bytes; stages that share devices take turns in interleaved order."""
    if is_plain(priced):
        return measure_1f1b(priced)
    from graphplan.schedule.interleaved import build_interleaved

    shared = any(len(hosted) > 1 for hosted in priced.stages_by_device)
    schedule = build_interleaved(priced) if shared else build_1f1b(priced)
    found = evaluate_schedule(priced, schedule)
    return found.step_s, found.peak_bytes_by_device


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


def shorten_batch(priced: PricedStages) -> tuple[PricedStages, float]:
    """A shorter batch with the same start and end, and the seconds of what was cut out."""
    depth = max(priced.heights) + 1
    kept = min(priced.batch_size, _largest_micro_batch(priced) * (depth + 4))
    busiest_s = max(
        sum(_seconds_per_sample(priced, s) for s in hosted) for hosted in priced.stages_by_device
    )
    rest_s = (priced.batch_size - kept) * max(busiest_s, measure_channels(priced))
    return msgspec.structs.replace(priced, batch_size=kept), rest_s


def _seconds_per_sample(priced: PricedStages, s: int) -> float:
    stage = priced.stages[s]
    return (stage.forward_s + stage.backward_s) / stage.micro_batch_size


def _largest_micro_batch(priced: PricedStages) -> int:
    return max(stage.micro_batch_size for stage in priced.stages)
