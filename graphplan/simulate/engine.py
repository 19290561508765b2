"""simulate_program: what a program costs on priced stages, as a timeline.

The model and where it ends:

- a device runs its tasks one after the other, in the order of its list;
- a transfer is posted when the tasks in front of it have ended; a message starts when both of its
  ends have posted it and its channel is free (first come, first served), occupies the channel for
  `seconds` and arrives `latency_s` later;
- a task starts when its device is free and everything that it reads has arrived;
- gradients of replicas are reduced in buckets while the last backward runs (play/player.py): both
  take longer beside each other, by the law of interference; other messages slow nobody;
- R takes `reduce_s` from where all replicas have reached it and all buckets have arrived; where it
  waits for buckets, its span begins when its device has nothing else to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphplan.errors import InvalidProgram
from graphplan.nouns.plan import Prediction
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program
from graphplan.nouns.timeline import Span, Timeline
from graphplan.play.player import play_script
from graphplan.play.script import FORWARD, KINDS, Ints, Script, Tasks, Times
from graphplan.simulate.compile import compile_program
from graphplan.simulate.compiled import Compiled, name_message, name_task
from graphplan.simulate.critical import find_critical_path
from graphplan.simulate.memory import describe_peaks, draw_curves, find_peaks, replay_memory

WORTH_COMPILING = 20_000
"""Tasks and messages from which on loading numba takes less time than it saves."""


def simulate_program(
    priced: PricedStages,
    program: Program,
    *,
    memory: bool = True,
    critical_path: bool = True,
) -> Timeline:
    """Run a program on paper: spans, peaks, and when asked for, memory curves and critical path.

    Raises InvalidProgram when the program cannot run to its end.
    """
    compiled = compile_program(priced, program)
    times = run_compiled(compiled)
    held = replay_memory(priced, compiled.tasks)
    return Timeline(
        source="simulated",
        batch_size=count_samples(priced, compiled.tasks),
        num_devices=compiled.num_devices,
        spans=make_spans(compiled, times),
        peaks=describe_peaks(compiled.tasks, held, times),
        memory=draw_curves(compiled.tasks, held, times) if memory else (),
        critical_path=find_critical_path(compiled, times) if critical_path else (),
    )


def predict_step(priced: PricedStages, program: Program) -> Prediction:
    """The figures of `simulate_program` without its spans."""
    compiled = compile_program(priced, program)
    return _predict(priced, compiled.tasks, run_compiled(compiled))


def predict_script(priced: PricedStages, script: Script, tasks: Tasks) -> Prediction:
    """The same for a program that graphplan has lowered itself, and hence need not read."""
    return _predict(priced, tasks, play_script(script))


def _predict(priced: PricedStages, tasks: Tasks, times: Times) -> Prediction:
    peaks, _ = find_peaks(tasks, replay_memory(priced, tasks))
    step_s, num_devices = times.makespan_s, len(tasks.first) - 1
    busy = np.bincount(
        tasks.device, weights=times.task_end - times.task_start, minlength=num_devices
    )
    idle = sum(1 - each / step_s for each in busy.tolist()) if step_s else 0.0
    return Prediction(
        step_s=step_s,
        samples_per_s=count_samples(priced, tasks) / step_s if step_s else 0.0,
        bubble=idle / num_devices,
        peak_bytes_by_device=tuple(peaks.tolist()),
    )


def run_compiled(compiled: Compiled) -> Times:
    """The times of a compiled program; raises InvalidProgram when it deadlocks."""
    size = len(compiled.tasks.stage) + len(compiled.messages.wire)
    times = play_script(compiled.script, is_compiled=size >= WORTH_COMPILING)
    if len(times.sequence) < len(compiled.tasks.stage):
        raise explain_deadlock(compiled, times)
    return times


def count_samples(priced: PricedStages, tasks: Tasks) -> int:
    """Samples that pass the pipeline: those of the stage that forwards most of them."""
    chosen = tasks.kind == FORWARD
    num = len(priced.stages)
    forwards = np.bincount(tasks.device[chosen] * num + tasks.stage[chosen], minlength=num)
    sizes = np.array([each.micro_batch_size for each in priced.stages], dtype=np.int64)
    samples = forwards * sizes[np.arange(len(forwards)) % num] if num else forwards
    return int(samples.max(initial=0)) if num else priced.batch_size


def make_spans(compiled: Compiled, times: Times) -> tuple[Span, ...]:
    """One span for each task, message, and lane of a bucket; at equal starts tasks first."""
    tasks, messages, wires, script = (
        compiled.tasks,
        compiled.messages,
        compiled.wires,
        compiled.script,
    )
    bucket, lane = compiled.list_lanes()
    starts = np.concatenate((times.task_start, times.message_start, times.bucket_start[bucket]))
    message_end = times.message_start + script.message_seconds
    ends = np.concatenate((times.task_end, message_end, times.bucket_end[bucket]))
    order = np.argsort(starts, kind="stable")
    task_heads = [
        f"{s}{kind}" for s in range(int(tasks.stage.max(initial=-1)) + 1) for kind in KINDS
    ]
    wire_heads = [name_message(wires, wire, 0)[:-1] for wire in range(len(wires.src))]
    names = _join(task_heads, tasks.stage * len(KINDS) + tasks.kind, tasks.micro_batch)
    names += _join(wire_heads, messages.wire, messages.micro_batch)
    names += [name_task(tasks, compiled.reduce_of(each)) for each in bucket.tolist()]
    channel = np.concatenate((script.message_channel, lane))
    places: list[int | str] = [*tasks.device.tolist()]
    places += [compiled.channels[each] for each in channel.tolist()]
    ordered = order.tolist()
    return tuple(
        map(
            Span,
            [names[each] for each in ordered],
            [places[each] for each in ordered],
            starts[order].tolist(),
            ends[order].tolist(),
        )
    )


def _join(heads: Sequence[str], head: Ints, micro_batch: Ints) -> list[str]:
    """Texts such as `2F` + `0`; both halves are made once and shared."""
    numbers = list(map(str, range(int(micro_batch.max(initial=-1)) + 1)))
    pairs = zip(head.tolist(), micro_batch.tolist(), strict=True)
    return [heads[one] + numbers[two] for one, two in pairs]


class Wait(NamedTuple):
    """A device that waits at a task for something that another device will do only later."""

    device: int
    task: int
    for_what: str
    other: int


def explain_deadlock(compiled: Compiled, times: Times) -> InvalidProgram:
    """The error that names the cycle of waiting devices."""
    waits = {wait.device: wait for wait in _collect_waits(compiled, times)}
    cycle = _find_cycle(waits)
    lines = [
        f"device {wait.device} waits at {name_task(compiled.tasks, wait.task)} for {wait.for_what}"
        for wait in cycle
    ]
    num_left = int(np.sum(times.task_end < 0))
    return InvalidProgram(
        f"Deadlock: {num_left} of {len(times.task_end)} tasks never run. " + "; ".join(lines) + ".",
        remedy="Post the transfers of each device in an order in which the others can answer.",
    )


def _collect_waits(compiled: Compiled, times: Times) -> list[Wait]:
    waits = []
    for device in range(compiled.num_devices):
        task = _find_stuck(compiled, times, device)
        if task is not None:
            waits.append(_explain_wait(compiled, times, device, task))
    return waits


def _find_stuck(compiled: Compiled, times: Times, device: int) -> int | None:
    first, last = compiled.tasks.first[device : device + 2]
    left = np.flatnonzero(times.task_end[first:last] < 0)
    return int(first + left[0]) if len(left) else None


def _explain_wait(compiled: Compiled, times: Times, device: int, task: int) -> Wait:
    tasks, messages, wires = compiled.tasks, compiled.messages, compiled.wires
    group = compiled.script.task_group
    if group[task] >= 0:
        members = np.flatnonzero(group == group[task])
        for member in members:
            other = int(tasks.device[member])
            if _find_stuck(compiled, times, other) != member:
                return Wait(device, task, f"device {other} to reach it too", other)
    needed = np.flatnonzero((messages.consumer == task) & (times.message_start < 0))
    message = int(needed[0])
    wire = int(messages.wire[message])
    name = name_message(wires, wire, int(messages.micro_batch[message]))
    src = int(wires.src_device[wire])
    if task <= messages.receive_slot[message] < len(times.task_end):
        return Wait(device, task, f"{name}, which it posts only behind that task", device)
    blocking = _find_stuck(compiled, times, src)
    behind = "" if blocking is None else f" only after {name_task(tasks, blocking)}"
    return Wait(device, task, f"{name}, which device {src} posts{behind}", src)


def _find_cycle(waits: dict[int, Wait]) -> list[Wait]:
    """The first cycle along `other`: every waiting device waits for a waiting one."""
    seen: list[int] = []
    device = min(waits)
    while device not in seen:
        seen.append(device)
        device = waits[device].other
    return [waits[each] for each in seen[seen.index(device) :]]
