"""Nothing of any example is priced above the peak of a device, and nothing but views is free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphplan.captures import load_model_graph
from graphplan.cost.estimate import Estimator
from graphplan.cost.expected import find_mfu
from graphplan.cost.flops import WorkCounter
from graphplan.cost.hardware import find_cluster, find_device_type
from graphplan.cost.kinds import has_formula
from graphplan.cost.laws.price import find_rate
from graphplan.nouns.training import Training

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 1}, "gnn": {"layers": 1}, "mmt": {"layers": 1}, "clip": {"layers": 1},
    "t5": {"layers": 1},
    "dlrm": {"rows": 1000, "branches": 2}, "candle_uno": {"branches": 2}, "resnet": {}, "unet": {},
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_no_example_is_priced_above_a_peak(name: str) -> None:
    """Every pass of every op, in two precisions, on the fastest and an old device."""
    graph = load_model_graph(str(EXAMPLES / f"{name}.py"), SETTINGS[name])
    size = 8 if graph.batch == "dynamic" else graph.batch_size
    for device in map(find_device_type, ("b200", "v100-16gb")):
        for precision in ("float32", "float16"):
            counter, estimator = WorkCounter(graph, precision=precision), Estimator(device)
            for op in graph.ops:
                work = counter.count_op(op, size)
                seconds = estimator.pass_time(op, work, "forward")
                flops = sum(kernel.flops for kernel in work.forward)
                assert seconds >= flops / find_rate(device, work.dtype) * (1 - 1e-9)
                assert seconds > 0 or work.kind == "view"
    assert all(has_formula(op) for op in graph.ops)
    total = sum(
        Estimator(find_device_type("a100-80gb")).pass_time(op, work, name)
        for op in graph.ops
        for work in [WorkCounter(graph).count_op(op, size)]
        for name in ("forward", "input_grad", "weight_grad")
    )
    share = find_mfu(graph, find_cluster("dgx-a100", gpus=1), Training(batch_size=size), total)
    assert share is None or 0 < share <= 1
