"""torchtitan: names of model parts, the order of the micro-batches, degrees, as a folder.

    planned.json   what the plan says
    schedule.csv   the order, as torch's pipeline runtime reads it
    planned.py     a config for `torchrun ... -m torchtitan.train --module planned --config planned`

torchtitan's transformers call their parts tok_embeddings, layers.0, layers.1, ..., norm, lm_head;
a plan of another code's model of the same layers is said in these names. Its loop puts stage s on
pipeline rank s mod pp, with global ranks p dp to p dp + dp - 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from graphplan.export.folder import fill_folder
from graphplan.export.gate import LayerPlan, pass_gate, plan_layers
from graphplan.export.order import read_order
from graphplan.export.targets import TARGETS
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.schedule import Schedule
from graphplan.schedule.torchtext import format_torch_csv

BEFORE, AFTER = ("tok_embeddings",), ("norm", "lm_head")


def export_torchtitan(plan: Plan, graph: OpGraph, folder: Path) -> str:
    """Write the folder; returns what to do with it."""
    pass_gate(plan, TARGETS["torchtitan"], graph)
    layers = plan_layers(plan, graph)
    said = say_torchtitan(plan, layers)
    fill_folder(
        folder,
        {
            "planned.json": json.dumps(said, indent=1),
            "schedule.csv": format_torch_csv(rank_order(plan, layers)),
        },
        copies={"planned.py": "torchtitan_config.py"},
    )
    lines = [
        "Run it with: TORCHTITAN_BASE=llama3:llama3_8b PYTHONPATH=. torchrun --nproc-per-node"
        " ... -m torchtitan.train --module planned --config planned, in that folder and with your"
        f" model; {layers.num_ranks * layers.replicas} ranks."
    ]
    if said["recompute"] == "full":
        lines.append("Note: every layer is recomputed for itself, embedding and head are not.")
    return "\n".join(lines)


def say_torchtitan(plan: Plan, layers: LayerPlan) -> dict[str, Any]:
    """The part of torchtitan's configuration that a plan decides."""
    parts = [[f"layers.{layer}" for layer in stage.layers] for stage in layers.stages]
    parts[0] = [*BEFORE, *parts[0]]
    parts[-1] = [*parts[-1], *AFTER]
    again = any(stage.again_layers for stage in layers.stages)
    return {
        "num_layers": len(layers.listed.indices),
        "num_ranks": layers.num_ranks * layers.replicas,
        "recompute": "full" if again else "none",
        "parallelism": {
            "pipeline_parallel_degree": layers.num_ranks,
            "module_fqns_per_model_part": parts,
            "pipeline_parallel_microbatch_size": layers.micro_batch_size,
            "data_parallel_replicate_degree": 1 if layers.zero else layers.replicas,
            "data_parallel_shard_degree": layers.replicas if layers.zero else 1,
            "fsdp_reshard_after_forward": "always" if layers.zero == 3 else "never",
        },
        "training": {
            "local_batch_size": plan.training.batch_size // layers.replicas,
            "global_batch_size": plan.training.batch_size,
            "dtype": "bfloat16" if _is_pure(plan) else "float32",
            "mixed_precision_param": plan.training.precision,
        },
    }


def _is_pure(plan: Plan) -> bool:
    return plan.training.precision == "bfloat16" and not plan.training.mixed


def rank_order(plan: Plan, layers: LayerPlan) -> Schedule:
    """The order of every pipeline rank; its replicas have the same one."""
    order = read_order(plan)
    return msgspec.structs.replace(order, tasks_by_device=order.tasks_by_device[:: layers.replicas])
