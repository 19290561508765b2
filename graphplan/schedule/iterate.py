"""Iterated greedy: disturb the rules of a list schedule and keep what is not worse.

Half of the disturbances raise the priorities of a run of tasks on the critical path, the tasks that
the makespan waits for (squeaky wheel optimization, Joslin and Clements, JAIR 10, 1999); the others
shift some tasks of one stage, its in-flight limit, or the patience.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from graphplan.schedule.dispatch import Dispatched, Rules, dispatch_tasks
from graphplan.schedule.pool import Pool
from graphplan.schedule.shop import Shop

PATIENCES = (0.0, 0.25, 0.5, 0.75, 1.0)


def iterate_greedy(pool: Pool, rules: Rules, *, num_rounds: int, seed: int) -> None:
    """Offer `num_rounds` dispatches, each a disturbance of the best one so far."""
    dice = random.Random(seed)
    durations = pool.durations(rules.split)
    current, path = math.inf, list[int]()
    for attempt in range(num_rounds):
        if pool.is_optimal:
            return
        trial = disturb_rules(pool.shop, rules, path, dice) if attempt else rules
        found = dispatch_tasks(pool.shop, trial, durations)
        value = pool.offer_dispatched(found, trial.split, name="list")
        if found is not None and value <= current:
            current, rules = value, trial
            path = trace_path(pool.shop, found, durations)


def disturb_rules(shop: Shop, rules: Rules, path: Sequence[int], dice: random.Random) -> Rules:
    """One random change of the rules."""
    choice = dice.random()
    if choice < 0.1:
        limits = list(rules.limits)
        stage = dice.randrange(len(limits))
        limits[stage] = max(1, limits[stage] + dice.choice((-1, 1)))
        return replace(rules, limits=tuple(limits))
    if choice < 0.15:
        return replace(rules, patience=dice.choice(PATIENCES))
    priorities = list(rules.priorities)
    scale = max(priorities) - min(priorities)
    if choice < 0.6 and path:
        tasks, shift = pick_run(path, dice), dice.uniform(0, 0.5) * scale
    else:
        stage, row = dice.randrange(len(shop.count_by_stage)), dice.randrange(3)
        count, first = shop.count_by_stage[stage], shop.number_of(stage, row, 0)
        tasks, shift = pick_run(range(first, first + count), dice), dice.uniform(-1, 1) * scale
    for task in tasks:
        priorities[task] += shift
    return replace(rules, priorities=priorities)


def pick_run(tasks: Sequence[int], dice: random.Random) -> Sequence[int]:
    """A few neighbours."""
    start = dice.randrange(len(tasks))
    return tasks[start : start + 1 + int(dice.expovariate(0.3))]


def trace_path(shop: Shop, found: Dispatched, durations: Sequence[float]) -> list[int]:
    """Tasks that lead to the last end without a gap, last first."""
    before = {task: order[i - 1] for order in found.orders for i, task in enumerate(order) if i > 0}
    task = max((order[-1] for order in found.orders if order), key=found.ends.__getitem__)
    path = [task]
    while True:
        start = found.ends[task] - durations[task]
        previous = before.get(task)
        latest, reason = 0.0, -1
        if previous is not None:
            latest, reason = found.ends[previous], previous
        for needed, delay in shop.arcs_by_task[task]:
            if found.ends[needed] + delay > latest:
                latest, reason = found.ends[needed] + delay, needed
        if reason < 0 or latest < start * (1 - 1e-9):
            return path
        task = reason
        path.append(task)
