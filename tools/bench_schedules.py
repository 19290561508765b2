"""Step time of every schedule over the lower bound, on a fixed suite of stage graphs.

    python tools/bench_schedules.py --json schedules.json
    python tools/bench_schedules.py --json schedules.json --minutes 7   # again and again, in parts

The suite: chains of 2 to 16 stages, and 2- and 4-branch graphs whose branches meet in a last stage;
balanced (F = I = W = 1) and uneven times; free messages, and messages of a fifth of a forward plus
latency; every device has room for the activations of 1F1B's fullest stage. A second, smaller suite
has several stages on a device and room for the interleaved order. Gaps are percent over the best
bound known for that instance. Auto's answers are lowered, judged by the referee and simulated with
contention too. With `--minutes` the rows that the file has are kept and only the others measured.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphplan.nouns.dag import collect_neighbours, measure_heights
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import Message, PricedStages, StagePrice, TransferPrice
from graphplan.nouns.schedule import Schedule
from graphplan.referee import check_program
from graphplan.schedule.auto import ScheduleAnswer, build_schedule
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.greedy import build_list
from graphplan.schedule.interleaved import build_interleaved
from graphplan.schedule.kfkb import build_kfkb
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.modulo import build_modulo, solve_period
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.shop import make_shop
from graphplan.schedule.zerobubble import build_zero_bubble
from graphplan.simulate import predict_step

SAVED_BYTES = 2
ALONE: dict[str, Callable[[PricedStages], Schedule]] = {
    "gpipe": build_gpipe,
    "1f1b": build_1f1b,
    "2f2b": lambda priced: build_kfkb(priced, k=2),
    "zero-bubble": build_zero_bubble,
    "list": lambda priced: build_list(priced, num_rounds=20),
}
SHARED: dict[str, Callable[[PricedStages], Schedule]] = {
    "gpipe": build_gpipe,
    "interleaved": build_interleaved,
    "zero-bubble": build_zero_bubble,
    "modulo": build_modulo,
    "list": lambda priced: build_list(priced, num_rounds=20),
}


@dataclass(frozen=True)
class Instance:
    """One stage graph of the suite."""

    family: str
    shape: str
    num_micro_batches: int
    times: str
    messages: str
    stages_per_device: int
    priced: PricedStages

    @property
    def name(self) -> str:
        """What distinguishes it from all others."""
        return f"{self.shape}/{self.num_micro_batches}/{self.times}/{self.messages}"


@dataclass(frozen=True)
class Row:
    """What the schedules reach on one instance."""

    name: str
    family: str
    shape: str
    stages: int
    micro_batches: int
    times: str
    messages: str
    stages_per_device: int
    bound_s: float
    auto: str
    proven: bool
    whole_bound_s: float
    whole_proven: bool
    seconds: float
    simulated_s: float
    step_s: dict[str, float]
    fits: dict[str, bool]


def list_shapes() -> Iterator[tuple[str, str, int, list[tuple[int, int]]]]:
    """Family, name, number of stages and edges."""
    for num in (2, 3, 4, 5, 6, 8, 10, 12, 16):
        yield "chain", f"chain of {num}", num, [(s, s + 1) for s in range(num - 1)]
    for branches, lengths in ((2, (1, 2, 4, 7)), (4, (1, 2, 3, 4))):
        for length in lengths:
            last = branches * length
            edges = [
                (b * length + i, b * length + i + 1 if i + 1 < length else last)
                for b in range(branches)
                for i in range(length)
            ]
            yield f"{branches} branches", f"{branches} x {length} + 1", last + 1, sorted(edges)


def list_instances() -> Iterator[Instance]:
    """The suite: 306 instances with one stage on a device."""
    for family, shape, num, edges in list_shapes():
        for count in (8, 16, 24):
            for times in ("balanced", "uneven 1", "uneven 2"):
                for messages in ("free", "timed"):
                    yield make_instance(family, shape, num, edges, count, times, messages, 1)


def list_shared() -> Iterator[Instance]:
    """Two and three stages on each of four devices, in turn along a chain."""
    for per_device in (2, 3):
        num = 4 * per_device
        edges = [(s, s + 1) for s in range(num - 1)]
        for count in (8, 16):
            for times in ("balanced", "uneven 1", "uneven 2"):
                for messages in ("free", "timed"):
                    shape = f"chain of {num} on 4"
                    yield make_instance(
                        "shared", shape, num, edges, count, times, messages, per_device
                    )


def make_instance(
    family: str,
    shape: str,
    num: int,
    edges: list[tuple[int, int]],
    count: int,
    times: str,
    messages: str,
    per_device: int,
) -> Instance:
    """Prices drawn from the instance's own name, so that the suite never changes."""
    rng = random.Random(f"{shape}/{count}/{times}/{messages}")
    num_devices = num // per_device
    stages = []
    for s in range(num):
        forward = inputs = weights = 1.0
        if times != "balanced":
            forward = rng.randint(50, 150) / 100
            inputs = round(forward * rng.randint(80, 120) / 100, 4)
            weights = round(forward * rng.randint(80, 120) / 100, 4)
        stages.append(
            StagePrice(
                devices=(s % num_devices,),
                micro_batch_size=1,
                forward_s=forward,
                backward_s=inputs + weights,
                input_grad_s=inputs,
                weight_grad_s=weights,
                saved_bytes=SAVED_BYTES,
                saved_for_weights_bytes=SAVED_BYTES // 2,
            )
        )
    heights = measure_heights(collect_neighbours(num, edges))
    room = max(heights) + 1 if per_device == 1 else num + num_devices
    priced = PricedStages(
        batch_size=count,
        stages=tuple(stages),
        edges=tuple(edges),
        backward_edges=tuple(edges),
        transfers=tuple(list_transfers(stages, edges, timed=messages == "timed")),
        memory_bytes_by_device=(SAVED_BYTES * room,) * num_devices,
    )
    return Instance(family, shape, count, times, messages, per_device, priced)


