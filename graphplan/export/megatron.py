"""Megatron-Core: the string for `--pipeline-model-parallel-layout`.

`E` is the embedding, `t` a transformer layer, `L` the loss, `|` ends a stage:
`Ettt|tttt|tttt|tttL`.
"""

from __future__ import annotations

from typing import Any

from graphplan.export.layers import split_layers
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan


def export_megatron(plan: Plan, graph: OpGraph) -> dict[str, Any]:
    """The layout and the sizes that go with it."""
    split = split_layers(plan, graph, target="megatron")
    stages = ["t" * len(layers) for layers in split.layers_by_stage]
    stages[0] = f"E{stages[0]}"
    stages[-1] = f"{stages[-1]}L"
    return {
        "pipeline_model_parallel_layout": "|".join(stages),
        "pipeline_model_parallel_size": len(stages),
        "data_parallel_size": split.replicas,
        "num_layers": split.num_layers,
        "micro_batch_size": plan.stages.stages[0].micro_batch_size // split.replicas,
        "global_batch_size": plan.training.batch_size,
    }
