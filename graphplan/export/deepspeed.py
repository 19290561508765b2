"""DeepSpeed: the boundaries of a `PipelineModule`, and the batch sizes of its config, as a folder.

    planned.json     entries of the list of layers, the parts of the stages, what is recomputed
    ds_config.json   for `deepspeed.initialize`
    planned.py       `PlannedPipeline`, a PipelineModule with these parts

The list that `PlannedPipeline(layers=...)` takes has one entry for all that comes before the
layers, one for each layer, and one for all behind them but the loss. Stage s holds the entries
parts[s] to parts[s+1] - 1. Pipeline rank p has the global ranks p dp to p dp + dp - 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graphplan.export.folder import fill_folder
from graphplan.export.gate import LayerPlan, pass_gate, plan_layers
from graphplan.export.targets import TARGETS
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan


def export_deepspeed(plan: Plan, graph: OpGraph, folder: Path) -> str:
    """Write the folder; returns what to do with it."""
    pass_gate(plan, TARGETS["deepspeed"], graph)
    layers = plan_layers(plan, graph)
    fill_folder(
        folder,
        {
            "planned.json": json.dumps(say_parts(layers), indent=1),
            "ds_config.json": json.dumps(say_config(plan, layers), indent=1),
        },
        copies={"planned.py": "deepspeed_module.py"},
    )
    lines = [
        f"Give your {len(layers.listed.indices) + 2} entries to PlannedPipeline of"
        f" {folder}/planned.py, and ds_config.json to deepspeed.initialize;"
        f" {layers.num_ranks * layers.replicas} ranks."
    ]
    if layers.tied:
        lines.append(
            f"Note: the first and the last entry share {', '.join(layers.tied)}: make both with"
            " deepspeed.pipe.TiedLayerSpec."
        )
    return "\n".join(lines)


def say_parts(layers: LayerPlan) -> dict[str, Any]:
    """What the module file reads."""
    parts = [0]
    for s, stage in enumerate(layers.stages):
        ends = (s == 0) + (s == len(layers.stages) - 1)
        parts.append(parts[-1] + len(stage.layers) + ends)
    return {
        "entries": ["before the layers", *layers.listed.paths, "behind the layers"],
        "parts": parts,
        "recompute": [stage.again == "stage" for stage in layers.stages],
        "replicas": layers.replicas,
    }


def say_config(plan: Plan, layers: LayerPlan) -> dict[str, Any]:
    """DeepSpeed's own configuration; optimizer and learning rate are the user's."""
    config: dict[str, Any] = {
        "train_batch_size": plan.training.batch_size,
        "train_micro_batch_size_per_gpu": layers.micro_batch_size,
        "gradient_accumulation_steps": layers.num_micro_batches,
        "zero_optimization": {"stage": layers.zero},
    }
    if plan.training.mixed:
        config["bf16" if plan.training.precision == "bfloat16" else "fp16"] = {"enabled": True}
    return config
