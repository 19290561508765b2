"""One run of measuring: units are timed, remembered and reported; steps of the whole model too."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from graphplan.cost.cache import Measurement, ProfileCache
from graphplan.cost.estimate import PASSES, Estimator
from graphplan.cost.flops import WorkCounter
from graphplan.cost.measure_body import Body, open_body
from graphplan.cost.measure_clock import Clock
from graphplan.cost.measure_limits import choose_limits
from graphplan.cost.measure_rebuild import Rebuilt
from graphplan.cost.measure_step import fits_memory, measure_step
from graphplan.cost.measure_unit import AS_MODELLED, Effort, Numerics, measure_unit
from graphplan.cost.measure_units import (
    UnitBuilder,
    UnitDescriber,
    Values,
    run_on_fakes,
)
from graphplan.cost.measure_update import MakeOptimizer, measure_update, name_update
from graphplan.errors import RunFailed
from graphplan.nouns.cluster import DeviceType

if TYPE_CHECKING:
    from graphplan.frontend import Captured

UNIT_COST_S = 0.05
UNIT_REPEATS = 25
"""Rough cost of measuring a unit: fixed, and in its own times."""

MakeBatch = Callable[[int], Any]


@dataclass(frozen=True)
class Progress:
    """How far measuring is."""

    num_done: int
    num_units: int
    seconds_left: float
    label: str


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Job:
    """Something to measure: a unit or a whole step, at one micro-batch size."""

    signature: str
    label: str
    weight: float
    """Expected cost, to tell the time that is left."""
    run: Callable[[], Measurement]


class Session:
    """One run of measuring: what is known so far, by signature."""

    def __init__(
        self,
        captured: Captured | Rebuilt,
        units: Sequence[tuple[str, ...]],
        clock: Clock,
        *,
        cache: ProfileCache | None,
        device_type: DeviceType,
        num_neighbours: int = 0,
        numerics: Numerics = AS_MODELLED,
    ) -> None:
        self.numerics = numerics
        self.num_neighbours = num_neighbours
        self.captured = captured
        self.clock = clock
        self.known: dict[str, Measurement] = {}
        self.failed: dict[str, str] = {}
        """Why something could not run, by signature."""
        self.interrupted = False
        self.budget_s: float | None = None
        """What measuring may take; what does not fit is left out, the least valuable last."""
        self.num_skipped = 0
        self._update = ""
        self.borrowed = False
        """Whether a ratio comes from another model."""
        self._units = units
        self._cache = cache
        self._estimator = Estimator(device_type)
        self._is_foreign = isinstance(captured, Rebuilt)
        self._body = captured.body if isinstance(captured, Rebuilt) else open_body(captured.module)
        self._describer = UnitDescriber(captured.graph, layout=_describe_layout(self._body))
        self._counter = WorkCounter(captured.graph)
        self._builders: dict[int, tuple[UnitBuilder, Values]] = {}

    def find_unit(self, ops: tuple[str, ...], size: int) -> Measurement | None:
        """What is known of a unit."""
        return self.known.get(self._describer.describe(ops, size))

    def find_ratio(self, size: int, sum_s: float) -> float | None:
        """Step of the whole model over the sum of its ops.

        Without a step of its own, a model takes the ratio of one with the same different units,
        such as the same layers in another number.
        """
        step, name = self.known.get(self._name_step(size)), self._name_ratio(size)
        if step is not None and sum_s:
            self._remember(name, Measurement(forward_s=step.forward_s / sum_s, spread=step.spread))
        elif name in self.known:
            self.borrowed = True
        return self.known[name].forward_s if name in self.known else None

    def list_units(self, sizes: Sequence[int], effort: Effort) -> list[Job]:
        """Every different unit that is not known, the most valuable first: those that take most of
        a step for the time that measuring takes. A unit's sizes follow each other, so that an
        interruption leaves whole rows."""
        jobs: dict[str, Job] = {}
        for ops in self._order_units(max(sizes)):
            for size in sizes:
                signature = self._describer.describe(ops, size)
                if not self._recall(signature) and signature not in jobs:
                    run = functools.partial(self._measure_unit, ops, size, effort)
                    weight = UNIT_COST_S + UNIT_REPEATS * self._estimate(ops, size)
                    jobs[signature] = Job(signature, ops[0], weight, run)
        return list(jobs.values())

    def _order_units(self, size: int) -> list[tuple[str, ...]]:
        """Different units by their share of a step over their cost."""
        counts: dict[str, int] = {}
        first: dict[str, tuple[str, ...]] = {}
        for ops in self._units:
            signature = self._describer.describe(ops, size)
            counts[signature] = counts.get(signature, 0) + 1
            first.setdefault(signature, ops)

        def value(signature: str) -> float:
            seconds = self._estimate(first[signature], size)
            return counts[signature] * seconds / (UNIT_COST_S + UNIT_REPEATS * seconds)

        order = {name: i for i, name in enumerate(sorted(first, key=value, reverse=True))}
        return sorted(self._units, key=lambda ops: order[self._describer.describe(ops, size)])

    def list_steps(
        self, sizes: Sequence[int], inputs: MakeBatch | None, effort: Effort
    ) -> list[Job]:
        """Steps of the whole model that fit the device and whose ratio is not known."""
        graph, jobs = self.captured.graph, []
        names = tuple(op.name for op in graph.ops)
        for size in sizes:
            signature = self._name_step(size)
            is_known = self._recall(signature) or self._recall(self._name_ratio(size))
            if not is_known and fits_memory(graph, size, self.clock):
                run = functools.partial(self._measure_step, size, inputs, effort)
                weight = effort.budget_s + effort.min_repeats * self._estimate(names, size)
                jobs.append(Job(signature, f"whole model, micro-batch of {size}", weight, run))
        return jobs

    def may_step(self, size: int) -> bool:
        """Whether a whole step may run: that of a file may not if it takes too much."""
        if not self._is_foreign:
            return True
        try:
            self._builder(size)[0].check_step()
        except Exception:  # Any op of any library may refuse to run without memory.
            return False
        return True

    def list_updates(self, make: MakeOptimizer | None, effort: Effort) -> list[Job]:
        """The step of the user's optimizer, unless it is known."""
        graph = self.captured.graph
        if make is None or not any(weight.trainable for weight in graph.weights):
            return []
        self._update = signature = name_update(graph, make)
        run = functools.partial(self._measure_update, make, effort)
        known = self._recall(signature)
        return [] if known else [Job(signature, "optimizer", 2 * effort.budget_s, run)]

    def find_update(self) -> float | None:
        """Seconds that the user's optimizer takes for an element."""
        found = self.known.get(self._update)
        return found.forward_s if found is not None else None

    def run(self, jobs: Sequence[Job], *, rounds: int, report: Report | None) -> None:
        """Measure all jobs several times over, and keep the fastest of each.

        A disturbance of some seconds then falls on one round of an op, not on all its samples.
        Among neighbours the disturbance is what is measured, and the mean counts.
        """
        countdown = Countdown([job.weight for job in jobs] * rounds, budget_s=self.budget_s)
        for number, job in enumerate([*jobs] * rounds):
            if not countdown.has_room(job.weight):
                self.num_skipped += job.signature not in self.known
                countdown.skip()
                continue
            if report is not None:
                report(Progress(number, rounds * len(jobs), countdown.seconds_left(), job.label))
            if job.signature not in self.failed:
                self._run_job(job)
            countdown.advance()
        if report is not None:
            report(Progress(rounds * len(jobs), rounds * len(jobs), 0.0, ""))

    def _run_job(self, job: Job) -> None:
        try:
            measured = job.run()
        except Exception as error:
            # Any op of any library may refuse random data; such ops are estimated instead.
            self.failed[job.signature] = f"{job.label}: {error}"
            check_alive(self.clock, job.label, error)
            return
        before = self.known.get(job.signature)
        if before is not None:
            measured = (before.mean if self.num_neighbours else before.merge)(measured)
        self._remember(job.signature, measured)

    def _measure_unit(self, ops: tuple[str, ...], size: int, effort: Effort) -> Measurement:
        builder, values = self._builder(size)
        return measure_unit(builder.build(ops), values, self.clock, effort, self.numerics)

    def _measure_step(self, size: int, inputs: MakeBatch | None, effort: Effort) -> Measurement:
        captured = self.captured
        batch = None
        if inputs is not None and not isinstance(captured, Rebuilt):
            batch = captured.flatten_batch(inputs(size))
        builder, values = self._builder(size)
        builder.check_step()
        seconds, spread = measure_step(
            self._body, captured.graph, values, self.clock, batch=batch, effort=effort
        )
        return Measurement(forward_s=seconds, spread=spread)

    def _measure_update(self, make: MakeOptimizer, effort: Effort) -> Measurement:
        seconds, spread = measure_update(self.captured.graph, make, self.clock, effort)
        return Measurement(forward_s=seconds, spread=spread)

    def _recall(self, signature: str) -> bool:
        if signature not in self.known and self._cache is not None:
            found = self._cache.find(signature)
            if found is not None:
                self.known[signature] = found
        return signature in self.known

    def _remember(self, signature: str, measurement: Measurement) -> None:
        self.known[signature] = measurement
        if self._cache is not None:
            self._cache.add(signature, measurement)
            self._cache.save_sometimes()

    def _name_step(self, size: int) -> str:
        return f"step {self.captured.graph.fingerprint} {size}"

    def _name_ratio(self, size: int) -> str:
        signatures = {self._describer.describe(ops, size) for ops in self._units}
        return "ratio\n" + "\n".join(sorted(signatures))

    def _estimate(self, names: Sequence[str], size: int) -> float:
        """Seconds of a forward and backward by the laws."""
        ops = [self.captured.graph.op_by_name[name] for name in names]
        return sum(
            self._estimator.pass_time(op, self._counter.count_op(op, size), each)
            for op in ops
            for each in PASSES
        )

    def _builder(self, size: int) -> tuple[UnitBuilder, Values]:
        if size not in self._builders:
            captured = self.captured
            limits = choose_limits(self.clock) if self._is_foreign else None
            values = run_on_fakes(self._body, captured.graph, size, limits=limits)
            builder = UnitBuilder(
                self._body, captured.graph, values, self.clock.device, limits,
                compiled=self.numerics.compiled,
            )  # fmt: skip
            self._builders[size] = builder, values
        return self._builders[size]


