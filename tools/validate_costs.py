"""Validate costs: predicted against measured, on models of examples/, in one run.

For every model, on this CPU:

- *step*: ops and whole steps are measured at two micro-batch sizes; the step at a third size
  between them, at which nothing was measured, is predicted and then measured on the user's own
  module, without capture. So neither the size nor the code is the one that was calibrated.
- *saved*: bytes that autograd keeps, from the graph, against the storages that saved-tensor hooks
  see in a real forward.
- *stages*: random cuts into stages. Each stage runs alone for its real time; it is predicted by
  the measured table, by the plain roofline, and by a roofline calibrated on another size of the
  model.

One thread by default: its own running time is then measured, not that of other programs. What is
compared is measured in rounds that alternate, and the fastest round counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphplan.cost.cache import ProfileCache
from graphplan.cost.calibrate import calibrate_device
from graphplan.cost.estimate import estimate_table
from graphplan.cost.hardware import find_device_type
from graphplan.cost.interpolate import expand_table
from graphplan.cost.measure import ROUNDS, measure_table
from graphplan.cost.measure_body import open_body
from graphplan.cost.measure_clock import Clock, find_clock
from graphplan.cost.measure_step import STEP_EFFORT
from graphplan.cost.measure_unit import Effort, measure_unit, repeat
from graphplan.cost.measure_units import UnitBuilder, run_on_fakes
from graphplan.cost.saved import count_saved_bytes
from graphplan.frontend import Captured, ModelFile, load_model_file, trace_model_file
from graphplan.nouns.table import ProfileTable
from tools.cpu_figures import measure_hardware

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STAGE_EFFORT = Effort(warm_up=1, min_repeats=4, budget_s=0.1, patience=3.0)


@dataclass(frozen=True)
class Case:
    """A model at the size to validate, and another size of it to calibrate the roofline on."""

    settings: dict[str, Any]
    other_settings: dict[str, Any]
    batch_sizes: tuple[int, int, int]
    """Measured, predicted, measured."""


CASES = {
    "gpt": Case(
        {"layers": 4, "hidden": 256, "heads": 8, "vocabulary": 4000, "context": 128},
        {"layers": 2, "hidden": 192, "heads": 4, "vocabulary": 2000, "context": 96},
        (2, 4, 8),
    ),
    "resnet": Case({"width": 24, "size": 112}, {"width": 16, "size": 96}, (2, 4, 8)),
    "clip": Case(
        {"layers": 2, "hidden": 192, "heads": 6},
        {"layers": 1, "hidden": 128, "heads": 4},
        (1, 2, 4),
    ),
    "dlrm": Case(
        {"branches": 4, "width": 768, "rows": 20000, "columns": 64},
        {"branches": 2, "width": 512, "rows": 10000, "columns": 64},
        (32, 64, 128),
    ),
    "unet": Case(
        {"depth": 3, "width": 16, "size": 96}, {"depth": 2, "width": 24, "size": 64}, (1, 2, 4)
    ),
}


@dataclass(frozen=True)
class Result:
    """Figures of one model; errors are relative to the measured value."""

    model: str
    ops: int
    batch_size: int
    step_s: float
    predicted_step_s: float
    step_error: float
    calibration: tuple[float, ...]
    saved_bytes: int
    predicted_saved_bytes: int
    saved_error: float
    stages: int
    table_stage_error: float
    """Median over the stages."""
    table_rank: float
    roofline_rank: float
    calibrated_rank: float
    calibrated_stage_error: float
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the model meets the promised accuracy."""
        close = self.step_error <= 0.10 and self.saved_error <= 0.05
        return close and self.calibrated_rank >= 0.9


