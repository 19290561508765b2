"""DeepSpeed: the layer boundaries of a `PipelineModule` and the batch sizes of its config.

`parts` has one more entry than stages: stage s holds the layers parts[s] to parts[s+1] - 1 of the
list that `PipelineModule(layers=…)` is given; embedding and head count as layers of their own.
"""

from __future__ import annotations

from typing import Any

from graphplan.export.layers import split_layers
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan


def export_deepspeed(plan: Plan, graph: OpGraph) -> dict[str, Any]:
    """Partition ids, stage by layer, and the matching part of the configuration."""
    split = split_layers(plan, graph, target="deepspeed")
    parts = [0]
    for layers in split.layers_by_stage:
        parts.append(parts[-1] + len(layers))
    size = plan.stages.stages[0].micro_batch_size
    return {
        "num_stages": len(split.layers_by_stage),
        "layers": split.container,
        "parts": parts,
        "stage_by_layer": [s for s, layers in enumerate(split.layers_by_stage) for _ in layers],
        "config": {
            "train_batch_size": plan.training.batch_size,
            "train_micro_batch_size_per_gpu": size // split.replicas,
            "gradient_accumulation_steps": plan.training.batch_size // size,
        },
    }