class Countdown:
    """Time left, by the speed so far and the expected cost of the rest, within a budget."""

    def __init__(self, weights: Sequence[float], *, budget_s: float | None = None) -> None:
        self._weights = list(weights)
        self._left = sum(self._weights)
        self._done = 0.0
        self._next = 0
        self._budget_s = budget_s
        self._start = time.monotonic()

    def has_room(self, weight: float) -> bool:
        """Whether something of an expected cost still fits the budget."""
        if self._budget_s is None:
            return True
        return self._spent() + weight * self._pace() <= self._budget_s

    def advance(self) -> None:
        """One more is done."""
        self._done += self._weights[self._next]
        self.skip()

    def skip(self) -> None:
        """One more is left out."""
        self._left -= self._weights[self._next]
        self._next += 1

    def seconds_left(self) -> float:
        """Expected seconds until all is done, or the budget is spent."""
        expected = self._left * self._pace()
        return expected if self._budget_s is None else min(expected, self._budget_s - self._spent())

    def _spent(self) -> float:
        return time.monotonic() - self._start

    def _pace(self) -> float:
        """Seconds of a unit of expected cost."""
        return self._spent() / self._done if self._done else 1.0


def check_alive(clock: Clock, label: str, error: Exception) -> None:
    """Stop when the device itself has failed: nothing that follows could be measured."""
    try:
        clock.finish()
    except Exception as failure:
        raise RunFailed(
            f"The device failed while {label} was measured: {error}",
            remedy="Every later op would fail, too. What was measured so far is kept: run the"
            " command again, with CUDA_LAUNCH_BLOCKING=1 to see the kernel that fails.",
        ) from failure


def _describe_layout(body: Body) -> str:
    """Strides of weights that are not plain; they change the layout of all that follows."""
    strides = {
        str(each.stride())
        for each in body.held.values()
        if isinstance(each, torch.Tensor) and not each.is_contiguous()
    }
    return " ".join(sorted(strides))
