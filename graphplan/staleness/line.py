"""Line: one replica of the whole pipeline during a replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.task import Task
from graphplan.staleness.models import Model, Value
from graphplan.staleness.optimizers import Optimizer
from graphplan.staleness.store import Flight, StageStore
from graphplan.staleness.versions import Stamped, read_backward, read_forward
from graphplan.staleness.walk import list_gradients


@dataclass
class Line:
    """A replica of the whole pipeline with its weights and the values under way."""

    priced: PricedStages
    policy: WeightPolicy
    model: Model
    optimizer: Optimizer
    replica: int = field(kw_only=True)
    num_replicas: int = field(kw_only=True)
    reads: list[Stamped] = field(default_factory=list, init=False)
    outputs: dict[tuple[int, int], list[Any]] = field(default_factory=dict, init=False)
    """(stage, micro-batch) -> [value, readers left]."""
    gradients: dict[tuple[int, int, int], Value] = field(default_factory=dict, init=False)
    """(receiver, sender, micro-batch) -> gradient."""

    def __post_init__(self) -> None:
        self.count = self.priced.num_micro_batches(0)
        self.period = self.count if self.policy.is_synchronous else self.policy.accumulate
        self.senders = [list_gradients(self.priced, s) for s in range(len(self.priced.stages))]
        self.stores = [
            StageStore(self.model.start_weights(s), self.optimizer, form=self.policy.direction)
            for s in range(len(self.priced.stages))
        ]

    def run_task(self, task: Task, *, batch: int) -> bool:
        """Run one task; returns whether it completed an update."""
        m = batch * self.count + task.micro_batch
        if task.kind == "F":
            self.run_forward(task, m)
        elif task.kind in ("B", "I"):
            self.run_backward(task, m)
        if task.kind not in ("B", "W") or not self.stores[task.stage].add_gradient(m, self.period):
            return False
        self.drop_versions(task.stage)
        return True

    def run_forward(self, task: Task, m: int) -> None:
        """Read weights and inputs, keep what the backward needs."""
        stage, store = task.stage, self.stores[task.stage]
        read = read_forward(self.policy, stage, m, stamp=store.version)
        self.reads.append(Stamped(task, read, store.version))
        inputs = tuple(self.take_output(other, m) for other in self.priced.predecessors[stage])
        weights = store.read_weights(read)
        output, saved = self.model.run_forward(
            stage, weights, inputs, m * self.num_replicas + self.replica
        )
        if self.priced.successors[stage]:
            self.outputs[stage, m] = [output, len(self.priced.successors[stage])]
        store.next_forward = m + 1
        if self.priced.stages[stage].needs_backward:
            store.hold(m, Flight(read, weights, saved), keep=not self.policy.forgets)
        self.drop_versions(stage)

    def take_output(self, stage: int, m: int) -> Value:
        """An output; forgotten when its last reader took it."""
        found = self.outputs[stage, m]
        found[1] -= 1
        if not found[1]:
            del self.outputs[stage, m]
        return found[0]

    def run_backward(self, task: Task, m: int) -> None:
        """Sum the readers' gradients in ascending order, send the inputs' gradients on."""
        stage, store = task.stage, self.stores[task.stage]
        flight = store.flights[m]
        read = read_backward(self.policy, stage, flight.read, current=store.version)
        self.reads.append(Stamped(task, read, store.version))
        weights = flight.weights if flight.keeps else store.read_weights(read)
        gradient: Value | None = None
        for other in self.senders[stage]:
            part = self.gradients.pop((stage, other, m))
            gradient = part if gradient is None else gradient + part
        found, of_weights = self.model.run_backward(stage, weights, flight.saved, gradient)
        store.note_gradient(m, of_weights)
        for other, part in zip(self.priced.predecessors[stage], found, strict=True):
            if stage in self.senders[other]:
                self.gradients[other, stage, m] = part

    def drop_versions(self, stage: int) -> None:
        """Forget versions that neither the flights nor the forwards to come can read."""
        store = self.stores[stage]
        m = store.next_forward
        store.drop_below(read_forward(self.policy, stage, m, stamp=max(m, store.version)).version)
