"""Measure: a profile table of the device that is there.

Every different unit of the model (an op, or a group of short ones) is timed alone on random
tensors, at every micro-batch size; equal ones are timed once, known ones come from the cache. Where
the whole model fits the device, its step is timed too: the ratio of the step to the sum of its ops
is the table's calibration, which accounts for caches, gradients that are summed at forks and the
like. A model larger than the device is measured op by op without calibration.

Ctrl-C ends the measuring, not the work: units that are missing then, and units that cannot run
alone on random data, get times of a roofline fitted to the measured ones. `provenance` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from graphplan.cost.allocator import keep_freed_memory
from graphplan.cost.cache import Measurement, ProfileCache
from graphplan.cost.calibrate import calibrate_device
from graphplan.cost.estimate import PASSES, Estimator, Pass, estimate_table
from graphplan.cost.flops import WorkCounter
from graphplan.cost.hardware import find_device_type, list_device_types
from graphplan.cost.interpolate import fit_affine
from graphplan.cost.kinds import COMPUTE_KINDS
from graphplan.cost.measure_clock import (
    AcceleratorClock,
    Clock,
    describe_environment,
    find_clock,
    name_device_type,
)
from graphplan.cost.measure_neighbours import check_ranks, count_neighbours, run_neighbours
from graphplan.cost.measure_session import Progress, Report, Session
from graphplan.cost.measure_step import STEP_EFFORT
from graphplan.cost.measure_unit import AS_MODELLED, Effort, Numerics
from graphplan.cost.measure_units import list_units
from graphplan.cost.measure_update import UPDATE_EFFORT, MakeOptimizer
from graphplan.errors import InvalidOption
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.names import escape_hidden
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.table import OpProfile, ProfileTable

if TYPE_CHECKING:
    from graphplan.cost.measure_rebuild import Rebuilt
    from graphplan.frontend import Captured

__all__ = ["Effort", "Progress", "find_device", "measure_table", "open_cache"]

SHORT_LAUNCHES = 2.0
"""Ops estimated below so many launch times are measured in groups."""
UNIT_EFFORT = Effort()
ROUNDS = 2
"""How often everything is measured, at different times."""
UnitNames = tuple[str, ...]


def measure_table(
    captured: Captured | Rebuilt,
    *,
    device: str,
    batch_sizes: Sequence[int],
    cache: ProfileCache | None = None,
    progress: Report | None = None,
    inputs: Callable[[int], Any] | None = None,
    calibrate_sizes: Sequence[int] | None = None,
    effort: Effort = UNIT_EFFORT,
    step_effort: Effort = STEP_EFFORT,
    rounds: int = ROUNDS,
    ranks_per_host: int = 1,
    optimizer: MakeOptimizer | None = None,
    budget_s: float | None = None,
    numerics: Numerics = AS_MODELLED,
) -> ProfileTable:
    """Seconds and bytes of every op of a captured model on a device.

    `inputs` makes a batch for the whole-model steps (random ones otherwise), which run at
    `calibrate_sizes` (all sizes by default, () for none). With several `ranks_per_host` the others
    train the same model meanwhile. `optimizer` is the user's own, if there is one. What does not
    fit into `budget_s` is left to the laws, fitted to what was measured.
    """
    graph, sizes = captured.graph, _check_sizes(captured.graph, batch_sizes)
    check_ranks(ranks_per_host, device)
    if torch.device(device).type == "cpu":
        keep_freed_memory()  # As the ranks of a run do.
    clock = find_clock(device)
    device_type = _assume_type(clock)
    if numerics.compiled:
        _check_own(captured)
        device_type = msgspec.structs.replace(device_type, host_s=0.0, fuses=True)
    short = _find_short(graph, device_type, max(sizes), all_plain=numerics.compiled)
    units = list_units(graph, short=short)
    count = count_neighbours(graph, max(sizes), ranks_per_host, clock)
    session = Session(
        captured,
        units,
        clock,
        cache=cache,
        device_type=device_type,
        num_neighbours=count,
        numerics=numerics,
    )
    if isinstance(clock, AcceleratorClock):
        clock.warm_up()
    if count and not session.may_step(max(sizes)):
        session.num_neighbours = count = 0
    session.budget_s = budget_s
    wanted = sizes if calibrate_sizes is None else tuple(calibrate_sizes)
    wanted = () if numerics != AS_MODELLED else wanted  # Steps run in the model's own precision.
    jobs = session.list_units(sizes, _choose_effort(effort, count))
    jobs += session.list_steps(
        [size for size in sizes if size in wanted], inputs, _choose_effort(step_effort, count)
    )
    jobs += session.list_updates(optimizer, _choose_effort(UPDATE_EFFORT, count))
    try:
        with run_neighbours(graph, max(sizes), count if jobs else 0):
            session.run(jobs, rounds=rounds, report=progress)
    except KeyboardInterrupt:
        session.interrupted = True
        if not session.known:
            raise
    finally:
        if cache is not None:
            cache.save()
    table = _build_table(session, units, sizes, device_type)
    if cache is not None:
        cache.save()
    return table


def find_device() -> str:
    """The accelerator that is here, else the CPU."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator.type if accelerator is not None else "cpu"


