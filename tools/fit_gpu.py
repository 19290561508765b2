"""Fit the laws of GPUs to a folder of measurements and write their figures into the profiles.

    python -m tools.fit_gpu FOLDER

Every class of kernel has at most eleven figures a device. They are fitted in the logarithm of
the seconds, on the half of the shapes that `gpu_data.is_held_out` leaves, by Levenberg-Marquardt
with soft errors, and drawn towards the class defaults, so that what a device's rows do not show
stays at the default. Defaults of a new GPU are the means over the devices (of logarithms).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy

from graphplan.cost.hardware import find_device_type
from graphplan.cost.laws.gemm import Floats
from graphplan.cost.laws.price import price_group
from graphplan.nouns.cluster import DeviceType, Law
from tools.gpu_data import (
    FITTED_FAMILIES,
    Sample,
    Samples,
    is_held_out,
    read_nodes,
    read_samples,
)

PROFILES = Path(__file__).parents[1] / "profiles"
MARK = "\n# Laws: fitted by tools/fit_gpu.py; `error`: mean error on shapes that were not fitted.\n"
NUM_FITTED = 2500
SOFT = 0.1
STEPS, TRIES = 60, 14
ENOUGH = 1e-5
"""Share of the loss that a step must save."""


class Figure(NamedTuple):
    """Where a figure starts, how strongly it stays there, and whether it may be negative."""

    start: float
    pull: float
    signed: bool = False


GEMM = {
    "efficiency": Figure(0.85, 6), "fill": Figure(0.0115, 2), "prologue": Figure(100, 1),
    "memory": Figure(0.8, 6), "launch_us": Figure(2.8, 4), "sharp": Figure(2.7, 2),
    "split_us": Figure(3, 2), "sag": Figure(0.04, 2), "copies": Figure(15, 1),
    "least_tile": Figure(4000, 0.5),
}  # fmt: skip
LINEAR = {
    "efficiency": Figure(0.9, 1.5), "fill": Figure(0.035, 0.25), "prologue": Figure(8, 0.25),
    "memory": Figure(0.8, 1.5), "launch_us": Figure(20, 0.12), "sharp": Figure(3, 0.25),
    "split_us": Figure(3, 0.5), "sag": Figure(0.005, 0.5), "copies": Figure(15, 0.25),
    "odd": Figure(0.15, 0.1), "least_tile": Figure(1500, 0.12),
}  # fmt: skip
CONVOLUTION = {
    "efficiency": Figure(0.85, 3), "fill": Figure(0.035, 1), "prologue": Figure(8, 1),
    "memory": Figure(0.8, 6), "launch_us": Figure(30, 0.5), "sharp": Figure(2, 1),
    "winograd": Figure(0.7, 2), "winograd_fill": Figure(0.035, 1),
    "winograd_prologue": Figure(8, 1), "transform": Figure(1, 0.5),
    "winograd_us": Figure(10, 0.5),
}  # fmt: skip
HOT = Figure(0.8, 0.5)
HOT_CARDS = ("l4",)
"""Cards whose sweeps are slower than nodes of steps: 72 W for 30 TFLOP/s."""
NODE_WEIGHT = 10
FIGURES: dict[str, dict[str, Figure]] = {
    "gemm": GEMM,
    "gemm-float32": LINEAR,
    "bmm-float32": LINEAR,
    "conv-float32": CONVOLUTION,
    "attention": {
        "efficiency": Figure(0.65, 4), "narrow": Figure(0.45, 2, True),
        "wide": Figure(0.2, 2, True), "widest": Figure(-0.6, 2, True), "memory": Figure(0.6, 2),
        "launch_us": Figure(8, 1), "sharp": Figure(1.4, 1), "prologue": Figure(20, 1),
        "sag": Figure(0.02, 6, True), "tail": Figure(0.8, 1), "start_us": Figure(1, 1),
        "copies": Figure(4, 0.5),
    },
    "stream": {"memory": Figure(0.8, 1), "launch_us": Figure(20, 0.5)},
    "norm": {"memory": Figure(0.82, 4), "again": Figure(0.9, 1), "long": Figure(2000, 1),
             "odd": Figure(0.05, 0.5), "launch_us": Figure(20, 0.5)},
    "softmax": {"memory": Figure(0.82, 4), "again": Figure(0.8, 1), "long": Figure(2000, 1),
                "odd": Figure(0.05, 0.5), "launch_us": Figure(20, 0.5)},
}  # fmt: skip
"""Figures of every class: start and pull."""
MEASURED_WITH: dict[str, dict[str, float]] = {"attention": {"cached_keys": 1.0}}
"""What the measured kernels do besides."""
SHIPPED_WITH: dict[str, dict[str, float]] = {
    "attention": {"backward": 0.8},
    "stream": {"copies": 1.4},
    "norm": {"copies": 1.4},
    "softmax": {"copies": 1.4},
}
"""Figures that no measurement here shows: FlashAttention-2 and -3 report 0.75 to 0.86 of the
forward's rate in the backward (arXiv 2307.08691, 2407.08608); nodes of training steps on L4, whose
cache is large, are faster than its memory."""
EAGER = frozenset({"gemm-float32", "bmm-float32", "conv-float32", "stream", "norm", "softmax"})
"""Classes measured as single calls from an idle queue: what is fitted as their launch is that call,
written as `call_us` beside the launch of a kernel."""
EAGER_LAUNCH_US = 3.0
SAME_CHIP = {
    "a100-40gb": ("a100-80gb", "a100-80gb-pcie", "a100-40gb-pcie"),
    "a100-80gb": ("a100-80gb-pcie", "a100-40gb-pcie"),
    "a100-40gb-pcie": ("a100-80gb-pcie", "a100-80gb"),
    "a100-80gb-pcie": ("a100-80gb", "a100-40gb-pcie"),
    "h200": ("h100",), "h100-pcie": ("h100",),
    "v100-16gb": ("v100-32gb-pcie",), "v100-32gb": ("v100-32gb-pcie",),
}  # fmt: skip
"""Profiles whose laws a device takes over where its own rows are missing, the nearest first."""
FEWEST = 40
"""Rows below which a class is not fitted."""


def price_sample(
    sample: Sample, device: DeviceType, name: str, figures: Mapping[str, float]
) -> Floats:
    """Seconds of a sample by the law under some figures, as it was measured."""
    called = {"launch_us": figures["call_us"]} if "call_us" in figures else {}
    hot = figures.get("hot", 1.0)
    slowed = {key: figures[key] * hot for key in ("efficiency", "fill") if key in figures}
    law = Law(figures=dict(figures) | called | slowed | MEASURED_WITH.get(name, {}))
    plain = msgspec.structs.replace(device, laws={name: law}, residual=None)
    return price_group(sample.kernels, plain)


def fit_law(
    sample: Sample, device: DeviceType, name: str, nodes: Sample | None = None
) -> dict[str, float]:
    """The figures of one class on one device; `nodes` of steps tell what cool cards reach."""
    wanted = FIGURES[name] | ({"hot": HOT} if nodes else {})
    names = list(wanted)
    start = numpy.array([_encode(wanted[each], wanted[each].start) for each in names])
    pull = numpy.array([wanted[each].pull for each in names])
    rng = numpy.random.default_rng(0)
    small = sample.take(rng.permutation(len(sample))[:NUM_FITTED].tolist())
    goal = numpy.log(small.seconds)

    def find_errors(values: Floats) -> Floats:
        figures = {n: _decode(wanted[n], v) for n, v in zip(names, values, strict=True)}
        priced = price_sample(small, device, name, figures)
        errors = [numpy.log(priced) - goal, pull * (values - start)]
        if nodes:
            cool = figures | {"hot": 1.0, "launch_us": EAGER_LAUNCH_US}
            found = numpy.log(price_sample(nodes, device, name, cool) / nodes.seconds)
            errors.append(numpy.repeat(found, NODE_WEIGHT))
        return numpy.concatenate(errors)

    found = descend(find_errors, start)
    return {n: _decode(wanted[n], float(v)) for n, v in zip(names, found, strict=True)}


def _encode(figure: Figure, value: float) -> float:
    return value if figure.signed else math.log(value)


def _decode(figure: Figure, value: float) -> float:
    return float(value if figure.signed else numpy.exp(value))


def descend(find_errors: Callable[[Floats], Floats], start: Floats) -> Floats:
    """Levenberg-Marquardt on errors whose large ones count linearly."""
    values, errors, damping = start, find_errors(start), 1e-2
    loss = _soft_loss(errors)
    for _ in range(STEPS):
        slopes = numpy.empty((len(errors), len(values)))
        for j in range(len(values)):
            moved = values.copy()
            step = 1e-3 * max(1.0, abs(values[j]))
            moved[j] += step
            slopes[:, j] = (find_errors(moved) - errors) / step
        weight = 1 / numpy.sqrt(1 + (errors / SOFT) ** 2)
        square, gradient = slopes.T @ (slopes * weight[:, None]), slopes.T @ (weight * errors)
        before = loss
        for _ in range(TRIES):
            ridge = damping * numpy.diag(numpy.diag(square) + 1e-9)
            trial = values + numpy.clip(numpy.linalg.solve(square + ridge, -gradient), -0.7, 0.7)
            tried = find_errors(trial)
            if _soft_loss(tried) < loss:
                values, errors, loss = trial, tried, _soft_loss(tried)
                damping = max(damping / 5, 1e-6)
                break
            damping *= 5
        if before - loss < ENOUGH * before:
            break
    return values


def _soft_loss(errors: Floats) -> float:
    return float((numpy.sqrt(1 + (errors / SOFT) ** 2) - 1).sum())


def mean_error(priced: Floats, seconds: Floats) -> float:
    """Mean of |predicted / measured - 1|."""
    return float(numpy.abs(priced / seconds - 1).mean())


def fit_all(samples: Samples, nodes: Samples) -> dict[str, dict[str, Law]]:
    """Laws by class and device."""
    found: dict[str, dict[str, Law]] = {name: {} for name in FIGURES}
    for (name, profile), sample in sorted(samples.items()):
        if name not in FIGURES or len(sample) < FEWEST:
            continue
        device = find_device_type(profile)
        cool = nodes.get((name, profile)) if profile in HOT_CARDS else None
        figures = fit_law(sample.select(lambda each: not is_held_out(each)), device, name, cool)
        rest = sample.select(is_held_out)
        error = mean_error(price_sample(rest, device, name, figures), rest.seconds)
        source = f"fitted to {len(sample) - len(rest)} measured shapes, judged on {len(rest)}"
        found[name][profile] = Law(figures=figures, error=round(error, 3), source=source)
        print(f"{name:13s} {profile:15s} {error:6.1%}  {len(sample)} rows", file=sys.stderr)
    return found


def average_laws(laws: Mapping[str, Law], name: str) -> Law:
    """Class defaults: the mean over devices, of logarithms where a figure is positive."""
    figures = {}
    for each, figure in FIGURES[name].items():
        encoded = [_encode(figure, max(law.figures[each], 1e-9)) if not figure.signed
                   else law.figures[each] for law in laws.values()]  # fmt: skip
        figures[each] = _decode(figure, float(numpy.mean(encoded)))
    return Law(figures=figures, source=f"mean of {', '.join(laws)}")


def collect_laws(found: Mapping[str, Mapping[str, Law]], profile: str) -> dict[str, Law]:
    """The laws of a profile: its own, else those of the same chip on another board."""
    laws = {}
    for name, by_profile in found.items():
        if profile in by_profile:
            laws[name] = by_profile[profile]
            continue
        donor = next((each for each in SAME_CHIP.get(profile, ()) if each in by_profile), None)
        if donor is not None:
            laws[name] = msgspec.structs.replace(
                by_profile[donor], error=None, source=f"of {donor}, the same chip"
            )
    return laws


def format_laws(laws: Mapping[str, Law]) -> str:
    """The laws as a hardware file writes them."""
    parts = []
    for name, law in laws.items():
        figures = law.figures | SHIPPED_WITH.get(name, {})
        if name in EAGER and "call_us" not in figures:
            figures = figures | {"launch_us": EAGER_LAUNCH_US, "call_us": figures["launch_us"]}
        content = ", ".join(f"{key} = {value:.4g}" for key, value in figures.items())
        lines = [f"[laws.{name}]", f'source = "{law.source}"']
        lines += [f"error = {law.error:g}"] if law.error is not None else []
        parts.append("\n".join([*lines, f"figures = {{ {content} }}"]))
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Fit, and write the figures."""
    folder = Path(sys.argv[1])
    found = fit_all(read_samples(folder), read_nodes(folder, FITTED_FAMILIES))
    for path in sorted((PROFILES / "hardware").glob("*.toml")):
        laws = collect_laws(found, path.stem)
        text = path.read_text().split(MARK)[0]
        path.write_text(text + (MARK + "\n" + format_laws(laws) if laws else ""))
    defaults = {name: average_laws(by, name) for name, by in found.items() if by}
    defaults["conv"] = msgspec.structs.replace(
        defaults["gemm"],
        figures=defaults["gemm"].figures | {"efficiency": 0.6},
        source="figures of gemm at 0.6 of the peak: no measurement in 16 bits",
    )
    head = (
        "# Laws of a GPU of which only the datasheet is known: means over the measured devices.\n"
    )
    (PROFILES / "laws" / "gpu.toml").write_text(head + MARK + "\n" + format_laws(defaults))


if __name__ == "__main__":
    main()