def main() -> int:
    """Run the chosen models and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(CASES), help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cuts", type=int, default=5, help="random cuts of every model")
    parser.add_argument("--num-stages", type=int, default=8, help="stages of a cut")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s, as users")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hardware", action="store_true", help="measure the CPU's figures only")
    parser.add_argument("--cache", action="store_true", help="time the cache's speed-up only")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    if options.hardware:
        print(json.dumps(measure_hardware(find_clock("cpu")), indent=1))
        return 0
    if options.cache:
        print(json.dumps(time_cache(), indent=1))
        return 0
    results = []
    for name in options.models.split(","):
        results.append(validate(name, options))
        if not options.json:
            print_result(results[-1], first=len(results) == 1)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    return 0 if all(result.passed for result in results) else 1


def validate(name: str, options: argparse.Namespace) -> Result:
    """All checks of one model."""
    start = time.perf_counter()
    case, clock = CASES[name], find_clock("cpu")
    file = load(name, case.settings)
    captured = trace_model_file(file)
    low, middle, high = case.batch_sizes
    steps = [measure_eager_step(file, middle, clock)]
    table = measure_table(
        captured, device="cpu", batch_sizes=[low, high], inputs=file.inputs, rounds=options.rounds
    )
    steps.append(measure_eager_step(file, middle, clock))
    predicted = predict_step(table, middle)
    saved = count_real_saved(file, middle)
    predicted_saved = count_saved_bytes(captured.graph, middle)
    fitted = calibrate_elsewhere(name, case)
    stages = cut_randomly(captured, options)
    real = time_stages(captured, stages, high, clock)
    steps.append(measure_eager_step(file, middle, clock))
    step_s = min(steps)
    by_table = sum_stages(table, stages, high)
    plain = estimate_table(captured.graph, find_device_type("cpu"), batch_sizes=[high])
    by_fit = sum_stages(estimate_table(captured.graph, fitted, batch_sizes=[high]), stages, high)
    return Result(
        model=name,
        ops=len(captured.graph.ops),
        batch_size=middle,
        step_s=step_s,
        predicted_step_s=predicted,
        step_error=abs(predicted - step_s) / step_s,
        calibration=tuple(round(ratio, 3) for ratio in table.calibration),
        saved_bytes=saved,
        predicted_saved_bytes=predicted_saved,
        saved_error=abs(predicted_saved - saved) / saved,
        stages=len(stages),
        table_stage_error=median_error(by_table, real),
        table_rank=rank_correlation(by_table, real),
        roofline_rank=rank_correlation(sum_stages(plain, stages, high), real),
        calibrated_rank=rank_correlation(by_fit, real),
        calibrated_stage_error=median_error(by_fit, real),
        seconds=round(time.perf_counter() - start, 1),
    )


def load(name: str, settings: dict[str, Any]) -> ModelFile:
    """A model file of examples/ with settings."""
    return load_model_file(EXAMPLES / f"{name}.py", settings=settings)


# -- steps -----------------------------------------------------------------------------------------


def predict_step(table: ProfileTable, batch_size: int) -> float:
    """Sum of the ops times the calibration, at a size that the table does not have."""
    wide = expand_table(table, [batch_size])
    total = sum(r.forward_s[0] + r.input_grad_s[0] + r.weight_grad_s[0] for r in wide.rows)
    return total * wide.calibration[0]


def eager_step(file: ModelFile, batch_size: int) -> Callable[[], torch.Tensor]:
    """Forward and loss of the user's own module."""
    model = file.build().train()
    batch = file.inputs(batch_size) if callable(file.inputs) else file.inputs
    accepted = model.forward.__code__.co_varnames[1 : model.forward.__code__.co_argcount]
    arguments = {key: value for key, value in batch.items() if key in accepted}
    assert file.loss is not None
    loss = file.loss
    return lambda: loss(model(**arguments), batch)


def measure_eager_step(file: ModelFile, batch_size: int, clock: Clock) -> float:
    """Seconds of forward and backward, gradients added to those of an earlier micro-batch."""
    forward = eager_step(file, batch_size)

    def sample() -> float:
        start = clock.mark()
        torch.autograd.backward(forward())
        end = clock.mark()
        clock.finish()
        return clock.seconds(start, end)

    return repeat(sample, clock, STEP_EFFORT)[0]


def count_real_saved(file: ModelFile, batch_size: int) -> int:
    """Bytes of the storages that a real forward keeps for its backward, weights left out."""
    forward = eager_step(file, batch_size)
    closure = forward.__closure__ or ()
    model = next(c.cell_contents for c in closure if isinstance(c.cell_contents, torch.nn.Module))
    weights = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = forward()
    found = sum(size for pointer, (size, _) in kept.items() if pointer not in weights)
    del loss
    return found


# -- stages ----------------------------------------------------------------------------------------


