"""Calibrate: a device type whose estimates are scaled to measured tables.

For every op name and pass (`gelu.forward`, `linear.weight_grad`), and once more for every kind, the
measured times are fitted as overhead + scale x the laws' estimate. Where all ops of a name have
about one size, the overhead is 0. The calibrated device then estimates other models, sizes and
batch sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from graphplan.cost.estimate import PASSES, Estimator, Pass
from graphplan.cost.flops import Work, WorkCounter
from graphplan.cost.interpolate import fit_affine
from graphplan.cost.kinds import COMPUTE_KINDS
from graphplan.errors import InvalidOption
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.opgraph import Op, OpGraph
from graphplan.nouns.table import ProfileTable

Sample = tuple[Op, Work, float]
"""An op, its work and its measured seconds in one pass."""

SMALLEST_SCALE = 1e-2
LARGEST_SCALE = 1e4
DIFFERENT_SIZES = 2.0
"""Ratio of the largest to the smallest op from which on an overhead can be told."""
_LAUNCH_BYTES = 16384
"""Ops that move less than this show the launch time."""


def calibrate_device(device_type: DeviceType, graph: OpGraph, measured: ProfileTable) -> DeviceType:
    """The device type with scales and launch time fitted to a measured table."""
    return calibrate_tables(device_type, [(graph, measured)], source=f"calibrated on {graph.name}")


def calibrate_tables(
    device_type: DeviceType, tables: Iterable[tuple[OpGraph, ProfileTable]], *, source: str
) -> DeviceType:
    """The device type with scales and launch time fitted to tables of several graphs."""
    samples: dict[Pass, list[Sample]] = {name: [] for name in PASSES}
    for graph, measured in tables:
        if measured.graph != graph.fingerprint:
            raise InvalidOption(
                f"The table is for graph {measured.graph}, not for {graph.fingerprint}.",
                remedy="Profile this graph, or give the graph that was profiled.",
            )
        for name, found in _collect_samples(graph, measured).items():
            samples[name] += found
    fitted = msgspec.structs.replace(
        device_type,
        launch_s=_fit_launch(samples, device_type),
        scale_by_kind={},
        overhead_s_by_kind={},
        residual=None,
    )
    scales, overheads = {}, {}
    estimator = Estimator(fitted)
    for (name, key), group in _group_samples(samples).items():
        estimates = [estimator.pass_time(op, work, name) for op, work, _ in group]
        overhead, scale = _fit_line(estimates, [taken for _, _, taken in group])
        scales[f"{key}.{name}"] = min(max(scale, SMALLEST_SCALE), LARGEST_SCALE)
        overheads[f"{key}.{name}"] = overhead
    return msgspec.structs.replace(
        fitted,
        scale_by_kind=scales,
        overhead_s_by_kind=overheads,
        source=f"{device_type.source}; {source}",
    )


def _collect_samples(graph: OpGraph, measured: ProfileTable) -> dict[Pass, list[Sample]]:
    counter = WorkCounter(graph)
    samples: dict[Pass, list[Sample]] = {name: [] for name in PASSES}
    ratios = measured.calibration or (1.0,) * len(measured.batch_sizes)
    for row in measured.rows:
        op = graph.op_by_name[row.op]
        columns = zip(
            measured.batch_sizes, ratios, row.forward_s, row.input_grad_s, row.weight_grad_s,
            strict=True,
        )  # fmt: skip
        for size, ratio, *seconds in columns:
            work = counter.count_op(op, size)
            for name, taken in zip(PASSES, seconds, strict=True):
                samples[name].append((op, work, taken * ratio))
    return samples


def _group_samples(samples: dict[Pass, list[Sample]]) -> dict[tuple[Pass, str], list[Sample]]:
    """Samples by pass and op name, and once more by pass and kind."""
    groups: dict[tuple[Pass, str], list[Sample]] = defaultdict(list)
    for name, each in samples.items():
        for sample in each:
            op, work, taken = sample
            if taken > 0 and getattr(work, name):
                for key in {work.kind, op.kind}:
                    groups[name, key].append(sample)
    return groups


def _fit_launch(samples: dict[Pass, list[Sample]], device_type: DeviceType) -> float:
    """The median time of forwards that move next to nothing."""
    tiny = sorted(
        taken
        for _, work, taken in samples["forward"]
        if taken > 0 and 0 < work.forward_bytes < _LAUNCH_BYTES and work.kind not in COMPUTE_KINDS
    )
    return tiny[len(tiny) // 2] if tiny else device_type.launch_s


def _fit_line(estimates: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """(base, slope) of measured over estimated times; the base is 0 unless sizes differ."""
    fit = fit_affine(estimates, seconds)
    if max(estimates) < DIFFERENT_SIZES * min(estimates) or fit.slope <= 0:
        return 0.0, sum(seconds) / sum(estimates)
    return fit.base, fit.slope
