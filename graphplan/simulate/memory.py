"""Memory of every device over time: peaks with what makes them up, and curves.

The rule is the one of `graphplan.nouns.prices`. What a device holds depends on the order of its
tasks alone, so peaks are found without times: while a task runs, the device holds the fixed bytes
of its stages, what earlier tasks have saved and not yet released, what this task saves, and its
workspace.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphplan.nouns.prices import PricedStages
from graphplan.nouns.timeline import MemoryCurve, Peak
from graphplan.play.script import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Ints, Tasks, Times


class Holdings(NamedTuple):
    """Bytes on the device of each task: while it runs, and when it has ended."""

    fixed: Ints
    """By device."""
    saved: Ints
    """By stage: what a micro-batch keeps from F to B or I."""
    kept: Ints
    """By stage: what it keeps from I to W."""
    workspace: Ints
    """By stage."""
    during: Ints
    after: Ints


def replay_memory(priced: PricedStages, tasks: Tasks) -> Holdings:
    """What every device holds at each of its tasks."""
    stages = priced.stages
    saves = np.array([stage.needs_backward for stage in stages], dtype=np.int64)
    saved = saves * np.array([stage.saved_bytes for stage in stages], dtype=np.int64)
    kept = saves * np.array([stage.saved_for_weights_bytes for stage in stages], dtype=np.int64)
    workspace = np.array([stage.workspace_bytes for stage in stages], dtype=np.int64)
    fixed = np.zeros(len(priced.memory_bytes_by_device), dtype=np.int64)
    for stage in stages:
        for device in stage.devices:
            fixed[device] += stage.fixed_bytes
    none = np.zeros_like(saved)
    added = np.stack([saved, none, none, none, none, none])
    freed = np.stack([none, saved, saved - kept, kept, none, none])
    change = added[tasks.kind, tasks.stage] - freed[tasks.kind, tasks.stage]
    total = np.concatenate(([0], np.cumsum(change)))
    # The sum runs over all devices; what it was at a device's first task is taken off again.
    after = total[1:] - total[tasks.first[tasks.device]] + fixed[tasks.device]
    during = after + freed[tasks.kind, tasks.stage] + workspace[tasks.stage]
    return Holdings(fixed, saved, kept, workspace, during, after)


def find_peaks(tasks: Tasks, held: Holdings) -> tuple[Ints, Ints]:
    """The largest bytes of each device, and the first task that reaches them (-1: no task)."""
    num = len(held.fixed)
    peak, at = held.fixed.copy(), np.full(num, -1, dtype=np.int64)
    busy = np.flatnonzero(np.diff(tasks.first))
    if len(busy):
        highest = np.maximum.reduceat(held.during, tasks.first[busy])
        is_peak = np.flatnonzero(held.during == np.repeat(highest, np.diff(tasks.first)[busy]))
        at[tasks.device[is_peak[::-1]]] = is_peak[::-1]
        peak[busy] = highest
    return peak, at


def describe_peaks(tasks: Tasks, held: Holdings, times: Times) -> tuple[Peak, ...]:
    """The peaks with their moments and parts."""
    peaks, at = find_peaks(tasks, held)
    return tuple(
        Peak(
            bytes=int(peaks[device]),
            at_s=float(times.task_start[task]) if task >= 0 else 0.0,
            parts=_list_parts(tasks, held, device, int(task)),
        )
        for device, task in enumerate(at)
    )


def _list_parts(tasks: Tasks, held: Holdings, device: int, task: int) -> dict[str, int]:
    parts = {"fixed": int(held.fixed[device])}
    if task >= 0:
        parts["workspace"] = int(held.workspace[tasks.stage[task]])
        first = int(tasks.first[device])
        stages, kinds = tasks.stage[first : task + 1], tasks.kind[first : task + 1]
        micro_batches = tasks.micro_batch[first : task + 1]
        # A release takes effect when its task has ended: the running one still holds its bytes.
        rows = zip(stages.tolist(), kinds.tolist(), micro_batches.tolist(), strict=True)
        for position, (stage, kind, micro_batch) in enumerate(rows):
            name = f"{stage}F{micro_batch}"
            if kind == FORWARD:
                parts[name] = int(held.saved[stage])
            elif first + position < task and kind in (BACKWARD, WEIGHT_GRAD):
                parts.pop(name, None)
            elif first + position < task and kind == INPUT_GRAD:
                parts[name] = int(held.kept[stage])
    return {name: size for name, size in parts.items() if size}


def draw_curves(tasks: Tasks, held: Holdings, times: Times) -> tuple[MemoryCurve, ...]:
    """Bytes over time of every device, one point for each change."""
    return tuple(_draw_curve(tasks, held, times, device) for device in range(len(tasks.first) - 1))


def _draw_curve(tasks: Tasks, held: Holdings, times: Times, device: int) -> MemoryCurve:
    part = slice(int(tasks.first[device]), int(tasks.first[device + 1]))
    moments = np.stack([times.task_start[part], times.task_end[part]], axis=1).ravel()
    sizes = np.stack([held.during[part], held.after[part]], axis=1).ravel()
    moments = np.concatenate(([0.0], moments))
    sizes = np.concatenate((held.fixed[device : device + 1], sizes))
    last = np.append(moments[1:] != moments[:-1], True)  # of several points at a moment
    moments, sizes = moments[last], sizes[last]
    changed = np.insert(sizes[1:] != sizes[:-1], 0, True)
    return MemoryCurve(
        times_s=tuple(moments[changed].tolist()), bytes=tuple(sizes[changed].tolist())
    )
