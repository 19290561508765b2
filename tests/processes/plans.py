"""Plans written by hand: a captured model, the stage of every module, the devices of stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from graphplan.cost.estimate import estimate_table
from graphplan.cost.hardware import find_cluster
from graphplan.cost.model import CostModel
from graphplan.cost.problem import make_problem
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Bound, Plan, PlannedModel, Prediction, Provenance
from graphplan.nouns.policy import PolicyName, WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.stages import StageGraph, ZeroLevel
from graphplan.nouns.task import Task
from graphplan.nouns.training import Training
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.schedule.auto import FIXED, build_schedule
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.steady import build_steady, plan_steady
from graphplan.simulate import simulate_program

BuildSchedule = Callable[[PricedStages], Schedule]


def split_1f1b(priced: PricedStages, *, lag: int = 1) -> Schedule:
    """1F1B with the backward split; each W runs `lag` input halves after its own."""
    whole = build_1f1b(priced)
    return Schedule(
        name="split",
        tasks_by_device=tuple(tuple(_split(tasks, lag)) for tasks in whole.tasks_by_device),
    )


def _split(tasks: Sequence[Task], lag: int) -> list[Task]:
    found: list[Task] = []
    waiting: list[Task] = []
    for task in tasks:
        if task.kind != "B":
            found.append(task)
            continue
        found.append(Task(task.stage, "I", task.micro_batch))
        waiting.append(Task(task.stage, "W", task.micro_batch))
        if len(waiting) > lag:
            found.append(waiting.pop(0))
    return found + waiting


SCHEDULES: dict[str, BuildSchedule] = {
    **FIXED,
    "list": lambda priced: build_schedule(priced, name="list", effort=0.1).schedule,
    "split": split_1f1b,
}


def assign_stages(graph: OpGraph, stage_by_module: Mapping[str, int]) -> dict[str, int]:
    """The stage of every op by the longest prefix of its module that is listed.

    An op outside of all listed modules stays with its inputs; if they come from several stages, or
    from nowhere, it goes to the first stage that reads it.
    """
    stage_by_op = {
        op.name: stage
        for op in graph.ops
        if (stage := _find_stage(op.module, stage_by_module)) is not None
    }
    for op in graph.ops:
        before = {stage_by_op[name] for name in op.inputs if name in stage_by_op}
        if op.name not in stage_by_op and len(before) == 1:
            stage_by_op[op.name] = before.pop()
    last = max(stage_by_module.values())
    for op in reversed(graph.ops):
        readers = [stage_by_op[other.name] for other in graph.ops if op.name in other.inputs]
        stage_by_op.setdefault(op.name, min(readers, default=last))
    return stage_by_op


def _find_stage(module: str, stage_by_module: Mapping[str, int]) -> int | None:
    words = module.split(".")
    prefixes = [".".join(words[:n]) for n in range(len(words), 0, -1)]
    return next((stage_by_module[each] for each in prefixes if each in stage_by_module), None)


def plan_by_hand(
    graph: OpGraph,
    stage_by_op: Mapping[str, int],
    *,
    devices: Sequence[tuple[int, ...]],
    batch_size: int,
    micro_batch_size: int | Sequence[int],
    schedule: str = "1f1b",
    recompute: Sequence[int] = (),
    zero: Sequence[ZeroLevel] = (),
    again: Sequence[str] = (),
    training: Mapping[str, object] | None = None,
    policy: PolicyName = "flush",
    policy_options: Mapping[str, object] | None = None,
) -> Plan:
    """Stage i on devices[i]; costs are estimates for the CPU."""
    num_stages = len(devices)
    sizes = (
        [micro_batch_size] * num_stages
        if isinstance(micro_batch_size, int)
        else list(micro_batch_size)
    )
    num_devices = 1 + max(max(each) for each in devices)
    cluster = find_cluster("cpu", gpus=num_devices)
    wanted = Training(batch_size=batch_size, **(training or {}))  # type: ignore[arg-type]
    groups = [[op.name for op in graph.ops if stage_by_op[op.name] == s] for s in range(num_stages)]
    table = estimate_table(graph, cluster.types[0], batch_sizes=(1, batch_size))
    problem = make_problem(
        graph,
        {cluster.types[0].name: table},
        cluster,
        wanted,
        groups,
        micro_batch_sizes=sorted(set(sizes)),
    )
    stages = assemble_stages(
        problem,
        [
            Part(
                nodes=(s,), devices=devices[s], micro_batch_size=sizes[s], recompute=s in recompute
            )
            for s in range(num_stages)
        ],
    )
    stages = repeat_modules(share_states(stages, zero), graph, again)
    cost = CostModel(problem)
    weights, order = order_tasks(
        cost.price_stages(stages), schedule, policy, dict(policy_options or {})
    )
    priced = cost.price_stages(stages, weights)
    program = lower_schedule(priced, order, weights)
    timeline = simulate_program(priced, program)
    position = {op.name: i for i, op in enumerate(graph.ops)}
    return Plan(
        model=PlannedModel(
            name=graph.name,
            fingerprint=graph.fingerprint,
            ops=tuple(position),
            edges=tuple(sorted({(position[e.src], position[e.dst]) for e in graph.edges})),
        ),
        cluster=cluster,
        training=wanted,
        stages=stages,
        policy=weights,
        prices=priced,
        program=tuple(str(program).split("\n")),
        prediction=Prediction(
            step_s=timeline.makespan_s,
            samples_per_s=timeline.samples_per_s,
            bubble=timeline.bubble,
            peak_bytes_by_device=tuple(peak.bytes for peak in timeline.peaks),
        ),
        bound=Bound(step_s=timeline.makespan_s, proof="by hand"),
        provenance=Provenance(
            graphplan="0", planner="by hand", schedule=schedule, costs="estimated", seed=0
        ),
    )


def share_states(stages: StageGraph, zero: Sequence[ZeroLevel]) -> StageGraph:
    """The same stages with levels of sharing, () for none."""
    shared = (
        msgspec.structs.replace(stage, zero=level)
        for stage, level in zip(stages.stages, zero or [0] * len(stages.stages), strict=True)
    )
    return msgspec.structs.replace(stages, stages=tuple(shared))


def repeat_modules(stages: StageGraph, graph: OpGraph, modules: Sequence[str]) -> StageGraph:
    """The same stages, which also recompute the ops of some modules."""
    again = {op.name for op in graph.ops if op.module.startswith(tuple(modules))}
    repeating = (
        msgspec.structs.replace(
            stage,
            recompute=stage.recompute or tuple(op for op in stage.ops if op in again),
        )
        for stage in stages.stages
    )
    return msgspec.structs.replace(stages, stages=tuple(repeating))


def order_tasks(
    priced: PricedStages, schedule: str, name: PolicyName, options: dict[str, object]
) -> tuple[WeightPolicy, Schedule]:
    """The policy with its warm-ups, and the order of one batch."""
    if name in ("flush", "local"):
        policy = WeightPolicy(name=name, **options)  # type: ignore[arg-type]
        return policy, SCHEDULES[schedule](priced)
    if any(len(hosted) > 1 for hosted in priced.stages_by_device):
        return plan_steady(priced, name)
    options = {"warmups": priced.heights, **options}
    policy = WeightPolicy(name=name, **options)  # type: ignore[arg-type]
    return policy, build_steady(priced, policy)