def list_transfers(
    stages: list[StagePrice], edges: list[tuple[int, int]], *, timed: bool
) -> Iterator[TransferPrice]:
    """A message each way along every edge between different devices."""
    for src, dst in (*edges, *((b, a) for a, b in edges)):
        (a,), (b,) = stages[src].devices, stages[dst].devices
        if a != b:
            message = Message(
                src=a,
                dst=b,
                bytes=1000,
                seconds=0.2 if timed else 0.0,
                latency_s=0.05 if timed else 0.0,
                channel=f"d{a}>d{b}",
            )
            yield TransferPrice(src=src, dst=dst, backward=src > dst, messages=(message,))


def measure_instance(instance: Instance, *, time_limit_s: float) -> Row:
    """Run every schedule on one instance."""
    priced = instance.priced
    begin = time.perf_counter()
    auto = build_schedule(priced, effort=time_limit_s)
    seconds = time.perf_counter() - begin
    whole = build_schedule(priced, effort=time_limit_s, allow_split=False)
    step_s: dict[str, float] = {}
    fits: dict[str, bool] = {}
    builders = SHARED if instance.stages_per_device > 1 else ALONE
    for name, build in builders.items():
        found = evaluate_schedule(priced, build(priced))
        step_s[name], fits[name] = found.step_s, found.fits
    for name, answer in (("auto, whole B", whole), ("auto", auto)):
        step_s[name] = check_answer(priced, answer)
        fits[name] = True
    return Row(
        name=instance.name,
        family=instance.family,
        shape=instance.shape,
        stages=len(priced.stages),
        micro_batches=instance.num_micro_batches,
        times=instance.times,
        messages=instance.messages,
        stages_per_device=instance.stages_per_device,
        bound_s=auto.bound_s,
        auto=auto.schedule.name,
        proven=auto.proven,
        whole_bound_s=whole.bound_s,
        whole_proven=whole.proven,
        seconds=seconds,
        simulated_s=simulate_answer(priced, auto),
        step_s=step_s,
        fits=fits,
    )


def check_answer(priced: PricedStages, answer: ScheduleAnswer) -> float:
    """The step time of an answer, evaluated anew; it must fit and respect its own bound."""
    found = evaluate_schedule(priced, answer.schedule)
    assert found.fits and answer.bound_s <= found.step_s * (1 + 1e-6)
    return found.step_s


def simulate_answer(priced: PricedStages, answer: ScheduleAnswer) -> float:
    """The step time with transfers that wait for their channels, of a program that is legal."""
    program = lower_schedule(priced, answer.schedule, WeightPolicy(name="flush"))
    assert check_program(priced, program, WeightPolicy(name="flush")).is_legal
    return predict_step(priced, program).step_s


def measure_zero_bubble() -> dict[str, float]:
    """The bubbles of 1F1B and zero bubble on a balanced chain of 8 stages, 32 micro-batches."""
    edges = [(s, s + 1) for s in range(7)]
    priced = make_instance("chain", "chain of 8", 8, edges, 32, "balanced", "free", 1).priced
    plain = evaluate_schedule(priced, build_1f1b(priced))
    split = evaluate_schedule(priced, build_zero_bubble(priced))
    assert plain.fits and split.fits
    return {
        "bubble_1f1b_s": plain.step_s - 96,
        "bubble_zero_bubble_s": split.step_s - 96,
        "peak_in_flight_1f1b": max(plain.peak_bytes_by_device) / SAVED_BYTES,
        "peak_in_flight_zero_bubble": max(split.peak_bytes_by_device) / SAVED_BYTES,
    }


def measure_modulo() -> dict[str, float]:
    """How often the steady state of shared devices reaches the load of the busiest one."""
    periods, seconds = [], []
    for instance in list_shared():
        for split in (False, True):
            begin = time.perf_counter()
            periods.append(solve_period(make_shop(instance.priced), allow_split=split))
            seconds.append(time.perf_counter() - begin)
    return {
        "cases": len(periods),
        "at_load": sum(each.period_s <= each.load_s * (1 + 1e-6) for each in periods),
        "least_memory_proven": sum(each.proven for each in periods),
        "median_seconds": statistics.median(seconds),
        "worst_seconds": max(seconds),
    }


