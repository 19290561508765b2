"""Plans written by hand: priced stages with real-looking figures, scheduled and simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graphplan.nouns.cluster import Cluster, DeviceType, Link, Node
from graphplan.nouns.plan import (
    Bound,
    Plan,
    PlannedModel,
    Prediction,
    Provenance,
    StageLabel,
)
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.stages import Stage, StageEdge, StageGraph
from graphplan.nouns.tensor import TensorSpec
from graphplan.nouns.timeline import Timeline
from graphplan.nouns.training import Training
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.simulate.engine import simulate_program
from tests.pure.strategies import Edges, branch_edges, dag_prices

GB = 1 << 30


class Example(NamedTuple):
    """A plan with the timeline that it predicts."""

    plan: Plan
    timeline: Timeline


def make_plan_example(
    edges: Edges | None = None,
    *,
    num_micro_batches: int = 8,
    micro_batch_size: int = 4,
    num_replicas: int = 1,
    forward_s: float | Sequence[float] = 0.010,
    backward_s: float | Sequence[float] = 0.021,
    transfer_s: float = 0.0008,
    reduce_s: float = 0.004,
    ops_per_stage: int = 12,
    name: str = "two-tower",
    labels: bool = True,
) -> Example:
    """A plan in 1F1B order; two branches of two stages and a head unless edges are given."""
    edges = branch_edges(2, 2) if edges is None else edges
    num_stages = 1 + max((dst for _, dst in edges), default=0)
    placed = [tuple(range(s * num_replicas, (s + 1) * num_replicas)) for s in range(num_stages)]
    priced = dag_prices(
        edges,
        num_micro_batches,
        num_stages=num_stages,
        forward_s=forward_s,
        backward_s=backward_s,
        transfer_s=transfer_s,
        latency_s=4e-6,
        devices=placed,
        micro_batch_sizes=[micro_batch_size] * num_stages,
        reduce_s=reduce_s,
        update_s=0.002,
        fixed_bytes=22 * GB,
        saved_bytes=5 * GB,
        saved_for_weights_bytes=2 * GB,
        workspace_bytes=GB,
        memory_bytes=72 * GB,
    )
    return finish_plan(priced, ops_per_stage=ops_per_stage, name=name, labels=labels)


def finish_plan(
    priced: PricedStages, *, ops_per_stage: int = 3, name: str = "model", labels: bool = False
) -> Example:
    """Schedule and simulate priced stages, and collect a plan around them."""
    program = lower_schedule(priced, build_1f1b(priced), WeightPolicy())
    timeline = simulate_program(priced, program)
    stages = make_stages(priced, ops_per_stage)
    step_s = timeline.makespan_s
    plan = Plan(
        model=make_model(stages, name),
        cluster=make_cluster(len(priced.memory_bytes_by_device)),
        training=Training(batch_size=priced.batch_size),
        stages=stages,
        policy=WeightPolicy(),
        prices=priced,
        program=tuple(str(program).split("\n")),
        prediction=Prediction(
            step_s=step_s,
            samples_per_s=timeline.samples_per_s,
            bubble=timeline.bubble,
            peak_bytes_by_device=tuple(peak.bytes for peak in timeline.peaks),
        ),
        bound=Bound(step_s=step_s * 0.96, proof="all work on all devices plus one pipeline depth"),
        baselines={
            "data-parallel": step_s * 1.42,
            "sequential": step_s * 1.17,
            "linear": step_s * 1.05,
        },
        provenance=Provenance(
            graphplan="0.1.0", planner="graph-dp", schedule="1f1b", costs="estimated", seed=0
        ),
        labels=tuple(label_stage(s, ops_per_stage) for s in range(len(priced.stages)))
        if labels
        else (),
    )
    return Example(plan, timeline)


def make_stages(priced: PricedStages, ops_per_stage: int) -> StageGraph:
    """Stages of so many ops each; one tensor on every edge."""
    return StageGraph(
        stages=tuple(
            Stage(
                ops=tuple(f"s{s}_op{i}" for i in range(ops_per_stage)),
                devices=price.devices,
                micro_batch_size=price.micro_batch_size,
            )
            for s, price in enumerate(priced.stages)
        ),
        edges=tuple(
            StageEdge(
                src=src,
                dst=dst,
                value=f"s{src}_op{ops_per_stage - 1}",
                spec=TensorSpec(dtype="float32", shape=("b", 256, 1024)),
                needs_grad=(src, dst) in priced.backward_edges,
            )
            for src, dst in priced.edges
        ),
    )


def make_model(stages: StageGraph, name: str) -> PlannedModel:
    """A model whose ops are a chain in every stage; edges leave from a stage's last op."""
    ops = tuple(op for stage in stages.stages for op in stage.ops)
    position = {op: i for i, op in enumerate(ops)}
    inside = [
        (position[a], position[b])
        for stage in stages.stages
        for a, b in zip(stage.ops, stage.ops[1:], strict=False)
    ]
    across = [(position[e.value], position[stages.stages[e.dst].ops[0]]) for e in stages.edges]
    return PlannedModel(
        name=name, fingerprint="0123456789abcdef", ops=ops, edges=tuple(sorted(inside + across))
    )


def make_cluster(num_devices: int) -> Cluster:
    """A100 in nodes of eight."""
    kind = DeviceType(
        name="a100-80gb",
        memory_bytes=80 * GB,
        bandwidth_bytes_per_s=2.039e12,
        flops_per_s_by_dtype={"float32": 1.95e13},
    )
    sizes = [min(8, num_devices - first) for first in range(0, num_devices, 8)]
    link = Link(bandwidth_bytes_per_s=3e11, latency_s=4e-6)
    return Cluster(
        name="dgx-a100",
        types=(kind,),
        nodes=tuple(Node(devices=("a100-80gb",) * size, link=link) for size in sizes),
        link=Link(bandwidth_bytes_per_s=2.5e10, latency_s=1e-5, scope="device"),
    )


def label_stage(stage: int, num_ops: int) -> StageLabel:
    """A label as a tower of transformer layers would have."""
    return StageLabel(
        modules=(f"towers.{stage}.layers.0-3",),
        num_ops=num_ops,
        num_parameters=50_400_000,
        param_bytes=201_600_000,
    )
