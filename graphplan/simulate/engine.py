"""simulate_program: what a program costs on priced stages, as a timeline.

The model and where it ends:

- a device runs its tasks one after the other, in the order of its list;
- a transfer is posted when the tasks in front of it have ended; a message starts when both of its
  ends have posted it and its channel is free (first come, first served), occupies the channel for
  `seconds` and arrives `latency_s` later;
- computing and communicating overlap without slowing each other;
- a task starts when its device is free and everything that it reads has arrived;
- an all-reduce (R) starts when all replicas have reached it and keeps them busy for `reduce_s`.
"""

from __future__ import annotations

import numpy as np

from graphplan.nouns.plan import Prediction
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program
from graphplan.nouns.timeline import Timeline
from graphplan.simulate.compile import compile_program
from graphplan.simulate.compiled import FORWARD, Compiled
from graphplan.simulate.critical import find_critical_path
from graphplan.simulate.memory import describe_peaks, draw_curves, find_peaks, replay_memory
from graphplan.simulate.run import run_compiled
from graphplan.simulate.spans import make_spans


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
        batch_size=count_samples(priced, compiled),
        num_devices=compiled.num_devices,
        spans=make_spans(compiled, times),
        peaks=describe_peaks(compiled.tasks, held, times),
        memory=draw_curves(compiled.tasks, held, times) if memory else (),
        critical_path=find_critical_path(compiled, times) if critical_path else (),
    )


def predict_step(priced: PricedStages, program: Program) -> Prediction:
    """The figures of `simulate_program` without its spans: lean enough for a thousand devices."""
    compiled = compile_program(priced, program)
    times = run_compiled(compiled)
    peaks, _ = find_peaks(compiled.tasks, replay_memory(priced, compiled.tasks))
    step_s = float(times.task_end.max(initial=0.0))
    samples = count_samples(priced, compiled)
    busy_s = np.bincount(
        compiled.tasks.device,
        weights=times.task_end - times.task_start,
        minlength=compiled.num_devices,
    )
    return Prediction(
        step_s=step_s,
        samples_per_s=samples / step_s if step_s else 0.0,
        bubble=sum(1 - busy / step_s for busy in busy_s.tolist()) / compiled.num_devices
        if step_s
        else 0.0,
        peak_bytes_by_device=tuple(peaks.tolist()),
    )


def count_samples(priced: PricedStages, compiled: Compiled) -> int:
    """Samples that pass the pipeline: those of the stage that forwards most of them."""
    tasks = compiled.tasks
    forwards = np.bincount(tasks.seat[tasks.kind == FORWARD], minlength=1)
    stage = np.zeros(len(forwards), dtype=np.int64)
    stage[tasks.seat[tasks.kind == FORWARD]] = tasks.stage[tasks.kind == FORWARD]
    sizes = np.array([each.micro_batch_size for each in priced.stages], dtype=np.int64)
    return int((forwards * sizes[stage]).max()) if len(sizes) else priced.batch_size
