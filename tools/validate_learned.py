"""Validate learned costs on the models that they were not trained on.

    graphplan learn --hold-out gpt,resnet,clip,dlrm,unet,t5,bert -o build/cost.json
    python -m tools.validate_learned build/cost.json

- *search*: every held-out sample is planned twice, with its measured table and with a predicted
  one. Both plans are then priced with the measured table and simulated as they stand; the figure is
  how much longer the step of the second plan is.
- *speed*: predicting a graph of 2,000 ops, all of them different, at 8 micro-batch sizes.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from graphplan.cost.hardware import find_cluster
from graphplan.cost.model import CostModel
from graphplan.cost.predict import TablePredictor
from graphplan.cost.problem import make_problem
from graphplan.files import read_noun
from graphplan.nouns.costset import CostSample, CostSet
from graphplan.nouns.learned import LearnedCosts
from graphplan.nouns.opgraph import Input, Op, OpGraph, Weight
from graphplan.nouns.plan import Plan
from graphplan.nouns.table import ProfileTable
from graphplan.nouns.tensor import TensorSpec
from graphplan.planner.options import SearchOptions
from graphplan.planner.search import search_plan
from graphplan.simulate import simulate_program

SET = Path(__file__).resolve().parents[1] / "profiles" / "costs" / "cpu.json.gz"
NUM_OPS = 2000
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def main() -> int:
    """Print the figures of docs/learned.md."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("learned", type=Path)
    parser.add_argument("--set", type=Path, default=SET)
    parser.add_argument("--gpus", default="2,4", help="numbers of devices to plan for")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds of each search")
    options = parser.parse_args()
    learned = read_noun(options.learned, LearnedCosts)
    measure_speed(learned)
    if learned.card.held_out is None:
        print("no model was held out")
        return 2
    samples = [
        sample
        for sample in read_noun(options.set, CostSet).samples
        if sample.model in learned.card.held_out.models
    ]
    print("| model | micro-batch | devices | measured plan ms | learned plan ms | longer by |")
    print("|---|---|---|---|---|---|")
    worst = max(
        compare_plans(learned, sample, int(gpus), options.time_limit)
        for sample in samples
        for gpus in options.gpus.split(",")
    )
    print(f"worst: {worst:+.2%}")
    return 0 if worst <= 0.03 else 1


def measure_speed(learned: LearnedCosts) -> None:
    """Seconds to load a model and to predict a large graph."""
    graph = make_graph(NUM_OPS, seed=0)
    start = time.perf_counter(), time.process_time()
    predictor = TablePredictor(learned)
    loaded = time.perf_counter(), time.process_time()
    predictor.predict(graph, learned.devices[0].plain, batch_sizes=SIZES)
    done = time.perf_counter(), time.process_time()
    for what, a, b in (("loading", start, loaded), ("predicting", loaded, done)):
        print(f"{what}: {b[0] - a[0]:.2f} s on the clock, {b[1] - a[1]:.2f} s of the processor")
    print(f"({len(graph.ops):,} different ops at {len(SIZES)} sizes)", flush=True)


def make_graph(num_ops: int, *, seed: int) -> OpGraph:
    """A chain of products, norms, activations and sums, no two of the same size."""
    rng = random.Random(seed)
    widths = [rng.randint(64, 4096) for _ in range(num_ops // 4)]
    ops: list[Op] = []
    weights: list[Weight] = []
    value, width = "x", 512
    for i, wide in enumerate(widths):
        weights += [
            _weight(f"w{i}", (wide, width)), _weight(f"n{i}", (wide,)), _weight(f"m{i}", (wide,)),
        ]  # fmt: skip
        calls = (
            ("linear", "aten.linear.default(%0, @0)", (value,), (f"w{i}",)),
            ("layer_norm", f"aten.layer_norm.default(%0, [{wide}], @0, @1)", (f"linear_{i}",),
             (f"n{i}", f"m{i}")),
            ("gelu", "aten.gelu.default(%0)", (f"layer_norm_{i}",), ()),
            ("add", "aten.add.Tensor(%0, %1)", (f"gelu_{i}", f"linear_{i}"), ()),
        )  # fmt: skip
        for kind, call, inputs, held in calls:
            ops.append(
                Op(
                    name=f"{kind}_{i}",
                    target=call.partition("(")[0],
                    call=call,
                    inputs=inputs,
                    weights=held,
                    output=TensorSpec(dtype="float32", shape=("b", wide)),
                    needs_backward=True,
                )
            )
        value, width = f"add_{i}", wide
    return OpGraph(
        name="chain",
        batch="dynamic",
        batch_size=2,
        inputs=(Input(name="x", path="x", spec=TensorSpec(dtype="float32", shape=("b", 512))),),
        weights=tuple(weights),
        ops=tuple(ops),
        outputs=(value,),
    )


def _weight(name: str, shape: tuple[int, ...]) -> Weight:
    return Weight(
        name=name, kind="parameter", spec=TensorSpec(dtype="float32", shape=shape), trainable=True
    )


def compare_plans(
    learned: LearnedCosts, sample: CostSample, gpus: int, time_limit_s: float
) -> float:
    """How much longer the plan of predicted costs takes, by the measured table."""
    cluster = find_cluster("cpu", gpus=gpus)
    sizes = sample.table.batch_sizes
    options = SearchOptions(
        batch_size=8 * sizes[-1],
        micro_batch_sizes=sizes,
        time_limit_s=time_limit_s,
        baselines=False,
    )
    predicted = TablePredictor(learned).predict(sample.graph, cluster.types[0], batch_sizes=sizes)
    steps = []
    for table in (sample.table, predicted):
        plan = search_plan(sample.graph, cluster, options, tables={cluster.types[0].name: table})
        steps.append(simulate_with(plan, sample.graph, sample.table))
    longer = steps[1] / steps[0] - 1
    told = " ".join(map(str, sizes))
    print(
        f"| {sample.model} | {told} | {gpus} | {steps[0] * 1e3:.2f} | {steps[1] * 1e3:.2f} |"
        f" {longer:+.2%} |",
        flush=True,
    )
    return longer


def simulate_with(plan: Plan, graph: OpGraph, table: ProfileTable) -> float:
    """Seconds of a step of a plan as it stands, priced with another table."""
    problem = make_problem(
        graph,
        {plan.cluster.types[0].name: table},
        plan.cluster,
        plan.training,
        [stage.ops for stage in plan.stages.stages],
        micro_batch_sizes=sorted({stage.micro_batch_size for stage in plan.stages.stages}),
    )
    priced = CostModel(problem).price_stages(plan.stages, plan.policy)
    return simulate_program(priced, plan.parse_program()).makespan_s


if __name__ == "__main__":
    raise SystemExit(main())