def summarise(rows: list[Row]) -> dict[str, float]:
    """The figures of the whole suite."""
    gaps = [row.step_s["auto"] / row.bound_s - 1 for row in rows]
    whole = [row.step_s["auto, whole B"] / row.whole_bound_s - 1 for row in rows]
    return {
        "instances": len(rows),
        "mean_gap": statistics.mean(gaps),
        "worst_gap": max(gaps),
        "proven": statistics.mean(row.proven for row in rows),
        "whole_mean_gap": statistics.mean(whole),
        "whole_worst_gap": max(whole),
        "whole_proven": statistics.mean(row.whole_proven for row in rows),
        "simulated_mean_gap": statistics.mean(row.simulated_s / row.bound_s - 1 for row in rows),
        "mean_seconds": statistics.mean(row.seconds for row in rows),
        "worst_seconds": max(row.seconds for row in rows),
    }


def format_table(rows: list[Row]) -> str:
    """Mean gaps over the bound in percent, by family, times and messages, as Markdown.

    A star marks schedules that need more memory than the devices have.
    """
    names = list(rows[0].step_s)
    titles = [name if all(row.fits[name] for row in rows) else f"{name}*" for name in names]
    columns = ["graphs", "times", "messages", "instances", *titles, "auto proven"]
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.family, row.times.split()[0], row.messages), []).append(row)
    groups["all", "", ""] = rows
    lines = [columns, ["---"] * len(columns)]
    for key, group in groups.items():
        gaps = [
            f"{100 * statistics.mean(row.step_s[name] / row.bound_s - 1 for row in group):.2f}"
            for name in names
        ]
        proven = f"{100 * statistics.mean(row.proven for row in group):.0f}%"
        lines.append([*key, str(len(group)), *gaps, proven])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measure_suite(
    title: str, instances: list[Instance], known: list[Row], *, time_limit_s: float, until_s: float
) -> list[Row]:
    """The rows of the instances: those known, and what the time is enough for of the others."""
    row_by_name = {row.name: row for row in known}
    for number, each in enumerate(instances):
        if each.name not in row_by_name and time.monotonic() < until_s:
            print(f"{title} {number + 1}: {each.name}", file=sys.stderr, flush=True)
            row_by_name[each.name] = measure_instance(each, time_limit_s=time_limit_s)
    return [row_by_name[each.name] for each in instances if each.name in row_by_name]


def print_suite(title: str, rows: list[Row], num_instances: int) -> None:
    """The figures and the table of a suite, and how much of it they stand for."""
    print(f"\n{title}: {len(rows)} of {num_instances} instances")
    if rows:
        print(f"{json.dumps(summarise(rows))}\n\n{format_table(rows)}", flush=True)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write all rows and figures to this file")
    parser.add_argument("--minutes", type=float, help="keep the file's rows, add some, then stop")
    parser.add_argument("--time-limit", type=float, default=4.0, help="seconds of one search")
    parser.add_argument("--every", type=int, default=1, help="take only every n-th instance")
    parser.add_argument("--shape", default="", help="take only shapes that start with this")
    options = parser.parse_args()
    if options.minutes and not options.json:
        parser.error("--minutes needs a file to continue: add --json schedules.json")
    return options


def main() -> None:
    """Run the suites or some more of them, print the tables, write the rows."""
    options = parse_options()
    is_part = options.minutes is not None
    until_s = time.monotonic() + 60 * options.minutes if is_part else float("inf")
    old = json.loads(options.json.read_text()) if is_part and options.json.exists() else {}
    figures: dict[str, Any] = {"time_limit_s": options.time_limit}
    if old and old["time_limit_s"] != options.time_limit:
        sys.exit(f"{options.json} was measured with --time-limit {old['time_limit_s']}.")
    for title, suite in (("one stage a device", list_instances()), ("shared", list_shared())):
        chosen = [each for each in suite if each.shape.startswith(options.shape)][:: options.every]
        known = [Row(**row) for row in old.get(title, {}).get("rows", [])]
        rows = measure_suite(title, chosen, known, time_limit_s=options.time_limit, until_s=until_s)
        print_suite(title, rows, len(chosen))
        if rows:
            figures[title] = {"summary": summarise(rows), "rows": [asdict(row) for row in rows]}
        if options.json:
            options.json.write_text(json.dumps({**old, **figures}, indent=1) + "\n")
    if time.monotonic() < until_s:
        figures["zero_bubble"] = measure_zero_bubble()
        print(f"\nzero bubble, 8 x 32: {json.dumps(figures['zero_bubble'])}")
        figures["modulo"] = measure_modulo()
        print(f"\nmodulo, several stages on a device: {json.dumps(figures['modulo'])}")
    if options.json:
        options.json.write_text(json.dumps({**old, **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
