"""Legal plans of every shape, small, for the referee's tests to accept and to break."""

from __future__ import annotations

from functools import cache

import msgspec

from graphplan.nouns.plan import Bound, Plan, Prediction, Provenance
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import Task
from graphplan.nouns.training import Training
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.simulate.engine import predict_step
from tests.pure.plans import GB, make_cluster, make_model, make_stages
from tests.pure.strategies import branch_edges, chain_edges, dag_prices, with_buckets

replace = msgspec.structs.replace
BYTES = {
    "fixed_bytes": GB,
    "saved_bytes": 40,
    "saved_for_weights_bytes": 15,
    "workspace_bytes": 7,
    "memory_bytes": 72 * GB,
}


@cache
def legal_plans() -> dict[str, Plan]:
    """Plans by name; every rule of the referee has something to judge in at least one of them."""
    chain = _price(chain_edges(3), 4)
    branches = _price(branch_edges(2, 2), 4)
    replicas = _price(chain_edges(3), 3, devices=[(0, 1), (2,), (3, 4)], sizes=[2, 2, 2])
    buckets = add_buckets(replicas)
    shared = _price(chain_edges(4), 3, devices=[(0,), (0,), (1,), (1,)])
    mixed = _price(chain_edges(3), 2, sizes=[2, 4, 2])
    frozen = _price(branch_edges(2, 1), 4, trains=[False, True, True])
    longer = _price(chain_edges(3), 8)
    wide = _price(branch_edges(2, 1), 4, devices=[(0,), (1,), (2, 3)], sizes=[2, 2, 2])
    return {
        "chain": make_legal(chain, build_1f1b(chain)),
        "branches": make_legal(branches, build_1f1b(branches)),
        "replicas": make_legal(replicas, build_1f1b(replicas)),
        "buckets": make_legal(buckets, build_1f1b(buckets)),
        "split-buckets": make_legal(buckets, split_backwards(build_1f1b(buckets))),
        "zero": share_states(make_legal(buckets, build_1f1b(buckets))),
        "shared": make_legal(shared, build_gpipe(shared)),
        "mixed": make_legal(mixed, build_1f1b(mixed)),
        "frozen": make_legal(frozen, build_1f1b(frozen)),
        "split": make_legal(branches, split_backwards(build_1f1b(branches))),
        "stash": make_legal(
            longer, build_1f1b(longer), WeightPolicy(name="stash", warmups=(2, 1, 0))
        ),
        "2bw": make_legal(
            longer, build_1f1b(longer), WeightPolicy(name="2bw", warmups=(2, 1, 0), accumulate=2)
        ),
        "async-replicas": make_legal(
            wide, build_1f1b(wide), WeightPolicy(name="naive", warmups=(1, 1, 0))
        ),
        "local": make_legal(replicas, build_1f1b(replicas), WeightPolicy(name="local")),
    }  # fmt: skip


def share_states(plan: Plan) -> Plan:
    """The same with optimizer states of which each replica holds a share, and no byte to spare."""
    stages = tuple(
        replace(stage, zero=1 if len(stage.devices) > 1 else 0) for stage in plan.stages.stages
    )
    return replace(plan, stages=replace(plan.stages, stages=stages))


def add_buckets(priced: PricedStages) -> PricedStages:
    """The same with two buckets for every stage with replicas, which hold all of its weights."""
    stages = tuple(
        replace(
            with_buckets(price, [0.5, 1.0], [0.75, 0.5], slows=0.5, slowed=0.25),
            trained_bytes=2000,
            reduce_s=0.0,
        )
        if len(price.devices) > 1
        else price
        for price in priced.stages
    )
    return replace(priced, stages=stages)


def _price(
    edges: list[tuple[int, int]],
    num_micro_batches: int,
    *,
    devices: list[tuple[int, ...]] | None = None,
    sizes: list[int] | None = None,
    trains: list[bool] | None = None,
) -> PricedStages:
    return dag_prices(
        edges,
        num_micro_batches,
        transfer_s=0.25,
        latency_s=0.125,
        backward_s=2.0,
        reduce_s=0.5,
        update_s=0.5,
        devices=devices,
        micro_batch_sizes=sizes,
        needs_backward=trains,
        **BYTES,  # type: ignore[arg-type]
    )


def split_backwards(schedule: Schedule) -> Schedule:
    """B becomes I, and W follows one backward later."""
    lines = []
    for line in schedule.tasks_by_device:
        tasks: list[Task] = []
        late: list[Task] = []
        for task in line:
            if task.kind == "B":
                tasks += [Task(task.stage, "I", task.micro_batch), *late]
                late = [Task(task.stage, "W", task.micro_batch)]
            else:
                tasks.append(task)
        lines.append((*tasks, *late))
    return msgspec.structs.replace(schedule, tasks_by_device=tuple(lines))


def make_legal(
    priced: PricedStages, schedule: Schedule, policy: WeightPolicy | None = None
) -> Plan:
    """A plan around a schedule, predicted by the simulator."""
    policy = policy or WeightPolicy()
    program = lower_schedule(priced, schedule, policy)
    prediction: Prediction = predict_step(priced, program)
    stages = make_stages(priced, 3)
    return Plan(
        model=make_model(stages, "model"),
        cluster=make_cluster(len(priced.memory_bytes_by_device)),
        training=Training(batch_size=priced.batch_size),
        stages=stages,
        policy=policy,
        prices=priced,
        program=tuple(str(program).split("\n")),
        prediction=prediction,
        bound=Bound(step_s=prediction.step_s, proof="by hand"),
        provenance=Provenance(
            graphplan="0.1.0", planner="hand", schedule=schedule.name, costs="hand", seed=0
        ),
    )
