"""Epochs: an order of a plan's tasks in which the updates of all stages can meet.

Stages that share a device cannot wait for each other in the midst of a pattern: stage b would wait
for update t of stage a, whose last backward comes later on the same device. In an epoch every stage
runs all that lies between two of its updates, F of micro-batches t m + w_s to (t + 1) m + w_s - 1
and B of t m to (t + 1) m - 1. Warm-ups do not rise along an edge, so that an epoch needs nothing
that comes after it; versions are those that the warm-ups promise. At its end all stages update.

Within an epoch tasks start as soon as they can, backwards first, with at most w_s + 1 micro-batches
in flight.
"""

from __future__ import annotations

from typing import NamedTuple

from graphplan.nouns.plan import Plan
from graphplan.nouns.task import Kind
from graphplan_runtime.streams.lines import Epochs, Lead


def order_epochs(plan: Plan) -> dict[int, Epochs]:
    """By device, also for those with one stage: an order of all of them."""
    warmups = find_warmups(plan)
    first = _Epoch(plan, warmups, is_first=True).order()
    steady = _Epoch(plan, warmups, is_first=False).order()
    return {
        device: Epochs(tuple(first[hosted]), tuple(steady[hosted]))
        for device, hosted in enumerate(plan.prices.stages_by_device)
        if hosted
    }


def find_warmups(plan: Plan) -> list[int]:
    """Warm-ups by stage; a stage without a backward is as far ahead as those that it feeds."""
    prices = plan.prices
    warmups = list(plan.policy.warmups)
    for s in reversed(range(len(warmups))):
        if not prices.stages[s].needs_backward:
            warmups[s] = max((warmups[b] for a, b in prices.edges if a == s), default=0)
    return warmups


class _Ready(NamedTuple):
    """A task that can start, in the order in which tasks are taken."""

    start_s: float
    is_forward: bool
    lead: int
    stage: int


class _Epoch:
    """One epoch of all devices, task by task."""

    def __init__(self, plan: Plan, warmups: list[int], *, is_first: bool) -> None:
        self.prices, self.warmups = plan.prices, warmups
        self.accumulate = plan.policy.accumulate
        self.lowest = [0 if is_first else w for w in warmups]
        self.leads: dict[tuple[int, Kind], int] = {}
        """The next micro-batch of each stage and kind."""
        for s, price in enumerate(self.prices.stages):
            self.leads[s, "F"] = self.lowest[s]
            if price.needs_backward:
                self.leads[s, "B"] = 0
        self.ends: dict[Lead, float] = {}
        self.free: dict[tuple[int, ...], float] = {}
        self.before: dict[tuple[int, Kind], list[int]] = {key: [] for key in self.leads}
        for a, b in self.prices.edges:
            self.before[b, "F"].append(a)
        for a, b in self.prices.backward_edges:
            self.before[a, "B"].append(b)

    def order(self) -> dict[tuple[int, ...], list[Lead]]:
        """The tasks of devices by the stages that they host."""
        hosts = {s: each for each in self.prices.stages_by_device for s in each}
        found: dict[tuple[int, ...], list[Lead]] = {tuple(each): [] for each in hosts.values()}
        while ready := [each for key in self.leads if (each := self._find(key, hosts[key[0]]))]:
            start_s, is_forward, lead, stage = min(ready)
            kind: Kind = "F" if is_forward else "B"
            price = self.prices.stages[stage]
            took_s = price.forward_s if is_forward else price.backward_s
            task = Lead(stage, kind, lead)
            self.ends[task] = self.free[tuple(hosts[stage])] = start_s + took_s
            self.leads[stage, kind] += 1
            found[tuple(hosts[stage])].append(task)
        assert all(lead == self._stop(*key) for key, lead in self.leads.items()), "a deadlock"
        return found

    def _stop(self, stage: int, kind: Kind) -> int:
        return self.accumulate + (self.warmups[stage] if kind == "F" else 0)

    def _find(self, key: tuple[int, Kind], hosted: tuple[int, ...]) -> _Ready | None:
        """The next task of a stage, if all that it waits for has run."""
        stage, kind = key
        lead = self.leads[key]
        if lead == self._stop(stage, kind):
            return None
        waits = [Lead(other, kind, lead) for other in self.before[key]]
        if kind == "B":
            waits.append(Lead(stage, "F", lead))
        elif (stage, "B") in self.leads and self.leads[stage, "B"] < lead - self.warmups[stage]:
            return None
        own = [w for w in waits if w.lead >= (self.lowest[w.stage] if w.kind == "F" else 0)]
        if any(each not in self.ends for each in own):
            return None
        start_s = max((self.ends[each] for each in own), default=0.0)
        return _Ready(max(start_s, self.free.get(tuple(hosted), 0.0)), kind == "F", lead, stage)
