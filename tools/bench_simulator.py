"""Measure the simulator: events a second and memory, plain and compiled, on 1F1B chains.

    python tools/bench_simulator.py --json out.json

An event is a task or a message. `seconds` is the event loop on a compiled program;
`compile_s` is the lowering of the Program (msgspec objects) to arrays before it, `predict_s` all of
`predict_step` and `timeline_s` all of `simulate_program` with its spans and critical path. `pair`
channels belong to two devices; `node` channels are shared by eight, so that messages queue. Every
row is measured in a process of its own: `peak_bytes` is its largest resident set with the program
itself.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import Message, PricedStages, StagePrice, TransferPrice
from graphplan.nouns.schedule import Program, parse_program
from graphplan.nouns.task import Instruction, Task, Transfer
from graphplan.referee import check_program
from graphplan.simulate import engine as simulator
from graphplan.simulate.compile import compile_program
from graphplan.simulate.engine import predict_step, simulate_program

SIZES = ((8, 32), (8, 4096), (64, 1024))


def make_prices(num_stages: int, num_micro_batches: int, *, scope: str) -> PricedStages:
    """A chain with one stage on a device; channels belong to pairs, or to nodes of 8 devices."""
    ends = [(s, s + 1) for s in range(num_stages - 1)]
    ends += [(b, a) for a, b in ends]
    transfers = tuple(
        TransferPrice(
            src=src,
            dst=dst,
            backward=src > dst,
            messages=(
                Message(
                    src=src,
                    dst=dst,
                    bytes=1 << 20,
                    seconds=1e-4,
                    latency_s=1e-5,
                    channel=f"d{src}>d{dst}" if scope == "pair" else f"n{src // 8}>",
                ),
            ),
        )
        for src, dst in ends
    )
    return PricedStages(
        batch_size=num_micro_batches,
        stages=tuple(
            StagePrice(
                devices=(s,),
                micro_batch_size=1,
                forward_s=1e-3 * (1 + s % 3 / 10),
                backward_s=2e-3,
                input_grad_s=1e-3,
                weight_grad_s=1e-3,
                update_s=1e-3,
                fixed_bytes=1 << 30,
                saved_bytes=1 << 24,
            )
            for s in range(num_stages)
        ),
        edges=tuple((s, s + 1) for s in range(num_stages - 1)),
        backward_edges=tuple((s, s + 1) for s in range(num_stages - 1)),
        transfers=transfers,
        memory_bytes_by_device=(1 << 40,) * num_stages,
    )


def make_program(num_stages: int, num_micro_batches: int) -> Program:
    """1F1B with receives posted one task ahead."""
    return Program(
        instructions_by_device=tuple(
            make_line(s, num_stages, num_micro_batches) for s in range(num_stages)
        )
    )


def make_line(stage: int, num_stages: int, num_micro_batches: int) -> tuple[Instruction, ...]:
    """The instructions of one device."""
    warmup = min(num_stages - stage, num_micro_batches)
    tasks = [Task(stage, "F", m) for m in range(warmup)]
    for m in range(num_micro_batches):
        tasks.append(Task(stage, "B", m))
        if m + warmup < num_micro_batches:
            tasks.append(Task(stage, "F", m + warmup))
    line: list[Instruction] = []
    for i, task in enumerate(tasks):
        if i == 0:
            line += receive(task, num_stages)
        if i + 1 < len(tasks):
            line += receive(tasks[i + 1], num_stages)
        line.append(task)
        other = stage + 1 if task.kind == "F" else stage - 1
        if 0 <= other < num_stages:
            line.append(Transfer(stage, other, "F" if task.kind == "F" else "B", task.micro_batch))
    return (*line, Task(stage, "U", num_micro_batches - 1))


def receive(task: Task, num_stages: int) -> list[Transfer]:
    """The transfers that a task needs."""
    other = task.stage - 1 if task.kind == "F" else task.stage + 1
    kind = task.kind
    if not 0 <= other < num_stages or kind not in ("F", "B"):
        return []
    return [Transfer(other, task.stage, "F" if kind == "F" else "B", task.micro_batch)]


def measure_row(num_stages: int, num_micro_batches: int, scope: str, engine: str) -> dict[str, Any]:
    """One row: the best of several runs for small programs, one run of large ones."""
    priced = make_prices(num_stages, num_micro_batches, scope=scope)
    program = make_program(num_stages, num_micro_batches)
    simulator.WORTH_COMPILING = 0 if engine == "compiled" else sys.maxsize
    predict_step(make_prices(2, 2, scope=scope), make_program(2, 2))  # compiles the loop itself
    num_tasks, num_messages, seconds = measure_engine(priced, program)
    events = num_tasks + num_messages
    repeats = count_repeats(events)
    compile_s = measure(lambda: compile_program(priced, program), repeats)
    predict_s = measure(lambda: predict_step(priced, program), repeats)
    light_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    timeline_s = measure(lambda: simulate_program(priced, program), repeats)
    return {
        "engine": engine,
        "channels": scope,
        "stages": num_stages,
        "micro_batches": num_micro_batches,
        "tasks": num_tasks,
        "messages": num_messages,
        "seconds": seconds,
        "tasks_per_s": num_tasks / seconds,
        "events_per_s": events / seconds,
        "compile_s": compile_s,
        "predict_s": predict_s,
        "predict_events_per_s": events / predict_s,
        "timeline_s": timeline_s,
        "timeline_events_per_s": events / timeline_s,
        "predict_peak_bytes": light_bytes,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def measure_engine(priced: PricedStages, program: Program) -> tuple[int, int, float]:
    """Tasks, messages, and the seconds of the event loop."""
    compiled = compile_program(priced, program)
    num_tasks, num_messages = len(compiled.tasks.stage), len(compiled.messages.wire)
    repeats = count_repeats(num_tasks + num_messages)
    seconds = measure(lambda: simulator.run_compiled(compiled), repeats)
    return num_tasks, num_messages, seconds


def count_repeats(events: int) -> int:
    """Fewer for large programs."""
    return 1 if events > 1_000_000 else 5


def measure(call: Callable[[], object], repeats: int) -> float:
    """Processor seconds of the fastest of several calls: other processes do not count."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def measure_referee(num_stages: int, num_micro_batches: int) -> dict[str, Any]:
    """Seconds to parse and to judge a program."""
    priced = make_prices(num_stages, num_micro_batches, scope="pair")
    text = str(make_program(num_stages, num_micro_batches))
    parse_s = measure(lambda: parse_program(text), 1)
    program = parse_program(text)
    seconds = measure(lambda: check_program(priced, program, WeightPolicy()), 2)
    assert check_program(priced, program, WeightPolicy()).is_legal
    lines = program.instructions_by_device
    return {
        "stages": num_stages,
        "micro_batches": num_micro_batches,
        "tasks": sum(isinstance(each, Task) for line in lines for each in line),
        "instructions": sum(map(len, lines)),
        "parse_s": parse_s,
        "seconds": seconds,
    }