def calibrate_elsewhere(name: str, case: Case) -> Any:
    """The CPU's device type, fitted to one measured run of another size of the model."""
    file = load(name, case.other_settings)
    other = trace_model_file(file)
    size = case.batch_sizes[1]
    table = measure_table(other, device="cpu", batch_sizes=[size], inputs=file.inputs)
    return calibrate_device(find_device_type("cpu"), other.graph, table)


def cut_randomly(captured: Captured, options: argparse.Namespace) -> list[tuple[str, ...]]:
    """Stages of several random cuts of the order of the ops, results of one op kept together."""
    rng = random.Random(options.seed)
    names = [op.name for op in captured.graph.ops]
    places = [i for i in range(1, len(names)) if captured.graph.ops[i - 1].output is not None
              and captured.graph.ops[i].kind != "getitem"]  # fmt: skip
    stages = []
    for _ in range(options.cuts):
        chosen = sorted(rng.sample(places, min(len(places), options.num_stages - 1)))
        bounds = [0, *chosen, len(names)]
        stages += [tuple(names[a:b]) for a, b in itertools.pairwise(bounds)]
    return stages


def time_stages(
    captured: Captured, stages: Sequence[tuple[str, ...]], batch_size: int, clock: Clock
) -> list[float]:
    """Forward and backward of every stage, each run alone; the faster of two rounds."""
    values = run_on_fakes(open_body(captured.module), captured.graph, batch_size)
    builder = UnitBuilder(open_body(captured.module), captured.graph, values, clock.device)
    return [measure_unit(builder.build(ops), values, clock, STAGE_EFFORT).total_s for ops in stages]


def sum_stages(
    table: ProfileTable, stages: Sequence[tuple[str, ...]], batch_size: int
) -> list[float]:
    """Forward and backward of every stage by a table."""
    j = table.batch_sizes.index(batch_size)
    ratio = table.calibration[j] if table.calibration else 1.0
    seconds = {r.op: r.forward_s[j] + r.input_grad_s[j] + r.weight_grad_s[j] for r in table.rows}
    return [ratio * sum(seconds[op] for op in ops) for ops in stages]


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's: the correlation of the ranks."""
    x, y = (torch.tensor(each).argsort().argsort().double() for each in (a, b))
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


def median_error(predicted: Sequence[float], real: Sequence[float]) -> float:
    """Median of the relative errors."""
    errors = sorted(abs(p - r) / r for p, r in zip(predicted, real, strict=True))
    return errors[len(errors) // 2]


# -- cache -----------------------------------------------------------------------------------------


def time_cache() -> dict[str, float]:
    """Seconds of measuring a model, of measuring it again, and of a deeper one of equal layers."""
    settings = {"hidden": 128, "heads": 4, "vocabulary": 500, "context": 64}
    files = {layers: load("gpt", settings | {"layers": layers}) for layers in (4, 8)}
    captured = {layers: trace_model_file(file) for layers, file in files.items()}
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for label, layers in (("first", 4), ("again", 4), ("8 layers instead of 4", 8)):
            start = time.perf_counter()
            measure_table(
                captured[layers],
                device="cpu",
                batch_sizes=[1, 4, 8],
                inputs=files[layers].inputs,
                cache=ProfileCache("validation", folder=Path(folder)),
            )
            seconds[label] = time.perf_counter() - start
    return seconds


# -- report ----------------------------------------------------------------------------------------

HEADER = (
    "| model | ops | batch | step s | predicted | error | step / sum | saved MB | predicted | error"
    " | stages | table: error | rank | roofline: rank | calibrated: rank | error |"
)


def print_result(result: Result, *, first: bool) -> None:
    """One row of a Markdown table."""
    if first:
        print(HEADER)
        print("|---" * (HEADER.count("|") - 1) + "|")
    r = result
    ratios = " ".join(f"{ratio:.2f}" for ratio in r.calibration)
    print(
        f"| {r.model} | {r.ops} | {r.batch_size} | {r.step_s:.3f} | {r.predicted_step_s:.3f}"
        f" | {r.step_error:.1%} | {ratios} | {r.saved_bytes / 1e6:.1f}"
        f" | {r.predicted_saved_bytes / 1e6:.1f} | {r.saved_error:.1%} | {r.stages}"
        f" | {r.table_stage_error:.1%} | {r.table_rank:.3f} | {r.roofline_rank:.3f}"
        f" | {r.calibrated_rank:.3f} | {r.calibrated_stage_error:.1%} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