def open_cache(
    device: str, *, ranks_per_host: int = 1, numerics: Numerics = AS_MODELLED
) -> ProfileCache:
    """The cache for a device of this machine and the installed torch."""
    beside = f", {ranks_per_host} ranks on the host" if ranks_per_host > 1 else ""
    told = f", {numerics}" if str(numerics) else ""
    return ProfileCache(describe_environment(find_clock(device)) + beside + told)


def _check_sizes(graph: OpGraph, batch_sizes: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(sorted(set(batch_sizes)))
    if not sizes or sizes[0] < 1:
        raise InvalidOption(
            f"{list(batch_sizes)} are no micro-batch sizes.", remedy="Use --batch-sizes 1,4,16."
        )
    if graph.batch != "dynamic" and sizes != (graph.batch_size,):
        raise InvalidOption(
            f"{graph.name!r} was captured with a fixed batch of {graph.batch_size}.",
            remedy=f"Use --batch-sizes {graph.batch_size}.",
        )
    return sizes


def _choose_effort(effort: Effort, num_neighbours: int) -> Effort:
    return effort.beside_others() if num_neighbours else effort


def _assume_type(clock: Clock) -> DeviceType:
    """The hardware profile of the device; an unknown one is taken for the default GPU."""
    name = name_device_type(clock)
    if name in list_device_types():
        return find_device_type(name)
    return msgspec.structs.replace(find_device_type("a100-80gb"), name=name)


def _check_own(captured: Captured | Rebuilt) -> None:
    """Refuse to compile a graph from a file: it would become code."""
    from graphplan.cost.measure_rebuild import Rebuilt

    if isinstance(captured, Rebuilt):
        raise InvalidOption(
            "A graph from a file is measured without generating code.",
            remedy="Give the model file to --compile, or measure without it.",
        )


def _find_short(
    graph: OpGraph, device_type: DeviceType, batch_size: int, *, all_plain: bool
) -> frozenset[str]:
    """Ops whose forward would be too short to time alone, also at the largest size; with
    `all_plain` those that a compiler may join, however long.

    Ops with weights are always timed alone: in a group, the halves of the backward could not be
    told apart. So groups end where layers do, and equal layers have equal groups.
    """
    counter, estimator = WorkCounter(graph), Estimator(device_type)
    limit = SHORT_LAUNCHES * device_type.launch_s
    found = set()
    for op in graph.ops:
        work = counter.count_op(op, batch_size)
        plain = not op.weights and work.kind not in COMPUTE_KINDS
        if plain and (all_plain or estimator.pass_time(op, work, "forward") < limit):
            found.add(op.name)
    return frozenset(found)


def _build_table(
    session: Session,
    units: Sequence[UnitNames],
    sizes: tuple[int, ...],
    device_type: DeviceType,
) -> ProfileTable:
    """Rows of all ops: measured, or estimated where nothing was."""
    graph = session.captured.graph
    splitter = _Splitter(graph, device_type)
    measured: dict[str, OpProfile] = {}
    for ops in units:
        found = [session.find_unit(ops, size) for size in sizes]
        if all(found):
            measured |= splitter.split_unit(ops, sizes, [each for each in found if each])
    table = ProfileTable(
        graph=graph.fingerprint,
        device=device_type.name,
        source="measured",
        batch_sizes=sizes,
        rows=tuple(measured.values()),
    )
    missing = [op.name for op in graph.ops if op.name not in measured]
    filled = measured | (_estimate_rest(graph, table, device_type) if missing else {})
    rows = tuple(filled[op.name] for op in graph.ops)
    return msgspec.structs.replace(
        table,
        rows=rows,
        calibration=_find_ratios(rows, sizes, session),
        update_s_per_element=session.find_update(),
        provenance=_tell_origin(session, len(missing)),
    )


def _estimate_rest(
    graph: OpGraph, measured: ProfileTable, device_type: DeviceType
) -> dict[str, OpProfile]:
    """Estimates for ops that were not measured, by the laws, fitted to those that were."""
    fitted = calibrate_device(device_type, graph, measured) if measured.rows else device_type
    rows = estimate_table(graph, fitted, batch_sizes=measured.batch_sizes).rows
    return {row.op: row for row in rows if row.op not in measured.row_by_op}


def _find_ratios(
    rows: Sequence[OpProfile], sizes: Sequence[int], session: Session
) -> tuple[float, ...]:
    """Step over sum of ops by size; sizes without a step take the nearest one's ratio."""
    ratios: dict[int, float] = {}
    for j, size in enumerate(sizes):
        total = sum(r.forward_s[j] + r.input_grad_s[j] + r.weight_grad_s[j] for r in rows)
        ratio = session.find_ratio(size, total)
        if ratio is not None:
            ratios[size] = ratio
    if not ratios:
        return ()
    return tuple(ratios[min(ratios, key=lambda known: abs(known - size))] for size in sizes)


def _tell_origin(session: Session, num_missing: int) -> str:
    """Where the figures come from, and what is not measured."""
    num_ops = len(session.captured.graph.ops)
    parts = [describe_environment(session.clock)]
    if str(session.numerics):
        parts.append(str(session.numerics))
    if isinstance(session.clock, AcceleratorClock):
        parts.append(f"launch {session.clock.launch_time() * 1e6:.1f} us apart from the kernels")
    if session.num_neighbours:
        parts.append(f"beside {session.num_neighbours} ranks on the same host")
    if session.interrupted:
        parts.append("interrupted")
    if session.num_skipped:
        parts.append(f"budget of {session.budget_s:g} s spent")
    if num_missing:
        parts.append(
            f"{num_ops - num_missing} of {num_ops} ops measured, the others by the fitted laws"
        )
    if session.borrowed:
        parts.append("calibrated on a model of the same units")
    if session.failed:
        parts.append(f"could not run alone: {'; '.join(sorted(session.failed.values()))[:300]}")
    return escape_hidden(", ".join(parts))


class _Splitter:
    """Divides the time of a unit among its ops, in proportion to the laws."""

    def __init__(self, graph: OpGraph, device_type: DeviceType) -> None:
        self._graph = graph
        self._estimator = Estimator(device_type)
        self._counter = WorkCounter(graph)

    def split_unit(
        self, ops: UnitNames, sizes: tuple[int, ...], found: Sequence[Measurement]
    ) -> dict[str, OpProfile]:
        """A row for every op of a unit."""
        columns = {
            name: [
                self._split(ops, size, name, getattr(each, f"{name}_s"))
                for size, each in zip(sizes, found, strict=True)
            ]
            for name in PASSES
        }
        group = f"{ops[0]}..{ops[-1]}" if len(ops) > 1 else None
        spread = max(each.spread for each in found)
        rows = {}
        for i, op in enumerate(ops):
            forward, inputs, weights = (tuple(at[i] for at in columns[name]) for name in PASSES)
            totals = [sum(parts) for parts in zip(forward, inputs, weights, strict=True)]
            rows[op] = OpProfile(
                op=op,
                forward_s=forward,
                input_grad_s=inputs,
                weight_grad_s=weights,
                workspace_bytes=tuple(each.workspace_bytes for each in found),
                spread=spread,
                fit_error=fit_affine(sizes, totals).error if len(sizes) > 1 else 0.0,
                group=group,
            )
        return rows

    def _split(self, ops: UnitNames, size: int, name: Pass, seconds: float) -> list[float]:
        if len(ops) == 1:
            return [seconds]
        members = [self._graph.op_by_name[op] for op in ops]
        works = [self._counter.count_op(op, size) for op in members]
        shares = [
            self._estimator.pass_time(op, work, name)
            for op, work in zip(members, works, strict=True)
        ]
        total = sum(shares)
        if not total:
            return [seconds / len(ops)] * len(ops)
        return [seconds * share / total for share in shares]