def print_row(row: dict[str, Any]) -> None:
    """One row of the table of docs/simulator.md, in millions of events a second."""
    print(
        f"| {row['stages']} x {row['micro_batches']} | {row['channels']}"
        f" | {row['tasks'] + row['messages']:,} | {row['engine']}"
        f" | {row['events_per_s'] / 1e6:.2f} | {row['predict_events_per_s'] / 1e6:.2f}"
        f" | {row['timeline_events_per_s'] / 1e6:.2f} | {row['peak_bytes'] / 1e9:.2f} |",
        flush=True,
    )


def main() -> None:
    """Measure every size plain and compiled and print the table."""
    parser = argparse.ArgumentParser(description="Measure the simulator on 1F1B chains.")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--small", action="store_true", help="sizes up to 64 stages only")
    parser.add_argument("--engine", choices=["plain", "compiled"], help="this form only")
    parser.add_argument("--referee", action="store_true", help="measure the referee instead")
    options = parser.parse_args()
    rows = [measure_referee(1024, 49)] if options.referee else measure_all(options)
    if options.referee:
        print(json.dumps(rows[0]))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def measure_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every row in a process of its own."""
    sizes = [size for size in SIZES if size[0] <= 64 or not options.small]
    engines = [options.engine] if options.engine else ["plain", "compiled"]
    print(
        "| stages x micro-batches | channels | events | engine | loop | predict | timeline | GB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for size, scope, engine in itertools.product(sizes, ("pair", "node"), engines):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measure_row, (*size, scope, engine)))
        print_row(rows[-1])
    return rows


if __name__ == "__main__":
    main()
